"""The sentences of README.md, docs/RESULTS.md and docs/INJECT.md that repeat figures of docs/results
(page_tables.py says how they are written).
"""

from page_tables import on_cpu, range_of, raw, shown
from results_figures import LRA, PAPER, TASKS, find, holm_of, p_value, pair


def accuracy(file, *runs, split="valid"):
    """Of single runs, in percent."""
    found = {run["run"]: run for run in raw(file)}
    return [100 * found[run][split]["accuracy"] for run in runs]


def ablation(*runs):
    """Test accuracies; the first one less each of the others."""
    first, *others = accuracy("ablations-imdb-runs", *(f"{run}-seed1" for run in runs), split="test")
    return [first - other for other in others]


def gain(results, name):
    """Over flat attention."""
    return pair(results, "flat", name)


def p_of(name, *pairs):
    return [p_value(pair(raw(name), one, other)["p"]) for one, other in pairs]


def tables(one, other, key="mean"):
    """other - one on the three tasks."""
    results = [raw(f"hkt-table-{task}") for task in TASKS]
    return [find(r, other)[key] - find(r, one)[key] for r in results]


def dense(task):
    """p and Holm's p of dense filters against depthwise ones."""
    results = raw(f"hkt-table-{task}")
    test = pair(results, "hkt", "hkt:filters=dense")
    return [p_value(test["p"]), p_value(holm_of(results, test))]


def bench(*names):
    return [raw("bench-h200")[name] for name in names]


def own_milliseconds(figure):
    """At 64 channels and 16,384 tokens."""
    return raw("bench-h200")["roofline"]["kernels"][f"hkt_cuda_{figure}_d64_t16k"]["milliseconds"]


def at_16k(kind, over):
    """The same, of what three levels are compared with."""
    return own_milliseconds(f"{kind}_l3_over_cudnn") / raw("bench-h200")[f"hkt_cuda_{kind}_l3_over_{over}_d64_t16k"]


def lost(name, layers, key="score"):
    """late - auto with these numbers of layers, in points."""
    curve = raw(f"inject-minilm-{name}")["curve"]
    return [100 * (curve["late"][n][key] - curve["auto"][n][key]) for n in layers]


def after(name, key="score"):
    run = raw(f"inject-minilm-{name}")
    return 100 * (run["after"][key] - run["before"][key])


INJECTED = ("sst2", "agnews", "imdb")
HSA_WIDE = [f"hsa_cuda_b{b}_over_b16_{kind}_t64k" for b in (32, 64) for kind in ("fwd", "fwdbwd")]
SLOW = [f"arguments_cuda_hkt_{kind}_{argument}_over_none" for kind in ("fwd", "fwdbwd") for argument in ("alibi", "bias", "dropout")]
BALANCED_2 = [layer[raw("inject-minilm-sst2")["gaps"]["trees"].index("balanced 2")]
              for layer in raw("inject-minilm-sst2")["gaps"]["nats_per_token"]]


