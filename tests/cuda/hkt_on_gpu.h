// How the tests run HKT on the GPU, and the cases they add to the table of the CPU.
#pragma once

#include "cases/hkt_case.h"
#include "cuda/device.h"

namespace strata::test {

template <class S>
void run_on_gpu(HktData<S>& d) {
  Mirror mirror;
  for (auto* arrays : {&d.q, &d.k, &d.dq, &d.dk}) {
    for (Array<S>& array : *arrays) mirror.add(array);
  }
  for (Array<S>* array : {&d.v, &d.dv, &d.out, &d.dout, &d.bias, &d.dbias}) mirror.add(*array);
  for (auto* array : {&d.weights, &d.dweights, &d.lse, &d.dlse}) mirror.add(*array);
  for (auto* lengths : {&d.spec.lengths, &d.spec.key_lengths}) {
    if (!lengths->empty()) mirror.add(lengths->data(), lengths->size() * sizeof(int64_t));
  }
  for (PackedRows* rows : {&d.queries, &d.keys}) {
    for (std::vector<int64_t>& begins : rows->begins) mirror.add(begins.data(), begins.size() * sizeof(int64_t));
  }
  mirror.add(d.slopes);
  mirror.add(d.dropout_state, sizeof d.dropout_state);

  HktProblem p = d.problem();
  HktOutputs o = d.outputs();
  HktGradients g = d.gradients();
  if (g.dbias.data != nullptr && d.spec.bias != BiasKind::kFull) g.dbias = {};  // not on CUDA where it broadcasts
  for (int l = 0; l < p.levels; ++l) {
    mirror.translate_view(p.q[l]);
    mirror.translate_view(p.k[l]);
    mirror.translate_view(g.dq[l]);
    mirror.translate_view(g.dk[l]);
  }
  mirror.translate_view(p.v);
  mirror.translate_view(p.bias);
  mirror.translate_view(o.out);
  mirror.translate_view(g.dout);
  mirror.translate_view(g.dv);
  mirror.translate_view(g.dbias);
  p.weights = mirror.translate(static_cast<const char*>(p.weights));
  p.lengths = mirror.translate(p.lengths);
  p.key_lengths = mirror.translate(p.key_lengths);
  p.slopes = mirror.translate(static_cast<const char*>(p.slopes));
  p.dropout.state = mirror.translate(p.dropout.state);
  o.lse = mirror.translate(static_cast<char*>(o.lse));
  g.dlse = mirror.translate(static_cast<const char*>(g.dlse));
  g.dweights = mirror.translate(static_cast<char*>(g.dweights));
  const Status forward = cuda::hkt_forward(p, o, nullptr);
  ASSERT_TRUE(forward.ok()) << forward.message();
  const Status backward = cuda::hkt_backward(p, o, g, mirror.scratch(cuda::hkt_backward_workspace(p)), nullptr);
  ASSERT_TRUE(backward.ok()) << backward.message();
  expect_cuda(cudaDeviceSynchronize());
  for (auto* arrays : {&d.dq, &d.dk}) {
    for (Array<S>& array : *arrays) mirror.fetch(array);
  }
  for (Array<S>* array : {&d.dv, &d.out, &d.dbias}) mirror.fetch(*array);
  for (auto* array : {&d.dweights, &d.lse}) mirror.fetch(*array);
}

// What the table of the CPU has too little of: several blocks of the GPU's tiles.
inline std::vector<HktCase> hkt_gpu_cases() {
  std::vector<HktCase> cases = hkt_cases();
  cases.push_back({"gpu_l3_blocks", 2, 2, 2, 400, 3, 64, 64, false});
  cases.push_back({"gpu_l3_blocks_causal", 1, 4, 2, 333, 3, 128, 128, true});
  cases.push_back({"gpu_l5_blocks", 1, 2, 2, 300, 5, 64, 64, true, {257}});
  cases.push_back({"gpu_l4_wide", 1, 1, 1, 200, 4, 128, 64, false});
  cases.push_back({"gpu_l5_256", 1, 1, 1, 150, 5, 256, 256, true});
  cases.push_back({"gpu_l3_256", 1, 2, 1, 150, 3, 200, 256, true});
  cases.push_back({"gpu_l3_long", 1, 2, 2, 1100, 3, 64, 64, true, {1050}});
  cases.push_back({"gpu_l3_long_wide", 1, 1, 1, 777, 3, 128, 128, false});
  cases.push_back({"gpu_l2_long", 1, 2, 1, 640, 2, 96, 80, true});
  cases.push_back({"gpu_flat_long", 2, 1, 1, 600, 1, 128, 128, true, {600, 300}});
  cases.push_back({"gpu_flat_odd", 1, 2, 2, 257, 1, 40, 72, true});
  cases.push_back({"gpu_l4_long", 1, 2, 1, 1031, 4, 64, 64, false, {1029}});
  cases.push_back({"gpu_l5_long", 2, 4, 2, 700, 5, 64, 64, false});
  cases.push_back({"gpu_l5_long_wide", 1, 2, 1, 650, 5, 128, 128, true, {641}});
  cases.push_back({"gpu_l4_long_wide", 2, 1, 1, 390, 4, 96, 128, false, {390, 7}});
  cases.push_back({"gpu_l5_short", 3, 2, 2, 21, 5, 64, 64, true, {21, 5, 0}});
  auto add = [&](const HktCase& c, const auto& change) { cases.push_back(changed(c, change)); };
  auto packed = [](HktCase& c) { c.packed = true; };
  add({"gpu_packed", 5, 4, 2, 700, 3, 64, 64, true, {700, 1, 0, 300, 129}}, packed);
  add({"gpu_packed_wide", 3, 2, 2, 400, 3, 128, 128, false, {130, 400, 17}}, packed);
  add({"gpu_packed_l5", 4, 2, 1, 333, 5, 64, 64, true, {333, 16, 1, 257}}, packed);
  add({"gpu_packed_flat", 3, 2, 2, 513, 1, 64, 64, false, {2, 513, 64}}, packed);
  // Heads of 32 and 96 channels have kernels of their own; those of 24 and 80 are filled up, those of 20 not aligned.
  cases.push_back({"gpu_d32_l3", 2, 4, 2, 400, 3, 32, 32, true});
  cases.push_back({"gpu_d32_l5", 1, 2, 2, 700, 5, 32, 24, false, {650}});
  cases.push_back({"gpu_d32_flat", 2, 2, 1, 333, 1, 32, 32, true, {333, 100}});
  cases.push_back({"gpu_d24_l4", 1, 2, 2, 390, 4, 24, 32, true});
  cases.push_back({"gpu_d24_l2", 2, 2, 2, 300, 2, 24, 24, false, {300, 0}});
  cases.push_back({"gpu_d20_l3", 1, 2, 2, 300, 3, 20, 20, true});
  cases.push_back({"gpu_d96_l3", 2, 4, 2, 400, 3, 96, 96, true});
  cases.push_back({"gpu_d96_l5", 1, 2, 1, 650, 5, 96, 96, true, {641}});
  cases.push_back({"gpu_d96_flat", 2, 1, 1, 600, 1, 96, 96, false, {600, 300}});
  cases.push_back({"gpu_d80_l3", 1, 2, 2, 777, 3, 80, 80, false});
  cases.push_back({"gpu_d80_l4", 2, 1, 1, 390, 4, 80, 96, true, {390, 7}});
  add({"gpu_packed_d32", 5, 4, 2, 700, 3, 32, 32, true, {700, 1, 0, 300, 129}}, packed);
  add({"gpu_packed_d32_l4", 3, 2, 2, 400, 4, 32, 32, false, {17, 400, 130}}, packed);
  add({"gpu_packed_d96", 4, 2, 1, 300, 3, 96, 96, true, {300, 0, 65, 257}}, packed);
  add({"gpu_packed_parts", 7, 2, 2, 513, 3, 64, 64, true, {256, 255, 257, 512, 1, 513, 64}}, packed);
  auto window = [](int64_t left, int64_t right) {
    return [=](HktCase& c) {
      c.window_left = left;
      c.window_right = right;
    };
  };
  add({"gpu_window", 1, 4, 2, 1500, 3, 64, 64, true}, window(300, 0));
  add({"gpu_window_wide", 2, 2, 2, 900, 3, 128, 128, false, {900, 500}}, window(130, 65));
  add({"gpu_window_l5", 1, 2, 2, 1000, 5, 64, 64, false}, window(1, 200));
  add({"gpu_window_d32", 1, 2, 2, 900, 3, 32, 32, true}, window(200, 0));
  add({"gpu_window_d96", 1, 2, 2, 700, 3, 96, 96, false}, window(65, 130));
  add({"gpu_window_flat", 1, 2, 2, 1000, 1, 128, 128, true}, window(127, -1));
  add({"gpu_cross", 2, 2, 2, 300, 3, 64, 64, false, {300, 77}}, [](HktCase& c) {
    c.key_tokens = 800;
    c.key_lengths = {800, 0};
  });
  add({"gpu_cross_causal", 1, 4, 1, 700, 3, 128, 128, true}, [](HktCase& c) { c.key_tokens = 300; });
  add({"gpu_packed_cross_window", 3, 2, 2, 300, 4, 64, 64, false, {300, 20, 129}}, [](HktCase& c) {
    c.packed = true;
    c.key_tokens = 500;
    c.key_lengths = {10, 500, 130};
    c.window_left = 100;
    c.window_right = 300;
  });
  add({"gpu_dropout", 1, 4, 2, 500, 3, 64, 64, true}, [](HktCase& c) { c.dropout = 0.1; });
  add({"gpu_dropout_wide", 2, 2, 2, 300, 3, 128, 128, false}, [](HktCase& c) { c.dropout = 0.25; });
  add({"gpu_alibi", 1, 4, 2, 600, 3, 64, 64, true}, [](HktCase& c) { c.alibi = true; });
  return cases;
}

}  // namespace strata::test
