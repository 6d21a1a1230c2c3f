"""Figures of docs/results, found by name and written as the pages write them, and those that others have published."""

import re

TASKS = ("listops", "imdb", "cifar10")
PAPER = {"flat": (50.33, 62.72, 34.01), "hkt": (55.10, 70.19, 35.45)}  # HKT's abstract, arXiv 2604.08829
LRA = {  # ListOps, Text and Image as published
    "Transformer": (36.4, 64.3, 42.4, "2011.04006"),
    "H-Transformer-1D": (49.5, 78.7, 46.1, "2107.11906"),
    "S4": (59.6, 86.8, 88.7, "2111.00396"),
    "Mega": (63.1, 90.4, 90.4, "2209.10655"),
}


def find(results, name):
    """An attention of a comparison; its learning rate need not be named."""
    return next(a for a in results["attentions"] if re.fullmatch(rf"{name}(:learning_rate=[\de.-]+)?", a["name"]))


def pair(results, one, other):
    """Its difference is other - one."""
    names = find(results, one)["name"], find(results, other)["name"]
    return next(p for p in results["pairs"] if (p["from"], p["to"]) == names)


def p_value(p):
    return "< 0.00001" if p < 0.00001 else f"{p:.{2 if p >= 0.1 else 3 if p >= 0.01 else 4 if p >= 0.0001 else 5}f}"


def bold(text, yes=True):
    return f"**{text}**" if yes else text


def mean(attention, yes=False):
    return f"{bold(format(attention['mean'], '.2f'), yes)} ± {attention['standard_deviation']:.2f}"


def ratio(value):
    return "1" if value == 1 else f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def over(test, digits=2):
    return f"{test['difference']:+.{digits}f}"


def holm(results):
    """p after Holm's correction for all pairs of a comparison, by the set of the two names."""
    tests, adjusted, largest = sorted(results["pairs"], key=lambda test: test["p"]), {}, 0.0
    for place, test in enumerate(tests):
        largest = max(largest, min(1.0, (len(tests) - place) * test["p"]))
        adjusted[frozenset((test["from"], test["to"]))] = largest
    return adjusted


def holm_of(results, test):
    return holm(results)[frozenset((test["from"], test["to"]))]


def with_p(results, test, text):
    """Bold: above, and significant after Holm's correction."""
    corrected = holm_of(results, test)
    return f"{bold(text, test['difference'] > 0 and corrected < 0.05)} (p = {p_value(test['p'])}, Holm {p_value(corrected)})"


def percent(share, digits=2):
    return f"{100 * share:.{digits}f}%"
