"""Flat attention of ours beside PyTorch's scaled_dot_product_attention, on the CPU (needs PyTorch 2).

    STRATA_LIBRARY=.../libstrata_torch.so PYTHONPATH=python python3 bench/sdpa_bench.py [threads] [float32|bfloat16]
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
    type_name = sys.argv[2] if len(sys.argv) > 2 else "float32"
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[type_name]
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    print(f"PyTorch {torch.__version__}, {threads} threads, {type_name}, 1 x {HEADS} x T x {SIZE}, median of {ROUNDS}, ms")
    print(f"{'T':>6} {'causal':>7} {'sdpa fwd':>9} {'ours fwd':>9} {'ratio':>6} {'sdpa f+b':>9} {'ours f+b':>9} {'ratio':>6}")
    figures = {}
    for tokens in (512, 1024, 2048, 4096):
        for causal in (False, True):
            q, k, v = (torch.randn(1, HEADS, tokens, SIZE).to(dtype).requires_grad_() for _ in range(3))
            weights, dout = torch.ones(HEADS, 1), torch.randn(1, HEADS, tokens, SIZE).to(dtype)

            def sdpa():
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

            def ours():
                return strata.hkt_attention([q], [k], v, weights, causal=causal)[0]

            def forward(attend):
                with torch.no_grad():
                    attend()

            def both(attend):
                torch.autograd.grad(attend(), (q, k, v), dout)

            assert torch.allclose(sdpa(), ours(), atol=tolerance)
            times = {}
            for _ in range(ROUNDS + 1):  # the first round warms up
                for name, work in (("sdpa", sdpa), ("ours", ours)):
                    for kind in (forward, both):
                        times.setdefault((name, kind), []).append(seconds(lambda: kind(work)))
            ms = {key: 1e3 * statistics.median(values[1:]) for key, values in times.items()}
            row = [ms["sdpa", forward], ms["ours", forward], ms["sdpa", forward] / ms["ours", forward]]
            row += [ms["sdpa", both], ms["ours", both], ms["sdpa", both] / ms["ours", both]]
            if dtype == torch.bfloat16 and tokens == 2048 and not causal:
                figures = {"fwd": row[2], "fwdbwd": row[5]}
            print(f"{tokens:>6} {str(causal):>7} {row[0]:9.2f} {row[1]:9.2f} {row[2]:6.2f} {row[3]:9.2f} {row[4]:9.2f} {row[5]:6.2f}")
    for passes, value in figures.items():
        print(f"hkt_cpu_bf16_flat_torch_over_ours_{passes} {value:.2f} (bar >= 1.5, with AMX)")


main()
