"""The scripts of examples/python run on small data, and what they print is right.

Each runs as a user would run it: by this interpreter, in a folder of its own, with the package that these tests have.
"""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "python"
NAMES = ["classify_table", "data_parallel", "generate_llama", "language_model", "look_inside", "sharded_weights"]


def run_example(
    name: str, folder: Path, *arguments: str, starter: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    for variable in ("PYTHONPATH", "STRATA_LIBRARY"):  # may be relative to this folder
        if environment.get(variable):
            paths = environment[variable].split(os.pathsep)
            environment[variable] = os.pathsep.join(os.path.abspath(path) for path in paths)
    command = [sys.executable, *starter, str(EXAMPLES / f"{name}.py"), *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, encoding="utf-8", timeout=600)


def output_of(name: str, folder: Path, *arguments: str, starter: tuple[str, ...] = ()) -> str:
    done = run_example(name, folder, *arguments, starter=starter)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def number(pattern: str, output: str) -> float:
    """The only number that the pattern finds."""
    found = re.findall(pattern, output)
    assert len(found) == 1, f"{pattern}: found {found} in\n{output}"
    return float(found[0])


def accuracies(output: str) -> dict[str, list[float]]:
    """Percent per kind of attention, seed by seed."""
    rows = re.findall(r"^(\w+Attention) +[\d,]+ +[\d.]+% +((?:[\d.]+% *)+)$", output, re.M)
    return {kind: [float(value) for value in re.findall(r"[\d.]+", values)] for kind, values in rows}


def digit_sum(value: int, base: int) -> int:
    return value % base + digit_sum(value // base, base) if value else 0


@pytest.mark.parametrize("name", NAMES)
def test_cells_are_whole(name: str) -> None:
    """A notebook compiles every cell by itself, and shows the text cells as Markdown."""
    cells = re.split(r"^# %%", (EXAMPLES / f"{name}.py").read_text(), flags=re.M)
    assert cells[0] == "" and cells[1].startswith(" [markdown]\n# # "), "the first cell must be the title"
    for cell in cells[1:]:
        if cell.startswith(" [markdown]\n"):
            assert all(line.startswith("#") for line in cell.split("\n")[1:] if line), cell
        else:
            compile(cell, name, "exec")


def test_every_example_is_tested() -> None:
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == NAMES


def test_classify_table(tmp_path: Path) -> None:
    output = output_of("classify_table", tmp_path, "--quick")
    common = number(r"most common label has ([\d.]+)%", output)
    found = accuracies(output)
    assert sorted(found) == ["FlatAttention", "HktAttention"]
    for kind, values in found.items():
        assert len(values) == 1 and values[0] > common + 15, f"{kind}: {values}% beside {common}% by guessing\n{output}"


def test_classify_table_reads_a_file(tmp_path: Path) -> None:
    """Quotes, commas, line breaks and other alphabets; columns in any order and with other names."""
    words = {"ja": 'gut, "schön"\nund 好', "nein": "schlecht; böse"}
    with open(tmp_path / "mail.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["folder", "number", "subject"])
        writer.writerows([label, n, words[label] * (1 + n % 3)] for n in range(60) for label in words)
    options = ["--quick", "--text-column", "subject", "--label-column", "folder", "--steps", "30", "--seeds", "1"]
    output = output_of("classify_table", tmp_path, "mail.csv", *options)
    assert "120 rows, 2 labels" in output
    assert accuracies(output) == {"FlatAttention": [100.0], "HktAttention": [100.0]}, output

    refused = run_example("classify_table", tmp_path, "mail.csv", "--quick")
    assert refused.returncode != 0
    assert "expected a column \"text\", got ['folder', 'number', 'subject']" in refused.stderr


@pytest.mark.parametrize("name", ["data_parallel", "sharded_weights"])
def test_several_processes_follow_one(tmp_path: Path, name: str) -> None:
    """One process, and two that torchrun starts, print the same loss."""
    if name == "sharded_weights" and tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6):
        pytest.skip("FSDP2 needs PyTorch 2.6")
    # Without the last two, torchrun of PyTorch 1.13 fails in Python 3.11.
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "--redirects=1", "--tee=1")
    losses = []
    for starter, count in (((), 1), (torchrun, 2)):
        output = output_of(name, tmp_path, "--quick", starter=starter)
        losses.append(number(rf"{count} processes, {24 // count} rows each: loss (\S+) at step 10", output))
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


def test_generate_llama(tmp_path: Path) -> None:
    pytest.importorskip("transformers", minversion="5.0", reason="generate_llama needs transformers 5 or later")
    output = output_of("generate_llama", tmp_path, "--quick")
    assert "near=11: the same text as without Strata: True" in output
    rows = re.findall(r"^near=2: (\d+) tokens: ([\d,]+) bytes of cache, ([\d,]+) with every token$", output, re.M)
    (short, small, _), (long, large, every) = [[int(value.replace(",", "")) for value in row] for row in rows]
    assert (short, long) == (50, 163) and small == large < every  # both have two heights
    assert number(r"would have chosen too: ([\d.]+)%", output) > 99


def test_language_model(tmp_path: Path) -> None:
    output = output_of("language_model", tmp_path, "--quick")
    learnt = number(r"\nheld out: ([\d.]+) bits", output)
    frequencies = number(r"frequencies of single bytes: ([\d.]+) bits", output)
    assert learnt < frequencies - 0.3, f"{learnt} bits per byte beside {frequencies} by frequencies"
    assert number(r"steps and the parallel form: (\S+)", output) < 1e-4
    rows = [[int(value) for value in row] for row in re.findall(r"^ +(\d+) +(\d+) +(\d+) +(\d+) +\d+$", output, re.M)]
    assert [row[0] for row in rows] == [10, 100, 1000]
    for tokens, entries, stand_for, full in rows:
        assert (entries, stand_for, full) == (digit_sum(tokens, 16), tokens, tokens)
    assert re.search(r"^The .{20}", output, re.M | re.S)


def test_look_inside_levels_and_direction(tmp_path: Path) -> None:
    output = output_of("look_inside", tmp_path, "--quick")
    assert number(r"accuracy on 1000 new texts: ([\d.]+)%", output) > 60
    rows = [
        [float(x) for x in row] for row in re.findall(r"^ +(\d) +(\d) +([\d.]+) +([\d.]+) -> ([\d.]+)$", output, re.M)
    ]
    assert [row[:2] for row in rows] == [[head, level] for head in range(2) for level in range(3)]
    for head in range(2):
        assert abs(sum(row[2] for row in rows if row[0] == head) - 1) < 2e-3
    for head, level, _, before, after in rows:
        assert 0 < before < 0.05 < after < 1, f"head {head}, level {level}: {before} -> {after}"
    assert number(r"lse between HKT and its flat form: (\S+)", output) < 1e-4
    check_trees(output)


def check_trees(output: str) -> None:
    """The table of trees: sorted by score, the gap rises, and it is the divergence that was summed entry by entry."""
    found = re.findall(r"^ +([\d.-]+) +([\d.-]+) +([\d.-]+) +(\d+)   (star|windows .*)$", output, re.M)
    rows = [(float(score), float(gap), float(summed), int(cost), name) for score, gap, summed, cost, name in found]
    assert len(rows) == 9
    for _, gap, summed, _, name in rows:
        assert abs(gap - summed) < 2e-3 + 1e-4 * summed, f"{name}: {gap} and {summed}"
    for above, below in zip(rows, rows[1:]):
        assert above[0] >= below[0] and above[2] < below[2], f"{above} and {below}"
    assert rows[0][4] == "star" and abs(rows[0][1]) < 2e-3 and rows[0][3] == 64 * 64, "a star is full attention"
    allowed = [row for row in rows if row[3] <= 64 * 64 // 4]
    assert ["best_tree" in row[4] for row in rows if row in allowed] == [True] + [False] * (len(allowed) - 1)
    assert output.rstrip().endswith("the larger score has the smaller gap: yes")
