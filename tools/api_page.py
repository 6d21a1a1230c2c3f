"""api_page.py FOLDER: writes the API pages of the package strata to FOLDER with pdoc. tools/api_page.sh calls it.

The docstrings are written for help(): columns are aligned by spaces, and formulas have stars and underscores. pdoc
reads Markdown. So columns become tables here, indented lines become code, and formulas in prose are escaped.
"""

from __future__ import annotations

import html
import inspect
import pkgutil
import re
import sys
from pathlib import Path

import strata  # before torch, which pdoc would import
import pdoc
import pdoc.extract
import pdoc.render
from torch import nn

ROW = re.compile(r"^(\S.*?) {2,}(\S.*)$")  # a name and, apart from it, what it means
MODULES = [info.name for info in pkgutil.walk_packages(strata.__path__, "strata.") if "._" not in info.name]
FOREIGN = {inspect.getdoc(value) for value in vars(nn.Module).values()}  # docstrings that modules inherit from PyTorch


def as_markdown(docstring: str) -> str:
    """The docstring in Markdown, block by block."""
    if docstring in FOREIGN:
        return ""
    blocks = [as_block(block) for block in re.split(r"\n\s*\n", docstring.strip("\n"))]
    if docstring == inspect.getdoc(strata):
        blocks.append("Modules: " + ", ".join(f"`{name}`" for name in MODULES))
    return "\n\n".join(blocks)


def as_block(block: str) -> str:
    """A table, code or prose. A few lines of prose may stand above a table."""
    lines = block.split("\n")
    first = next((n for n in range(len(lines)) if starts_row(lines, n)), None)
    if first is not None:
        above = as_prose("\n".join(lines[:first])) + "\n\n" if first else ""
        return above + as_table(lines[first:])
    code = block.startswith((" ", "import "))  # a docstring that ends with code has lost its indentation
    return f"```python\n{inspect.cleandoc(block)}\n```" if code else as_prose(block)


def starts_row(lines: list[str], n: int) -> bool:
    """Whether line n has a name and its meaning, or a name whose meaning stands indented in the next line."""
    return bool(ROW.match(lines[n])) or (
        not lines[n].startswith(" ") and "".join(lines[n + 1 : n + 2]).startswith("  ")
    )


def as_table(lines: list[str]) -> str:
    """Names and meanings. The longest name may have only one space behind it: the column shows where it ends."""
    column = min((found.start(2) for found in map(ROW.match, lines) if found), default=len(max(lines, key=len)))
    rows: list[list[str]] = []
    for line in lines:
        if line.startswith(" ") and rows:
            rows[-1][1] = f"{rows[-1][1]} {line.strip()}".strip()
        elif line[column - 1 : column] == " ":
            rows.append([line[:column].strip(), line[column:].strip()])
        else:
            rows.append([line, ""])
    cells = [f"<td><code>{html.escape(name)}</code></td><td>{with_code(meaning)}</td>" for name, meaning in rows]
    return "<table>" + "".join(f"<tr>{row}</tr>" for row in cells) + "</table>"


def with_code(text: str) -> str:
    """HTML of a text in which `..` is code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text))


def as_prose(block: str) -> str:
    """The block with every mark of Markdown escaped, but for `code`."""
    parts = re.split(r"(`[^`]*`)", block)
    return "".join(part if part.startswith("`") else re.sub(r"([\\*_<>\[\]#])", r"\\\1", part) for part in parts)


def main() -> None:
    pdoc.render.configure(docformat="markdown", show_source=False, include_undocumented=False)
    pdoc.render.env.filters["to_markdown"] = as_markdown
    found = pdoc.extract.walk_specs(["strata"])  # the package, and modules that have the name of something public
    folder = Path(sys.argv[1])
    pdoc.pdoc("strata", *[name for name in MODULES if name not in found], output_directory=folder)
    print(f"api: {folder / 'strata.html'}, and pages of {', '.join(MODULES)}")


if __name__ == "__main__":
    main()
