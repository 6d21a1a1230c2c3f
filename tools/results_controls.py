"""The tables of docs/RESULTS.md whose rows are named after the attentions of a comparison: controls, language models and recall."""

import math
import re
import statistics
import textwrap

from page_tables import raw, table
from results_figures import mean, p_value, ratio

CONTROLS = {
    "flat": "flat", "flat:input_filter=true": "flat, a filter in front", "flat:positions=rotary": "flat, rotary positions",
    "flat:window=": "flat, a window of {}", "flat:ffn=": "flat, feed-forward layers {} times as wide as the model",
    "hkt:level_weights=level-1": "HKT, level 1 alone", "hkt:level_weights=level-2": "HKT, level 2 alone",
    "hkt:level_weights=uniform": "HKT, uniform weights", "hkt:levels=2": "HKT, L = 2", "hkt": "HKT, L = 3", "hkt:levels=4": "HKT, L = 4",
    "hkt:input_filter=true": "HKT, a filter in front", "hkt:positions=rotary": "HKT, rotary positions",
    "hkt:filters=dense": "HKT, dense filters", "hkt:projections=per-level": "HKT, projections per level",
    "hsa:tree=balanced": "HSA, balanced tree", "hsa:tree=balanced:branching=4": "HSA, balanced tree of 4",
    "strata:levels=1:input_filter=true:tree=balanced:branching=4": "the same, a filter in front",
    "strata:tree=balanced": "Strata, balanced tree", "strata:tree=balanced:branching=4": "Strata, balanced tree of 4",
    "strata:tree=balanced:branching=4:input_filter=true": "the same, a filter in front",
    "strata:tree=none": "Strata, both sides, no tree", "strata:tree=none:branching=4": "Strata, both sides, no tree, blocks of 4",
    "hsa": "HSA", "strata": "Strata",
}
ON_ITS_TREE = ("hsa", "strata")  # names of attentions on the tree of the data, which tells what others have to find


def label_of(name, labels):
    """Of an attention; labels may leave the width of a window or a feed-forward layer open."""
    found = re.fullmatch(r"(flat:(?:window|ffn)=)(\d+)", name)
    return labels[found[1]].format(found[2]) if found else labels[name]


def controls_table(name, title, on_its_tree=False):
    """Every attention over flat attention and over HKT: p, and p after Holm's correction for all pairs of the comparison.
    Where learning rates were searched, the one that was chosen. Attentions on the data's own tree have a table of their own."""
    results = raw(name)
    tests = {frozenset((p["from"], p["to"])): p for p in results["pairs"]}
    rates = {one["name"]: f"{one['learning_rate']:g}" for one in results.get("search", {}).get("attentions", [])}
    rows = []
    for attention in results["attentions"]:
        if (attention["name"] in ON_ITS_TREE) != on_its_tree:
            continue
        cells = []
        for other in ("flat", "hkt"):
            test = tests.get(frozenset((other, attention["name"])))
            sign = 1 if test is None or test["from"] == other else -1
            cells += [f"{sign * test['difference']:+.2f}", p_value(test["p"]), p_value(test["p_holm"])] if test else ["", "", ""]
        cells += [rates[attention["name"]]] if rates else []
        rows.append([label_of(attention["name"], CONTROLS), mean(attention), *cells, f"{attention['parameters']:,.0f}", ratio(attention["score_ratio"])])
    return table([title, "test accuracy, %", "over flat", "p", "Holm", "over HKT", "p", "Holm", *(["rate"] if rates else []),
                  "parameters", "scores"], rows)


LANGUAGE = {"flat": "flat", "flat:window=": "flat, a window of {}", "hkt": "HKT, L = 3", "hkt:filters=dense": "HKT, L = 3, dense filters",
            "hsa": "streaming HSA", "strata:near=1": "Strata, near 1", "strata": "Strata, near 2", "strata:near=4": "Strata, near 4",
            "strata:filters=dense": "Strata, near 2, dense filters", "flat:input_filter=true": "flat, a filter in front",
            "hkt:level_weights=uniform": "HKT, uniform weights", "hkt:input_filter=true": "HKT, a filter in front",
            "strata:input_filter=true": "Strata, near 2, a filter in front"}