def readme():
    listops, imdb = raw("controls-listops"), raw("controls-imdb")
    gains = [(results, pair(results, "flat", name)) for task in TASKS for results in [raw(f"hkt-table-{task}")]
             for name in ("hkt", *(["hkt:filters=dense"] if task == "imdb" else []), "hsa")]
    weak = [corrected for results, test in gains if (corrected := holm_of(results, test)) >= 0.05]
    shares = [100 * find(raw(f"hkt-table-{task}"), "hsa")["score_ratio"] for task in TASKS]
    return [
        ("Our flat attention runs at {} of the rate of sgemm", shown(on_cpu("hkt_cpu_l1_fwd_fraction_of_sgemm_t2048"), 2)),
        ("with AMX, on an Intel CPU, {} times as fast as PyTorch 2.11's", shown([raw("sdpa-amx")["hkt_cpu_bf16_flat_torch_over_ours_fwd"]], 2)),
        ("of the rate of sgemm, {} times as fast as PyTorch 2.15's at 2,048 tokens; in bfloat16 (AVX-512 BF16) it is {} times as fast",
         shown([row["torch_over_ours_fwd"] for dtype in ("float32", "bfloat16") for row in raw("sdpa-cpu")[dtype]
                if row["tokens"] == 2048 and not row["causal"]], 2)),
        ("Three levels of HKT cost {} times our flat attention", shown(on_cpu("hkt_cpu_fwd_l3_over_l1_t2048"), 2)),
        ("composed from torch operators is {} times slower, and whole training steps are {} times slower",
         shown(on_cpu("hkt_cpu_composed_over_fused_fwd_t2048", "train_cpu_step_composed_over_fused"), 0, 1)),
        ("a step of HKT takes {} of flat attention's. HSA", shown(on_cpu("train_cpu_step_hkt_over_flat"), 2)),
        ("HSA over 16,384 tokens is {} times as fast", shown(on_cpu("hsa_cpu_flat_over_hsa_fwd_t16384"), 0)),
        ("it was {} times as fast in the same run", shown(on_cpu("hsa_torch_flat_over_hsa_fwd_t16384"), 0)),
        ("| HKT, three levels | {} | {} |", shown([own_milliseconds("fwd_l3_over_cudnn"), own_milliseconds("fwdbwd_l3_over_cudnn")], 2, 1)),
        ("| HKT, five levels | 6.61 | {} |", shown([own_milliseconds("fwdbwd_l5_over_l3")], 1)),
        ("| our flat attention | {} | {} |", shown([at_16k("fwd", "l1"), at_16k("fwdbwd", "l1")], 2, 1)),
        ("| PyTorch, flash | {} | {}; deterministic {} |",
         shown([at_16k("fwd", "flash"), at_16k("fwdbwd", "flash_default"), at_16k("fwdbwd", "flash")], 2, 1)),
        ("| PyTorch, cuDNN | {} | {} |", shown([at_16k("fwd", "cudnn"), at_16k("fwdbwd", "cudnn")], 2, 1)),
        ("take {} of flash attention's time forward and {} of its deterministic time with the backward pass, "
         "but {} and {} of cuDNN's",
         shown(bench(*(f"hkt_cuda_{kind}_l3_over_{other}_d64_t16k" for other in ("flash", "cudnn") for kind in ("fwd", "fwdbwd"))), 2)),
        ("takes {} of the time of a copy of its inputs and output, and is {} times as fast as cuDNN's flat attention",
         shown(bench("hsa_cuda_fwd_over_copy_t64k", "hsa_cuda_cudnn_over_ours_fwd_t64k"), 2, 0)),
        ("65,536 tokens, is {} times as fast as cuDNN's causal flat attention",
         shown(bench("strata_cuda_stream_near2_cudnn_over_ours_fwdbwd_t64k"), 0)),
        ("takes {} of the time that reading the cache takes, {} with 32 sequences",
         shown(bench("hkt_cuda_decode_step_over_cache_read_b1", "hkt_cuda_decode_step_over_cache_read_b32"), 2)),
        ("takes {} of flat attention's and is {} times as fast as one composed",
         shown(bench("train_cuda_step_hkt_over_flat", "train_cuda_tokens_per_second_over_eager"), 2, 1)),
        ("HSA needs {} to {}% of flat attention's score products", shown([min(shares), max(shares)], 1, 0)),
        ("with a balanced tree it gains {}.", shown(tables("flat", "hsa:tree=balanced")[:1], 1)),
        ("HKT gains {} points over flat attention (p = {}, Holm {} among {} pairs); a filter",
         [*shown([gain(listops, "hkt")["difference"]], 1), p_value(gain(listops, "hkt")["p"]), p_value(gain(listops, "hkt")["p_holm"]), len(listops["pairs"])]),
        ("a short window gain {} at most", shown([max(gain(listops, f"flat:{x}")["difference"] for x in (
            "input_filter=true", "positions=rotary", "ffn=7", "window=60"))], 1)),
        ("a filter in front alone gives {} of HKT's {} points", shown([gain(raw("controls-demo"), name)["difference"] for name in (
            "flat:input_filter=true", "hkt")], 1)),
        ("On CIFAR-10 of 8 x 8 pixels HKT gains {} points (p = {})",
         [*shown([gain(raw("controls-cifar10-cpu"), "hkt")["difference"]], 1), p_value(gain(raw("controls-cifar10-cpu"), "hkt")["p"])]),
        ("are significant but HKT's and HSA's on CIFAR-10 ({}, {};", [p_value(one) for one in weak]),
        ("the worst, {} and {} (forward,", shown(bench("hsa_cuda_b20_over_b16_fwd_t64k", "hsa_cuda_b20_over_b16_fwdbwd_t64k"), 1)),
        ("does better than the mix (p = {}, not significant among its {} pairs)",
         [p_value(next(p["p"] for p in imdb["pairs"] if {p["from"], p["to"]} == {"hkt", "hkt:level_weights=level-1"})), len(imdb["pairs"])]),
        ("ALiBi, a bias and dropout take {} to {} times as long", range_of(bench(*SLOW), 0)),
        ("those of 32 and 64 children take {} to {} times as long, those of 20", range_of(bench(*HSA_WIDE), 1)),
        ("Strata attention finds {}% of what stands 64 bytes back or more",
         shown([100 * find(raw("recall-cpu"), "strata:branching=4")["parts"][-1]["accuracy"]], 0)),
    ]


