#include "model/system.h"

#include <omp.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "data/cache.h"
#include "strata/cpu.h"
#include "strata/host.h"
#include "torch/run_on_device.h"

namespace strata {

void set_threads(int64_t threads) {
  const int count = static_cast<int>(threads > 0 ? threads : std::max(1U, std::thread::hardware_concurrency()));
  torch::set_num_threads(count);
  omp_set_num_threads(count);  // torch may load an OpenMP of its own
}

Json versions() {
  return {{"strata", STRATA_VERSION}, {"torch", TORCH_VERSION}, {"instruction_set", isa_name(current_isa())}};
}

Json system_info() {
  Json info = versions();
  info["instruction_sets"] = Json::array();
  for (const Isa isa : supported_isas()) info["instruction_sets"].push_back(isa_name(isa));
  const HostCpu& cpu = host_cpu();
  info["cpu"] = cpu.name;
  const std::string unused = cpu.amx_usable ? "not used by torch: " : "not used: ";
  info["amx"] = !cpu.amx ? "no" : cpu.amx_problem.empty() ? "yes" : unused + cpu.amx_problem;
  info["openblas"] = openblas_core();
  info["settings"] = Json::object();
  for (const char* name :
       {"ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE", "STRATA_ISA", "STRATA_CUDA_KERNELS", "STRATA_HUGE_PAGES"}) {
    if (const char* value = std::getenv(name)) info["settings"][name] = value;
  }
  info["cores"] = std::thread::hardware_concurrency();
  info["memory_gigabytes"] =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE)) / 1e9;
  info["devices"] = {"cpu"};
  if (built_with_cuda() && torch::cuda::is_available()) {
    info["devices"].push_back("cuda");
    info["gpu"] = gpu_name();
    info["kernels"] = Json::array();
    for (const KernelsInUse& k : gpu_kernels())
      info["kernels"].push_back({{"problem", k.problem}, {"forward", k.forward}, {"backward", k.backward}});
  }
  info["torch_sees_cuda"] = torch::cuda::is_available();
  info["cache"] = find_cache_folder().string();
  return info;
}

}  // namespace strata
