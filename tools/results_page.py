#!/usr/bin/env python3
"""Writes the tables of docs/RESULTS.md, docs/INJECT.md and README.md that come from the raw results of `strata compare`,
`strata train` and `strata inject` in docs/results, and checks the sentences of
controls_sentences.py, results_sentences.py and results_settings.py.

results_page.py          writes the tables again
results_page.py --check  says whether they are up to date; exit code 1 if not
"""

import functools

import controls_sentences
import results_sentences
import results_settings
from page_tables import check_sentences, machine, raw, table, update
from results_controls import caches_table, controls_table, language_table, longer_table, recall_table, samples_block
from results_figures import LRA, PAPER, TASKS, bold, find, holm, holm_of, mean, over, p_value, pair, percent, ratio, with_p

HKT, DENSE, BALANCED = "HKT, L = 3", "HKT, L = 3, dense filters", "HSA, balanced tree"
INJECTED = {"SST-2": "sst2", "AG News": "agnews", "IMDB": "imdb"}


# ------------------------------------------------------------------------------------------- docs/RESULTS.md


def attention_table(name, labels):
    """Bold: the best one, and those without a significant difference from it, where they are better than flat; after Holm's
    correction for all pairs."""
    results = raw(name)
    attentions, corrected = results["attentions"], holm(results)
    tests = {frozenset((p["from"], p["to"])): p for p in results["pairs"]}
    flat, best = attentions[0], max(attentions, key=lambda a: a["mean"])
    rows = []
    for label, a in zip(labels, attentions, strict=True):
        test = tests.get(frozenset((flat["name"], a["name"])))
        near = a is best or corrected[frozenset((best["name"], a["name"]))] >= 0.05
        wins = test is not None and test["difference"] > 0 and holm_of(results, test) < 0.05
        compared = [over(test), p_value(test["p"]), p_value(holm_of(results, test))] if test else ["", "", ""]
        costs = [f"{a['parameters']:,.0f}", ratio(a["score_ratio"]), ratio(a["time_ratio"])]
        rows.append([label, mean(a, near and wins), *compared, *costs])
    return table(["attention", "test accuracy, %", "over flat", "p", "Holm", "parameters", "scores", "step"], rows)


def summary_table():
    results = [raw(f"hkt-table-{task}") for task in TASKS]
    rows = []
    for name, label in (("flat", "flat"), ("hkt", "HKT")):
        rows.append([f"{label}, the paper", *(f"{value:.2f}" for value in PAPER[name])])
        rows.append([f"{label}, here", *(f"{find(r, name)['mean']:.2f}" for r in results)])
    rows.append(["HKT over flat, the paper", *(f"{b - a:+.2f}" for a, b in zip(PAPER["flat"], PAPER["hkt"]))])
    for label, name in (("HKT over flat, here", "hkt"), ("with dense filters", "hkt:filters=dense"),
                        ("HSA on the data's tree over flat", "hsa"), ("HSA on a balanced tree over flat", "hsa:tree=balanced")):
        rows.append([label, *(with_p(r, test, over(test)) for r in results for test in [pair(r, "flat", name)])])
    return table(["test accuracy, %", "ListOps", "IMDB bytes", "CIFAR-10"], rows)


def lra_table():
    rows = [[f"{name} ([arXiv {paper}](https://arxiv.org/abs/{paper}))", *(f"{value:.1f}" for value in values)]
            for name, (*values, paper) in LRA.items()]
    imdb, cifar = raw("best-imdb"), raw("best-cifar10")
    for label, listops, names in (("flat, here", find(raw("hkt-table-listops"), "flat"), ("flat", "flat")),
                                  ("HKT, here", find(raw("variants-listops"), "hkt:levels=4"), ("hkt:filters=dense", "hkt"))):
        rows.append([label, *(f"{a['mean']:.1f}" for a in (listops, find(imdb, names[0]), find(cifar, names[1])))])
    return table(["accuracy, %", "ListOps", "Text", "Image"], rows)


def best_table():
    columns = [(raw("best-imdb"), "hkt:filters=dense"), (raw("best-cifar10"), "hkt")]
    return table(["", "IMDB bytes", "CIFAR-10"], [
        ["flat", *(mean(find(r, "flat")) for r, _ in columns)],
        ["HKT, L = 3 (IMDB: dense filters)", *(mean(find(r, name), True) for r, name in columns)],
        ["HKT over flat", *(f"{over(pair(r, 'flat', n))} (p = {p_value(pair(r, 'flat', n)['p'])})" for r, n in columns)],
    ])


def defaults_table():
    """Bold: better than the first line after Holm's correction for the pairs of the comparison."""
    variants = [raw(f"variants-{task}") for task in TASKS]
    rows = [["L = 3, shared projections, depthwise filters", *(mean(find(r, "hkt")) for r in variants)]]
    for label, name, results in (
        ("L = 2", "hkt:levels=2", variants),
        ("L = 4", "hkt:levels=4", variants),
        ("projections per level", "hkt:projections=per-level", variants),
        ("dense filters (the tables above)", "hkt:filters=dense", [raw(f"hkt-table-{task}") for task in TASKS]),
    ):
        tests = [pair(r, "hkt", name) for r in results]
        rows.append([label, *(with_p(r, t, mean(find(r, name))) for r, t in zip(results, tests))])
    return table(["HKT", "ListOps", "IMDB bytes", "CIFAR-10"], rows)


