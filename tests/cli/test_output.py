"""Standard output that cannot be written: every command says so, with the exit code of the documents."""

import os
import subprocess
import time

import pytest

from support import STRATA, TINY, home, strata  # noqa: F401 (home is a fixture)
from tiny_models import write_bert, write_gpt2

pytestmark = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")


@pytest.fixture
def run(home):
    strata("train", *TINY, "--steps", "2", "--folder", "run", "--quiet")
    return home


def to_full_device(*args, stdin=None):
    with open("/dev/full", "w") as full:
        return subprocess.run([STRATA, *map(str, args)], stdout=full, stderr=subprocess.PIPE, text=True, input=stdin, timeout=300)


def refuses(*args, **kwargs):
    done = to_full_device(*args, **kwargs)
    lines = [line for line in done.stderr.splitlines() if line.startswith("strata: ")]
    assert done.returncode == 4, (args, done.returncode, done.stderr)
    assert lines == ["strata: standard output: could not write (No space left on device)"], done.stderr


def test_commands_without_a_model(home):
    for args in ([], ["--help"], ["--version"], ["train", "--help"], ["info"], ["info", "--json"], ["data", "list"], ["data", "list", "--json"],
                 ["data", "make", "listops", *TINY[:6]], ["data", "check", "listops", *TINY[:6]], ["inspect", "--subsumption"],
                 ["compare", "--dry-run"]):
        refuses(*args)


def test_commands_on_a_run(run):
    for args in (["predict", "run", "1"], ["eval", "run"], ["eval", "run", "--json"], ["inspect", "run", "--samples", "2", "--quiet"], ["report", "run"],
                 ["train", *TINY, "--steps", "2", "--folder", "second", "--quiet"], ["train", "--resume", "run", "--json"]):
        refuses(*args)
    assert (run / "second/result.json").exists() and (run / "second/report.html").exists()  # only what was printed is lost
    many = "\n".join(["[MAX 1 2 ]"] * 5000)
    refuses("predict", "run", stdin=many)


def test_a_command_that_fails_keeps_its_own_message(run):
    done = to_full_device("predict", "nowhere", "1")
    assert done.returncode == 4 and "nowhere" in done.stderr and "standard output" not in done.stderr


def test_the_message_is_the_last_line_of_a_log(home):
    """What was printed before comes first, also when both streams go to one file, as in a comparison."""
    (home / "run/report.html/inside").mkdir(parents=True)
    with open("log", "w") as log:
        done = subprocess.run([STRATA, "train", *TINY, "--steps", "2", "--folder", "run", "--quiet"], stdout=log, stderr=log)
    lines = open("log").read().splitlines()
    assert done.returncode == 4 and lines[-1].startswith("strata: run/report.html: could not rename") and "accuracy" in "".join(lines[:-1])


def test_commands_on_pretrained_models(home):
    if "embed" not in strata("--help"):
        pytest.skip("this build has no embed")
    (home / "bert").mkdir()
    (home / "gpt2").mkdir()
    write_bert(home / "bert")
    write_gpt2(home / "gpt2")
    refuses("embed", "bert", "--quiet", stdin="abc\n")
    refuses("generate", "gpt2", "a", "--tokens", "3", "--quiet")
    refuses("generate", "gpt2", "a", "--tokens", "3", "--quiet", "--json")


def test_help_into_a_closed_pipe(home):
    for command in ("--help", "--version", "info", "data list"):
        done = subprocess.run(["bash", "-c", f'(sleep 0.3; "{STRATA}" {command}; echo $? >&2) | true'], capture_output=True, text=True)
        assert done.stderr == "141\n", (command, done.stderr)


def test_a_closed_pipe_ends_quietly(run):
    running = subprocess.Popen([STRATA, "predict", "run"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    running.stdin.write("[MAX 1 2 ]\n")
    running.stdin.flush()
    running.stdout.readline()
    running.stdout.close()  # as `head -1` does
    start = time.time()
    try:
        for _ in range(1000):
            running.stdin.write("[MAX 1 2 ]\n")
            running.stdin.flush()
            time.sleep(0.001)
    except BrokenPipeError:
        pass
    assert running.wait(timeout=60) == 141 and running.stderr.read() == "" and time.time() - start < 30


def test_a_run_goes_on_without_a_reader_of_its_progress(home):
    running = subprocess.Popen([STRATA, "train", *TINY, "--eval-every", "2", "--folder", "run"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    running.stderr.close()
    running.stdout.read()
    assert running.wait(timeout=120) == 0 and (home / "run/result.json").exists()


def test_closed_standard_streams(run):
    """No file of ours gets the number of a closed stream: it would be written to, or read from."""
    for command, code in (("info", 4), ("eval run", 4), ("--help", 4)):
        done = subprocess.run(f'"{STRATA}" {command} >&-', shell=True, capture_output=True, text=True)
        assert done.returncode == code and "standard output: could not write (Bad file descriptor)" in done.stderr, (command, done)
    assert subprocess.run(f'"{STRATA}" train --steps 2 {" ".join(TINY)} --folder closed --json 2>&- <&-', shell=True, capture_output=True).returncode == 0
    strata("eval", "closed")
