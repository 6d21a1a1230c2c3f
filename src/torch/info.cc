// What the libraries know of this machine, for `python -m strata.info`.
#include <string>

#include "strata/cpu.h"
#include "strata/host.h"
#include "torch/run_on_device.h"

namespace strata {
namespace {

std::string describe() {
  std::string lines;
  auto add = [&lines](const std::string& name, const std::string& value) { lines += name + "\t" + value + "\n"; };
  add("cpu", host_cpu().name);
  for (const Isa isa : supported_isas()) add("instruction set", isa_name(isa));
  add("instruction set in use", isa_name(current_isa()));
  const HostCpu& cpu = host_cpu();
  const std::string unused = cpu.amx_usable ? "not used by torch: " : "not used: ";
  add("amx", !cpu.amx ? "no" : cpu.amx_problem.empty() ? "yes" : unused + cpu.amx_problem);
  add("openblas", openblas_core());
  add("cuda kernels", built_with_cuda() ? "yes" : "no");
  for (const KernelsInUse& k : gpu_kernels()) add("kernels", k.problem + "\t" + k.forward + "\t" + k.backward);
  return lines;
}

}  // namespace
}  // namespace strata

// Lines of a name and its values, separated by tabs. The text lives until the next call on the same thread.
extern "C" STRATA_API const char* strata_info() {
  thread_local std::string lines;
  lines = strata::describe();
  return lines.c_str();
}
