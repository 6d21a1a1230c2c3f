#!/usr/bin/env python3
"""cache_sizes.py RUNS OUTPUT TOKENS ..: lets the first seed of every language model in the folder RUNS of a comparison write so many
tokens, and records the bytes of its caches. They depend on the shape of a model, not on its weights.

STRATA: the command; build/release/bin/strata unless set
"""

import sys
from pathlib import Path

from compared_runs import ask, attentions, note, write

KEPT = ("tokens", "cache_bytes", "cache_nodes", "cache_node_bytes", "every_token_bytes")


def main():
    if len(sys.argv) < 4:
        sys.exit("cache_sizes.py: expected RUNS OUTPUT TOKENS .., got " + (" ".join(sys.argv[1:]) or "nothing"))
    output, lengths = Path(sys.argv[2]), sys.argv[3:]
    results, models = attentions(Path(sys.argv[1]), seeds=1)
    found = []
    for name, (run,) in models:
        made = []
        for tokens in lengths:
            # A prompt of one byte, so that all but one of the tokens are the model's.
            printed = ask("generate", run, " ", "--tokens", int(tokens) - 1, "--threads", 1)
            made.append({"context": int(tokens), **{key: printed[key] for key in KEPT if key in printed}})
            note(f"{name}, {tokens} tokens: {printed['cache_bytes']} bytes")
        found.append({"name": name, "caches": made})
    write(output, results, attentions=found)


if __name__ == "__main__":
    main()
