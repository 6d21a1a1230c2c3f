"""One fault after another: disturbs a command, and judges what it did, what it left, and how it goes on."""

import collections
import dataclasses
import json
import pathlib
import re
import shutil
import subprocess
import tempfile
from typing import Any

import folders
from scenarios import Scenario
from shim import ERRORS, SHORT, Command, Fault, Outcome, without_part

RAW_TEXT = re.compile(r"terminate called|what\(\)|Exception raised from|basic_filebuf|basic_ios|enforce fail|DefaultCPUAllocator|std::|c10::|"
                      r"filesystem error|frame #")
READING = {"read_open", "read"}
FAILURE, DATA, OUTPUT = 1, 3, 4  # exit codes (strata --help)


@dataclasses.dataclass
class Whole:
    """A scenario that was prepared, and run once without a fault."""

    scenario: Scenario
    template: pathlib.Path  # the case before
    case: pathlib.Path  # the case after
    calls: list[tuple[str, str]]
    contents: dict[str, Any]
    stdout: str
    passed: set[str] = dataclasses.field(default_factory=set)  # states from which the next run went on well


@dataclasses.dataclass
class Judgement:
    fault: Fault
    fired: bool
    findings: list[str]
    code: int


def args_of(scenario: Scenario, case: pathlib.Path) -> list[str]:
    """The address of a download depends on the case."""
    return scenario.next(case) if scenario.args == ["data", "get"] else scenario.args


def make_whole(command: Command, scenario: Scenario, base: pathlib.Path, cache: pathlib.Path) -> Whole:
    own = base / scenario.name.replace(" ", "_").replace(",", "")
    template, case = own / "template", own / "case"
    template.mkdir(parents=True)
    scenario.prepare(command, template, cache)
    shutil.copytree(template, case)
    outcome = command.run_with_fault(args_of(scenario, case), case, scenario.cache(case, cache), None)
    assert outcome.code == 0, f"{scenario.name}: exit code {outcome.code} without a fault\n{outcome.stderr}"
    damaged = folders.damaged_files(case) + folders.stray_names(case)
    assert not damaged, f"{scenario.name}: damaged without a fault: {damaged}"
    return Whole(scenario, template, case, outcome.calls, folders.contents(case), outcome.stdout)


def calls_by_name(whole: Whole) -> dict[tuple[str, str], list[int]]:
    """For every kind and name, the numbers of its calls, as the shim counts them."""
    counts: collections.Counter[str] = collections.Counter()
    found: dict[tuple[str, str], list[int]] = collections.defaultdict(list)
    for kind, path in whole.calls:
        counts[kind] += 1
        if (whole.scenario.memory_only and kind != "memory") or pathlib.Path(path).name in whole.scenario.elsewhere:
            continue
        found[kind, re.sub(r"\d+", "", without_part(path.removeprefix(str(whole.case))))].append(counts[kind])
    return found


def all_faults(whole: Whole) -> list[Fault]:
    """Every call. The first and the last one on a name get every error, those between, such as the tensors of a file, one
    in turn. For every kind there is one number more, which must pass untouched."""
    faults = []
    for (kind, _), numbers in calls_by_name(whole).items():
        for turn, nth in enumerate(numbers):
            is_edge = nth in (numbers[0], numbers[-1])
            if is_edge or not whole.scenario.edges_only:
                faults += [Fault(kind, nth, error) for error in (ERRORS[kind] if is_edge else [ERRORS[kind][turn % len(ERRORS[kind])]])]
    last = {kind: max(fault.nth for fault in faults if fault.kind == kind) for kind in {fault.kind for fault in faults}}
    counts = collections.Counter(kind for kind, _ in whole.calls)
    return faults + [Fault(kind, counts[kind] + 1, ERRORS[kind][0]) for kind in sorted(last)]


def few_faults(whole: Whole) -> list[Fault]:
    """The first call of every kind on every name with one error, in turn; of these, and of the allocations, some that are evenly
    spaced."""
    first = [(kind, numbers) for (kind, _), numbers in calls_by_name(whole).items()]
    single = [Fault(kind, numbers[0], ERRORS[kind][turn % len(ERRORS[kind])]) for turn, (kind, numbers) in enumerate(first) if kind != "memory"]
    large = [Fault(kind, nth, ERRORS[kind][nth % len(ERRORS[kind])]) for kind, numbers in first if kind == "memory" for nth in numbers]
    return [*evenly(single, whole.scenario.short), *evenly(large, 4)]


