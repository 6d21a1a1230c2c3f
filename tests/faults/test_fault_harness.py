"""The fault harness itself: the shim sees every call that strace sees, and the judge finds what planted programs do wrong."""

import collections
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import pytest

import faults
import sweep
from scenarios import DATA, Scenario, run_whole, scenarios
from shim import Command, Fault, build_shim

CALLS = {"open": "open", "creat": "open", "openat": "open", "read": "read", "write": "write", "writev": "write", "pwrite64": "write", "fsync": "fsync",
         "fdatasync": "fsync", "rename": "rename", "renameat": "rename", "renameat2": "rename", "mkdir": "mkdir", "mkdirat": "mkdir", "unlink": "unlink",
         "unlinkat": "unlink", "rmdir": "unlink", "ftruncate": "truncate", "link": "link", "linkat": "link", "symlink": "link", "symlinkat": "link",
         "flock": "lock"}


@pytest.fixture
def base():
    with tempfile.TemporaryDirectory(prefix="strata-faults-") as folder:
        yield pathlib.Path(folder).resolve()


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    return build_shim(tmp_path_factory.mktemp("shim"))


def calls_in(trace: pathlib.Path, case: pathlib.Path) -> collections.Counter:
    """Kind and path of every traced call on a file under the case."""
    found: collections.Counter = collections.Counter()
    for line in trace.read_text(errors="replace").splitlines():
        call = re.match(r"\d+ +(\w+)\((.*)", line)
        if call is None or call[1] not in CALLS:
            continue  # the end of a call that was interrupted, or a signal
        kind, args = CALLS[call[1]], call[2]
        if kind in ("read", "write", "fsync", "truncate", "lock"):
            descriptor = re.match(r"\d+<(/[^>]*)>", args)
            path = descriptor[1] if descriptor else ""  # a pipe
        else:
            at = re.match(r"(?:AT_FDCWD|\d+)<(/[^>]*)>, ", args)
            names = re.findall(r'"([^"]*)"', args.partition(") = ")[0])
            path = os.path.join(at[1] if at else str(case), names[-1] if names else "/")
        if kind == "open" and not re.search("O_WRONLY|O_RDWR|O_CREAT|O_TRUNC", args):
            kind = "read_open"
        if ".so" in pathlib.Path(path).suffixes:
            continue  # the loader looks for libraries, also in the working directory, before main
        if path == str(case) or path.startswith(f"{case}/"):
            found[kind, path] += 1
    return found


def can_trace() -> bool:
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True).returncode == 0


@pytest.mark.parametrize("name", ["train", "compare", "data make", "data get", "inject"])
def test_the_shim_sees_what_strace_sees(base, shim, name):
    if not can_trace():
        pytest.skip("strace is not installed, or may not trace here")
    command = Command(os.environ["STRATA_COMMAND"], shim)
    run_whole(command, ["data", "make", "listops", *DATA], base, base / "cache")
    scenario = next(one for one in scenarios() if one.name == name)
    case = base / "case"
    case.mkdir()
    scenario.prepare(command, case, base / "cache")
    wrapper = base / "traced"  # stands for the command; strace gives the shim only to what it traces
    wrapper.write_text(f'#!/bin/sh\nlib=$LD_PRELOAD\nunset LD_PRELOAD\nexec strace -f -qq -y -s 400 -E LD_PRELOAD="$lib" -e trace={",".join(CALLS)} '
                       f'-o {base}/trace {os.environ["STRATA_COMMAND"]} "$@"\n')
    wrapper.chmod(0o755)
    outcome = Command(str(wrapper), shim).run_with_fault(sweep.args_of(scenario, case), case, scenario.cache(case, base / "cache"), None)
    assert outcome.code == 0, outcome.stderr
    traced = calls_in(base / "trace", case)
    counted = collections.Counter(call for call in outcome.calls if call[0] not in ("close", "memory"))
    assert counted and counted == traced, f"only the shim: {counted - traced}; only strace: {traced - counted}"


