"""What the tests of training by several processes share: small runs, and how they are started and watched."""

import subprocess
import time

from support import STRATA

# 202 rows in batches of 16: the last one of an epoch has 10 rows, which 3 and 4 processes share unevenly.
SMALL = ["--train-rows", "202", "--valid-rows", "48", "--test-rows", "48", "--model-size", "8", "--heads", "2", "--layers", "1",
         "--batch", "16", "--threads", "1", "--log-every", "1", "--quiet"]
LONG = [*SMALL, "--epochs", "4000", "--save-seconds", "0", "--eval-every", "1000000"]  # until something stops it


def begin(*args, command=(), **kwargs):
    return subprocess.Popen([*command, STRATA, "train", *map(str, args)], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                            **kwargs)


def wait_for_steps(folder, count, running):
    path = folder / "metrics.jsonl"
    while not path.exists() or len(path.read_text().splitlines()) < count:
        assert running.poll() is None, running.communicate()
        time.sleep(0.02)


def lines_of(text):
    return [line for line in text.splitlines() if line.startswith("strata: ")]
