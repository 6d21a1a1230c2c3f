"""The sentences of docs/RESULTS.md on controls, language models, their caches and recall that repeat figures of docs/results
(page_tables.py says how they are written).
"""

import math

from page_tables import range_of, raw, shown
from results_figures import find, p_value, pair

FILTER, BALANCED, BLIND = ":input_filter=true", ":tree=balanced:branching=4", ":tree=balanced"


def test_of(results, one, other):
    """Its difference is other - one, whichever of them the comparison names first."""
    tests = {(p["from"], p["to"]): p for p in results["pairs"]}
    found = tests.get((one, other)) or tests[other, one]
    return found if found["from"] == one else {**found, "difference": -found["difference"]}


def difference(results, one, other, *keys):
    """other - one, and these p-values."""
    test = test_of(results, one, other)
    return [f"{test['difference']:.2f}", *(p_value(test[key]) for key in keys)]


def controls():
    results = raw("controls-demo")

    def over(one, other, *keys):
        return difference(results, one, other, *keys)

    levels = [test_of(results, f"hkt:level_weights=level-{level}", "hkt") for level in (1, 2)]
    products = find(results, f"hsa{BALANCED}")["score_ratio"]
    edges = sum(attention["at_edge"] for attention in results["search"]["attentions"])
    rates = [one["learning_rate"] for one in results["search"]["attentions"][0]["tried"]]
    return [
        ("beyond an edge where that was best: {} rate that was chosen is at an edge", ["no" if edges == 0 else edges]),
        ("was searched over {} to {} by the validation rows", [f"{rate:.0e}".replace("e-0", "e-") for rate in (rates[0], rates[-1])]),
        ("in front of flat attention is worth {} points, HKT {}.", over("flat", f"flat{FILTER}") + over("flat", "hkt")),
        ("With the filter in front of both, HKT is {} points ahead (p = {})", over(f"flat{FILTER}", f"hkt{FILTER}", "p")),
        ("does no better than the filter ({} points, p = {})", over(f"flat{FILTER}", "hkt:level_weights=level-1", "p")),
        ("mix beats level 1 alone by {} and level 2 alone by {} (p = {}, {})",
         [*(f"{test['difference']:.2f}" for test in levels), *(p_value(test["p"]) for test in levels)]),
        ("uniform ones are {} points higher (p = {})", over("hkt", "hkt:level_weights=uniform", "p")),
        ("dense filters are {} points above as many parameters (Holm {})", over("flat:ffn=7", "hkt:filters=dense", "p_holm")),
        ("projections per level {} (Holm {})", over("flat:ffn=6", "hkt:projections=per-level", "p_holm")),
        ("Strata attention without a tree {} above the window (Holm {})", over("flat:window=17", "strata:tree=none:branching=4", "p_holm")),
        ("**Rotary positions** add {} to flat attention (p = {})", over("flat", "flat:positions=rotary", "p")),
        ("HSA is {} points above flat attention (p = {}) with {} of its products",
         [*over("flat", f"hsa{BALANCED}", "p"), "a fifth" if 0.19 < products < 0.22 else products]),
        ("Strata attention is {} above it (Holm {})", over(f"hsa{BALANCED}", f"strata{BALANCED}", "p_holm")),
        ("of both the levels are worth {} (p = {}, Holm {})",
         over(f"strata:levels=1{FILTER}{BALANCED}", f"strata{BALANCED}{FILTER}", "p", "p_holm")),
        ("between HSA and Strata attention ({}, p = {})", over("hsa", "strata", "p")),
        ("is for all {} pairs", [len(results["pairs"])]),
        ("HKT over flat attention is (Holm {}); HKT over flat attention with a filter is not ({}; with a filter in front of both {})",
         [over("flat", "hkt", "p_holm")[1], over(f"flat{FILTER}", "hkt", "p_holm")[1], over(f"flat{FILTER}", f"hkt{FILTER}", "p_holm")[1]]),
    ]


