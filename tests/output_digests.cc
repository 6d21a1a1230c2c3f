// Prints one line per case, device, kernels and storage type: a digest of every output and gradient. Two builds whose
// lists agree compute the same bits; CONTRIBUTING.md says when to compare them.
//
//   output_digests [hkt|hsa|stream]
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "cases/hkt_plain.h"
#include "cases/hsa_cases.h"
#include "cases/hsa_stream_case.h"
#include "strata/cpu.h"
#ifdef STRATA_TEST_CUDA
#include "cuda/hkt_on_gpu.h"
#include "cuda/hsa_on_gpu.h"
#include "cuda/hsa_stream_on_gpu.h"
#endif

namespace strata::test {
namespace {

// FNV-1a of an array's bytes.
template <class S>
unsigned long long digest(const Array<S>& array) {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto* bytes = reinterpret_cast<const unsigned char*>(array.raw().data());
  for (size_t i = 0; i < array.raw().size() * sizeof(S); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3u;
  return hash;
}

// f(name, array) for every output and gradient.
template <class S, class F>
void each_array(const HktData<S>& d, const F& f) {
  const bool with_bias = d.spec.bias == BiasKind::kFull;  // CUDA computes no other gradient of a bias
  each_result(d, d, with_bias, [&](const std::string& name, const auto& array, const auto&) { f(name, array); });
}
template <class S, class F>
void each_array(const HsaData<S>& d, const F& f) {
  each_hsa_result(d, d, [&](const char* name, const auto& array, const auto&) { f(name, array); });
}
template <class S, class F>
void each_array(const StreamData<S>& d, const F& f) {
  d.each_result(d, [&](const char* name, const auto& array, const auto&) { f(name, array); });
}

template <class S>
void run_on_cpu(HktData<S>& d) {
  ASSERT_TRUE(hkt_forward(d.problem(), d.outputs()).ok());
  ASSERT_TRUE(hkt_backward(d.problem(), d.outputs(), d.gradients()).ok());
}
template <class S>
void run_on_cpu(HsaData<S>& d) {
  ASSERT_TRUE(hsa_forward(d.problem(), d.outputs()).ok());
  ASSERT_TRUE(hsa_backward(d.problem(), d.gradients()).ok());
}
template <class S>
void run_on_cpu(StreamData<S>& d) {
  ASSERT_TRUE(hsa_stream_forward(d.problem(), d.outputs()).ok());
  ASSERT_TRUE(hsa_stream_backward(d.problem(), d.outputs(), d.gradients()).ok());
}

template <class Data, class Case, class Run>
void print(const char* mechanism, const Case& spec, const std::string& where, const char* type, const Run& run) {
  Data data(spec);
  run(data);
  std::printf("%s %s %s %s", mechanism, where.c_str(), type, spec.name.c_str());
  each_array(data, [](const std::string& name, const auto& array) {
    std::printf(" %s=%016llx", name.c_str(), digest(array));
  });
  std::printf("\n");
}

// Data: HktData, HsaData or StreamData.
template <template <class> class Data, class Case>
void print_cpu(const char* mechanism, const std::vector<Case>& cases) {
  const auto run = [](auto& data) { run_on_cpu(data); };
  for (const Isa isa : supported_isas()) {
    if (!set_isa(isa).ok()) continue;
    const std::string where = std::string("cpu:") + isa_name(isa);
    for (const Case& spec : cases) {
      print<Data<double>>(mechanism, spec, where, "float64", run);
      print<Data<float>>(mechanism, spec, where, "float32", run);
      print<Data<BFloat16>>(mechanism, spec, where, "bfloat16", run);
    }
  }
}

#ifdef STRATA_TEST_CUDA
template <template <class> class Data, class Case>
void print_cuda(const char* mechanism, const std::vector<Case>& cases) {
  if (const Status gpu = cuda::available(); !gpu.ok()) {
    std::fprintf(stderr, "CUDA skipped: %s\n", gpu.message().c_str());
    return;
  }
  const auto run = [](auto& data) { run_on_gpu(data); };
  for (const Case& spec : cases) {
    for (const int kernels : {0, 1, 2}) {
      cuda::set_kernels(static_cast<cuda::Kernels>(kernels));
      const std::string where = "cuda:kernels" + std::to_string(kernels);
      print<Data<BFloat16>>(mechanism, spec, where, "bfloat16", run);
      print<Data<Float16>>(mechanism, spec, where, "float16", run);
    }
    cuda::set_kernels(cuda::Kernels::kSm90);
    for (const int bytes : kSharedMemoryOfChips) {
      const SharedMemoryLimit limit(bytes);
      print<Data<BFloat16>>(mechanism, spec, "cuda:" + std::to_string(bytes), "bfloat16", run);
    }
    print<Data<float>>(mechanism, spec, "cuda", "float32", run);
    print<Data<double>>(mechanism, spec, "cuda", "float64", run);
  }
}
#endif

int print_all(const std::string& only) {
  const auto wanted = [&](const char* name) { return only.empty() || only == name; };
  if (wanted("hkt")) print_cpu<HktData>("hkt", hkt_cases());
  if (wanted("hsa")) print_cpu<HsaData>("hsa", hsa_cases());
  if (wanted("stream")) print_cpu<StreamData>("stream", stream_cases());
#ifdef STRATA_TEST_CUDA
  if (wanted("hkt")) print_cuda<HktData>("hkt", hkt_gpu_cases());
  if (wanted("hsa")) print_cuda<HsaData>("hsa", hsa_gpu_cases());
  if (wanted("stream")) print_cuda<StreamData>("stream", stream_gpu_cases());
#endif
  return testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed() ? 1 : 0;
}

}  // namespace
}  // namespace strata::test

int main(int argc, char** argv) { return strata::test::print_all(argc > 1 ? argv[1] : ""); }
