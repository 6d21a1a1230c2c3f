"""The sentences of docs/PERFORMANCE.md that repeat figures of docs/results/bench-*.json, of its printed blocks or of its
tables (page_tables.py says how they are written).
"""

import re

from page_tables import ROOT, blocks, on_cpu, range_of, raw, shown

H200 = raw("bench-h200")


def bench(*names):
    return [H200[name] for name in names]


def shapes(kind, size):
    """A figure of all lengths and masks, of one head size."""
    return bench(*(f"hkt_cuda_{kind}_d{size}_t{tokens}{mask}" for tokens in ("1k", "4k", "16k") for mask in ("", "_causal")))


def missing(name):
    """How far a figure is from its bar."""
    return abs(H200[name] - float(H200["bars"][name].split()[1]))


def row(text, begin):
    """The numbers of the row of a table or block that begins so."""
    line = re.findall(rf"^ *{re.escape(begin)}(?= |\|)(.*)$", text, re.M)[0]
    return [float(number) for number in re.findall(r"[\d.]*\d", line.replace(",", " , "))]


def pages_of(tokens):
    """CPU time with small pages, with huge ones, and with memory kept, two runs each."""
    times = row((ROOT / "docs/PERFORMANCE.md").read_text(), f"| {tokens} |")
    return times[:2], times[2:4], times[4:]


def gains_by_pages(before, after):
    return [x / y for tokens in ("16,384 (32 MB)", "65,536 (128 MB)") for x, y in zip(pages_of(tokens)[before], pages_of(tokens)[after])]


def saved(*names):
    """Of the block with times before and after: percent saved forward, and forward and backward."""
    times = [row(blocks(), name) for name in names]
    return ([100 - 100 * after / before for before, _, after, _ in times], [100 - 100 * after / before for _, before, _, after in times])


def share_of_layer():
    """The share s of a layer's time that attention takes: the layer gains s (1 - 1 / gain of the operator)."""
    layer, operator = on_cpu("inject_cpu_layer_flat_over_hsa_t512", "inject_cpu_flat_over_hsa_t512")
    return (1 - 1 / layer) / (1 - 1 / operator)


def rates(work):
    """FLOPs or bytes, 1e12 per second, from which floors were computed: the last run's, and those that the floors imply."""
    roofline = H200["roofline"]
    ridge = roofline["flops_per_second"] / roofline["bytes_per_second"]
    floors = [(k[work], k["floor_milliseconds"]) for k in roofline["kernels"].values() if (k["flops_per_byte"] > ridge) == (work == "flops")]
    return [1e-12 * roofline[f"{work}_per_second"], *(1e-9 * amount / floor for amount, floor in floors)]


def on_the_cpu():
    amx = raw("bench-amx")["hkt_cpu_bf16_l1_fwd_fraction_of_tile_rate_t8192"]
    rate = row(blocks(), "bfloat16 on amx, T=8192: flat")
    levels = [value for name, value in raw("bench-cpu").items() if re.match(r"strata_cpu_tree_fwd_levels_over_l1_(?!l[258]$)", name)]
    hkt = [value for name, value in raw("bench-cpu").items() if re.match(r"strata_cpu_hkt_over_tree_fwd_(?!t16384)", name)]
    near = on_cpu("strata_cpu_stream_near2_over_near1_fwd_t16384", "strata_cpu_stream_near2_over_near1_fwdbwd_t16384")
    return [
        ("The kernel reaches {} of the rate of OpenBLAS's sgemm", shown(on_cpu("hkt_cpu_l1_fwd_fraction_of_sgemm_t2048"), 2)),
        ("The bar of 1.20 is missed by {} in this run", shown([on_cpu("hkt_cpu_fwd_l3_over_l1_t2048")[0] - 1.2], 3)),
        ("{} of the rate of tile products, where 0.25 was asked", shown([amx], 2)),
        ("products with queries, {} for the softmax and {} for the products with values. These {} ns would be {} of the rate; the kernel takes {}.",
         # a vector of 16 scores has 4 x 64 FLOPs for each; rates are those of two cores
         ["2.1", "1.7", f"{1.4 + 2.1 + 1.7:.1f}", f"{2 * 16 * 256 / 5.2 / rate[1]:.2f}", f"{2 * 16 * 256 / rate[0]:.1f}"]),
        ("huge pages gain a factor of {} to {} from 16,384 tokens on", range_of(gains_by_pages(0, 1), 1)),
        ("would gain another {} to {} percent", range_of([100 - 100 / gain for gain in gains_by_pages(1, 2)], 0)),
        ("the decoding ratio is {}.", shown(on_cpu("hsa_stream_decode_us_ratio_before_t1m_over_t1k"), 2)),
        ("at its worst, with {} entries", shown(on_cpu("hsa_stream_cache_entries_t1m"), 0)),
        ("three levels cost {} instead of 3 times the forward pass", shown(on_cpu("strata_cpu_tree_fwd_l3_over_l1_t16384"), 2)),
        ("Three levels cost between {} and {} times one level forward in the tree form", range_of(levels, 2)),
        ("HKT on the same tokens is at least {} times slower", shown([min(hkt)], 1)),
        ("and costs {} times the time: fewer of the products", shown(near[:1], 1)),
        ("flat attention is {}% of a layer's time", shown([100 * share_of_layer()], 0)),
        ("A step of HKT with three levels costs {} of flat attention's", shown(on_cpu("train_cpu_step_hkt_over_flat"), 2)),
    ]