def ablation_table(kind):
    runs = {run["run"]: run for run in raw("ablations-imdb-runs")}
    labels = {
        "HKT": {"-learning_rate=2e-3": "L = 3, 3 taps, depthwise, shared projections", "-levels=2-learning_rate=2e-3": "L = 2",
                "-levels=4-learning_rate=2e-3": "L = 4", "-levels=5-learning_rate=2e-3": "L = 5",
                "-taps=2-learning_rate=2e-3": "2 taps", "-taps=5-learning_rate=2e-3": "5 taps",
                "-input_filter=true-learning_rate=2e-3": "input filter",
                "-psd=true-learning_rate=2e-3": "PSD mode (keys made from queries)",
                "-projections=per-level-learning_rate=2e-3": "projections per level",
                "-filters=dense-learning_rate=5e-4": "dense filters",
                "-filters=dense-projections=per-level-learning_rate=5e-4": "dense filters, projections per level"},
        "HSA": {"-learning_rate=5e-4": "the text's tree, families of at most 16, a bias table between siblings",
                "": "the same with learning rate 1e-3", "-branching=8-learning_rate=5e-4": "families of at most 8",
                "-branching=4-learning_rate=5e-4": "families of at most 4",
                "-tree=balanced": "balanced tree, families of at most 16 (learning rate 1e-3)",
                "-tree=balanced-branching=4": "balanced tree, families of at most 4 (learning rate 1e-3)",
                "-sibling_positions=none-learning_rate=5e-4": "no position terms between siblings",
                "-sibling_positions=learned-learning_rate=5e-4": "learned position vectors",
                "-sibling_positions=sinusoidal-learning_rate=5e-4": "sinusoidal position terms",
                "-normalize=true-learning_rate=5e-4": "normalised queries and keys"},
    }[kind]
    named = [(label, runs.pop(f"{kind.lower()}{key}-seed1")) for key, label in labels.items()]
    if left := [run for run in runs if run.startswith(kind.lower())]:
        raise SystemExit(f"docs/results/ablations-imdb-runs.json: runs without a line in the table: {left}")
    return table([kind, "validation", "test"], [
        [label, *(f"{100 * run[split]['accuracy']:.1f}" for split in ("valid", "test"))] for label, run in named])


def positions_table():
    labels = ["a bias table between siblings (the default)", "none", "learned position vectors", "sinusoidal position terms",
              "a bias table; normalised queries and keys"]
    attentions = raw("positions-demo")["attentions"]
    return table(["HSA, short ListOps expressions", "test accuracy, %"], zip(labels, map(mean, attentions), strict=True))


def search_table():
    results, rows = raw("search-cifar10"), []
    for label, name in (("flat", "flat"), ("HKT", "hkt"), ("HKT, dense", "hkt:filters=dense"),
                        ("HSA, the data's tree", "hsa"), ("HSA, balanced", "hsa:tree=balanced")):
        rates = {"1e-3": name, **{rate: f"{name}:learning_rate={rate}" for rate in ("5e-4", "2e-3")}}
        valid = [next(a["valid_mean"] for a in results["attentions"] if a["name"] == rates[rate])
                 for rate in ("5e-4", "1e-3", "2e-3")]
        rows.append([label, " / ".join(bold(f"{value:.1f}", value == max(valid)) for value in valid)])
    return table(["", "CIFAR-10"], rows)


# --------------------------------------------------------------------------------- docs/INJECT.md and README.md


def auto_table():
    rows = []
    for label, name in INJECTED.items():
        run = raw(f"inject-minilm-{name}")
        trees = {}
        for layer in run["plan"]:
            trees.setdefault(", ".join(layer["trees"]), []).append(str(layer["layer"]))
        after = run["after"]
        rows.append([label, f"{run['test']['rows']:,}, {run['test']['tokens']:.0f}", percent(run["before"]["score"]),
                     percent(after["score"]), percent(after["agreement"]),
                     "; ".join(f"{', '.join(layers)}: {tree}" for tree, layers in trees.items()),
                     percent(after["injected_share"], 1), percent(after["attention_share"], 1)])
    return table(["", "rows, tokens", "original", "`--layers auto`", "answers as the original", "layers: trees",
                  "attention left in these layers", "in all layers"], rows)


def curves_block():
    lines = ["```"]
    for label, name in INJECTED.items():
        curve = raw(f"inject-minilm-{name}")["curve"]
        lines += [label, "layers  late and alternate ones first    as much saved, by the KL gap"]
        for late, auto in zip(curve["late"], curve["auto"], strict=True):
            cells = [f"{percent(x['score']):>7} ({percent(x['agreement']):>7}) at {percent(x['attention_share'], 1):>6}"
                     for x in (late, auto)]
            lines.append(f"{len(late['layers']):<6}  {cells[0]:<32} {cells[1]}  {auto['layers']}".replace(", ", ","))
        lines.append("")
    return [*lines[:-1], "```"]