def controls_on_listops():
    results = raw("controls-listops")
    uniform, rotary, window, ffn = "hkt:level_weights=uniform", ":positions=rotary", "flat:window=60", "flat:ffn=7"
    level = [f"hkt:level_weights=level-{number}" for number in (1, 2)]

    def over(one, other, *keys):
        return difference(results, one, other, *keys)

    def both(function, *keys):
        """Of level 1 alone, of level 2 alone: first the differences, then the p-values."""
        tests = [function(name) for name in level]
        return [test[at] for at in range(1 + len(keys)) for test in tests]

    products = find(results, f"strata{BLIND}")["score_ratio"] / find(results, "hkt")["score_ratio"]
    rates = {one["name"]: one["learning_rate"] for one in results["search"]["attentions"]}
    first, searched = raw("hkt-table-listops"), find(results["search"], f"hsa{BLIND}")
    tie = [one["learning_rate"] for one in searched["tried"] if one["valid"] == max(each["valid"] for each in searched["tried"])]
    return [
        ("HKT is {} points above flat attention (p = {}). A filter", over("flat", "hkt", "p")),
        ("front of flat attention adds {}, rotary positions {}, more parameters {} and a window {},",
         [over("flat", name)[0] for name in (f"flat{FILTER}", f"flat{rotary}", ffn, window)]),
        ("level 1 alone is {} above flat attention and level 2 alone {} (p = {}, {})", both(lambda name: over("flat", name, "p"), "p")),
        ("The mix is {} and {} above them (p = {}, {}), and {} above uniform weights (p = {})",
         both(lambda name: over(name, "hkt", "p"), "p") + over(uniform, "hkt", "p")),
        ("**Four levels** are {} above three (p = {}), and **rotary positions** add {} to HKT (p = {})",
         over("hkt", "hkt:levels=4", "p") + over("hkt", f"hkt{rotary}", "p")),
        ("HSA is {} above flat attention (p = {}), at the rate {}, which the short search took from a tie with {}; in the first table, at {} "
         "and with {} epochs, it is {} above.", over("flat", f"hsa{BLIND}", "p") + tie + [tie[1], first["options"]["epochs"]]
         + shown([pair(first, "flat", f"hsa{BLIND}")["difference"]], 2)),
        ("Strata attention is {} above HSA (p = {}), of which a part may be the rate's, and {} below HKT (p = {}) at {} of its",
         over(f"hsa{BLIND}", f"strata{BLIND}", "p") + over(f"strata{BLIND}", "hkt", "p") + shown([products], 2)),
        ("attention is {} above the window of as many products (p = {})", over(window, "strata:tree=none", "p")),
        ("Strata attention is {} below HSA (p = {})", over("strata", "hsa", "p")),
        ("**Two levels** gain hardly anything ({}); the short search gave them the rate {},", over("flat", "hkt:levels=2") + [rates["hkt:levels=2"]]),
        ("for all {} pairs HKT with rotary positions is significantly above flat attention ({}), and HKT above two levels ({}); "
         "HKT over flat attention ({}) is not,",
         [len(results["pairs"]), over("flat", f"hkt{rotary}", "p_holm")[1], over("hkt:levels=2", "hkt", "p_holm")[1],
          over("flat", "hkt", "p_holm")[1]]),
    ]


def controls_on_imdb():
    results, alone = raw("controls-imdb"), "hkt:level_weights=level-1"
    singles = {run["run"].split("3 epochs/")[-1]: run for run in raw("single-runs") if run["run"].startswith("controls, imdb")}
    rotary = find(results, "hkt:positions=rotary")
    rates = {one["name"]: one["learning_rate"] for one in results["search"]["attentions"]}

    def over(one, other, *keys):
        return difference(results, one, other, *keys)

    return [
        ("better than the mix**, by {} points (p = {}; Holm {})", over("hkt", alone, "p", "p_holm")),
        ("comes level with dense ones ({}, p = {})", over("hkt:filters=dense", alone, "p")),
        ("The mix is {} above flat attention (Holm {}), and uniform weights do as well as learned ones ({}, p = {})",
         over("flat", "hkt", "p_holm") + over("hkt", "hkt:level_weights=uniform", "p")),
        ("**The filter in front** is worth {} (p = {}), and HKT is {} above that (p = {})",
         over("flat", f"flat{FILTER}", "p") + over(f"flat{FILTER}", "hkt", "p")),
        ("do not help HKT here: {} with a deviation of {}, at the rate {} that",
         [*shown([rotary["mean"], rotary["standard_deviation"]], 2), rates["hkt:positions=rotary"]]),
        ("only level 1 alone has more than 65 ({})",
         shown([max(one["valid"] for a in results["search"]["attentions"] if a["name"] == alone for one in a["tried"])], 2)),
        ("8 epochs the first tables have {} for HKT", shown([find(raw("hkt-table-imdb"), "hkt")["mean"]], 2)),
        ("is for {} pairs. For the {} of all eleven, HKT over flat attention would not be sure to be significant: {} times its p is {}.",
         [len(results["pairs"]), 55, 55, f"{55 * test_of(results, 'flat', 'hkt')['p']:.3f}"]),
        ("attention with rotary positions {}, with wider layers {}, Strata attention without a tree {} at a rate",
         shown([100 * singles[f"{name}-seed1"]["test"]["accuracy"] for name in ("flat-positions=rotary", "flat-ffn=7", "strata-tree=none")], 2)),
    ]


