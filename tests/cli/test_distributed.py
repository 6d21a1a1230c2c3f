"""Training by several real processes on this machine: it follows one process, survives faults and names them."""

import json
import math
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time

import pytest

from processes import LONG, SMALL, begin, lines_of, wait_for_steps
from support import STRATA, home, metrics, same_run, strata, tensors  # noqa: F401 (home is a fixture)

EXACT = [*SMALL, "--precision", "float64"]


def numbers(path):
    """Every tensor of a file, as a list of floats."""
    with open(path, "rb") as file:
        size, = struct.unpack("<Q", file.read(8))
        header, data = json.loads(file.read(size)), file.read()
    kinds = {"F64": ("d", 8), "F32": ("f", 4)}
    result = {}
    for name, entry in header.items():
        if name != "__metadata__":
            kind, width = kinds[entry["dtype"]]
            begin, end = entry["data_offsets"]
            result[name] = struct.unpack(f"<{(end - begin) // width}{kind}", data[begin:end])
    return result


def assert_follows(folder, other, relative):
    """Weights and losses of two runs, tensor by tensor, relative to the norm of the tensor."""
    a, b = numbers(folder / "last.safetensors"), numbers(other / "last.safetensors")
    assert a.keys() == b.keys()
    for name, values in a.items():
        if name.startswith("model/"):
            assert math.dist(values, b[name]) <= relative * math.hypot(*values), name
    assert_same_losses(folder, other, relative)


def assert_same_losses(folder, other, relative):
    one, two = metrics(folder), metrics(other)
    assert [line["step"] for line in one] == [line["step"] for line in two]
    for line, its in zip(one, two):
        if "loss" in line:
            assert its["loss"] == pytest.approx(line["loss"], rel=relative), line["step"]