def hkt_on_a_gpu():
    cudnn = [(size, shapes("fwdbwd_l3_over_cudnn", size)) for size in (64, 128)]
    flat = [over_cudnn / over_l1 for over_cudnn, over_l1 in zip(cudnn[0][1], shapes("fwdbwd_l3_over_l1", 64))]
    more = [f"hkt_cuda_fwdbwd_l{levels}_over_l3_d{size}_t16k" for levels in (4, 5) for size in (64, 128)]
    near = [missing(f"hkt_cuda_fwdbwd_l3_over_cudnn_d64_{shape}") for shape in ("t4k", "t16k_causal")]
    return [
        ("the rate of a large matrix product ({} to {} TFLOP/s in these runs)", range_of(rates("flops"), 0)),
        ("the rate of a copy ({} to {} TB/s, read and written)", range_of(rates("bytes"), 1)),
        ("**Four and five levels** cost {} to {} of three, forward and backward; four at d = 64 miss the bar by {}.",
         [*range_of(bench(*more), 2), *shown([missing(more[0])], 2)]),
        ("Three levels take {} to {} of cuDNN's flat attention at d = 64 and {} to {} at d = 128",
         [text for size in (64, 128) for text in range_of(shapes("fwd_l3_over_cudnn", size), 2)]),
        ("every bar is reached, that of d = 128 at 1k by {}.", shown([missing("hkt_cuda_fwd_l3_over_cudnn_d128_t1k")], 3)),
        ("At d = 64 three levels take {} to {}, and every bar is reached", range_of(cudnn[0][1], 2)),
        ("those of 4k and of 16k causal by {}.", shown([max(near)], 3)),
        ("our flat attention takes {} to {} of cuDNN's time", range_of(flat, 2)),
        ("Three levels cost {} to {} of one, where 1.35 was asked", range_of(shapes("fwdbwd_l3_over_l1", 64), 2)),
        ("At d = 128 three levels take {} to {} of cuDNN, and {} to {} of one level",
         [*range_of(cudnn[1][1], 2), *range_of(shapes("fwdbwd_l3_over_l1", 128), 2)]),
    ]


def trees_and_steps_on_a_gpu():
    kinds = ("fwd", "fwdbwd")
    wide = bench(*(f"hsa_cuda_b{b}_over_b16_{kind}_t64k" for b in (32, 64) for kind in kinds))
    stream = H200["roofline"]["kernels"]["strata_cuda_stream_near2_cudnn_over_ours_fwdbwd_t64k"]
    tree, _, copy = row(blocks(), "T 65536, d 64, L 1, b 16 ")
    decode = bench("stream_cuda_decode_us_over_empty_launch_b1", "stream_cuda_decode_us_over_empty_launch_b256")
    step = bench("train_cuda_step_hkt_over_flat", "train_cuda_tokens_per_second_over_eager")
    return [
        ("**Families of 32 and 64 children** take {} to {} of the time", range_of(wide, 1)),
        ("a family of 20 takes two tiles of 16, {} and {} of the time", shown(bench(*(f"hsa_cuda_b20_over_b16_{kind}_t64k" for kind in kinds)), 1)),
        ("**HSA beside a copy** takes {} of the copy in the table above, and {} in", shown([*bench("hsa_cuda_fwd_over_copy_t64k"), tree / copy], 2)),
        ("**The streaming form** takes {} times what memory allows", shown([1 / stream["share"]], 1)),
        ("| layer norm of our own | 3.98 | 4.71 | 45.2 | {} | {} |", shown(step, 2, 1)),
        ("| 16,384 | 1 | 44.7 | 68.9 | {} |", shown(bench("hkt_cuda_decode_step_over_cache_read_b1"), 2)),
        ("| 16,384 | 32 | 1,430 | 1,395 | {} |", shown(bench("hkt_cuda_decode_step_over_cache_read_b32"), 2)),
        ("takes 8.6 us for one sequence, {} times the launch of an empty kernel", shown(decode[:1], 1)),
        ("41.9 us for 256 sequences: {} times, where 6 was asked, and {} times in the second run",
         shown([decode[1], raw("bench-h200-again")["stream_cuda_decode_us_over_empty_launch_b256"]], 1)),
        ("takes 8% more of the time ({} ms instead of 4.90", shown([stream["milliseconds"]], 2)),
    ]


def tried():
    narrow = saved("d32_t4k_l3", "d32_t16k_l3", "d96_t4k_l3", "d96_t16k_l1", "d96_t16k_l3", "d96_t16k_l5")
    causal = saved("d64_t4k_l3_causal", "d128_t4k_l3_causal")
    lost = -saved("d64_t16k_l2")[0][0], -saved("d64_t16k_l4")[1][0]
    return [
        ("in the block above {} to {}% forward, {} to {}% backward", [*range_of(narrow[0], 0), *range_of(narrow[1], 0)]),
        ("causal sequences of 4k with three levels take {} to {}% less forward, {} to {}% less backward",
         [*range_of(causal[0], 0), *range_of(causal[1], 0)]),
        ("two levels at d = 64 lost {}% forward and four levels {}% backward", shown(lost, 0)),
    ]


def performance():
    return [*on_the_cpu(), *hkt_on_a_gpu(), *trees_and_steps_on_a_gpu(), *tried()]


PAGES = {"docs/PERFORMANCE.md": performance}
