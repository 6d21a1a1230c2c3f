#!/usr/bin/env python3
"""tidy.py BUILD JOBS: runs clang-tidy over every source of the compilation database in BUILD, each file once.

A file that was clean is not read again until it, a header, a check or clang-tidy changes: BUILD/tidy-clean remembers.
"""

import hashlib
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def digest(*parts):
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def main():
    build, jobs = Path(sys.argv[1]).resolve(), int(sys.argv[2])
    root = Path.cwd()
    commands = {}  # kernels are compiled once per instruction set; one of these is enough to read them
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if not Path(entry["file"]).is_relative_to(root / "build"):
            commands.setdefault(entry["file"], entry)
    database = build / "tidy"
    database.mkdir(exist_ok=True)
    (database / "compile_commands.json").write_text(json.dumps(list(commands.values())))

    version = subprocess.run(["clang-tidy", "--version"], capture_output=True, check=True).stdout
    headers = [path.read_bytes() for top in ("include", "src") for path in sorted((root / top).rglob("*.h"))]
    common = digest(version, (root / ".clang-tidy").read_bytes(), *headers).encode()
    remembered = build / "tidy-clean"
    clean = set(remembered.read_text().split()) if remembered.exists() else set()
    keys = {file: digest(common, json.dumps(command).encode(), Path(file).read_bytes()) for file, command in commands.items()}

    def check(file):
        done = subprocess.run(["clang-tidy", "--quiet", "-p", str(database), file], capture_output=True, text=True)
        if done.returncode == 0:
            return keys[file]
        print(done.stdout + "\n".join(line for line in done.stderr.splitlines() if "generated" not in line), flush=True)
        return None

    with ThreadPoolExecutor(jobs) as pool:
        found = list(pool.map(check, [file for file in sorted(commands) if keys[file] not in clean]))
    remembered.write_text("\n".join((clean & set(keys.values())) | set(filter(None, found))))
    print(f"clang-tidy: {len(found)} of {len(commands)} files read, {found.count(None)} with findings")
    return 1 if None in found else 0


if __name__ == "__main__":
    sys.exit(main())