def controls_on_cifar10():
    results, alone = raw("controls-cifar10-cpu"), "hkt:level_weights=level-1"
    options = results["options"]
    edges = sum(attention["at_edge"] for attention in results["search"]["attentions"])
    best = sorted(results["attentions"], key=lambda a: -a["mean"])[:2]
    widest, spread = max(results["attentions"], key=lambda a: a["standard_deviation"])["name"], find(results["search"], "strata")

    def over(one, other, *keys):
        return difference(results, one, other, *keys)

    return [
        ("{} training rows, {} epochs, {} test rows", [f"{options['train_rows']:,}", options["epochs"], "10,000"]),
        ("{} rate that was chosen is at an edge of what was tried ([results/controls-cifar10-cpu.json]", ["no" if edges == 0 else edges]),
        ("HKT is {} points above flat attention (p = {}), a filter in front of flat attention {} (p = {})",
         over("flat", "hkt", "p") + over("flat", f"flat{FILTER}", "p")),
        ("level 1 alone is {} above flat attention (p = {}) and {} above the mix (p = {})", over("flat", alone, "p") + over("hkt", alone, "p")),
        ("Uniform weights are {} above learned ones (p = {})", over("hkt", "hkt:level_weights=uniform", "p")),
        ("Wider layers add {} (p = {}), rotary positions {} (p = {})", over("flat", "flat:ffn=7", "p") + over("flat", "flat:positions=rotary", "p")),
        ("Strata attention is {} above HSA on the balanced tree (p = {}) and {} on the quadtree (p = {})",
         over(f"hsa{BALANCED}", f"strata{BALANCED}", "p") + over("hsa", "strata", "p")),
        ("Without a tree it is {} above the window of as many products (p = {}) and {} above flat attention (p = {})",
         over("flat:window=17", "strata:tree=none:branching=4", "p") + over("flat", "strata:tree=none:branching=4", "p")),
        ("with {} of flat attention's score products and without a tree", shown([find(results, f"strata{BALANCED}")["score_ratio"]], 2)),
        ("where its seeds differ most, at the rate {}.", [spread["learning_rate"] if widest == "strata" else widest]),
        ("**Strata attention is the highest**, on a {} tree", ["blind balanced" if [a["name"] for a in best] == [f"strata{BALANCED}", "strata:tree=none:branching=4"] else best]),
        ("correction for the {} pairs {} of them are significant", [len(results["pairs"]), sum(p["p_holm"] < 0.05 for p in results["pairs"])]),
    ]


def longer_texts():
    results = raw("lm-longer-cpu")
    of = {a["name"]: a for a in results["attentions"]}

    def change(name):
        """Bits from the last places of the training's context to those of the longest texts."""
        loss = {part["name"]: part["loss"] / math.log(2) for part in of[name]["seeds"][0]["parts"]}
        return loss["2048-4095"] - loss["256-511"]

    return [
        ("flat attention and HKT have {} and {} bits more", shown([change("flat"), change("hkt")], 2)),
        ("Strata attention and the window change by {} and {}.", [f"{change(name):+.2f}" for name in ("strata", "flat:window=60")]),
    ]


