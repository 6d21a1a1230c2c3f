"""The time of one small call of every operator beside PyTorch's scaled_dot_product_attention: 1 x 4 x 64 x 32, float32,
forward, one thread on the CPU (needs PyTorch 2). Writes JSON with --json FILE.

    python3 bench/call_overhead.py [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import strata  # before torch, so that it can prepare the machine
import torch
import torch.nn.functional as F

HEADS, TOKENS, SIZE = 4, 64, 32
ROUNDS, CALLS = 41, 200
PEER = "scaled_dot_product_attention"


def calls() -> dict[str, Callable[[], object]]:
    """Every operator on tensors of the same size."""
    torch.manual_seed(1)
    q, k, v = (torch.randn(1, HEADS, TOKENS, SIZE) for _ in range(3))
    flat_weights, weights = torch.ones(HEADS, 1), torch.full((HEADS, 3), 1 / 3)
    levels = [torch.randn(1, HEADS, TOKENS >> level, SIZE) for level in range(3)]
    tree = strata.Tree.balanced(TOKENS, 16)
    x, taps = torch.randn(1, TOKENS, HEADS * SIZE), torch.randn(3, HEADS * SIZE)
    newest, length = [level[:, :, -1:] for level in levels], torch.tensor([TOKENS])
    cache = strata.HsaAttention(HEADS * SIZE, HEADS, streaming=True).start_stream(1).state
    state = [cache[name] for name in ("keys", "values", "kappas", "masses", "lengths")]
    row = q[:, :, 0]
    ops = torch.ops.strata

    def step() -> None:
        state[-1].fill_(TOKENS - 1)  # always the same token
        ops.hsa_stream_step(row, row, row, None, None, None, *state)

    return {
        PEER: lambda: F.scaled_dot_product_attention(q, k, v),
        "flat": lambda: strata.hkt_attention([q], [k], v, flat_weights),
        "hkt_attention, 3 levels": lambda: strata.hkt_attention(levels, levels, v, weights),
        "hkt_decode, 3 levels": lambda: strata.hkt_decode(newest, levels, v, weights, length),
        "hsa_attention, families of 16": lambda: strata.hsa_attention(q, k, v, tree),
        "hierarchy_score": lambda: strata.hierarchy_score(q, k, tree),
        "hsa_stream_attention": lambda: strata.hsa_stream_attention(q, k, v, 16),
        "hsa_stream_step": step,
        "causal_filter": lambda: strata.causal_filter(x, taps, 2),
    }


def measure() -> dict[str, float]:
    """Microseconds per call: the median over rounds, in which all operators take turns."""
    work = calls()
    times: dict[str, list[float]] = {name: [] for name in work}
    with torch.no_grad():
        for round_ in range(ROUNDS + 2):
            for name, call in work.items():
                start = time.perf_counter()
                for _ in range(CALLS):
                    call()
                if round_ >= 2:  # the first two warm up
                    times[name].append((time.perf_counter() - start) / CALLS * 1e6)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures into this file as well")
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures = measure()
    print(f"PyTorch {torch.__version__}, one thread, 1 x {HEADS} x {TOKENS} x {SIZE}, float32, forward")
    print(f"{'':32}{'us per call':>12}{'over sdpa':>11}{'bar':>6}")
    for name, microseconds in figures.items():
        bar = "" if name == PEER else "1" if name == "flat" else "2"
        print(f"{name:32}{microseconds:12.1f}{microseconds / figures[PEER]:11.2f}{bar:>6}")
    if options.json:
        options.json.write_text(json.dumps({"torch": torch.__version__, "microseconds": figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
