// How the tests run streaming HSA on the GPU, and the cases they add to the table of the CPU.
#pragma once

#include "cases/hsa_stream_case.h"
#include "cuda/device.h"

namespace strata::test {

// The problem with twins of all arrays of the data.
template <class S>
HsaStreamProblem on_gpu(StreamData<S>& d, Mirror& mirror) {
  for (auto* list : {&d.q, &d.k, &d.dq, &d.dk})
    for (Array<S>& array : *list) mirror.add(array);
  for (Array<S>* array : {&d.v, &d.out, &d.dout, &d.dv}) mirror.add(*array);
  for (auto* array : {&d.level_weights, &d.dlevel_weights, &d.lse, &d.dlse, &d.weights, &d.dweights, &d.key_bias,
                      &d.dkey_bias, &d.positions, &d.dpositions})
    mirror.add(*array);
  for (std::vector<int64_t>& begins : d.packed.begins) mirror.add(begins.data(), begins.size() * sizeof(int64_t));
  if (d.spec.is_packed()) mirror.add(d.spec.lengths.data(), d.spec.lengths.size() * sizeof(int64_t));
  mirror.add(d.dropout_state, sizeof d.dropout_state);
  HsaStreamProblem p = d.problem();
  p.lengths = mirror.translate(p.lengths);
  p.dropout.state = mirror.translate(p.dropout.state);
  for (int l = 0; l < p.levels; ++l) mirror.translate_view(p.q[l]), mirror.translate_view(p.k[l]);
  for (ConstView* view : {&p.v, &p.weights, &p.key_bias}) mirror.translate_view(*view);
  p.level_weights = mirror.translate(static_cast<const char*>(p.level_weights));
  p.positions = mirror.translate(static_cast<const char*>(p.positions));
  return p;
}

template <class S>
void run_on_gpu(StreamData<S>& d) {
  Mirror mirror;
  const HsaStreamProblem p = on_gpu(d, mirror);
  HsaStreamOutputs o = d.outputs();
  HsaStreamGradients g = d.gradients();
  for (int l = 0; l < p.levels; ++l) mirror.translate_view(g.dq[l]), mirror.translate_view(g.dk[l]);
  mirror.translate_view(g.dout);
  for (View* view : {&o.out, &g.dv, &g.dkey_bias, &g.dweights}) mirror.translate_view(*view);
  g.dlevel_weights = mirror.translate(static_cast<char*>(g.dlevel_weights));
  o.lse = mirror.translate(static_cast<char*>(o.lse));
  g.dlse = mirror.translate(static_cast<const char*>(g.dlse));
  g.dpositions = mirror.translate(static_cast<char*>(g.dpositions));
  const Status forward = cuda::hsa_stream_forward(p, o, mirror.scratch(cuda::hsa_stream_forward_workspace(p)), nullptr);
  ASSERT_TRUE(forward.ok()) << forward.message();
  const Status backward =
      cuda::hsa_stream_backward(p, o, g, mirror.scratch(cuda::hsa_stream_backward_workspace(p)), nullptr);
  ASSERT_TRUE(backward.ok()) << backward.message();
  expect_cuda(cudaDeviceSynchronize());
  for (auto* list : {&d.dq, &d.dk})
    for (Array<S>& array : *list) mirror.fetch(array);
  for (Array<S>* array : {&d.out, &d.dv}) mirror.fetch(*array);
  for (auto* array : {&d.dlevel_weights, &d.lse, &d.dkey_bias, &d.dpositions, &d.dweights}) mirror.fetch(*array);
}

// What the table of the CPU has too little of: rows the tensor-core kernels take, and queries shared by many blocks.
inline std::vector<StreamCase> stream_gpu_cases() {
  std::vector<StreamCase> cases = stream_cases();
  cases.push_back({"gpu_b16_long", 1, 1, 2500, 16, 64, 64});
  cases.push_back({"gpu_all_terms", 2, 2, 333, 16, 64, 32, true, true, true});
  cases.push_back({"gpu_binary", 1, 2, 300, 2, 32, 32, true, true, true});
  cases.push_back({"gpu_b20_crosses_tiles", 2, 1, 900, 20, 16, 16, true, true, true});
  cases.push_back({"gpu_b64", 1, 1, 2600, 64, 32, 64, false, true, true});
  cases.push_back({"gpu_wide_heads", 1, 2, 400, 8, 128, 96, true, true, true});
  cases.push_back({"gpu_token_major", 2, 3, 130, 16, 64, 64, false, false, true, Memory::kTokenMajor});
  const Memory dense = Memory::kDense;
  for (const StreamCase& c : strata_stream_cases()) cases.push_back(c);
  for (const StreamCase& c : stream_argument_cases()) cases.push_back(c);
  cases.push_back(
      {"gpu_packed", 4, 4, 1500, 16, 64, 64, false, false, false, dense, 2, 3, 2, false, {1500, 7, 0, 300}});
  cases.push_back(
      {"gpu_packed_both_sides", 3, 2, 700, 16, 64, 64, true, true, true, dense, 2, 3, 0, true, {100, 700, 33}});
  cases.push_back({"gpu_packed_levels8", 2, 1, 400, 16, 32, 64, false, true, false, dense, 2, 8, 0, false, {130, 400}});
  cases.push_back({"gpu_dropout", 1, 4, 900, 16, 64, 64, false, false, false, dense, 2, 3, 2, false, {}, 0.1});
  cases.push_back(
      {"gpu_dropout_b64", 2, 1, 500, 64, 64, 64, false, false, true, dense, 1, 1, 0, true, {500, 200}, 0.3});
  cases.push_back({"gpu_near2_long", 1, 1, 2500, 16, 64, 64, false, false, false, dense, 2});
  cases.push_back({"gpu_near3_all_terms", 2, 2, 333, 16, 64, 32, true, true, true, dense, 3});
  cases.push_back({"gpu_levels3_long", 1, 1, 2500, 16, 64, 64, false, false, false, dense, 2, 3});
  cases.push_back({"gpu_levels5_all_terms", 2, 2, 333, 8, 64, 64, true, true, true, dense, 2, 5});
  cases.push_back({"gpu_levels8", 1, 2, 700, 16, 32, 64, true, true, false, dense, 2, 8});
  cases.push_back({"gpu_levels8_wide", 1, 1, 500, 4, 128, 128, false, true, true, dense, 2, 8});
  cases.push_back({"gpu_levels3_wide", 1, 2, 400, 16, 128, 96, true, true, true, dense, 2, 3});
  cases.push_back({"gpu_b20_levels", 1, 1, 900, 20, 16, 16, true, true, true, dense, 2, 4});
  cases.push_back({"gpu_b3_levels", 1, 1, 611, 3, 16, 16, true, true, true, dense, 3, 6});
  cases.push_back({"gpu_near_without_end", 1, 1, 1500, 16, 32, 32, false, false, false, dense, 100000, 3});
  cases.push_back({"gpu_grouped", 2, 6, 300, 16, 64, 64, true, true, true, dense, 2, 3, 2});
  cases.push_back({"gpu_one_key_head", 1, 8, 700, 16, 64, 64, false, false, false, dense, 2, 1, 1});
  cases.push_back({"gpu_both_sides", 1, 2, 1300, 16, 64, 64, false, false, false, dense, 2, 1, 0, true});
  cases.push_back({"gpu_both_sides_all", 2, 4, 333, 16, 64, 32, true, true, true, dense, 2, 3, 2, true});
  cases.push_back({"gpu_both_sides_b5", 1, 1, 410, 5, 16, 16, true, true, true, dense, 1, 4, 0, true});
  return cases;
}

}  // namespace strata::test
