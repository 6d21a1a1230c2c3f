"""What the scripts share that ask the models of a comparison for more: its runs, and the command."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OPTIONS = ("task", "length", "layers", "model_size", "heads", "positions", "branching", "near", "levels", "filters")


def attentions(folder, seeds=None):
    """The results of a comparison, and for each of its attentions the name and the folders of the first `seeds` runs."""
    results = json.loads((folder / "results.json").read_text())
    first, count = results["first_seed"], results["seeds"] if seeds is None else seeds
    return results, [
        (a["name"], [folder / f"{a['name'].replace(':', '-')}-seed{seed}" for seed in range(first, first + count)])
        for a in results["attentions"]
    ]


def ask(*arguments):
    """What the command says, as JSON. STRATA: the command; build/release/bin/strata unless set."""
    strata = os.environ.get("STRATA", str(ROOT / "build/release/bin/strata"))
    done = subprocess.run([strata, *map(str, arguments), "--json"], check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def note(text):
    print(text, file=sys.stderr, flush=True)


def write(output, results, **found):
    """The raw file: the options of the models, and what was found."""
    options = {option: results["options"][option] for option in OPTIONS}
    output.write_text(json.dumps({"options": options, **found}, indent=2) + "\n")
