#!/usr/bin/env python3
"""Writes the tables of docs/PERFORMANCE.md that come from raw figures: docs/results/bench-h200.json, written by `strata bench
--json`, and docs/results/bench-arguments-cpu.json, by `strata bench arguments --json`. Checks the sentences of
tools/performance_sentences.py.

performance_page.py          writes them again
performance_page.py --check  says whether they are up to date; exit code 1 if not
"""

import functools
import operator
import re

import performance_sentences
from page_tables import check_sentences, raw, update


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
        return f"**{text}**" if name in self.bars and misses(self.raw[name], self.bars[name]) else text

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


def other_table(figures):
    """All other figures, with the floor of their kernels."""
    lines = ["| figure | value | bar | ms | floor, ms | share |", "|---|---|---|---|---|---|"]
    for name, value in figures.raw.items():
        if not isinstance(value, float) or name.startswith("arguments_") or re.search(r"_d(64|128)_t\d+k(_causal)?$", name) and "_l3_over_" in name:
            continue
        kernel = figures.kernels.get(name)
        floor = f"{kernel['milliseconds']:.3f} | {kernel['floor_milliseconds']:.3f} | {kernel['share']:.0%}" if kernel else "| |"
        lines.append(f"| `{name}` | {figures.cell(name)} | {figures.bars.get(name, '')} | {floor} |")
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


TABLES = {"arguments": arguments_table, "shapes": shapes_table, "shares": shares_table, "others": other_table}


def main():
    figures = Figures(raw("bench-h200"))
    tables = {name: functools.partial(table, figures) for name, table in TABLES.items()}
    update("tools/performance_page.py", {"docs/PERFORMANCE.md": tables})
    check_sentences("tools/performance_sentences.py", performance_sentences.PAGES)


if __name__ == "__main__":
    main()