GOOD = """
path = "out/result.json"
os.makedirs("out", exist_ok=True)
part = path + ".part%08x" % random.getrandbits(32)
try:
    try:
        with open(part, "xb", buffering=0) as file:
            text = b'{"answer": 42}'
            while text:
                text = text[file.write(text):]
            os.fsync(file.fileno())
        os.rename(part, path)
    except OSError:
        if os.path.exists(part):
            os.unlink(part)
        raise
except OSError as error:
    sys.exit(say(f"{path}: could not write ({error.strerror})", 4))
"""
PLANTED = {
    "half-written: out/result.json": GOOD.replace('part = path + ".part%08x" % random.getrandbits(32)', "part = path").replace('"xb"', '"wb"')
                                         .replace("            os.unlink(part)", "            pass"),
    "stray: out/result.json.part": GOOD.replace("            os.unlink(part)", "            pass"),
    "exit code 1": GOOD.replace("error.strerror})\", 4", "error.strerror})\", 1"),
    "it says that all is well: out/result.json is missing": GOOD.replace("    sys.exit(say(", "    print(("),
    "does not name result.json": GOOD.replace('f"{path}: could', 'f"could'),
    "does not say": GOOD.replace("{error.strerror}", "an error"),
    "raw text": GOOD.replace('f"{path}: could', 'f"{path}: std::exception, could'),
    "ended by signal 6": GOOD.replace("    sys.exit(say(", "    os.abort() or sys.exit(say("),
    "the next run": GOOD.replace('os.makedirs("out", exist_ok=True)', 'os.makedirs("out")'),
    "a short write is no error": GOOD.replace("text = text[file.write(text):]",
                                              "if file.write(text) < len(text): raise OSError(28, os.strerror(28))\n                break"),
}
START = f"""#!{sys.executable} -S
import os, random, sys
def say(message, code):
    print("strata: " + message, file=sys.stderr)
    return code
"""


def findings_of(base: pathlib.Path, shim: pathlib.Path, program: str) -> list[str]:
    path = base / "program"
    path.write_text(START + program)
    path.chmod(0o755)
    command = Command(str(path), shim)
    whole = sweep.make_whole(command, Scenario("planted", []), base, base / "cache")
    tried = [fault for fault in sweep.all_faults(whole) if fault.kind not in ("close", "read", "read_open", "memory")]
    assert {"open", "write", "fsync", "rename", "mkdir"} <= {fault.kind for fault in tried}
    judged = [sweep.disturb(command, whole, fault, base / "cache", base) for fault in tried]
    assert sum(one.fired for one in judged) > 10
    return [line for one in judged for line in one.findings if one.fault.kind != "mkdir"]  # which the programs do not catch


def test_a_program_without_a_fault_has_no_findings(base, shim):
    assert findings_of(base, shim, GOOD) == []


@pytest.mark.parametrize("finding", PLANTED)
def test_a_planted_fault_is_found(base, shim, finding):
    assert any(finding in line for line in findings_of(base, shim, PLANTED[finding]))


def test_which_faults_are_chosen(base):
    calls = [("write", f"{base}/a.json.part0123abcd")] * 4 + [("write", f"{base}/b.json"), ("rename", f"{base}/b.json")] + [("memory", "")] * 9
    whole = sweep.Whole(Scenario("planted", [], short=2), base, base, calls, {}, "")
    every = sweep.all_faults(whole)
    assert {(fault.kind, fault.nth) for fault in every} == {("write", nth) for nth in range(1, 7)} | {("rename", 1), ("rename", 2)} | {
        ("memory", nth) for nth in range(1, 11)}
    writes = [sum(1 for fault in every if fault.kind == "write" and fault.nth == nth) for nth in range(1, 7)]
    assert writes == [4, 1, 1, 4, 4, 1], "every error for the first and the last call on a name, and one number more"
    few = sweep.few_faults(whole)
    assert [(fault.kind, fault.nth) for fault in few] == [("write", 1), ("write", 5), ("memory", 1), ("memory", 3), ("memory", 5), ("memory", 7)]
    assert str(Fault("write", 3, -1)) == "write 3: short" and faults.error_name(28) == "ENOSPC"
