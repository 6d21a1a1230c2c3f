"""The commands that are disturbed: what is there before, the command, the command that goes on after a fault."""

import dataclasses
import errno
import hashlib
import pathlib
import shutil
import sys
import tarfile
from collections.abc import Callable

from shim import Command, Fault

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "cli"))
from tiny_models import write_bert  # noqa: E402 (found by the line above)

DATA = ["--train-rows", "16", "--valid-rows", "8", "--test-rows", "8", "--min-length", "4", "--length", "16", "--max-depth", "2", "--max-args", "3"]
MODEL = ["--model-size", "8", "--heads", "2", "--layers", "1", "--batch", "8", "--threads", "1"]
TRAIN = ["train", *DATA, *MODEL, "--attention", "hkt", "--steps", "2", "--eval-every", "1", "--log-every", "1"]
COMPARE = ["compare", *DATA, *MODEL, "--attentions", "flat", "hkt", "--seeds", "1", "--jobs", "1", "--steps", "1", "--folder", "comparison", "--quiet"]
# With tensors and files of more than 1 MB.
LARGE_DATA = ["--train-rows", "20000", "--valid-rows", "64", "--test-rows", "64", "--min-length", "40", "--length", "64"]
LARGE = [*LARGE_DATA, "--model-size", "64", "--heads", "2", "--layers", "1", "--batch", "64", "--threads", "1", "--steps", "1"]


@dataclasses.dataclass
class Scenario:
    """A command in a folder of its own, the case, which is also its working directory."""

    name: str
    args: list[str]
    prepare: Callable[[Command, pathlib.Path, pathlib.Path], None] = lambda command, case, cache: None  # fills the case
    next_args: Callable[[pathlib.Path], list[str]] | None = None  # what goes on after a fault; the same command if not given
    own_cache: bool = False  # the cache of data sets is in the case, and so disturbed as well
    elsewhere: frozenset[str] = frozenset()  # names that stand for another machine; calls on them are not disturbed
    between: frozenset[str] = frozenset()  # names that may be there after a fault, to be used by the next run
    prints: bool = False  # what it prints is its result
    memory_only: bool = False
    edges_only: bool = False  # not every call: the runs of a comparison are those of train
    short: int = 10  # faults of the short version

    def cache(self, case: pathlib.Path, shared: pathlib.Path) -> pathlib.Path:
        return case / "cache" if self.own_cache else shared

    def next(self, case: pathlib.Path) -> list[str]:
        return self.args if self.next_args is None else self.next_args(case)


def run_whole(command: Command, args: list[str], case: pathlib.Path, cache: pathlib.Path) -> None:
    done = command.run(args, case, cache)
    assert done.returncode == 0, f"{' '.join(args)}: exit code {done.returncode}\n{done.stderr}"


def finished_run(*more: str) -> Callable[[Command, pathlib.Path, pathlib.Path], None]:
    return lambda command, case, cache: run_whole(command, [*TRAIN, *more, "--folder", "run", "--quiet"], case, cache)


def stopped_run(command: Command, case: pathlib.Path, cache: pathlib.Path) -> None:
    """A run with a checkpoint of its first step, which stopped when it could not write the second."""
    args = [*TRAIN, "--folder", "run", "--quiet"]
    probe = case.parent / "probe"
    probe.mkdir()
    renamed = [path for kind, path in command.run_with_fault(args, probe, cache, None).calls if kind == "rename"]
    second = [nth for nth, path in enumerate(renamed, 1) if path.endswith("last.safetensors")][1]
    outcome = command.run_with_fault(args, case, cache, Fault("rename", second, errno.EIO))
    assert outcome.code == 4 and (case / "run/last.safetensors").exists(), outcome.stderr


def go_on_training(args: list[str]) -> Callable[[pathlib.Path], list[str]]:
    return lambda case: ["train", "--resume", "run", "--quiet"] if (case / "run/run.json").exists() else args


