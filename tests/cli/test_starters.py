"""Training by the starters themselves, mpirun, srun and GNU parallel, and on two hosts of a network, which is then cut. The hosts are
network namespaces of this machine. What the machine lacks, or does not permit, is skipped."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time

import pytest

from processes import LONG, SMALL, begin, lines_of, wait_for_steps
from support import STRATA, home, same_run, strata  # noqa: F401 (home is a fixture)

RUN = [*SMALL, "--epochs", "2"]
COMPARE = [STRATA, "compare", "--attentions", "flat", "hsa", "--seeds", "2", "--jobs", "1", *SMALL, "--epochs", "1"]


def needs(*programs):
    missing = [program for program in programs if shutil.which(program) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {' and '.join(missing)}, which this machine does not have")


def finish(running, code=0):
    out, err = running.communicate(timeout=120)
    assert running.returncode == code, f"exit code {running.returncode}, expected {code}\n{out}\n{err}"
    return out, err


def check_comparison(home):
    """The folder `all`, which several workers made, has what one worker makes in `alone`."""
    subprocess.run([*COMPARE, "--folder", "alone"], check=True, capture_output=True)
    folders = list((home / "alone").glob("*-seed*"))
    assert len(folders) == 4
    for folder in folders:
        same_run(folder, home / "all" / folder.name)


@needs("mpirun")
def test_mpirun_is_the_same_run(home):
    mpirun = ["mpirun", "-np", "2", "--oversubscribe", *(["--allow-run-as-root"] if os.getuid() == 0 else [])]
    strata("train", *RUN, "--folder", "own", "--processes", 2)
    finish(begin(*RUN, "--folder", "mpi", command=mpirun))
    same_run(home / "own", home / "mpi")
    assert json.load(open(home / "mpi/run.json"))["processes"] == 2


@needs("parallel")
def test_workers_of_gnu_parallel_share_a_comparison(home):
    workers = ["parallel", "--jobs", "3", "-N0", *COMPARE, "--folder", "all", ":::", "1", "2", "3"]
    done = subprocess.run(workers, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    tables = done.stdout[: len(done.stdout) // 3]
    assert done.stdout == 3 * tables and "flat" in tables
    check_comparison(home)


SLURM = """
ClusterName=strata
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/linear
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A cluster of one machine."""
    if os.getuid() != 0:
        pytest.skip("the daemons of Slurm need root")
    folder = tmp_path / "slurm"
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    for parent in (folder, *folder.parents):
        parent.chmod(parent.stat().st_mode | 0o111)  # munge wants its socket to be in reach
    (folder / "key").write_bytes(os.urandom(1024))
    (folder / "key").chmod(0o400)
    (folder / "slurm.conf").write_text(SLURM.format(host=socket.gethostname(), folder=folder, ports=free_ports(2)))
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    files = {"key-file": "key", "socket": "munge.socket", "pid-file": "munge.pid", "log-file": "munge.log", "seed-file": "seed"}
    munged = ["munged", "--force", "--foreground", *(f"--{option}={folder / name}" for option, name in files.items())]
    daemons = []
    try:
        for command in (munged, ["slurmctld", "-D"], ["slurmd", "-D"]):
            with open(folder / f"{command[0]}.out", "w") as output:
                daemons.append(subprocess.Popen(command, stdout=output, stderr=output))
            time.sleep(1)
        for _ in range(60):
            state = subprocess.run(["sinfo", "--noheader", "--format=%t"], capture_output=True, text=True).stdout.strip()
            if state == "idle":
                break
            time.sleep(0.5)
        else:
            pytest.skip(f"Slurm did not come up here: {state}\n" + "\n".join(file.read_text()[-500:] for file in folder.glob("*.out")))
        yield
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(20)


@needs("srun", "slurmctld", "slurmd", "munged")
def test_srun_is_the_same_run_and_shares_comparisons(home, slurm):
    strata("train", *RUN, "--folder", "own", "--processes", 2)
    finish(begin(*RUN, "--folder", "srun", command=["srun", "--ntasks=2"]))
    same_run(home / "own", home / "srun")
    assert json.load(open(home / "srun/run.json"))["processes"] == 2
    done = subprocess.run(["srun", "--ntasks=3", *COMPARE, "--folder", "all"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    check_comparison(home)


class Hosts:
    """Two network namespaces with a cable between them."""

    def __init__(self):
        self.names = [f"strata{os.getpid()}{letter}" for letter in "ab"]
        self.addresses = ["10.77.0.1", "10.77.0.2"]
        self.plugs = [f"st{os.getpid()}{letter}" for letter in "ab"]

    def ip(self, *words):
        return subprocess.run(["ip", *words], capture_output=True, text=True, check=True)

    def build(self):
        for name in self.names:
            self.ip("netns", "add", name)
            self.ip("-n", name, "link", "set", "lo", "up")
        first, second = zip(self.plugs, self.names)
        self.ip("link", "add", first[0], "netns", first[1], "type", "veth", "peer", "name", second[0], "netns", second[1])
        for name, plug, address in zip(self.names, self.plugs, self.addresses):
            self.ip("-n", name, "addr", "add", f"{address}/24", "dev", plug)
            self.ip("-n", name, "link", "set", plug, "up")

    def cut(self):
        self.ip("-n", self.names[1], "link", "set", self.plugs[1], "down")

    def remove(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def begin(self, rank, *args):
        """Rank `rank` of 2, one on each host."""
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": self.addresses[0],
                       "MASTER_PORT": "29511", "GLOO_SOCKET_IFNAME": self.plugs[rank]}
        return begin(*args, command=["ip", "netns", "exec", self.names[rank]], env=environment)


@pytest.fixture
def hosts():
    made = Hosts()
    try:
        made.build()
    except subprocess.CalledProcessError as error:
        made.remove()
        pytest.skip(f"this machine does not permit network namespaces: {error.stderr.strip()}")
    yield made
    made.remove()


@needs("ip")
def test_two_hosts_are_the_same_run(home, hosts):
    strata("train", *RUN, "--folder", "own", "--processes", 2)
    for rank in [hosts.begin(rank, *RUN, "--folder", f"host{rank}") for rank in (0, 1)]:
        finish(rank)
    same_run(home / "own", home / "host0")
    assert not (home / "host1/run.json").exists()  # rank 0 alone writes


@needs("ip")
def test_a_cut_network_ends_both_hosts(home, hosts):
    ranks = [hosts.begin(rank, *LONG, "--folder", "run", "--timeout", 3) for rank in (0, 1)]
    wait_for_steps(home / "run", 5, ranks[0])
    hosts.cut()
    said = [lines_of(rank.communicate(timeout=60)[1]) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [1, 1], said
    # Each says what it can know: they cannot agree on one line without a network.
    assert len(said[0]) == 1 and said[0][0].startswith("strata: rank 1 (") and "lost its network" in said[0][0], said
    assert len(said[1]) == 1 and "rank 0, which hosts the store at 10.77.0.1:29511, does not answer" in said[1][0], said
    assert not [name for name in os.listdir(home / "run") if ".part" in name]
    resumed = begin("--resume", "run", "--quiet", "--processes", 2)  # the checkpoint is whole
    wait_for_steps(home / "run", len((home / "run/metrics.jsonl").read_text().splitlines()) + 5, resumed)
    resumed.send_signal(signal.SIGINT)
    finish(resumed, code=130)