def ranks_below(parent):
    """Process ids by rank, of the children of a process."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as file:
                above = int(file.read().rsplit(")", 1)[1].split()[1])
            with open(f"/proc/{pid}/environ", "rb") as file:
                rank = re.search(rb"(?:^|\0)RANK=(\d+)", file.read())
        except OSError:
            continue
        if above == parent and rank:
            found[int(rank[1])] = int(pid)
    return found


def test_two_hundred_steps_follow_one_process(home):
    args = [*EXACT, "--dropout", "0", "--steps", "200", "--epochs", "100", "--eval-every", "100"]
    strata("train", *args, "--folder", "one")
    strata("train", *args, "--folder", "three", "--processes", 3)
    assert_follows(home / "one", home / "three", 1e-9)
    # Evaluation sums in the order of the batches, whoever computed them.
    results = [json.load(open(home / name / "result.json")) for name in ("one", "three")]
    assert results[0]["test"]["accuracy"] == results[1]["test"]["accuracy"]
    assert "processes" not in json.load(open(home / "one/run.json")) and json.load(open(home / "three/run.json"))["processes"] == 3


@pytest.mark.parametrize("more", [["--accumulate", "3", "--attention", "hsa"], ["--attention", "strata", "--clip", "0.1"]])
def test_every_number_of_processes_follows_one(home, more):
    """With dropout, which belongs to the rows: one process that is told to be one of one is the one to follow."""
    args = [*EXACT, "--dropout", "0.2", *more, "--steps", "30", "--epochs", "100"]
    for count in (1, 2, 4):
        strata("train", *args, "--folder", str(count), "--processes", count)
    for count in (2, 4):
        assert_follows(home / "1", home / str(count), 1e-9)


def test_float32_repeats_to_the_bit_and_shards_are_the_same(home):
    args = [*SMALL, "--steps", "26", "--dropout", "0"]
    strata("train", *args, "--folder", "one")
    strata("train", *args, "--folder", "a", "--processes", 2)
    strata("train", *args, "--folder", "b", "--processes", 2)
    same_run(home / "a", home / "b")
    assert_same_losses(home / "one", home / "a", 1e-4)
    said = strata("train", *[word for word in args if word != "--quiet"], "--folder", "c", "--processes", 2, "--shard-optimizer", "--json")
    assert json.loads(said)["steps"] == 26
    same_run(home / "a", home / "c")


def test_resumes_with_another_number_of_processes(home):
    """Two processes with shards, then three, then one continue the rows of one."""
    args = [*EXACT, "--dropout", "0", "--epochs", "30"]
    strata("train", *args, "--folder", "whole")
    for count, more in ((2, ["--shard-optimizer"]), (3, []), (1, ["--shard-optimizer"])):
        first = args + ["--folder", "parts"] if count == 2 else ["--resume", "parts", "--quiet"]
        running = begin(*first, "--processes", count, *more)
        if count > 1:
            wait_for_steps(home / "parts", {2: 60, 3: 160}[count], running)
            running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=120)
        assert running.returncode == (130 if count > 1 else 0), err
        if count > 1:  # one line, from all processes together
            assert len(lines_of(err)) == 1 and "state saved, continue with: strata train --resume parts" in err, err
    assert_follows(home / "whole", home / "parts", 1e-9)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_rank_is_named(home, how):
    running = begin(*LONG, "--folder", "run", "--processes", 3, "--timeout", 3)
    wait_for_steps(home / "run", 5, running)
    victim = ranks_below(running.pid)[1]
    os.kill(victim, how)
    out, err = running.communicate(timeout=30)  # 3 seconds of the timeout, and those to find the rank and end it
    assert running.returncode == 1 and len(lines_of(err)) == 1, err
    assert f"rank 1 ({'' if how == signal.SIGKILL else socket.gethostname() + ', '}process {victim})" in err, err
    assert ("was killed by signal 9" if how == signal.SIGKILL else "does not answer") in err
    assert not [name for name in os.listdir(home / "run") if ".part" in name]
    tensors(home / "run/last.safetensors")


def torchrun(*options):
    """With the interpreter of the tests, whose PyTorch was built against. 1.13 writes options with underscores only, and
    fails in Python 3.11 without --redirects and --tee."""
    return [sys.executable, "-m", "torch.distributed.run", "--no_python", "--redirects=1", "--tee=1", *options]


def test_torchrun_restarts_to_the_same_result(home):
    args = [*SMALL, "--epochs", "12", "--save-seconds", "0"]
    strata("train", *args, "--folder", "whole", "--processes", 2)
    running = begin(*args, "--folder", "faulty", "--timeout", 20,
                    command=torchrun("--standalone", "--nproc_per_node=2", "--max_restarts=2", "--monitor_interval=1"))
    wait_for_steps(home / "faulty", 60, running)
    os.kill(ranks_below(running.pid)[1], signal.SIGKILL)
    out, err = running.communicate(timeout=120)
    assert running.returncode == 0, err
    assert "rank 1" in err and len(json.load(open(home / "faulty/run.json"))["resumed"]) == 1
    same_run(home / "whole", home / "faulty")


def variables(rank, size, port, **more):
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return {**kept, "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), **more}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def accepts(port):
    with socket.socket() as visitor:
        return visitor.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("when", ["before the other comes", "in training", "in training, and killed"])
def test_a_stopped_host_of_the_store_is_named(home, when):
    """Rank 0 hosts the store where no starter does. Its kernel still takes connections when the process is stopped, and
    resets them if it is killed then."""
    port = free_port()
    args = [*LONG, "--folder", "run", "--timeout", 6]  # a busy machine may hold a process up for seconds
    host = begin(*args, env=variables(0, 2, port))
    while not accepts(port):
        assert host.poll() is None, host.communicate()
        time.sleep(0.02)
    if when == "before the other comes":
        host.send_signal(signal.SIGSTOP)
    other = begin(*args, env=variables(1, 2, port))
    if when.startswith("in training"):
        wait_for_steps(home / "run", 5, other)
        host.send_signal(signal.SIGSTOP)
    if when.endswith("killed"):
        time.sleep(9)  # now rank 1 looks for who is missing, by new connections
        host.kill()
    out, err = other.communicate(timeout=40)  # the timeout, 8 seconds to find the rank, the start of a process
    host.kill()
    host.communicate()
    assert other.returncode in (1, 2) and len(lines_of(err)) == 1 and "rank 0" in err, err


@pytest.mark.parametrize("topic, other, more", [
    ("options: batch is 16 on rank 0 and 8 on rank 1", ["--batch", "8"], {}),
    ("versions: instruction_set", [], {"STRATA_ISA": "portable"}),
    ("data", ["--data-seed", "5"], {}),
])
def test_ranks_that_disagree_name_the_difference(home, topic, other, more):
    port = free_port()
    ranks = [begin(*SMALL, "--folder", f"run{rank}", *(other if rank else []), env=variables(rank, 2, port, **(more if rank else {})))
             for rank in (0, 1)]
    ends = [rank.communicate(timeout=60) for rank in ranks]
    said = lines_of("".join(err for out, err in ends))
    assert [rank.returncode for rank in ranks] == [2, 2]
    assert len(said) == 1 and "the ranks disagree about " + topic in said[0], ends
    assert not (home / "run0/run.json").exists()


def test_bad_starts_are_refused(home):
    def refused(code=2, **environment):
        kept = {name: value for name, value in os.environ.items()}
        return strata("train", *SMALL, "--folder", "run", "--timeout", "1", code=code, env={**kept, **environment})

    assert "got RANK without WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT" in refused(RANK="0")
    assert "RANK: expected a rank below WORLD_SIZE, which is 2, got 2" in refused(**variables(2, 2, 1))
    assert "WORLD_SIZE: expected a number" in refused(**{**variables(0, 1, 1), "WORLD_SIZE": "two"})
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"strata: MASTER_PORT: port {port} is in use" in refused(**variables(0, 2, port))
    assert "rank 1 never came" in refused(code=1, **variables(0, 2, free_port()))
    assert "could not reach rank 0 at 127.0.0.1" in refused(**variables(1, 2, free_port()))
    assert "expected at most 1 processes, one for every row of a batch" in strata(
        "train", *SMALL, "--folder", "run", "--batch", 1, "--processes", 2, code=2)
    assert "has already started 2 processes" in strata(
        "train", *SMALL, "--processes", 2, code=2, env=variables(0, 2, free_port()))
    devices = json.loads(strata("info", "--json"))["devices"]
    if "cuda" not in devices:
        assert "--device" in strata("train", *SMALL, "--folder", "run", "--processes", 2, "--device", "cuda", code=2)
    assert not (home / "run/run.json").exists()


def test_many_workers_share_one_comparison(home):
    args = [STRATA, "compare", "--attentions", "flat", "hsa", "--seeds", "3", "--jobs", "1", *SMALL, "--epochs", "3", "--folder", "all"]
    environment = {**os.environ, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "3"}  # as srun sets them
    workers = [subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) for _ in range(3)]
    while not list((home / "all").glob("*/metrics.jsonl")):
        assert workers[0].poll() is None, workers[0].communicate()
        time.sleep(0.02)
    workers[0].kill()  # its run is saved, and taken over by another worker
    ends = [worker.communicate(timeout=120) for worker in workers]
    assert [worker.returncode for worker in workers[1:]] == [0, 0], ends
    assert ends[1][0] == ends[2][0]
    results = json.load(open(home / "all/results.json"))
    assert [len(one["scores"]) for one in results["attentions"]] == [3, 3]
    alone = [word if word != "all" else "alone" for word in args]
    subprocess.run(alone, check=True, capture_output=True)
    for folder in (home / "alone").glob("*-seed*"):
        same_run(folder, home / "all" / folder.name)
        resumed = json.load(open(home / "all" / folder.name / "run.json")).get("resumed", [])
        assert len(resumed) <= 1  # no run was trained twice
