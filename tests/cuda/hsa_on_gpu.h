// How the tests run HSA on the GPU, and the cases they add to the table of the CPU.
#pragma once

#include <optional>

#include "cases/hsa_cases.h"
#include "cuda/device.h"

namespace strata::test {

// A stream of its own, and a graph that is recorded in it and run once.
struct Recording {
  cudaStream_t stream = nullptr;
  Recording() {
    expect_cuda(cudaStreamCreate(&stream));
    expect_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  }
  ~Recording() { cudaStreamDestroy(stream); }
  void run() {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t recorded = nullptr;
    expect_cuda(cudaStreamEndCapture(stream, &graph));
    expect_cuda(cudaGraphInstantiate(&recorded, graph, 0));
    expect_cuda(cudaGraphLaunch(recorded, stream));
    expect_cuda(cudaStreamSynchronize(stream));
    cudaGraphExecDestroy(recorded);
    cudaGraphDestroy(graph);
  }
};

// in_graph: forward and backward are recorded first, as a training step is.
template <class S>
void run_on_gpu(HsaData<S>& d, bool in_graph = false) {
  Mirror mirror;
  for (auto* list : {&d.q, &d.k, &d.dq, &d.dk})
    for (Array<S>& array : *list) mirror.add(array);
  for (Array<S>* array : {&d.v, &d.out, &d.dout, &d.dv}) mirror.add(*array);
  for (auto* array : {&d.level_weights, &d.dlevel_weights, &d.weights, &d.dweights, &d.key_bias, &d.dkey_bias,
                      &d.positions, &d.dpositions, &d.score, &d.dscore})
    mirror.add(*array);
  HsaProblem p = d.problem();
  HsaOutputs o = d.outputs();
  HsaGradients g = d.gradients();
  for (int l = 0; l < p.levels; ++l) {
    mirror.translate_view(p.q[l]), mirror.translate_view(p.k[l]);
    mirror.translate_view(g.dq[l]), mirror.translate_view(g.dk[l]);
  }
  p.level_weights = mirror.translate(static_cast<const char*>(p.level_weights));
  g.dlevel_weights = mirror.translate(static_cast<char*>(g.dlevel_weights));
  for (ConstView* view : {&p.v, &p.weights, &p.key_bias, &g.dout}) mirror.translate_view(*view);
  for (View* view : {&o.out, &g.dv, &g.dweights, &g.dkey_bias}) mirror.translate_view(*view);
  p.positions = mirror.translate(static_cast<const char*>(p.positions));
  o.score = mirror.translate(static_cast<char*>(o.score));
  g.dscore = mirror.translate(static_cast<const char*>(g.dscore));
  g.dpositions = mirror.translate(static_cast<char*>(g.dpositions));
  cuda::HsaPlan plan;
  ASSERT_TRUE(cuda::hsa_plan(p, &plan).ok());
  mirror.add(plan.numbers.data(), plan.numbers.size() * sizeof(int32_t));
  const int32_t* numbers = mirror.translate(plan.numbers.data());
  void* const forward_memory = mirror.scratch(cuda::hsa_forward_workspace(p, plan));
  void* const backward_memory = mirror.scratch(cuda::hsa_backward_workspace(p, plan));
  expect_cuda(cudaDeviceSynchronize());
  std::optional<Recording> recording;
  if (in_graph) recording.emplace();
  const cudaStream_t stream = in_graph ? recording->stream : nullptr;
  const Status forward = cuda::hsa_forward(p, plan, numbers, o, forward_memory, stream);
  ASSERT_TRUE(forward.ok()) << forward.message();
  const Status backward = cuda::hsa_backward(p, plan, numbers, g, backward_memory, stream);
  ASSERT_TRUE(backward.ok()) << backward.message();
  if (in_graph) recording->run();
  expect_cuda(cudaDeviceSynchronize());
  for (auto* list : {&d.dq, &d.dk})
    for (Array<S>& array : *list) mirror.fetch(array);
  for (Array<S>* array : {&d.out, &d.dv}) mirror.fetch(*array);
  for (auto* array : {&d.dlevel_weights, &d.dweights, &d.dkey_bias, &d.dpositions, &d.score}) mirror.fetch(*array);
}

// What the table of the CPU has too little of: rows the tensor-core kernels take, with all terms.
inline std::vector<HsaCase> hsa_gpu_cases() {
  std::vector<HsaCase> cases = hsa_cases();
  cases.push_back({"gpu_balanced_long", {700, 33}, Shape::kBalanced, 16, 3, 64, 64});
  cases.push_back({"gpu_key_bias", {300, 17}, Shape::kBalanced, 16, 2, 64, 32, Domain::kSet, false, true});
  cases.push_back({"gpu_wide_heads", {100, 50}, Shape::kBalanced, 8, 2, 128, 96, Domain::kSet, false, true});
  cases.push_back({"gpu_weights", {120, 40}, Shape::kRandom, 7, 2, 32, 64, Domain::kSet, true, true});
  cases.push_back({"gpu_positions", {90, 31}, Shape::kBalanced, 9, 2, 16, 16, Domain::kSequence, true, true});
  cases.push_back({"gpu_causal", {200}, Shape::kBalanced, 16, 1, 64, 64, Domain::kSequence, false, true, true});
  cases.push_back({"gpu_padded", {64, 0, 20}, Shape::kRandom, 6, 2, 64, 64, Domain::kSet, false, false, false, false});
  cases.push_back({"gpu_one_family", {16, 9}, Shape::kStar, 1, 2, 64, 64});
  const Domain set = Domain::kSet, sequence = Domain::kSequence;
  const Memory dense = Memory::kDense;
  for (const HsaCase& c : strata_tree_cases()) cases.push_back(c);
  cases.push_back(
      {"gpu_levels3", {700, 33}, Shape::kBalanced, 16, 3, 64, 64, set, false, false, false, true, dense, 3});
  cases.push_back({"gpu_levels5", {300, 17}, Shape::kBalanced, 16, 2, 64, 32, set, true, true, false, true, dense, 5});
  cases.push_back({"gpu_levels8", {90, 9}, Shape::kBalanced, 16, 2, 64, 64, set, false, true, false, true, dense, 8});
  cases.push_back(
      {"gpu_levels_wide", {100, 50}, Shape::kBalanced, 8, 2, 128, 96, set, false, true, false, true, dense, 3});
  cases.push_back(
      {"gpu_levels8_wide", {60, 50}, Shape::kRandom, 8, 1, 128, 96, set, false, true, false, true, dense, 8});
  cases.push_back(
      {"gpu_levels_ragged", {120, 40}, Shape::kRandom, 7, 2, 32, 64, set, true, true, false, true, dense, 4});
  cases.push_back(
      {"gpu_levels_positions", {90, 31}, Shape::kBalanced, 9, 2, 16, 16, sequence, true, true, false, true, dense, 3});
  cases.push_back(
      {"gpu_levels_padded", {64, 0, 20}, Shape::kRandom, 6, 2, 64, 64, set, false, false, false, false, dense, 3});
  cases.push_back(
      {"gpu_grouped", {200, 31}, Shape::kBalanced, 16, 6, 64, 64, set, true, true, false, true, dense, 3, 2});
  cases.push_back(
      {"gpu_one_key_head", {90}, Shape::kBalanced, 16, 4, 64, 64, set, false, false, false, true, dense, 1, 1});
  // Wide families: of more than 16 children.
  const Memory token_major = Memory::kTokenMajor;
  cases.push_back({"gpu_b32", {1000, 33}, Shape::kBalanced, 32, 2, 64, 64});
  cases.push_back({"gpu_b64", {700, 17}, Shape::kBalanced, 64, 2, 64, 32, set, true, true});
  cases.push_back({"gpu_b20_positions", {401}, Shape::kBalanced, 20, 2, 16, 16, sequence, true, true});
  cases.push_back({"gpu_star", {300, 129, 16}, Shape::kStar, 1, 2, 64, 64, set, true, true});
  cases.push_back({"gpu_star_causal", {200}, Shape::kStar, 1, 2, 64, 64, sequence, true, true, true});
  // Stars of many tokens and nothing else, which HKT's kernels compute; of different lengths, which they do not.
  cases.push_back(
      {"gpu_star_flat", {300, 300}, Shape::kStar, 1, 4, 64, 64, set, false, false, false, true, dense, 1, 2});
  cases.push_back({"gpu_star_padded", {260, 260, 260}, Shape::kStar, 1, 2, 32, 32, set, false, false, false, false});
  cases.push_back(
      {"gpu_star_levels", {333, 333}, Shape::kStar, 1, 2, 96, 80, set, false, false, false, true, token_major, 3});
  cases.push_back({"gpu_star_order", {400}, Shape::kStar, 1, 2, 64, 64, set, false, false, true});
  cases.push_back({"gpu_star_uneven", {300, 301}, Shape::kStar, 1, 2, 64, 64});
  cases.push_back({"gpu_causal_b32", {600}, Shape::kBalanced, 32, 1, 64, 64, sequence, false, true, true});
  cases.push_back({"gpu_mixed_families", {500, 31}, Shape::kRandom, 45, 2, 32, 64, set, true, true});
  cases.push_back(
      {"gpu_mixed_padded", {300, 0, 70}, Shape::kRandom, 40, 2, 64, 64, set, false, false, false, false, token_major});
  cases.push_back(
      {"gpu_b32_levels", {500, 33}, Shape::kBalanced, 32, 2, 64, 64, set, false, true, false, true, dense, 3});
  cases.push_back(
      {"gpu_mixed_levels", {333}, Shape::kRandom, 50, 2, 64, 64, sequence, true, true, false, true, dense, 4});
  cases.push_back(
      {"gpu_wide_levels8", {300}, Shape::kBalanced, 24, 1, 128, 96, set, false, true, false, true, dense, 8});
  cases.push_back(
      {"gpu_wide_grouped", {400}, Shape::kBalanced, 40, 6, 64, 64, set, true, true, false, true, dense, 2, 2});
  return cases;
}

}  // namespace strata::test