def results():
    best = [find(raw("best-imdb"), "hkt:filters=dense")["mean"], find(raw("best-cifar10"), "hkt")["mean"]]
    flat = [find(raw(f"hkt-table-{task}"), "flat")["mean"] for task in TASKS]
    imdb = {a["name"]: a["parameters"] for a in raw("variants-imdb")["attentions"]}
    words = [find(raw("hsa-table-imdb-words"), name) for name in ("flat", "hkt", "hsa", "hsa:tree=balanced")]
    steps = {run["run"]: run["step_milliseconds"] for run in raw("ablations-imdb-runs")}
    demo = [p["p"] for p in raw("positions-demo")["pairs"]]
    per_level = "hkt:projections=per-level:learning_rate=2e-3"
    frozen, captions = raw("hsa-table-imdb-frozen"), raw("captions")
    small = ablation(*(f"hkt{x}-learning_rate=2e-3" for x in ("", "-levels=2", "-levels=4", "-levels=5", "-taps=2", "-taps=5", "-input_filter=true", "-psd=true")))
    smaller = ablation(*(f"hsa{x}-learning_rate=5e-4" for x in ("", "-branching=8", "-branching=4", "-normalize=true")))
    to_strata, to_hsa = pair(captions, "flat", "strata"), pair(captions, "flat", "hsa")
    to_words = pair(raw("hsa-table-imdb-words"), "flat", "hsa")
    fewer = [pair(raw(f"variants-{task}"), "hkt", "hkt:levels=2") for task in ("listops", "cifar10")]
    per_level_imdb = pair(raw("variants-imdb"), "hkt", "hkt:projections=per-level")
    return [
        ("Every attention is within {} points of the flat one and below it",
         shown([max(-p["difference"] for p in frozen["pairs"] if p["from"] == "flat")], 2)),
        ("all are {} to {} points above what either modality is worth",
         shown([end([c["mean"] for c in captions["attentions"]]) - 50 for end in (min, max)], 0)),
        ("HSA on the document's tree is {} points above flat attention at {}% of its scores, but with three seeds the 95% interval goes from {} to +{}.",
         [*shown([to_hsa["difference"]], 2), *shown([100 * find(captions, "hsa")["score_ratio"]], 0), *shown([to_hsa["low"], to_hsa["high"]], 1)]),
        ("Strata attention is {} points above flat attention, which is significant alone (p = {}) and not among ten ({})",
         [*shown([to_strata["difference"]], 2), p_value(to_strata["p"]), p_value(to_strata["p_holm"])]),
        ("HSA on a balanced tree beats it by {} points (Holm {})",
         [*shown([-pair(frozen, "hsa:tree=balanced", "strata")["difference"]], 2),
          p_value(pair(frozen, "hsa:tree=balanced", "strata")["p_holm"])]),
        ("Flat attention alone is {} points below the paper's", shown([PAPER["flat"][0] - flat[0]], 1)),
        ("Flat attention is {} points above the paper's", shown([flat[1] - PAPER["flat"][1]], 1)),
        ("two layers of HKT reach **{}** on IMDB bytes and **{}** on CIFAR-10", shown(best, 1)),
        ("by about {} and {} points on Text", shown([LRA[name][1] - best[0] for name in ("S4", "Mega")], 0)),
        ("and by about {} on Image", shown([LRA["S4"][2] - best[1]], 0)),
        ("between HKT with dense filters and HSA on the text's tree (p = {})", p_of("hkt-table-imdb", ("hkt:filters=dense", "hsa"))),
        ("between the two trees (p = {}), nor between HSA and HKT (p = {}, {})",
         p_of("hkt-table-cifar10", ("hsa", "hsa:tree=balanced"), ("hkt", "hsa"), ("hkt", "hsa:tree=balanced"))),
        ("HSA on the text's tree is {} points above flat attention (95% interval {} .. +{}) at {}% of its scores;",
         [*shown([to_words["difference"], to_words["low"], to_words["high"]], 2), *shown([100 * words[2]["score_ratio"]], 0)]),
        ("The third is {} and {} points above the second on ListOps and CIFAR-10 (p = {}, {};",
         [*shown([-test["difference"] for test in fewer], 1), *(p_value(test["p"]) for test in fewer)]),
        ("lose on ListOps (Holm {}), and are lower on CIFAR-10 (p = {}, Holm {})", [*dense("listops")[1:], *dense("cifar10")]),
        ("On CIFAR-10 HKT had {}, HSA on the quadtree {}, on the balanced tree {}, and with four layers {}. "
         "On IMDB (8 epochs) HKT {} and HSA {}.",
         shown(accuracy("single-runs", *(f"cifar10, 12 epochs/{run}-seed1" for run in (
             "hkt-jitter=2", "hsa-jitter=2", "hsa-tree=balanced-jitter=2", "hsa-jitter=2-layers=4-learning_rate=1e-3")))
             + accuracy("single-runs", *(f"imdb, 4096 bytes, 8 epochs/{run}-learning_rate=5e-4-hide=0.1-seed1"
                                         for run in ("hkt-filters=dense", "hsa"))), 1)),
        ("{} on validation rows after two epochs, and {} at half of it",
         shown(accuracy("single-runs", *(f"cifar10, 2 epochs/hkt-projections=per-level-learning_rate={rate}-seed1"
                                         for rate in ("2e-3", "1e-3"))), 1)),
        ("a step took {} ms instead of {}", shown([steps["hkt-levels=4-learning_rate=2e-3-seed1"], steps["hkt-learning_rate=2e-3-seed1"]], 1)),
        ("takes {} to {} of the time of three", range_of(bench(*(f"hkt_cuda_fwdbwd_l4_over_l3_d{d}_t16k" for d in (64, 128))), 2)),
        ("A pair per level gains on text, {} points (p = {}, Holm {}), and loses nowhere, for {}% more parameters",
         [*shown([per_level_imdb["difference"]], 1), p_value(per_level_imdb["p"]), p_value(holm_of(raw("variants-imdb"), per_level_imdb)),
          *shown([100 * imdb[per_level] / imdb["hkt:learning_rate=2e-3"] - 100], 0)]),
        ("deviates by up to {} points", shown([max(a["standard_deviation"] for a in raw("hkt-table-imdb")["attentions"])], 1)),
        ("PSD mode** differ by {} points at most", ["three" if max(map(abs, small)) < 3 else max(small)]),
        ("normalised queries and keys change {} points or less", ["two" if max(map(abs, smaller)) < 2 else smaller]),
        ("{} points between the text's own and a balanced one after 3 epochs", shown(ablation("hsa-learning_rate=5e-4", "hsa-tree=balanced"), 0)),
        ("at its learning rate, and {} points at the same one", shown(ablation("hsa", "hsa-tree=balanced"), 0)),
        ("After 8 epochs it is {} points over three seeds (p = {}, Holm {})",
         [*shown([-tables("hsa", "hsa:tree=balanced")[1]], 0), *p_of("hkt-table-imdb", ("hsa", "hsa:tree=balanced")),
          p_value(holm_of(raw("hkt-table-imdb"), pair(raw("hkt-table-imdb"), "hsa", "hsa:tree=balanced")))]),
        ("after 3 epochs 1e-3 is {} points above 5e-4", shown(ablation("hsa", "hsa-learning_rate=5e-4"), 1)),
        ("(p from {} to {};", range_of(demo, 2)),
    ]


