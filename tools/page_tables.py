"""What the scripts that write pages from raw figures share: the raw files, the tables between markers, and the sentences
that repeat figures.

A table begins after a line <!-- SCRIPT: NAME --> and ends before <!-- end -->. A sentence has {} in place of its figures,
and beside it the figures. The page must have the sentence with these figures; line breaks do not count.
"""

import functools
import json
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
END = "<!-- end -->"


@functools.cache
def raw(name):
    """docs/results/NAME.json."""
    return json.loads((ROOT / f"docs/results/{name}.json").read_text())


def table(head, rows):
    """The lines of a table."""
    lines = ["|" + "|".join(f" {cell} " if cell != "" else " " for cell in row) + "|" for row in (head, *rows)]
    return [lines[0], "|" + "---|" * len(head), *lines[1:]]


def machine(name):
    """The lines above a table: what a raw file of `strata bench` was measured on, from its record."""
    record = raw(name)["record"]
    found, versions = record["machine"], record["versions"]
    blas = f", OpenBLAS for {found['openblas']}" if found["openblas"] else ""
    device = found["cpu"] if found["device"] == "cpu" else found["device"]
    text = (f"{device}, {record['options']['threads']} threads, {versions['instruction_set']}, torch {versions['torch']}{blas}, "
            f"{record['started'][:10]}; raw figures in [{name}.json](results/{name}.json):")
    return ["", *textwrap.wrap(text, 100, break_long_words=False, break_on_hyphens=False), ""]


def with_tables(page, script, tables):
    """The text of a page with its tables made anew; tables: name to a function that returns lines."""
    text = (ROOT / page).read_text()
    for name, table in tables.items():
        begin = f"<!-- {script}: {name} -->"
        before, found, rest = text.partition(begin)
        if not found:
            sys.exit(f"{page}: expected a line {begin}")
        text = "\n".join([before + begin, *table(), END]) + rest.partition(END)[2]
    return text


def update(script, pages):
    """Writes the tables of all pages, or with --check ends with 1 where one is not up to date."""
    for page, tables in pages.items():
        made = with_tables(page, script, tables)
        if "--check" not in sys.argv[1:]:
            (ROOT / page).write_text(made)
        elif made != (ROOT / page).read_text():
            sys.exit(f"{page}: its tables differ from docs/results; run {script}")


def shown(values, *digits):
    """Values with these digits behind the point; the last number of digits is that of the rest."""
    return [f"{value:.{digits[min(at, len(digits) - 1)]}f}" for at, value in enumerate(values)]


def range_of(values, digits):
    return shown([min(values), max(values)], digits)


@functools.cache
def blocks():
    """What docs/PERFORMANCE.md shows as a program printed it."""
    return "\n".join(re.findall(r"^ *```\n(.*?)^ *```$", (ROOT / "docs/PERFORMANCE.md").read_text(), re.M | re.S))


def on_cpu(*names):
    """Figures of docs/results/bench-cpu.json."""
    return [raw("bench-cpu")[name] for name in names]


def check_sentences(script, pages):
    """Ends with 1 where a page has other figures than the raw files, or no longer has a sentence. pages: page to a function
    that returns sentences with their figures."""
    problems = []
    for page, sentences in pages.items():
        text = " ".join((ROOT / page).read_text().split())
        for sentence, figures in sentences():
            if sentence.format(*figures) in text:
                continue
            found = re.search(re.escape(sentence).replace(r"\{\}", r"\S+?"), text)
            problems.append(f"{page}: expected \"{sentence.format(*figures)}\", got {found[0] if found else 'no such sentence'}")
    if problems:
        raise SystemExit("\n".join([*problems, f"The figures come from docs/results and from what programs printed; {script} lists the sentences."]))
