"""Flat attention of ours beside PyTorch's scaled_dot_product_attention, on the CPU (needs PyTorch 2).

    STRATA_LIBRARY=.../libstrata_torch.so PYTHONPATH=python python3 bench/sdpa_bench.py --json sdpa.json
"""

import argparse
import datetime
import json
import pathlib
import statistics
import time

import torch
import torch.nn.functional as F

import strata

HEADS, SIZE, ROUNDS = 8, 64, 9
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
COLUMNS = ["sdpa_forward_ms", "ours_forward_ms", "torch_over_ours_fwd", "sdpa_both_ms", "ours_both_ms", "torch_over_ours_fwdbwd"]


def seconds(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def forward(attend):
    with torch.no_grad():
        attend()


def measure(dtype, tokens, causal):
    """Median milliseconds of both, and their ratios."""
    q, k, v = (torch.randn(1, HEADS, tokens, SIZE).to(dtype).requires_grad_() for _ in range(3))
    weights, dout = torch.ones(HEADS, 1), torch.randn(1, HEADS, tokens, SIZE).to(dtype)

    def sdpa():
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    def ours():
        return strata.hkt_attention([q], [k], v, weights, causal=causal)[0]

    def both(attend):
        torch.autograd.grad(attend(), (q, k, v), dout)

    assert torch.allclose(sdpa(), ours(), atol=1e-5 if dtype == torch.float32 else 2e-2)
    times = {}
    for _ in range(ROUNDS + 1):  # the first round warms up
        for name, work in (("sdpa", sdpa), ("ours", ours)):
            for kind in (forward, both):
                times.setdefault((name, kind), []).append(seconds(lambda: kind(work)))
    ms = {key: 1e3 * statistics.median(values[1:]) for key, values in times.items()}
    values = [value for kind in (forward, both) for value in (ms["sdpa", kind], ms["ours", kind], ms["sdpa", kind] / ms["ours", kind])]
    return {"tokens": tokens, "causal": causal, **dict(zip(COLUMNS, values))}


def cpu_name():
    lines = [line for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return lines[0].split(":")[1].strip() if lines else "unknown"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--types", nargs="+", choices=TYPES, default=list(TYPES))
    parser.add_argument("--json", metavar="FILE", help="write the figures to this file as well")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    figures = {"torch": torch.__version__, "cpu": cpu_name(), "threads": options.threads, "rounds": ROUNDS,
               "heads": HEADS, "head_size": SIZE, "date": datetime.date.today().isoformat()}
    for name in options.types:
        print(f"PyTorch {torch.__version__}, {options.threads} threads, {name}, 1 x {HEADS} x T x {SIZE}, median of {ROUNDS}, ms")
        print(f"{'T':>6} {'causal':>7} {'sdpa fwd':>9} {'ours fwd':>9} {'ratio':>6} {'sdpa f+b':>9} {'ours f+b':>9} {'ratio':>6}")
        figures[name] = []
        for tokens in (512, 1024, 2048, 4096):
            for causal in (False, True):
                row = measure(TYPES[name], tokens, causal)
                figures[name].append(row)
                print(f"{tokens:>6} {str(causal):>7}", *(f"{row[column]:{6 if 'over' in column else 9}.2f}" for column in COLUMNS))
                if name == "bfloat16" and tokens == 2048 and not causal:
                    for passes in ("fwd", "fwdbwd"):
                        figures[f"hkt_cpu_bf16_flat_torch_over_ours_{passes}"] = row[f"torch_over_ours_{passes}"]
    for passes in ("fwd", "fwdbwd"):
        if "bfloat16" in figures:
            print(f"hkt_cpu_bf16_flat_torch_over_ours_{passes} {figures[f'hkt_cpu_bf16_flat_torch_over_ours_{passes}']:.2f} (bar >= 1.5, with AMX)")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(figures, indent=2) + "\n")


main()
