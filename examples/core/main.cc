// HKT attention without torch: two levels over eight tokens, on plain arrays.
#include <strata/hkt.h>

#include <cstdio>
#include <vector>

int main() {
  std::vector<float> q0(8 * 4), k0(8 * 4), q1(4 * 4), k1(4 * 4), v(8 * 4), out(8 * 4), lse(8), weights = {0.75f, 0.25f};
  for (int x = 0; x < 8 * 4; ++x) q0[x] = k0[x] = v[x] = static_cast<float>(x % 5);
  for (int x = 0; x < 4 * 4; ++x) q1[x] = k1[x] = static_cast<float>(x % 3);

  strata::HktProblem p;
  p.batch = p.heads = p.key_heads = 1, p.tokens = 8, p.levels = 2, p.head_size = p.value_size = 4;
  p.q[0] = strata::dense_view(q0.data(), 1, 8, 4), p.k[0] = strata::dense_view(k0.data(), 1, 8, 4);
  p.q[1] = strata::dense_view(q1.data(), 1, 4, 4), p.k[1] = strata::dense_view(k1.data(), 1, 4, 4);
  p.v = strata::dense_view(v.data(), 1, 8, 4), p.weights = weights.data(), p.causal = true, p.scale = 0.5;
  const strata::Status status = strata::hkt_forward(p, {strata::dense_view(out.data(), 1, 8, 4), lse.data()});
  if (!status.ok()) return std::fprintf(stderr, "%s\n", status.message().c_str()), 1;
  std::printf("last token: %.4f %.4f %.4f %.4f, log-sum-exp %.4f\n", out[28], out[29], out[30], out[31], lse[7]);
  return 0;
}
