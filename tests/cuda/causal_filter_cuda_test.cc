// The causal filter on the GPU: the CPU's table of cases, against the definition.
#include "cases/causal_filter_case.h"
#include "cases/hkt_plain.h"
#include "cuda/device.h"

namespace strata::test {
namespace {

template <class S>
void run_on_gpu(FilterData<S>& d) {
  Mirror mirror;
  for (Array<S>* array : {&d.x, &d.dx, &d.y, &d.dy, &d.weight, &d.dweight}) mirror.add(*array);
  CausalFilter f = d.problem();
  f.x = mirror.translate(d.x.data()), f.weight = mirror.translate(d.weight.data());
  const Status forward = cuda::causal_filter_forward(f, mirror.translate(d.y.data()), nullptr);
  ASSERT_TRUE(forward.ok()) << forward.message();
  const CausalFilterGradients g{mirror.translate(d.dy.data()), mirror.translate(d.dx.data()),
                                mirror.translate(d.dweight.data())};
  const Status backward =
      cuda::causal_filter_backward(f, g, mirror.scratch(cuda::causal_filter_backward_workspace(f)), nullptr);
  ASSERT_TRUE(backward.ok()) << backward.message();
  expect_cuda(cudaDeviceSynchronize());
  for (Array<S>* array : {&d.dx, &d.y, &d.dweight}) mirror.fetch(*array);
}

template <class S>
void expect_defined(const FilterCase& spec, double tolerance) {
  FilterData<S> got(spec), again(spec);
  run_on_gpu(got);
  run_on_gpu(again);
  FilterData<double> want(spec);
  want.copy_inputs_from(got);
  want.define();
  got.each_result(want, [&](const char* name, const auto& a, const auto& b) {
    EXPECT_LE(relative_error(a, b), tolerance) << name << " of " << spec.name;
  });
  got.each_result(again, [&](const char* name, const auto& a, const auto& b) {
    EXPECT_EQ(std::memcmp(a.raw().data(), b.raw().data(), a.raw().size() * sizeof(a.raw()[0])), 0) << name;
  });
}

TEST(CausalFilterCuda, EveryDepthwiseCase) {
  STRATA_NEEDS_GPU();
  for (const FilterCase& spec : filter_cases()) {
    if (spec.dense) continue;
    expect_defined<double>(spec, 1e-14);
    expect_defined<float>(spec, 2e-6);
    expect_defined<BFloat16>(spec, 5e-3);
    expect_defined<Float16>(spec, 7e-4);
  }
}

TEST(CausalFilterCuda, DenseFiltersAreRefused) {
  STRATA_NEEDS_GPU();
  FilterData<float> d({"dense", 1, 4, 2, 3, 2, true});
  EXPECT_NE(cuda::causal_filter_forward(d.problem(), d.y.data(), nullptr).message().find("dense: expected false"),
            std::string::npos);
}

}  // namespace
}  // namespace strata::test