def saved(shape, way):
    """Time of a seeded model that an injection saves, in percent; less than 0: it costs more."""
    return 100 - 100 * raw("inject-times")[f"inject_cpu_{shape}_{way}_time_over_softmax"]


def inject():
    shares = [100 * raw(f"inject-minilm-{name}")["after"]["attention_share"] for name in INJECTED]
    changed = [-after(name, "agreement") for name in INJECTED]
    five = max(lost(name, [5], "agreement")[0] for name in INJECTED)
    late = max(100 * (x["score"] - raw(f"inject-minilm-{name}")["before"]["score"])
               for name in ("agnews", "imdb") for x in raw(f"inject-minilm-{name}")["curve"]["late"])
    times = on_cpu(*(f"inject_cpu_flat_over_hsa_t{tokens}" for tokens in (512, 2048, 8192)))
    whole = on_cpu("inject_cpu_layer_flat_over_hsa_t512", "inject_cpu_model_flat_over_hsa_t512")
    return [
        ("six injected layers gain {}% and {}% of the time", shown([saved(shape, "alternate") for shape in ("roberta_t512", "gpt2_t1024")], 1)),
        ("Late layers alone gain {}% of roberta-base's and lose {}% of gpt2's",
         shown([saved("roberta_t512", "late"), -saved("gpt2_t1024", "late")], 1)),
        ("So at {} to {}% of the attention", range_of(shares, 0)),
        ("it lost {} points on SST-2 and gained {} on AG News and {} on IMDB", shown([-after("sst2"), after("agnews"), after("imdb")], 2)),
        ("The answers did change, for {} to {}% of the rows", range_of(changed, 0)),
        ("of which only these figures were kept, against {} to {})", range_of(BALANCED_2[1:], 2)),
        ("and had {}% instead of {}%", shown([100 * raw("inject-minilm-imdb")["curve"]["auto"][3]["score"],
                                            100 * raw("inject-minilm-imdb")["after"]["score"]], 2)),
        ("(with five, once less often, by {} points)", shown([five], 2)),
        ("Late layers reach that on AG News and IMDB, by up to {} points", shown([late], 2)),
        ("It is worse by {} to {} points on AG News", range_of(lost("agnews", range(1, 5)), 2)),
        ("on AG News and {} to {} on IMDB, with one to four layers", range_of(lost("imdb", range(1, 5)), 2)),
        ("is {} times faster than our flat attention at 512 tokens, {} times at 2048 and {} times at 8192", shown(times, 1, 1, 0)),
        ("feed-forward part, gains {}%, and the model with late layers injected {}%", shown([100 * x - 100 for x in whole], 0)),
    ]


PAGES = {"README.md": readme, "docs/RESULTS.md": results, "docs/INJECT.md": inject}
