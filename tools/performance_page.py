#!/usr/bin/env python3
"""Writes the tables of docs/PERFORMANCE.md that come from raw figures, those of docs/results/bench-*.json, written by
`strata bench --json`, and sdpa-*.json, by bench/sdpa_bench.py. Checks the sentences of tools/performance_sentences.py.

performance_page.py          writes them again
performance_page.py --check  says whether they are up to date; exit code 1 if not
"""

import functools
import operator
import re
import textwrap

import performance_sentences
from page_tables import check_sentences, machine, raw, update


def misses(value, bar):
    """Whether a value misses a bar such as "<= 1.4"."""
    sign, number = bar.split()
    return not {"<=": operator.le, ">=": operator.ge}[sign](value, float(number))


class Figures:
    def __init__(self, values):
        self.raw, self.bars = values, values["bars"]
        self.kernels = values["roofline"]["kernels"]

    def cell(self, name, digits=2):
        text = f"{self.raw[name]:.{digits}f}"
        if name not in self.bars or not misses(self.raw[name], self.bars[name]):
            return text
        hidden = float(text) == float(self.bars[name].split()[1])  # a miss that rounding hides
        return f"**{self.raw[name]:.{digits + 1}f}**" if hidden else f"**{text}**"

    def bar(self, names):
        """The bars of several figures, each once."""
        return ", ".join(dict.fromkeys(self.bars.get(name, "") for name in names))


def shapes_table(figures):
    """The figures that every shape of HKT has: a row for each, a column for each head size and mask."""
    shapes = [f"d{size}_t{tokens}k" for size in (64, 128) for tokens in (1, 4, 16)]
    kinds = ["fwd_l3_over_flash", "fwdbwd_l3_over_flash", "fwdbwd_l3_over_flash_default", "fwd_l3_over_l1", "fwdbwd_l3_over_l1", "fwd_l3_over_cudnn",
             "fwdbwd_l3_over_cudnn"]
    lines = ["| figure (bars) | d64: 1k, 4k, 16k | causal | d128: 1k, 4k, 16k | causal |", "|---|---|---|---|---|"]
    for kind in kinds:
        columns = [[f"hkt_cuda_{kind}_{shape}{mask}" for shape in shapes[at : at + 3]] for at in (0, 3) for mask in ("", "_causal")]
        cells = [", ".join(figures.cell(name) for name in names) for names in columns]
        lines.append(f"| `{kind}` ({figures.bar(sum(columns, []))}) | " + " | ".join(cells) + " |")
    return lines


def list_of(figures, names):
    """Figures with the floor of their kernels."""
    lines = ["| figure | value | bar | ms | floor, ms | share |", "|---|---|---|---|---|---|"]
    for name in names:
        kernel = figures.kernels.get(name)
        floor = f"{kernel['milliseconds']:.3f} | {kernel['floor_milliseconds']:.3f} | {kernel['share']:.0%}" if kernel else "| |"
        lines.append(f"| `{name}` | {figures.cell(name)} | {figures.bars.get(name, '')} | {floor} |")
    return lines


def other_table(figures):
    """What shapes_table and arguments_table have not."""
    numbers = [name for name, value in figures.raw.items() if isinstance(value, float)]
    shapes = [name for name in numbers if re.search(r"_d(64|128)_t\d+k(_causal)?$", name) and "_l3_over_" in name]
    return list_of(figures, [name for name in numbers if not name.startswith("arguments_") and name not in shapes])


def cpu_table(pattern, file="bench-cpu"):
    """The figures of a file whose names begin so."""
    figures = Figures(raw(file))
    names = [name for name, value in figures.raw.items() if isinstance(value, (float, int)) and re.match(pattern, name)]
    if not names:
        raise SystemExit(f"docs/results/{file}.json: expected figures with names like {pattern}, found none; run all benchmarks of the page")
    return [*machine(file), *list_of(figures, names)]


def again_table(figures):
    """Figures that reach their bar in one of two runs of the same kernels."""
    again = Figures(raw("bench-h200-again"))
    lines = ["| figure | bar | recorded run | second run |", "|---|---|---|---|"]
    for name in (name for name in again.raw if name in again.bars):
        if misses(figures.raw[name], figures.bars[name]) != misses(again.raw[name], again.bars[name]):
            lines.append(f"| `{name}` | {figures.bars[name]} | {figures.cell(name)} | {again.cell(name)} |")
    return lines