def bert_and_rows(command: Command, case: pathlib.Path, cache: pathlib.Path) -> None:
    (case / "bert").mkdir()
    write_bert(case / "bert")
    words = ["ab", "abc. ", "cd", "abcdef", "b! "]
    for name, rows in (("train", 20), ("test", 10)):
        lines = [f"{'yes' if i % 2 else 'no'}\t{' '.join(words[(i * 7 + j * j) % 5] for j in range(4 + i % 5))} {'aa' if i % 2 else 'c'}\n" for i in range(rows)]
        (case / f"{name}.tsv").write_text("label\ttext\n" + "".join(lines))


INJECT = ["inject", "bert", "--train", "train.tsv", "--test", "test.tsv", "--layers", "1", "--no-times", "--no-curve", "--threads", "1", "--folder", "out", "--quiet"]


def review_archive(command: Command, case: pathlib.Path, cache: pathlib.Path) -> None:
    """An archive laid out like the official one of imdb."""
    for split in ("train", "test"):
        for side in ("pos", "neg"):
            (case / "aclImdb" / split / side).mkdir(parents=True)
            for i in range(4):
                (case / "aclImdb" / split / side / f"{i}_{9 if side == 'pos' else 2}.txt").write_text(f"a {side} review, number {i}")
    with tarfile.open(case / "a.tar.gz", "w:gz") as archive:
        archive.add(case / "aclImdb", "aclImdb")
    shutil.rmtree(case / "aclImdb")


def get_args(case: pathlib.Path) -> list[str]:
    digest = hashlib.sha256((case / "a.tar.gz").read_bytes()).hexdigest()
    return ["data", "get", "imdb", "--url", f"file://{case}/a.tar.gz", "--digest", f"sha256:{digest}"]


def scenarios() -> list[Scenario]:
    train = [*TRAIN, "--tensorboard", "--folder", "run", "--quiet"]
    make = ["data", "make", "listops", *DATA]
    large = ["train", *LARGE, "--attention", "hkt", "--folder", "run", "--quiet"]
    large_run = lambda command, case, cache: run_whole(command, large, case, cache)
    return [
        Scenario("train", train, next_args=go_on_training(train), short=40),
        Scenario("train --resume", ["train", "--resume", "run", "--quiet"], prepare=stopped_run, short=20),
        Scenario("compare", COMPARE, edges_only=True, short=8),
        Scenario("inspect", ["inspect", "run", "--samples", "2", "--threads", "1", "--quiet"], prepare=finished_run()),
        Scenario("inject", INJECT, prepare=bert_and_rows, next_args=lambda case: ["report", "out"] if (case / "out/inject.json").exists() else INJECT),
        Scenario("embed", ["embed", "bert", "--file", "train.tsv", "--output", "e.npy", "--threads", "1", "--quiet"], prepare=bert_and_rows),
        Scenario("report", ["report", "run"], prepare=finished_run()),
        Scenario("data make", make, own_cache=True),
        Scenario("data make --again", [*make, "--again"], prepare=lambda command, case, cache: run_whole(command, make, case, case / "cache"), own_cache=True),
        Scenario("data check", ["data", "check", "listops", *DATA], own_cache=True, prints=True),
        Scenario("data get", ["data", "get"], prepare=review_archive, next_args=get_args, own_cache=True, elsewhere=frozenset({"a.tar.gz"}),
                 between=frozenset({"cache/strata/imdb.tar.gz", "cache/strata/imdb.tar.gz.part"})),
        Scenario("eval", ["eval", "run", "--threads", "1", "--json"], prepare=finished_run(), prints=True),
        Scenario("predict", ["predict", "run", "[MAX 2 [MIN 4 7 ] 0 ]", "--threads", "1"], prepare=finished_run(), prints=True),
        Scenario("train, large", large, next_args=go_on_training(large), memory_only=True),
        Scenario("eval, large", ["eval", "run", "--threads", "1", "--json"], prepare=large_run, prints=True, memory_only=True),
        Scenario("inspect, large", ["inspect", "run", "--samples", "4", "--threads", "1", "--quiet"], prepare=large_run, memory_only=True),
        Scenario("data make, large", ["data", "make", "listops", *LARGE_DATA], own_cache=True, memory_only=True),
    ]
