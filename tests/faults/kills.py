"""Kill -9 at random moments: whatever the moment, the command goes on to the bits of a run that nobody disturbed."""

import dataclasses
import os
import pathlib
import random
import shutil
import signal
import subprocess
import tempfile
import time

import folders
from scenarios import DATA, MODEL, go_on_training
from shim import Command
from sweep import Whole, judge_result
from scenarios import Scenario

LONG_RUN = [*DATA, *MODEL, "--epochs", "20", "--eval-every", "5", "--log-every", "2", "--save-seconds", "0", "--quiet"]
TRAIN = ["train", *LONG_RUN, "--attention", "hkt", "--hide", "0.1", "--folder", "run"]
COMPARE = ["compare", *LONG_RUN, "--attentions", "flat", "hsa", "--seeds", "1", "--jobs", "2", "--folder", "comparison"]
MOST = 5  # kills of one run; after them it ends by itself, also on a slow machine
RUNS = [Scenario("train", TRAIN, next_args=go_on_training(TRAIN)), Scenario("compare", COMPARE)]


@dataclasses.dataclass
class Killed:
    name: str
    kills: int
    in_the_middle: int  # of them, those that came when a first checkpoint was written and the result was not
    findings: list[str]


def processes_of(case: pathlib.Path) -> list[int]:
    """The processes that were started for a case, by their environment."""
    marker, found = f"FAULTS_CASE={case}".encode(), []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and marker in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue  # it has ended, or is not ours
    return found


def kill_all(case: pathlib.Path, parent: subprocess.Popen[str], only_parent: bool) -> None:
    """Kills the command, and the runs that it started, unless they are to notice by themselves that it is gone."""
    parent.kill()
    parent.wait()
    while not only_parent and (left := processes_of(case)):
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.002)
    end = time.monotonic() + 60
    while processes_of(case) and time.monotonic() < end:
        time.sleep(0.01)
    assert not processes_of(case), "runs go on, 60 seconds after their comparison was killed"


def whole_run(command: Command, scenario: Scenario, base: pathlib.Path, cache: pathlib.Path) -> tuple[Whole, float]:
    """The result of a run that nobody disturbed, and its seconds."""
    case = pathlib.Path(tempfile.mkdtemp(prefix="whole-", dir=base)).resolve() / "case"
    case.mkdir()
    start = time.monotonic()
    done = command.run(scenario.args, case, cache)
    seconds = time.monotonic() - start
    assert done.returncode == 0, done.stderr
    return Whole(scenario, case, case, [], folders.contents(case), done.stdout), seconds


def kill_until_done(command: Command, whole: Whole, seconds: float, seed: int, cache: pathlib.Path, base: pathlib.Path) -> Killed:
    """Starts a scenario, kills it at a random moment and starts what goes on, until it ends by itself, at last after five kills."""
    dice = random.Random(seed)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="killed-", dir=base)).resolve()
    case = folder / "case"
    case.mkdir()
    findings: list[str] = []
    moments: list[str] = []
    in_the_middle = 0
    while True:
        moment, only_parent = dice.uniform(0, seconds), dice.random() < 0.5
        args = whole.scenario.next(case)
        running = subprocess.Popen([command.program, *args], cwd=case, env=command.environment(cache, case), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            message = running.communicate(timeout=moment if len(moments) < MOST else command.limit)[1]
            break
        except subprocess.TimeoutExpired:
            if len(moments) == MOST:
                running.kill()
                raise
            moments.append(f"{moment:.3f}{' (parent)' if only_parent else ''}")
        kill_all(case, running, only_parent)
        in_the_middle += any(not (path.parent / "result.json").exists() for path in case.rglob("last.safetensors"))
        findings += [f"half-written: {line}" for line in folders.damaged_files(case, cut_end=True)]
    if running.returncode != 0:
        findings.append(f"strata {' '.join(args)} ends with {running.returncode}: {message}")
    else:
        findings += judge_result(whole, case, None, "after the kills")
    if findings:
        findings = [f"{line} (seed {seed}, killed after {', '.join(moments)} s, in {case})" for line in findings]
    else:
        shutil.rmtree(folder)
    return Killed(whole.scenario.name, len(moments), in_the_middle, findings)
