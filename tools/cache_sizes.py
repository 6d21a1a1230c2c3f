#!/usr/bin/env python3
"""cache_sizes.py RUNS OUTPUT TOKENS ..: lets the first seed of every language model in the folder RUNS of a comparison write so many
tokens, and records the bytes of its caches. They depend on the shape of a model, not on its weights.

STRATA: the command; build/release/bin/strata unless set
"""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OPTIONS = ("task", "length", "layers", "model_size", "heads", "positions", "branching", "near", "levels", "filters")
KEPT = ("tokens", "cache_bytes", "cache_nodes", "cache_node_bytes", "every_token_bytes")


def main():
    if len(sys.argv) < 4:
        sys.exit("cache_sizes.py: expected RUNS OUTPUT TOKENS .., got " + (" ".join(sys.argv[1:]) or "nothing"))
    runs, output, lengths = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    strata = os.environ.get("STRATA", str(ROOT / "build/release/bin/strata"))
    results = json.loads((runs / "results.json").read_text())
    attentions = []
    for name in (attention["name"] for attention in results["attentions"]):
        folder = runs / f"{name.replace(':', '-')}-seed{results['first_seed']}"
        made = []
        for tokens in lengths:
            # A prompt of one byte, so that all but one of the tokens are the model's.
            command = [strata, "generate", str(folder), " ", "--tokens", str(int(tokens) - 1), "--threads", "1", "--json"]
            printed = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            made.append({"context": int(tokens), **{key: printed[key] for key in KEPT if key in printed}})
            print(f"{name}, {tokens} tokens: {printed['cache_bytes']} bytes", file=sys.stderr, flush=True)
        attentions.append({"name": name, "caches": made})
    options = {option: results["options"][option] for option in OPTIONS}
    output.write_text(json.dumps({"options": options, "attentions": attentions}, indent=2) + "\n")


if __name__ == "__main__":
    main()