def times_table():
    """Forward passes of seeded models; attention's share of the FLOPs stands in the lines of softmax."""
    figures, rows = raw("inject-times"), []
    for label, name in (("roberta-base, 512 tokens", "roberta_t512"), ("gpt2, 1,024 tokens", "gpt2_t1024")):
        model = f"inject_cpu_{name}"
        share = percent(figures[f"{model}_softmax_attention_share_of_flops"], 1)
        rows.append([label, "no layer", f"{figures[f'{model}_softmax_ms']:,.0f}", "1", "1", f"1 ({share} of the FLOPs)"])
        for way in ("late", "alternate"):
            cells = [ratio(figures[f"{model}_{way}_{what}_over_softmax"]) for what in ("time", "flops", "attention")]
            rows.append(["", f"{way} layers", f"{figures[f'{model}_{way}_ms']:,.0f}", *cells])
    head = ["shape", "HSA in", "ms", "time over softmax", "FLOPs over softmax", "attention's FLOPs"]
    return [*machine("inject-times"), *table(head, rows)]


def readme_table():
    results, rows = [raw(f"hkt-table-{task}") for task in TASKS], []
    for label, name in (("HKT", "hkt"), ("HSA on the data's own tree", "hsa")):
        gains = [over(pair(r, "flat", name), 1) for r in results]
        if name == "hkt":
            gains[1] += f"; with dense filters {over(pair(results[1], 'flat', 'hkt:filters=dense'), 1)}"
        costs = [find(r, name) for r in results]
        rows.append([label, *gains])
        rows.append(["its score products", *(ratio(a["score_ratio"]) for a in costs)])
    return table(["over flat attention", "ListOps", "IMDB bytes", "CIFAR-10"], rows)


def attentions(name, *trees, behind=()):
    return functools.partial(attention_table, name, ["flat", HKT, *trees, BALANCED, *behind])


PAGES = {
    "docs/RESULTS.md": {
        "summary": summary_table,
        "lra": lra_table,
        "listops": attentions("hkt-table-listops", DENSE, "HSA, the brackets"),
        "imdb": attentions("hkt-table-imdb", DENSE, "HSA, paragraphs, sentences, words"),
        "cifar10": attentions("hkt-table-cifar10", DENSE, "HSA, quadtree"),
        "captions": functools.partial(attention_table, "captions", [
            "flat", HKT, "HSA, the document's tree", BALANCED, "Strata, the document's tree"]),
        "words": attentions("hsa-table-imdb-words", "HSA, paragraphs and sentences"),
        "frozen": attentions("hsa-table-imdb-frozen", "HSA, paragraphs, sentences, words",
                             behind=["Strata, paragraphs, sentences, words"]),
        "best": best_table,
        "defaults": defaults_table,
        "ablations of HKT": functools.partial(ablation_table, "HKT"),
        "ablations of HSA": functools.partial(ablation_table, "HSA"),
        "positions": positions_table,
        "controls": functools.partial(controls_table, "controls-demo", "short ListOps expressions"),
        "controls on the brackets": functools.partial(controls_table, "controls-demo", "given the brackets", on_its_tree=True),
        "controls on ListOps": functools.partial(controls_table, "controls-listops", "ListOps, 4 epochs"),
        "controls on ListOps, brackets": functools.partial(controls_table, "controls-listops", "given the brackets", on_its_tree=True),
        "controls on IMDB": functools.partial(controls_table, "controls-imdb", "IMDB bytes, 3 epochs"),
        "controls on small images": functools.partial(controls_table, "controls-cifar10-cpu", "CIFAR-10, 8 x 8"),
        "controls on the quadtree": functools.partial(controls_table, "controls-cifar10-cpu", "given the quadtree", on_its_tree=True),
        "search": search_table,
        "controls of language models": functools.partial(language_table, "lm-controls-cpu", ("16-31", "64-127", "128-255")),
        "near families": functools.partial(language_table, "lm-near-cpu", ("16-31", "64-127", "256-511"), "near 2"),
        "caches": caches_table,
        "longer texts": longer_table,
        "samples": samples_block,
        "recall": recall_table,
        "language models, 1024": functools.partial(language_table, "lm-novels", ("16-31", "64-127", "512-1023")),
        "language models": functools.partial(language_table, "lm-novels-cpu", ("16-31", "64-127", "256-511")),
    },
    "docs/INJECT.md": {"auto": auto_table, "curves": curves_block, "times": times_table},
    "README.md": {"accuracy": readme_table},
}


if __name__ == "__main__":
    update("tools/results_page.py", PAGES)
    for sentences in (controls_sentences, results_sentences, results_settings):
        check_sentences(f"tools/{sentences.__name__}.py", sentences.PAGES)