def evenly(items: list[Fault], most: int) -> list[Fault]:
    """At most so many of them, evenly spaced."""
    count = min(most, len(items))
    return [items[i * len(items) // count] for i in range(count)]


def judge_end(outcome: Outcome, fault: Fault, case: pathlib.Path) -> list[str]:
    """The exit code and the message of a command that was disturbed."""
    message, found = outcome.message(), []
    if outcome.code < 0 or outcome.code > 128:
        return [f"ended by signal {-outcome.code if outcome.code < 0 else outcome.code - 128}: {outcome.stderr[-500:]}"]
    if raw := RAW_TEXT.search(outcome.stderr):
        found.append(f"raw text ({raw[0]}): {outcome.stderr[-500:]}")
    if outcome.code == 0:
        return found
    codes = [FAILURE] if fault.kind == "memory" else [DATA, OUTPUT] if fault.kind in READING else [OUTPUT]
    if outcome.code not in codes:
        found.append(f"exit code {outcome.code}, expected {' or '.join(map(str, codes))}: {message or outcome.stderr[-300:]}")
    if fault.kind == "memory":
        return found if "out of memory" in message else [*found, f"the message does not say that memory is missing: {message}"]
    if fault.error == SHORT:
        found.append(f"a short write is no error: {message}")
    if fault.reason() not in message:
        found.append(f"the message does not say \"{fault.reason()}\": {message or outcome.stderr[-300:]}")
    name = without_part(pathlib.Path(outcome.path).name)
    named = name in message or (name == "log.txt" and "standard output" in message)
    if not named and pathlib.Path(outcome.path) != case.resolve():
        found.append(f"the message does not name {name}: {message}")
    return found


def is_cleaning(fault: Fault, outcome: Outcome) -> bool:
    """Whether the call that failed was to remove something temporary. That stays then, until the next run."""
    return fault.kind == "unlink" or (fault.kind == "read_open" and folders.PART.search(outcome.path) is not None)


def judge_left(whole: Whole, case: pathlib.Path, strays_allowed: bool) -> list[str]:
    """What a disturbed command left."""
    found = [f"half-written: {line}" for line in folders.damaged_files(case)]
    if not strays_allowed:
        found += [f"stray: {name}" for name in folders.stray_names(case)]
    names = {folders.relative_name(path, case) for path in folders.files_in(case)}
    before = {folders.relative_name(path, whole.template) for path in folders.files_in(whole.template)}
    unknown = names - set(whole.contents) - whole.scenario.between
    found += [f"left over: {name}" for name in sorted(unknown) if not any(folders.PART.search(part) for part in name.split("/"))]
    return found + [f"lost: {name}" for name in sorted(before - names)]


def same_output(whole: Whole, stdout: str) -> bool:
    def plain(text: str) -> Any:
        return folders.without_measured(json.loads(text)) if text.startswith("{") else text
    return not whole.scenario.prints or plain(stdout) == plain(whole.stdout)


def judge_result(whole: Whole, case: pathlib.Path, stdout: str | None, when: str, strays_allowed: bool = False) -> list[str]:
    """A case that is finished: everything there, nothing else, and the same bits."""
    found = [f"{when}: half-written: {line}" for line in folders.damaged_files(case)]
    if found:
        return found
    strays = folders.stray_names(case)
    if not strays_allowed:
        found = [f"{when}: stray: {name}" for name in strays]
    now = {name: content for name, content in folders.contents(case).items() if not any(name.startswith(stray) for stray in strays)}
    found += [f"{when}: {line}" for line in folders.differences(whole.contents, now, whole.case, case)]
    return found if stdout is None or same_output(whole, stdout) else [*found, f"{when}: it prints something else: {stdout[-300:]}"]


def judge_next(command: Command, whole: Whole, case: pathlib.Path, cache: pathlib.Path) -> list[str]:
    """The run after a fault. Many faults leave the same state, from which it is done once."""
    state = "" if folders.damaged_files(case) or folders.stray_names(case) else folders.state_of(case)
    if state in whole.passed:
        return []
    following = whole.scenario.next(case)
    done = command.run(following, case, cache)
    if done.returncode != 0:
        return [f"the next run (strata {' '.join(following)}) fails with {done.returncode}: {done.stderr[-500:]}"]
    found = judge_result(whole, case, done.stdout if following == args_of(whole.scenario, case) else None, "next run")
    if state and not found:
        whole.passed.add(state)
    return found


def is_told(outcome: Outcome, fault: Fault, case: pathlib.Path) -> bool:
    """A page shows what could be read, and names what could not. The command says so, too; a run of a comparison in its log."""
    told = outcome.stdout + outcome.stderr + "".join(path.read_text() for path in case.glob("*/*/log.txt"))
    return outcome.fired and fault.kind in READING and fault.reason() in told and pathlib.Path(outcome.path).name in told


def disturb(command: Command, whole: Whole, fault: Fault, cache: pathlib.Path, base: pathlib.Path) -> Judgement:
    """Runs a scenario with a fault, and once more without."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="case-", dir=base)).resolve()
    case = folder / "case"
    shutil.copytree(whole.template, case)
    own_cache = whole.scenario.cache(case, cache)
    findings: list[str] = []
    try:
        outcome = command.run_with_fault(args_of(whole.scenario, case), case, own_cache, fault)
        findings = judge_end(outcome, fault, case)
        if outcome.code == 0:
            result = judge_result(whole, case, outcome.stdout, "it says that all is well" if outcome.fired else "untouched",
                                  strays_allowed=is_cleaning(fault, outcome))
            findings += [line for line in result if not (line.endswith(".html differs") and is_told(outcome, fault, case))]
        else:
            if not outcome.fired:
                findings.append(f"fails without a fault: {outcome.stderr[-500:]}")
            findings += judge_left(whole, case, is_cleaning(fault, outcome))
        if outcome.code != 0 or (outcome.fired and is_cleaning(fault, outcome)):
            findings += judge_next(command, whole, case, own_cache)
    except subprocess.TimeoutExpired as error:
        return Judgement(fault, True, [f"hangs: {error}"], -1)
    shutil.rmtree(folder)
    return Judgement(fault, outcome.fired, findings, outcome.code)