def gained(attention, last="256-511", first="64-127"):
    """Bits per byte that the last places of the context have less than the first ones."""
    loss = {part["name"]: part["loss"] for part in attention["parts"]}
    return (loss[first] - loss[last]) / math.log(2)


def long_language_models():
    language = raw("lm-novels")
    options, least = language["options"], min(p["p"] for p in language["pairs"])
    to_hkt = test_of(language, "flat", "hkt")
    singles = {run["run"].split("T 1024/")[-1]: run["test"]["loss"] / math.log(2) for run in raw("single-runs")
               if run["run"].startswith("language models")}

    def lower(one, other):
        test = test_of(language, one, other)
        return [f"{-test['difference']:.3f}", p_value(test["p"])]

    return [
        ("{} steps of {} windows ({} million bytes",
         [f"{options['steps']:,}", options["batch"], f"{options['steps'] * options['batch'] * options['length'] / 1e6:.1f}"]),
        ("**{} two of the four differ significantly**", ["No" if least >= 0.05 else least]),
        ("is {} bits below flat attention (p = {}), with {} of its score products",
         lower("flat", "strata") + shown([find(language, "strata")["score_ratio"]], 2)),
        ("with as many products** is {} bits below Strata attention (p = {})", lower("strata", "flat:window=67")),
        ("From 256-511 bytes to 512-1023 they gain {} to {},", range_of([gained(a, "512-1023", "256-511") for a in language["attentions"]], 3)),
        ("whose four layers reach back {} bytes", [options["layers"] * 67]),
        ("95% interval {} below to {} above). A loss of more than {} bits",
         shown([-to_hkt["low"], to_hkt["high"], to_hkt["high"]], 3)),
        ("all four are {} to {} bits better than after", range_of([gained(a, "512-1023") for a in language["attentions"]], 3)),
        ("**HKT is the lowest**, {} below flat attention (p = {};", lower("flat", "hkt")),
        ("streaming HSA {} and {}, Strata attention with near 1 {}, with near 4 {}, with dense filters {} (half",
         shown([singles[name] for name in ("hsa-seed1", "hsa-seed2", "strata-near=1-seed1", "strata-near=4-seed1", "strata-filters=dense-seed1")], 3)),
    ]


def language_models():
    language = raw("lm-novels-cpu")
    hsa, near2, near1 = (find(raw(file), name)["mean"] for file, name in (
        ("lm-novels-cpu", "hsa"), ("lm-novels-cpu", "strata"), ("lm-near-cpu", "strata:near=1")))
    return [
        ("a cache of logarithmic size: {} bits lower, and {} with dense filters",
         shown([-pair(language, "flat", name)["difference"] for name in ("strata", "strata:filters=dense")], 3)),
        ("correction for the 15 pairs ({}, {})",
         [p_value(pair(language, "flat", name)["p_holm"]) for name in ("strata", "strata:filters=dense")]),
        ("with as many products** has {} bits where Strata attention has {}",
         shown([find(language, name)["mean"] for name in ("flat:window=60", "strata")], 3)),
        ("Of the {} bits between it and Strata attention, levels and filters account for {} (near 1 in the next table) and the second near family for {}.",
         shown([hsa - near2, hsa - near1, near1 - near2], 3)),
        ("the bits fall by {} at most", shown([max(map(gained, language["attentions"]))], 3)),
        ("**Streaming HSA loses** {} bits to flat attention (Holm {})",
         [*shown([pair(language, "flat", "hsa")["difference"]], 2), p_value(pair(language, "flat", "hsa")["p_holm"])]),
        ("**HKT** is {} lower than flat attention, which is not significant (Holm {})",
         [*shown([-pair(language, "flat", "hkt")["difference"]], 3), p_value(pair(language, "flat", "hkt")["p_holm"])]),
    ]


