"""Makes system calls and allocations of the command fail, one at a time, and kills it: it must never lose anything.

  faults.py build/release/bin/strata           a selection, two to three minutes on two cores
  faults.py build/release/bin/strata --long    every call, and a hundred kills
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time

import kills
import sweep
from scenarios import DATA, LARGE_DATA, Scenario, run_whole, scenarios
from shim import Command, build_shim, error_name

Task = tuple[sweep.Whole, sweep.Fault]


class Counter:
    """Progress and time left, on one line of a terminal, or a line every half minute."""

    def __init__(self, what: str, total: int):
        self.what, self.total, self.done, self.findings = what, total, 0, 0
        self.start = self.shown = time.monotonic()

    def add(self, done: int, findings: int) -> None:
        self.done, self.findings = self.done + done, self.findings + findings
        now = time.monotonic()
        if now - self.shown < (0.5 if sys.stderr.isatty() else 30) and self.done < self.total:
            return
        self.shown = now
        left = (now - self.start) / max(self.done, 1) * max(self.total - self.done, 0)
        line = f"{self.what}: {min(self.done, self.total)} of {self.total}, {self.findings} findings, {left // 60:.0f}:{left % 60:02.0f} left"
        print(f"\r\033[K{line}" if sys.stderr.isatty() else line, end="" if sys.stderr.isatty() and self.done < self.total else "\n", file=sys.stderr)


def folder_of_cases() -> str | None:
    """In memory where that is possible: thousands of fsync on a disk would take most of the time."""
    memory = pathlib.Path("/dev/shm")
    return str(memory) if memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 1 << 30 else None


def is_chosen(scenario: Scenario, only: list[str]) -> bool:
    return not only or scenario.name in only


def disturb_all(command: Command, args: argparse.Namespace, base: pathlib.Path, cache: pathlib.Path, pool: concurrent.futures.Executor) -> dict:
    """Returns, for every command, the number of faults of every kind, and the findings."""
    chosen = [scenario for scenario in scenarios() if is_chosen(scenario, args.only)]
    wholes = list(pool.map(lambda scenario: sweep.make_whole(command, scenario, base, cache), chosen))
    tasks: list[Task] = [(whole, fault) for whole in wholes for fault in (sweep.all_faults(whole) if args.long else sweep.few_faults(whole))
                         if not args.kinds or fault.kind in args.kinds]
    counter = Counter("faults", len(tasks))
    table: dict[str, collections.Counter[str]] = {whole.scenario.name: collections.Counter() for whole in wholes}
    findings: dict[str, list[str]] = collections.defaultdict(list)
    running = {pool.submit(sweep.disturb, command, whole, fault, cache, base): (whole, fault) for whole, fault in tasks}
    for future in concurrent.futures.as_completed(running):
        whole, fault = running[future]
        judged = future.result()
        table[whole.scenario.name][fault.kind if judged.fired else "untouched"] += 1
        for line in judged.findings:
            if f"{whole.scenario.name}: {line}" not in findings:
                print(f"\nFINDING {whole.scenario.name}, {fault}: {line}", file=sys.stderr)
            findings[f"{whole.scenario.name}: {line}"].append(str(fault))
        counter.add(1, 1 if judged.findings else 0)
    return {"faults": table, "findings": findings}


def kill_all(command: Command, args: argparse.Namespace, base: pathlib.Path, cache: pathlib.Path, pool: concurrent.futures.Executor) -> dict:
    """Kills until the number of kills is reached, half of them of train, half of compare."""
    table: collections.Counter[str] = collections.Counter()
    middle: collections.Counter[str] = collections.Counter()
    findings: list[str] = []
    counter = Counter("kills", args.kills)
    seed = args.seed
    for scenario in kills.RUNS:
        if not is_chosen(scenario, args.only):
            continue
        # As many at a time as will be killed, so that the moments are spread over the whole of a run.
        wholes = list(pool.map(lambda one: kills.whole_run(command, one, base, cache), [scenario] * args.jobs))
        whole, seconds = wholes[0][0], max(seconds for _, seconds in wholes)
        while table[scenario.name] < args.kills / len(kills.RUNS):
            batch = [pool.submit(kills.kill_until_done, command, whole, seconds, seed + i, cache, base) for i in range(args.jobs)]
            seed += args.jobs
            for future in batch:
                killed = future.result()
                table[killed.name] += killed.kills
                middle[killed.name] += killed.in_the_middle
                findings += [f"{killed.name}: {line}" for line in killed.findings]
                counter.add(killed.kills, len(killed.findings))
    return {"kills": table, "kills_in_the_middle": middle, "kill_findings": findings}


def print_table(result: dict) -> None:
    kinds = sorted({kind for row in result["faults"].values() for kind in row})
    print(f"{'command':<18}" + "".join(f"{kind:>10}" for kind in kinds) + f"{'all':>8}")
    for name, row in result["faults"].items():
        print(f"{name:<18}" + "".join(f"{row[kind] or '':>10}" for kind in kinds) + f"{sum(row.values()):>8}")
    print(", ".join(f"{count} kills of {name}, {result['kills_in_the_middle'][name]} between its first checkpoint and its result"
                    for name, count in result["kills"].items()) or "no kills")
    for line, faults in result["findings"].items():
        print(f"FINDING {line}\n        at {'; '.join(faults[:6])}{f' and {len(faults) - 6} more' if len(faults) > 6 else ''}")
    for line in result["kill_findings"]:
        print(f"FINDING {line}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="the command strata")
    parser.add_argument("--long", action="store_true", help="every call, and 100 kills")
    parser.add_argument("--only", action="append", default=[], help="one of the commands; may be repeated")
    parser.add_argument("--kinds", action="append", default=[], help=f"one of {', '.join(sweep.ERRORS)}; may be repeated")
    parser.add_argument("--kills", type=int, help="number of kills; 10, with --long 100")
    parser.add_argument("--seed", type=int, default=1, help="of the moments of the kills")
    parser.add_argument("--jobs", type=int, default=2, help="commands at the same time")
    parser.add_argument("--folder", type=pathlib.Path, help="a folder for the cases; in memory if not given")
    parser.add_argument("--json", type=pathlib.Path, help="write the numbers to this file")
    args = parser.parse_args()
    if args.kills is None:
        args.kills = 100 if args.long else 10
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="strata-faults-", dir=args.folder or folder_of_cases()) as folder, concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        base = pathlib.Path(folder).resolve()
        cache = base / "cache"
        command = Command(str(pathlib.Path(args.program).resolve()), build_shim(base))
        for rows in (DATA, LARGE_DATA):
            run_whole(command, ["data", "make", "listops", *rows], base, cache)
        print(f"faults: seed {args.seed}, {args.jobs} at a time; errors: "
              + "; ".join(f"{kind}: {', '.join(map(error_name, errors))}" for kind, errors in sweep.ERRORS.items()), file=sys.stderr)
        result = {**disturb_all(command, args, base, cache, pool), **kill_all(command, args, base, cache, pool)}
    print_table(result)
    result["seconds"] = round(time.monotonic() - start)
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    found = len(result["findings"]) + len(result["kill_findings"])
    print(f"{sum(sum(row.values()) for row in result['faults'].values())} faults, {sum(result['kills'].values())} kills, {found} findings, {result['seconds']} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
