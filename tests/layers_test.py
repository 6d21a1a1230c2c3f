"""layers_test.py SOURCE: includes point down in the diagram of docs/ARCHITECTURE.md, and no folder reaches into another one.

The diagram lists the folders from the top to the bottom. A file may include headers of its own folder and of folders below it.
"""

import pathlib
import re
import sys

source = pathlib.Path(sys.argv[1])
diagram = (source / "docs/ARCHITECTURE.md").read_text().split("```")[1]
order = re.findall(r"^(?:src/)?(\w+)(?:/strata)?/", diagram, re.M)
rank = {folder: -line for line, folder in enumerate(order)}
rank["strata"] = rank.pop("include")  # public headers are included as "strata/x.h"

wrong = []
folders = sorted(path.name for path in (source / "src").iterdir() if path.is_dir())
wrong += [f"docs/ARCHITECTURE.md: src/{folder} is not in the diagram" for folder in folders if folder not in rank]
wrong += [f"docs/ARCHITECTURE.md: there is no src/{name}" for name in re.findall(r"^src/(\w+)", diagram, re.M) if name not in folders]
files = [path for top in ("src", "cli", "bench", "include") for path in sorted((source / top).rglob("*")) if path.suffix in (".h", ".cc", ".cu", ".cuh")]
for path in files:
    parts = path.relative_to(source).parts
    here = parts[1] if parts[0] in ("src", "include") else parts[0]
    for number, line in enumerate(path.read_text().splitlines(), 1):
        found = re.match(r'#include "(?:([\w.]+)/)?', line)
        if found is None or found[1] is None or found[1] == here:
            continue
        where = f"{path.relative_to(source)}:{number}: {line}"
        if found[1] not in rank:
            wrong.append(f"{where}: no folder of the diagram")
        elif rank[found[1]] >= rank[here]:
            wrong.append(f"{where}: points up, from {here} to {found[1]}")
for path in sorted(source.glob("src/*/CMakeLists.txt")):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if re.search(r"(^|[\s(])\.\./", line):
            wrong.append(f"{path.relative_to(source)}:{number}: {line.strip()}: reaches into another folder")

print("\n".join(wrong) if wrong else f"{len(files)} files in {len(rank)} folders: every include points down")
sys.exit(1 if wrong else 0)