def sdpa_table(dtype, file="sdpa-cpu"):
    """Our flat attention beside PyTorch's: a row for each shape."""
    found = raw(file)
    lines = ["", *textwrap.wrap(f"{found['cpu']}, {found['threads']} threads, PyTorch {found['torch'].split('+')[0]}, 1 x {found['heads']} heads x T x "
                                f"{found['head_size']}, medians of {found['rounds']}, {found['date']}; raw figures in [{file}.json](results/{file}.json):",
                                100, break_long_words=False, break_on_hyphens=False), "",
             "| T | causal | forward, ms: PyTorch | ours | ratio | with backward, ms: PyTorch | ours | ratio |", "|---|---|---|---|---|---|---|---|"]
    for row in found[dtype]:
        times = [f"{value:.2f}" for name, value in row.items() if name not in ("tokens", "causal")]
        lines.append(f"| {row['tokens']:,} | {'yes' if row['causal'] else 'no'} | " + " | ".join(times) + " |")
    return lines


def nearby_table():
    """Strata attention beside its bars: a row for each shape."""
    figures, kinds = Figures(raw("bench-cpu")), ["tree_fwd_levels_over_l1", "tree_fwdbwd_levels_over_l1", "hkt_over_tree_fwd",
                                                 "stream_near2_fwd_levels_over_l1", "stream_near2_fwdbwd_levels_over_l1", "hkt_over_stream_near2_fwd"]
    lines = ["| shape | " + " | ".join(f"`{kind}`" for kind in kinds) + " |", "|---|" + "---|" * len(kinds)]
    for shape in (name[len("strata_cpu_hkt_over_tree_fwd_"):] for name in figures.raw if name.startswith("strata_cpu_hkt_over_tree_fwd_")):
        if shape != "t16384":
            names = [f"strata_cpu_{kind}_{shape}" for kind in kinds]
            lines.append(f"| {shape} | " + " | ".join(figures.cell(name) if name in figures.raw else "" for name in names) + " |")
    return lines


def shares_table(figures):
    """How near HKT's kernels with three levels come to their floors."""
    lines = ["| share of the floor, three levels | 1k | 4k | 16k | causal: 1k | 4k | 16k |", "|---|---|---|---|---|---|---|"]
    for size in (64, 128):
        for kind, title in (("fwd", "forward"), ("fwdbwd", "forward and backward")):
            names = [f"hkt_cuda_{kind}_l3_over_cudnn_d{size}_t{tokens}k{mask}" for mask in ("", "_causal") for tokens in (1, 4, 16)]
            lines.append(f"| d {size}, {title} | " + " | ".join(f"{figures.kernels[name]['share']:.0%}" for name in names) + " |")
    return lines


def arguments_table(figures):
    """What each argument costs, over the same attention without it."""
    cpu = raw("bench-arguments-cpu")
    lines = ["| argument | CPU: forward | both | H200: forward | both |", "|---|---|---|---|---|"]
    found = [re.fullmatch(r"arguments_cpu_(hkt|stream)_fwd_(.*)_over_none", name) for name in cpu]
    for form, argument in (match.groups() for match in found if match):
        cells = [
            f"{values[f'arguments_{device}_{form}_{kind}_{argument}_over_none']:.2f}"
            for device, values in (("cpu", cpu), ("cuda", figures.raw))
            for kind in ("fwd", "fwdbwd")
        ]
        lines.append(f"| {'streaming, ' if form == 'stream' else ''}{argument.replace('_', ' ')} | " + " | ".join(cells) + " |")
    return lines


TABLES = {"arguments": arguments_table, "shapes": shapes_table, "shares": shares_table, "others": other_table, "again": again_table}

CPU = {
    "cpu hkt": r"hkt_cpu_(?!bf16)",
    "cpu hkt in bfloat16": "hkt_cpu_bf16_",
    "cpu hsa in bfloat16": "hsa_cpu_bf16_",
    "cpu hsa": r"hsa_cpu_(?!bf16)|hsa_torch_|hsa_stream_",
    "cpu strata": "strata_cpu_.*_t16384|strata_stream_",
    "cpu inject": "inject_cpu_(flat|layer|model)_|hub_",
    "cpu train": "train_cpu_",
}

AMX = {"amx hkt in bfloat16": "hkt_cpu_bf16_", "amx hsa in bfloat16": "hsa_cpu_bf16_"}


def main():
    figures = Figures(raw("bench-h200"))
    tables = {name: functools.partial(table, figures) for name, table in TABLES.items()}
    tables |= {name: functools.partial(cpu_table, pattern) for name, pattern in CPU.items()}
    tables |= {f"sdpa {dtype}": functools.partial(sdpa_table, dtype) for dtype in ("float32", "bfloat16")}
    tables |= {"sdpa bfloat16, AMX": functools.partial(sdpa_table, "bfloat16", "sdpa-amx")}
    tables |= {name: functools.partial(cpu_table, pattern, "bench-amx") for name, pattern in AMX.items()}
    tables |= {"cpu strata, other shapes": functools.partial(nearby_table)}
    update("tools/performance_page.py", {"docs/PERFORMANCE.md": tables})
    check_sentences("tools/performance_sentences.py", performance_sentences.PAGES)


if __name__ == "__main__":
    main()
