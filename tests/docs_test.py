"""docs_test.py ROOT: the documents name things that exist, and their lines are short enough to read.

Checks README.md, CONTRIBUTING.md and docs/**/*.md:
  - every relative link leads to a file, and to a heading of it where the link names one;
  - every path of the repository that is named (`src/ref/hkt_ref.cc`, `configs/best-*.toml`, or a bare `hkt_tile.h`) exists;
  - lines of prose have at most 100 columns (CHANGELOG.md, too); tables and code may be longer;
  - docs/README.md links every page of docs/;
  - every test that docs/PAPERS.md names, `Suite.Test` or `tests/..py::test_name`, is in the sources.
"""

import re
import sys
from pathlib import Path

COLUMNS = 100
FOLDERS = r"src|cli|bench|python|tests|tools|configs|cmake|docs|examples|include|\.ci|\.github"
NAMED_PATH = re.compile(rf"(?<![\w/.~-])(?:{FOLDERS})/[\w.*/{{}},-]*[\w*/}}]")
NAMED_FILE = re.compile(r"`([\w*.{},-]+\.(?:h|cc|cu|cuh|py|sh|js|cmake))`")
NAMED_TEST = re.compile(r"`(?:([A-Z]\w+)\.([A-Z]\w+)|(tests/[\w/]+\.py)::(test_\w+))`")
NOT_YET = "xyz"  # the attention that docs/ADD_AN_ATTENTION.md adds, whose files it names


def prose_lines(text):
    """(number, line) of every line that is neither code nor part of a table."""
    fence = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fence = not fence
        elif not fence and not line.lstrip().startswith("|") and not line.startswith("    "):
            yield number, line


def alternatives(pattern):
    """a{b,c}d as [abd, acd]."""
    found = re.search(r"\{([^{}]*)\}", pattern)
    if found is None:
        return [pattern]
    return [x for part in found[1].split(",") for x in alternatives(pattern[: found.start()] + part + pattern[found.end() :])]


def anchors(text):
    """What a link may name behind #: headings as GitHub writes them."""
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def check_links(page, text):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", text):
        if re.match(r"https?:", target):
            continue
        file = (page.parent / target).resolve() if target else page
        if not file.exists():
            yield f"the link {target} leads nowhere"
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()):
            yield f"the link {target}#{anchor} names no heading of that page"


def check_paths(root, text, names):
    for path in sorted(set(NAMED_PATH.findall(text))):
        for one in alternatives(path.rstrip(".,")):
            if NOT_YET not in one and not any(root.glob(one.rstrip("/"))):
                yield f"there is no {one}"
    for name in sorted(set(NAMED_FILE.findall(text))):
        for one in alternatives(name):
            pattern = re.compile(re.escape(one).replace(r"\*", ".*"))
            if NOT_YET not in one and not any(pattern.fullmatch(known) for known in names):
                yield f"no file of the repository is called {one}"


def check_columns(text):
    for number, line in prose_lines(text):
        if len(line) > COLUMNS and " " in line.strip():  # one long word cannot be wrapped
            yield f"line {number} has {len(line)} columns, at most {COLUMNS} are allowed: {line[:60]}.."


def check_tests(root, text):
    """Every named test is there, and a page of tests names some."""
    in_cpp = set(re.findall(r"^TEST(?:_F|_P)?\((\w+), (\w+)\)", "\n".join(file.read_text() for file in root.glob("tests/**/*.cc")), re.M))
    found = NAMED_TEST.findall(text)
    if not found:
        yield "expected names of tests, got none"
    for suite, test, file, function in found:
        if suite and (suite, test) not in in_cpp:
            yield f"there is no test {suite}.{test}"
        if file and ((root / file).exists() and not re.search(rf"^def {function}\(", (root / file).read_text(), re.M)):
            yield f"there is no test {file}::{function}"


def repository_files(root):
    folders = [path for path in root.iterdir() if path.is_dir() and path.name not in ("build", "local", "runs", ".git")]
    return {file.name for folder in folders for file in folder.rglob("*")} | {file.name for file in root.iterdir()}


def main():
    root = Path(sys.argv[1]).resolve()
    names = repository_files(root)
    pages = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]
    problems = []
    for page in pages:
        text = page.read_text()
        found = [*check_links(page, text), *check_paths(root, text, names), *check_columns(text)]
        problems += [f"{page.relative_to(root)}: {problem}" for problem in found]
    problems += [f"CHANGELOG.md: {problem}" for problem in check_columns((root / "CHANGELOG.md").read_text())]
    problems += [f"docs/PAPERS.md: {problem}" for problem in check_tests(root, (root / "docs/PAPERS.md").read_text())]
    index = root / "docs/README.md"
    listed = re.findall(r"\]\(([^)#\s]+)", index.read_text()) if index.exists() else []
    for page in sorted((root / "docs").rglob("*.md")):
        if page != index and page.relative_to(root / "docs").as_posix() not in listed:
            problems.append(f"docs/README.md: does not list {page.relative_to(root / 'docs')}")
    print("\n".join(problems) if problems else f"{len(pages)} pages: links, paths, columns and named tests are right")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