def language_table(name, places, over="flat"):
    """Every attention over the first one, which is called `over`; bits at the first and the last places of the context."""
    results = raw(name)
    tests = {p["to"]: p for p in results["pairs"] if p["from"] == results["attentions"][0]["name"]}
    rows = []
    for a in results["attentions"]:
        test = tests.get(a["name"])
        bits = {part["name"]: part["loss"] / math.log(2) for part in a["parts"]}
        compared = [f"{test['difference']:+.3f}", p_value(test["p"]), p_value(test["p_holm"])] if test else ["", "", ""]
        rows.append([label_of(a["name"], LANGUAGE), f"{a['mean']:.3f} ± {a['standard_deviation']:.3f}", *compared,
                     *(f"{bits[place]:.2f}" for place in places),
                     f"{a['parameters']:,.0f}", ratio(a["score_ratio"]), ratio(a["time_ratio"])])
    first, *others = places
    return table(["bits per byte, test", "mean", f"over {over}", "p", "Holm", f"after {first} bytes", *others, "parameters", "scores", "step"], rows)


def caches_table():
    """Megabytes of the caches of one sequence."""
    attentions = raw("lm-caches")["attentions"]
    contexts = [f"{cache['context']:,}" for cache in attentions[0]["caches"]]
    rows = [[label_of(a["name"], LANGUAGE), *(f"{1e-6 * cache['cache_bytes']:.2f}" for cache in a["caches"])] for a in attentions]
    first, *others = contexts
    return table(["cache, MB", f"{first} bytes of text", *others], rows)


def bits_at(attention, place):
    """Bits per byte of every seed at a place of longer texts."""
    return [next(part["loss"] for part in seed["parts"] if part["name"] == place) / math.log(2) for seed in attention["seeds"]]


LONGER = ("64-127", "256-511", "512-1023", "1024-2047", "2048-4095")


def longer_table():
    """Bits per byte by place, within the context of training and beyond it, means over seeds."""
    rows = []
    for a in raw("lm-longer-cpu")["attentions"]:
        places = [bits_at(a, place) for place in LONGER]
        rows.append([label_of(a["name"], LANGUAGE), *(f"{statistics.mean(bits):.3f}" for bits in places),
                     f"{1e-6 * a['sample']['cache_bytes']:.2f}"])
    first, *others = LONGER
    return table(["bits per byte, test", f"after {first} bytes", *others, "cache, MB"], rows)


def samples_block():
    """The beginning and the end of what each model wrote."""
    lines = ["```"]
    for a in raw("lm-longer-cpu")["attentions"]:
        begin, end = (" ".join(a["sample"][part].split()) for part in ("begin", "end"))
        lines += [f"{label_of(a['name'], LANGUAGE)}:", *textwrap.wrap(f"{begin} .. {end}", 96, initial_indent="  ", subsequent_indent="  ")]
    return [*lines, "```"]


RECALL = {"flat": "flat", "flat:window=": "flat, a window of {}", "hkt": "HKT, L = 3", "hsa:branching=4": "streaming HSA",
          "strata:near=1:branching=4": "Strata, near 1", "strata:branching=4": "Strata, near 2",
          "strata:near=4:branching=4": "Strata, near 4"}


def recall_table():
    """Accuracy by distance, means over seeds."""
    results = raw("recall-cpu")
    places = [part["name"] for part in results["attentions"][0]["parts"]]
    rows = [[label_of(a["name"], RECALL), mean(a), *(f"{100 * part['accuracy']:.0f}" for part in a["parts"]), ratio(a["score_ratio"])]
            for a in results["attentions"]]
    first, *others = places
    return table(["test accuracy, %", "all", f"{first} bytes back", *others, "scores"], rows)