def controls_of_language_models():
    results = raw("lm-controls-cpu")
    options = results["options"]

    def lower(one, other):
        test = test_of(results, one, other)
        return [f"{-test['difference']:.3f}", p_value(test["p"])]

    return [
        ("{} bytes of context, {} steps of {} windows ({} million bytes) and three seeds",
         [options["length"], f"{options['steps']:,}", options["batch"],
          f"{options['steps'] * options['batch'] * options['length'] / 1e6:.1f}"]),
        ("in front of flat attention gains {} bits (p = {}), HKT's levels {} (p = {})",
         lower("flat", f"flat{FILTER}") + lower("flat", "hkt")),
        ("With the filter in front of both, HKT is {} lower (p = {}), and Strata attention {} (p = {})",
         lower(f"flat{FILTER}", f"hkt{FILTER}") + lower(f"flat{FILTER}", f"strata{FILTER}")),
        ("levels gain {} bits over uniform ones (p = {})", lower("hkt:level_weights=uniform", "hkt")),
        ("for the {} pairs; the smallest is {}", [len(results["pairs"]), p_value(min(p["p_holm"] for p in results["pairs"]))]),
    ]


def near_families():
    results = raw("lm-near-cpu")
    fewer, more = (test_of(results, "strata", f"strata:near={near}") for near in (1, 4))
    products = find(results, "strata:near=4")["score_ratio"] / find(results, "strata")["score_ratio"]
    return [("with one the model loses {} bits (Holm {}), and four gain {} (p = {}) for {} times the score products",
             [f"{fewer['difference']:.3f}", p_value(fewer["p_holm"]), f"{-more['difference']:.3f}", p_value(more["p"]), f"{products:.2f}"])]


def caches():
    held = {a["name"]: {cache["context"]: cache["cache_bytes"] for cache in a["caches"]} for a in raw("lm-caches")["attentions"]}
    flat, strata = held["flat"], held["strata"]
    return [("(near 2) is {} of flat attention's", shown([strata[512] / flat[512]], 2)),
            ("after 65,536 it is {} times smaller", shown([flat[65536] / strata[65536]], 0))]


def recall():
    results = raw("recall-cpu")
    places = {a["name"]: {part["name"]: 100 * part["accuracy"] for part in a["parts"]} for a in results["attentions"]}
    near = {width: places[f"strata:{width}branching=4"] for width in ("near=1:", "", "near=4:")}
    fours = [near[""]["8-15"], near[""]["16-31"], near["near=4:"]["16-31"], near["near=4:"]["32-63"]]
    sixteens = [near[""]["32-63"], near[""]["64-127"], near["near=4:"]["64-127"]]
    window, options = places["flat:window=21"], results["options"]
    found = min(find(results, name)["mean"] for name in ("flat", "hkt"))
    return [
        ("{} layers, {} channels, rotary positions, {} training rows that ask for {} digits each, {} epoch",
         ["Two" if options["layers"] == 2 else options["layers"], options["model_size"], f"{options['train_rows']:,}",
          "eight" if options["questions"] == 8 else options["questions"], "one" if options["epochs"] == 1 else options["epochs"]]),
        ("both find {} digit, with every seed", ["every" if found == 100 else found]),
        ("Of the means of 4 it finds {} to {}%, of those of 16 {} to {}%", [*range_of(fours, 0), *range_of(sixteens, 0)]),
        ("Both are below flat attention over all distances (Holm {}, {})",
         [p_value(test_of(results, "flat", f"strata:{width}branching=4")["p_holm"]) for width in ("", "near=4:")]),
        ("it finds {}% from 32 bytes on, where the reach of two layers ends, and {}% from 64 bytes on", shown([window["32-63"], window["64-127"]], 0)),
        ("near 2 is {} points above it (Holm {})", difference(results, "flat:window=21", "strata:branching=4", "p_holm")),
        ("misses {} of the digits even 4 to 7 bytes back", ["a third" if 64 < places["hsa:branching=4"]["4-7"] < 69 else places["hsa:branching=4"]]),
        ("with near 1 {} of them 16 to 63 bytes back",
         ["half" if all(42 < near["near=1:"][place] < 58 for place in ("16-31", "32-63")) else near["near=1:"]]),
    ]


PAGES = {"docs/RESULTS.md": lambda: [*controls(), *controls_on_listops(), *controls_on_imdb(), *controls_on_cifar10(), *longer_texts(), *long_language_models(), *language_models(), *controls_of_language_models(), *near_families(), *caches(), *recall()]}
