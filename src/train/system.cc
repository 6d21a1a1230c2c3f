#include "train/system.h"

#include <omp.h>
#include <torch/torch.h>
#include <unistd.h>

#include <thread>

#include "data/cache.h"
#include "strata/cpu.h"
#include "torch/run_on_device.h"

namespace strata {

void set_threads(int64_t threads) {
  const int count = static_cast<int>(threads > 0 ? threads : std::max(1U, std::thread::hardware_concurrency()));
  torch::set_num_threads(count);
  omp_set_num_threads(count);  // torch may bring an OpenMP of its own
}

Json versions() {
  return {{"strata", STRATA_VERSION}, {"torch", TORCH_VERSION}, {"instruction_set", isa_name(current_isa())}};
}

Json system_info() {
  Json info = versions();
  info["instruction_sets"] = Json::array();
  for (const Isa isa : supported_isas()) info["instruction_sets"].push_back(isa_name(isa));
  info["cores"] = std::thread::hardware_concurrency();
  info["memory_gigabytes"] =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE)) / 1e9;
  info["devices"] = {"cpu"};
  if (built_with_cuda() && torch::cuda::is_available()) info["devices"].push_back("cuda");
  info["torch_sees_cuda"] = torch::cuda::is_available();
  info["cache"] = cache_folder().string();
  return info;
}

}  // namespace strata
