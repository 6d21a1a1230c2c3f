#include <fmt/format.h>
#include <fmt/ranges.h>

#include "bind.h"
#include "commands.h"
#include "model/system.h"
#include "util/common_options.h"

namespace strata {

namespace {

struct InfoState {
  OptionTable table;
  bool json = false;
};

void run_info(bool json) {
  const Json info = system_info();
  if (json) return fmt::print("{}\n", info.dump(2));
  fmt::print("strata           {}\n", info["strata"].get<std::string>());
  fmt::print("torch            {}\n", info["torch"].get<std::string>());
  fmt::print("instruction sets {}, in use {}\n",
             fmt::join(info["instruction_sets"].get<std::vector<std::string>>(), ", "),
             info["instruction_set"].get<std::string>());
  fmt::print("cpu              {}\n", info["cpu"].get<std::string>());
  fmt::print("AMX              {}\n", info["amx"].get<std::string>());
  const auto blas = info["openblas"].get<std::string>();
  fmt::print("BLAS             {}\n", blas.empty() ? "not OpenBLAS" : "OpenBLAS with kernels for " + blas);
  for (const auto& [name, value] : info["settings"].items())
    fmt::print("setting          {}={}\n", name, value.get<std::string>());
  fmt::print("cores            {}\n", info["cores"].get<int>());
  fmt::print("memory           {:.1f} GB\n", info["memory_gigabytes"].get<double>());
  fmt::print("devices          cpu{}\n", info.contains("gpu") ? ", cuda (" + info["gpu"].get<std::string>() + ")"
                                         : info["torch_sees_cuda"].get<bool>()
                                             ? "; this build has no CUDA kernels for the GPU that torch sees"
                                             : "");
  if (info.contains("kernels")) {
    for (const Json& k : info["kernels"])
      fmt::print("bfloat16 kernels {}: {} forward, {} backward\n", k["problem"].get<std::string>(),
                 k["forward"].get<std::string>(), k["backward"].get<std::string>());
  }
  const auto cache = info["cache"].get<std::string>();
  fmt::print("cache            {}\n", cache.empty() ? "none: neither HOME nor XDG_CACHE_HOME is set" : cache);
}

}  // namespace

void add_info_command(CLI::App& app) {
  auto state = std::make_shared<InfoState>();
  CLI::App* command = app.add_subcommand("info", "Versions, instruction sets, devices, threads");
  declare_json(state->table, state->json);
  command->footer(examples("  strata info\n  strata info --json"));
  bind_command(*command, state->table, [state] { run_info(state->json); });
}

}  // namespace strata
