"""The sentences of docs/theory that repeat figures of docs/results/theory-*.json, as in tools/results_sentences.py."""

import itertools
import math
import statistics

from theory_figures import SIZES, TASKS, heads, numbers, ratios, runs, sizes, spread

INDEPENDENT = ("hkt", "hkt-projections=per-level", "hkt-levels=5")  # projections of queries and keys


def ends(values, digits=2):
    return [f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"]


def tiny(value):
    return f"{value:.0e}".replace("e-0", "e-")


def medians(of, key, layer, level=None):
    """Over the heads of a layer, one per seed."""
    return [statistics.median(numbers([run], key, [layer], level)) for run in of]


def psd():
    without = [run for task in TASKS for name in INDEPENDENT for run in runs(task, name)]
    holds = [numbers(of, "holds") for of in (without, [run for task in TASKS for run in runs(task, "hkt-psd=true")])]
    return [
        (
            "{} of {} heads meet it with independent projections, {} of {} in PSD mode",
            [count for of in holds for count in (sum(of), len(of))],
        ),
        (
            "The negative share of the eigenvalues of each `sym(M_l)` is {}",
            [spread(numbers(without, "negative_count"))],
        ),
        *(
            (f"{{}} to {{}} on {label}", ends(numbers(runs(task), "scores_negative_mass")))
            for task, label in TASKS.items()
        ),
    ]


def error():
    of = [run for task in TASKS for run in runs(task)]
    return [
        *((f"{{}} to {{}} nats on {label}", ends(numbers(runs(task), "kl"))) for task, label in TASKS.items()),
        (
            "In {} of {} heads the range of `Delta` stays below pi",
            [sum(one < math.pi for one in numbers(of, "range")), len(numbers(of, "range"))],
        ),
        ("between {} and {} nats in the second layer on ListOps", ends(medians(runs("listops"), "kl", 1))),
        ("The sum is exact to {}", [tiny(max(run["residuals"]["components"] for run in of))]),
    ]


def decay():
    of, five = [run for task in TASKS for run in runs(task)], runs("listops", "hkt-levels=5")
    falls = [all(a > b for a, b in itertools.pairwise(head["weights"])) for head in heads(of)]
    kl, bound = (
        [statistics.median(numbers(five, key, level=level)) for level in range(4)] for key in ("cut_kl", "cut_bound")
    )
    return [
        ("fall from level to level in {} of {} heads", [sum(falls), len(falls)]),
        ("all of them lie between {} and {}", ends(numbers(of, "weights"))),
        ("At most {} of the bound is reached", [f"{max(numbers(of + five, 'cut_worst')):.2f}"]),
        (
            "the KL of the median head is {}, {}, {} and {} nats with one to four levels kept",
            [f"{one:.2f}" for one in kl],
        ),
        ("the bound {}, {}, {} and {}", [f"{one:.3g}" for one in bound]),
    ]


def symmetry():
    of = [run for task in TASKS for run in runs(task)]
    sentences = []
    for task, label in TASKS.items():
        falls = [head["directional"][2] < head["directional"][0] for head in heads(runs(task))]
        sentences.append((f"{{}} of {{}} heads on {label}", [sum(falls), len(falls)]))
    residuals = {
        key: max(run["residuals"][key] for run in of)
        for key in ("orthogonality", "upsampling", "projection", "filters")
    }
    return [
        *sentences,
        (
            "to {} with up-sampling and projections, to {} with filters",
            [tiny(max(residuals["upsampling"], residuals["projection"])), tiny(residuals["filters"])],
        ),
        ("the parts are orthogonal to {}", [tiny(residuals["orthogonality"])]),
    ]


def gaussianity():
    trained = [of for size in SIZES if (of := sizes(size))]
    level_2 = [
        run["ceiling"][2] / run["expected_kurtosis"][2] for of in trained for run in of if run["components"][2] == 16
    ]
    courses = {level: [ratios(of, layer, level) for of in trained for layer in (0, 1)] for level in range(3)}
    return [
        ("cannot exceed {} of the expected value", [f"{max(level_2):.2f}"]),
        (
            "Level 0 has {} to {} before training and {} to {} after it",
            [*ends([one[0] for one in courses[0]]), *ends([one[-1] for one in courses[0]])],
        ),
        (
            "Level 1 has {} to {} before and {} to {} after",
            [*ends([one[0] for one in courses[1]]), *ends([one[-1] for one in courses[1]])],
        ),
        (
            "at level 2 they have {} to {} of the expected value",
            ends([one for layer in (0, 1) for one in medians(runs("imdb"), "kurtosis_ratio", layer, 2)]),
        ),
        (
            "Level 2 has {} to {} before and {} to {} after",
            [*ends([one[0] for one in courses[2]]), *ends([one[-1] for one in courses[2]])],
        ),
    ]


PAGES = {f"docs/theory/{page.__name__}.md": page for page in (psd, error, decay, symmetry, gaussianity)}
