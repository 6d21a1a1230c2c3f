"""Flat attention of ours beside PyTorch's scaled_dot_product_attention, on the CPU (needs PyTorch 2).

    STRATA_LIBRARY=.../libstrata_torch.so PYTHONPATH=python python3 bench/sdpa_bench.py [threads]
"""

import statistics
import sys
import time

import torch
import torch.nn.functional as F

import strata

HEADS, SIZE, ROUNDS = 8, 64, 9


def seconds(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main():
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    print(f"PyTorch {torch.__version__}, {threads} threads, float32, 1 x {HEADS} x T x {SIZE}, median of {ROUNDS}, ms")
    print(f"{'T':>6} {'causal':>7} {'sdpa fwd':>9} {'ours fwd':>9} {'ratio':>6} {'sdpa f+b':>9} {'ours f+b':>9} {'ratio':>6}")
    for tokens in (512, 1024, 2048, 4096):
        for causal in (False, True):
            q, k, v = (torch.randn(1, HEADS, tokens, SIZE, requires_grad=True) for _ in range(3))
            weights, dout = torch.ones(HEADS, 1), torch.randn(1, HEADS, tokens, SIZE)

            def sdpa():
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

            def ours():
                return strata.hkt_attention([q], [k], v, weights, causal=causal)[0]

            def forward(attend):
                with torch.no_grad():
                    attend()

            def both(attend):
                torch.autograd.grad(attend(), (q, k, v), dout)

            assert torch.allclose(sdpa(), ours(), atol=1e-5)
            times = {}
            for _ in range(ROUNDS + 1):  # the first round warms up
                for name, work in (("sdpa", sdpa), ("ours", ours)):
                    for kind in (forward, both):
                        times.setdefault((name, kind), []).append(seconds(lambda: kind(work)))
            ms = {key: 1e3 * statistics.median(values[1:]) for key, values in times.items()}
            row = [ms["sdpa", forward], ms["ours", forward], ms["sdpa", forward] / ms["ours", forward]]
            row += [ms["sdpa", both], ms["ours", both], ms["sdpa", both] / ms["ours", both]]
            print(f"{tokens:>6} {str(causal):>7} {row[0]:9.2f} {row[1]:9.2f} {row[2]:6.2f} {row[3]:9.2f} {row[4]:9.2f} {row[5]:6.2f}")


main()
