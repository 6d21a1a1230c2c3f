#!/usr/bin/env python3
"""Writes the tables of docs/theory that come from the raw files docs/results/theory-*.json, and checks the sentences of
tools/theory_sentences.py. tools/theory_runs.sh makes the raw files.

theory_page.py          writes the tables again
theory_page.py --check  says whether they are up to date; exit code 1 if not
"""

import itertools
import math
import statistics

import theory_sentences
from page_tables import check_sentences, raw, table, update
from results_figures import p_value
from theory_epochs import expected_table, kurtosis_table, p_table, sizes_table
from theory_figures import TASKS, accuracy, heads, numbers, per_seed, runs, spread

MODELS = {"hkt": "HKT", "hkt-projections=per-level": "projections per level", "hkt-psd=true": "PSD mode"}
LAYERS = [(task, label, layer) for task, label in TASKS.items() for layer in (0, 1)]


def settings_table():
    """What was trained and inspected."""
    rows = []
    for task, label in TASKS.items():
        of = runs(task)
        options = of[0]["record"]["train"]["options"]
        rows.append(
            [
                label,
                f"{options['train_rows']:,}",
                options["epochs"],
                of[0]["steps"],
                f"{of[0]['mean_tokens']:.0f}",
                of[0]["samples"],
                len(of),
                accuracy(of),
            ]
        )
    return table(
        ["", "training rows", "epochs", "steps", "tokens, mean", "rows inspected", "seeds", "test accuracy, %"], rows
    )


def over_hkt(task, name):
    """The difference from HKT over seeds; nothing until all runs of the comparison are finished."""
    pairs = raw(f"theory-{task}").get("comparison", {}).get("pairs", [])
    test = next((pair for pair in pairs if (pair["from"], pair["to"]) == ("hkt", name.replace("-", ":", 1))), None)
    return f"{test['difference']:+.1f} (p = {p_value(test['p_holm'])})" if test else ""


def psd_table():
    rows = []
    for task, label in TASKS.items():
        for name, model in MODELS.items():
            of = runs(task, name)
            if not of:
                continue
            holds = numbers(of, "holds")
            rows.append(
                [
                    f"{label}, {model}",
                    len(of),
                    accuracy(of),
                    over_hkt(task, name),
                    f"{sum(holds)} of {len(holds)}",
                    spread(numbers(of, "negative_count")),
                    spread(numbers(of, "beyond_keys")),
                    per_seed(of, "scores_negative_mass"),
                    spread(numbers(of, "scores_negative_mass")),
                ]
            )
    return table(
        [
            "",
            "seeds",
            "test accuracy, %",
            "over HKT (p after Holm's correction)",
            "heads that meet the condition",
            "negative share of eigenvalues",
            "`W_Q` beyond keys",
            "negative mass of `sym(S)`, median per seed",
            "over all heads",
        ],
        rows,
    )


def error_table():
    rows = []
    for task, label, layer in LAYERS:
        of = runs(task)
        shares = [
            statistics.median([head[part] / head["kl"] for head in heads(of, [layer])])
            for part in ("resolution", "filter", "correction")
        ]
        rows.append(
            [
                f"{label}, layer {layer}",
                per_seed(of, "kl", [layer]),
                spread(numbers(of, "kl", [layer])),
                *(f"{share:.2f}" for share in shares),
            ]
        )
    return table(
        ["", "KL, median per seed", "over all heads", "resolution / KL", "filter / KL", "correction / KL"], rows
    )


def cumulants_table():
    rows = []
    for task, label, layer in LAYERS:
        of = runs(task)
        medians = [f"{statistics.median(numbers(of, key, [layer])):.3g}" for key in ("third", "fourth", "correction")]
        ranges = numbers(of, "range", [layer])
        rows.append(
            [
                f"{label}, layer {layer}",
                *medians,
                spread(ranges, 1),
                f"{sum(one < math.pi for one in ranges)} of {len(ranges)}",
            ]
        )
    return table(
        [
            "medians over heads",
            "`k_3 / 6`",
            "`k_4 / 24`",
            "correction",
            "largest range of `Delta`",
            "heads with a range below pi",
        ],
        rows,
    )


def weights_table():
    rows = []
    for task, label, layer in LAYERS:
        of = runs(task)
        falls = [all(a > b for a, b in itertools.pairwise(head["weights"])) for head in heads(of, [layer])]
        rows.append(
            [
                f"{label}, layer {layer}",
                *(spread(numbers(of, "weights", [layer], level)) for level in range(3)),
                f"{sum(falls)} of {len(falls)}",
            ]
        )
    return table(["", "level 0", "level 1", "level 2", "heads whose weights fall"], rows)


def cut_rows(task, label, attention, levels):
    of = runs(task, attention)
    rows = []
    for level in range(levels - 1):
        kl, bound, worst = (numbers(of, f"cut_{key}", level=level) for key in ("kl", "bound", "worst"))
        rows.append(
            [
                f"{label}, {level + 1} of {levels} levels",
                f"{statistics.median(kl):.2f}",
                f"{max(kl):.2f}",
                f"{statistics.median(bound):.3g}",
                f"{max(worst):.2f}",
            ]
        )
    return rows


def cut_table():
    rows = [row for task, label in TASKS.items() for row in cut_rows(task, label, "hkt", 3)]
    return table(
        ["kept", "KL, median head", "largest head", "bound, median head", "largest KL / bound of any row"],
        [*rows, *cut_rows("listops", "ListOps", "hkt-levels=5", 5)],
    )


def per_level_table(key, head):
    """A figure per seed at each level."""

    def make():
        rows = [
            [f"{label}, layer {layer}", *(per_seed(runs(task), key, [layer], level) for level in range(3))]
            for task, label, layer in LAYERS
        ]
        return table([head, "level 0", "level 1", "level 2"], rows)

    return make


PAGES = {
    "docs/theory/README.md": {"settings": settings_table},
    "docs/theory/psd.md": {"psd": psd_table},
    "docs/theory/error.md": {"error": error_table, "cumulants": cumulants_table},
    "docs/theory/decay.md": {"weights": weights_table, "cut": cut_table},
    "docs/theory/symmetry.md": {
        "direction": per_level_table("directional", "directional share, median over heads, per seed")
    },
    "docs/theory/gaussianity.md": {
        "after training": per_level_table("kurtosis_ratio", "kurtosis / expected, median over heads, per seed"),
        "sizes": sizes_table,
        "expected": expected_table,
        "layer 0": kurtosis_table(0),
        "layer 1": kurtosis_table(1),
        "p-values": p_table,
    },
}


if __name__ == "__main__":
    update("tools/theory_page.py", PAGES)
    check_sentences("tools/theory_sentences.py", theory_sentences.PAGES)
