"""The tables of docs/theory/gaussianity.md over the epochs, from docs/results/theory-kurtosis.json."""

import itertools

from page_tables import table
from theory_figures import SIZES, accuracy, all_runs, ratios, sizes


def expected_table():
    """Before training: what is expected of Gaussian rows, and what no rows exceed."""
    rows = []
    for size in SIZES:
        for of in sizes(size)[:1]:
            for level, tested in enumerate(of["tested"]):
                figures = (
                    [of["components"][level], f"{of['expected_kurtosis'][level]:g}", f"{of['ceiling'][level]:.0f}"]
                    if tested
                    else ["", "", ""]
                )
                rows.append([f"{size}, level {level}", f"{tested} of {of['rows']}", *figures])
    return table(
        [
            "model size",
            "sequences with enough rows",
            "components p",
            "expected b2, median",
            "ceiling of b2, first sequence",
        ],
        rows,
    )


def kurtosis_table(layer):
    def make():
        rows = []
        for size in SIZES:
            of = sizes(size)
            for level in range(3 if of else 0):
                rows.append(
                    [
                        f"{size}, level {level}",
                        len(of),
                        *(f"{one:.2f}" if one else "-" for one in ratios(of, layer, level)),
                    ]
                )
        return table(["model size", "seeds", *(f"epoch {epoch}" for epoch in all_runs("kurtosis")[0]["epochs"])], rows)

    return make


def p_table():
    """How many heads of all layers and seeds have a median p below 0.05."""
    rows = []
    for size in SIZES:
        of = sizes(size)
        for level in range(3 if of else 0):
            cells = []
            for key, at in itertools.product(("kurtosis_p", "skewness_p"), (0, -1)):
                found = [
                    head[level] for run in of for layer in run[key][at] for head in layer if head[level] is not None
                ]
                cells.append(f"{sum(p < 0.05 for p in found)} of {len(found)}" if found else "-")
            rows.append([f"{size}, level {level}", *cells])
    last = all_runs("kurtosis")[0]["epochs"][-1]
    return table(
        ["heads with p < 0.05", "kurtosis, epoch 0", f"epoch {last}", "skewness, epoch 0", f"epoch {last}"], rows
    )


def sizes_table():
    return table(
        ["model size", "seeds", "validation accuracy, %", "test accuracy, %"],
        [[size, len(of), accuracy(of, "valid"), accuracy(of)] for size in SIZES if (of := sizes(size))],
    )
