#include <fmt/format.h>
#include <torch/torch.h>
#include <unistd.h>

#include <thread>

#include "commands.h"
#include "data/cache.h"
#include "strata/cpu.h"
#include "train/setup.h"

namespace strata {
namespace {

Json gather() {
  Json info = versions();
  info["instruction_sets"] = Json::array();
  for (const Isa isa : supported_isas()) info["instruction_sets"].push_back(isa_name(isa));
  info["cores"] = std::thread::hardware_concurrency();
  info["memory_gigabytes"] = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE)) / 1e9;
  info["devices"] = {"cpu"};
  info["torch_sees_cuda"] = torch::cuda::is_available();
  info["cache"] = cache_folder().string();
  return info;
}

}  // namespace

void add_info_command(CLI::App& app) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("info", "Versions, instruction sets, devices, threads");
  command->add_flag("--json", *json, "Print JSON");
  command->callback([json] {
    const Json info = gather();
    if (*json) return fmt::print("{}\n", info.dump(2));
    fmt::print("strata           {}\n", info["strata"].get<std::string>());
    fmt::print("torch            {}\n", info["torch"].get<std::string>());
    fmt::print("instruction sets {}, in use {}\n", fmt::join(info["instruction_sets"].get<std::vector<std::string>>(), ", "),
               info["instruction_set"].get<std::string>());
    fmt::print("cores            {}\n", info["cores"].get<int>());
    fmt::print("memory           {:.1f} GB\n", info["memory_gigabytes"].get<double>());
    fmt::print("devices          cpu{}\n", info["torch_sees_cuda"].get<bool>() ? " (a GPU is here; this build has no kernels for it)" : "");
    fmt::print("cache            {}\n", info["cache"].get<std::string>());
  });
}

}  // namespace strata
