#!/usr/bin/env python3
"""inspect_summary.py FOLDER OUT: what the tables of docs/theory need of the finished runs under FOLDER, in a small file.

A run that was inspected (inspect.json) gives the figures of every layer, head and level; one that was trained with
--every-epoch gives Mardia's tests over the epochs. `record` has what the records of all runs share (run.json and
inspect.json), the record of a run the rest. Figures have three significant digits, scores four; p-values have one, and
are those of the first and the last epoch.
"""

import json
import pathlib
import sys

EPOCHS = (0, 1, 2, 5, 10, 20, 30)  # of the runs with --every-epoch


def rounded(value, digits=3):
    """The same structure with fewer digits."""
    if isinstance(value, dict):
        return {key: rounded(one, digits) for key, one in value.items()}
    if isinstance(value, list):
        return [rounded(one, digits) for one in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def read(path):
    return json.loads(path.read_text())


# ------------------------------------------------------------------------------------------------------- records


def without_folders(value):
    """A path says nothing to others; the name of a file and its digest do."""
    if isinstance(value, dict):
        return {key: without_folders(one) for key, one in value.items() if key not in ("folder", "output")}
    if isinstance(value, list):
        return [without_folders(one) for one in value]
    return pathlib.PurePath(value).name if isinstance(value, str) and value.startswith("/") else value


def shared(records):
    """What all records have in common."""
    first = records[0]
    common = {}
    for key, value in first.items():
        others = [record.get(key) for record in records]
        if all(other == value for other in others):
            common[key] = value
        elif isinstance(value, dict) and all(isinstance(other, dict) for other in others):
            common[key] = shared(others)
    return common


def rest(record, common):
    """What a record has beside the common part."""
    left = {}
    for key, value in record.items():
        if key not in common:
            left[key] = value
        elif value != common[key]:
            left[key] = rest(value, common[key])
    return left


# -------------------------------------------------------------------------------------------------------- figures


def head_figures(head):
    """The numbers of one head that the tables need; of a head that could not be inspected, why."""
    if "problem" in head:
        return {"problem": head["problem"]}
    psd, error, scores = head["psd"], head["error"], head["gaussianity"]["scores"]
    levels = psd.get("levels", [])
    cuts = head["decay"][:-1]  # the last one keeps all levels
    return {
        "weights": head["weights"],
        "holds": int(psd["sufficient_condition"]) if levels else None,
        "negative_count": [level["negative_count"] for level in levels],
        "beyond_keys": [level["beyond_keys"] for level in levels],
        "scores_negative_mass": psd["scores"]["negative_mass"],
        "directional": [level["directional_share"] for level in head["symmetry"]],
        **{key: error[key] for key in ("kl", "resolution", "filter", "correction", "third", "fourth", "range")},
        **{f"cut_{key}": [cut[key] for cut in cuts] for key in ("kl", "bound", "worst")},
        "kurtosis_ratio": [level.get("kurtosis_ratio") for level in scores],
    }


def layer_figures(layer):
    """Per figure the list of its heads: each name stands once."""
    heads = [head_figures(head) for head in layer["heads"]]
    return {key: [head.get(key) for head in heads] for key in dict.fromkeys(key for head in heads for key in head)}


def residuals(inspected):
    """The largest of each identity, over heads and levels."""
    heads = [head for layer in inspected["layers"] for head in layer["heads"] if "problem" not in head]
    largest = {"components": max(head["error"]["residual"] for head in heads)}
    for key in ("orthogonality", "upsampling", "projection", "filters"):
        largest[key] = max(level.get(key, 0.0) for head in heads for level in head["symmetry"])
    return largest


def inspected_run(folder):
    inspected = read(folder / "inspect.json")
    figures = {"samples": inspected["samples"], "mean_tokens": round(inspected["mean_tokens"])}
    if inspected["problems"]:
        figures["problems"] = inspected["problems"]
    figures |= {"residuals": residuals(inspected), "layers": [layer_figures(layer) for layer in inspected["layers"]]}
    train, record = read(folder / "run.json"), inspected["record"]
    known = [file["sha256"] for file in train["data"]]
    options = {key: value for key, value in record["options"].items() if key not in ("model", "data")}
    # The data is that of the training; what is left is the model, which the run names.
    model = [file["sha256"] for file in record["data"] if file["sha256"] not in known]
    record = {**{key: record[key] for key in ("command", "versions", "machine")}, "options": options, "model": model}
    return {"train": train, "inspect": record}, figures


def tracked_run(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    tests = [line for line in lines if line["kind"] == "gaussianity" and line["epoch"] in EPOCHS]
    first = tests[0]["layers"][0][0]

    def over_epochs(key, tests=tests):
        return [[[[level.get(key) for level in head] for head in layer] for layer in line["layers"]] for line in tests]

    return {"train": read(folder / "run.json")}, {
        "rows": tests[0]["rows"],
        "epochs": [round(line["epoch"]) for line in tests],
        **{
            key: [level.get(key) for level in first] for key in ("tested", "components", "expected_kurtosis", "ceiling")
        },
        "kurtosis_ratio": over_epochs("kurtosis_ratio"),
        **{key: rounded(over_epochs(key, [tests[0], tests[-1]]), 1) for key in ("kurtosis_p", "skewness_p")},
    }


def run_figures(folder):
    """Record and figures of a run; None if it is not finished."""
    if not (folder / "result.json").exists():
        return None
    is_inspected = (folder / "inspect.json").exists()
    options, result = read(folder / "run.json")["options"], read(folder / "result.json")
    if not is_inspected and not options["every_epoch"]:
        return None
    record, figures = inspected_run(folder) if is_inspected else tracked_run(folder)
    name = folder.name.rpartition("-seed")[0]
    about = {
        "attention": name,
        "model_size": options["model_size"],
        "seed": result["seed"],
        "steps": result["steps"],
        **{split: 100 * result[split]["accuracy"] for split in ("test", "valid")},
    }
    return without_folders(record), {**rounded(about, 4), **rounded(figures)}


def comparison(folder):
    """Means over seeds and the tests between attentions, of a comparison that is finished."""
    if not (folder / "results.json").exists():
        return {}
    results = read(folder / "results.json")
    keys = {
        "attentions": ("name", "scores", "mean", "standard_deviation", "parameters"),
        "pairs": ("from", "to", "difference", "p", "p_holm"),
    }
    return {
        "comparison": {
            part: [{key: rounded(one[key], 4) for key in names} for one in results[part]]
            for part, names in keys.items()
        }
    }


def main(folder, out):
    runs = [run for path in sorted(folder.glob("**/run.json")) if (run := run_figures(path.parent))]
    if not runs:
        sys.exit(
            f"inspect_summary.py: {folder}: expected finished runs, inspected or trained with --every-epoch, got none"
        )
    common = shared([record for record, _ in runs])
    lines = [json.dumps({**figures, "record": rest(record, common)}, separators=(",", ":")) for record, figures in runs]
    head = json.dumps({"schema": 1, "record": common, **comparison(folder)}, separators=(",", ":"))[:-1]
    out.write_text(head + ',"runs":[\n' + ",\n".join(lines) + "\n]}\n")
    print(f"{out}: {len(runs)} runs, {out.stat().st_size} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("inspect_summary.py: expected a folder of runs and the file to write")
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
