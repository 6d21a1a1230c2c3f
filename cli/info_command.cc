#include <fmt/format.h>
#include <fmt/ranges.h>

#include "commands.h"
#include "train/system.h"

namespace strata {

void add_info_command(CLI::App& app) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("info", "Versions, instruction sets, devices, threads");
  command->add_flag("--json", *json, "Print JSON");
  command->callback([json] {
    const Json info = system_info();
    if (*json) return fmt::print("{}\n", info.dump(2));
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
    fmt::print("cache            {}\n", info["cache"].get<std::string>());
  });
}

}  // namespace strata
