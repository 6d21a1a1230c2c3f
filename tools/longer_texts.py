#!/usr/bin/env python3
"""longer_texts.py RUNS OUTPUT LENGTH PROMPT: asks the language models in the folder RUNS of a comparison what they make of texts longer
than those of their training, and records it: of every seed the loss of the test text by place, in windows of LENGTH tokens, and what
the first seed writes after PROMPT, LENGTH tokens of which the beginning and the end are kept.

STRATA: the command; build/release/bin/strata unless set
"""

import sys
from pathlib import Path

from compared_runs import ask, attentions, note, write

SHOWN = 160  # characters of each end
SAMPLING = ("--temperature", "0.7", "--top-p", "0.9", "--seed", "1")


def score(run, length):
    scored = ask("eval", run, "--length", length, "--threads", 1)
    return {key: scored[key] for key in ("rows", "bits_per_byte", "parts")}


def main():
    if len(sys.argv) != 5:
        sys.exit("longer_texts.py: expected RUNS OUTPUT LENGTH PROMPT, got " + (" ".join(sys.argv[1:]) or "nothing"))
    output, length, prompt = Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    results, models = attentions(Path(sys.argv[1]))
    found = []
    for name, runs in models:
        seeds = [score(run, length) for run in runs]
        made = ask("generate", runs[0], prompt, "--tokens", length - len(prompt.encode()), "--threads", 1, *SAMPLING)
        sample = {"begin": made["text"][:SHOWN], "end": made["text"][-SHOWN:], "cache_bytes": made["cache_bytes"]}
        found.append({"name": name, "seeds": seeds, "sample": sample})
        note(f"{name}: " + ", ".join(f"{one['bits_per_byte']:.3f}" for one in seeds) + " bits per byte")
    write(output, results, longer=length, prompt=prompt, sampling=SAMPLING, attentions=found)


if __name__ == "__main__":
    main()
