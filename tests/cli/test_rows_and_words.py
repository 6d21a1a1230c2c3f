"""Rows that would be read wrong, other data for a model, words of others in messages, machines without a home."""

import json
import os
import pty
import subprocess

import pytest

from support import STRATA, TINY, home, strata  # noqa: F401 (home is a fixture)

SMALL = ["--length", "16", "--model-size", "8", "--heads", "2", "--batch", "8", "--epochs", "1", "--threads", "1", "--quiet"]


def rows(count, labels=("bad", "good")):
    return [f"{labels[i % len(labels)]},film {i}" for i in range(count)]


def test_rows_with_too_many_columns_and_empty_labels_are_counted(home):
    lines = ["label,text", *rows(40), "good,a comma, and a tail", ",no label", "good"]
    (home / "t.csv").write_text("\n".join(lines) + "\n")
    message = strata("data", "check", "table", "--data", "t.csv", code=3)
    assert "3 unusable rows" in message
    checked = subprocess.run([STRATA, "data", "check", "table", "--data", "t.csv", "--json"], capture_output=True, text=True)
    train = json.loads(checked.stdout)["train"]
    assert train["unusable"] == 3 and set(train["labels"]) == {"bad", "good"}
    assert [problem.split(": ")[1] for problem in train["problems"]] == [
        "expected 2 columns, got 3; is a separator inside a text without quotes?", "the label is empty", "expected 2 columns, got 1"]


def test_columns_of_the_same_name(home):
    (home / "t.csv").write_text("label,text,text\n" + "\n".join(row + ",other" for row in rows(20)) + "\n")
    message = strata("data", "check", "table", "--data", "t.csv", code=3)
    assert "expected one column named text, got columns 2 and 3 of that name" in message
    strata("data", "check", "table", "--data", "t.csv", "--text-column", "2")


def test_a_table_without_a_usable_row_gives_the_reasons(home):
    (home / "t.csv").write_text("label,text\n" + "".join(f"good,text {i}, tail\n" for i in range(9)))
    message = strata("train", "--task", "table", "--data", "t.csv", code=3)
    assert "9 of 9 rows are unusable: line 2: expected 2 columns, got 3" in message and "got 0;" in message


def test_cut_rows_are_counted_where_they_are(home):
    (home / "t.csv").write_text("label,text\n" + "\n".join(rows(100)) + "\n")  # "film 9" has 6 bytes, "film 10" 7
    checked = json.loads(strata("data", "check", "table", "--data", "t.csv", "--length", "6", "--json"))
    assert [checked[split]["cut"] for split in ("train", "valid", "test")] != [90, 0, 0]
    assert sum(checked[split]["cut"] for split in ("train", "valid", "test")) == 90
    for split in ("train", "valid", "test"):
        assert checked[split]["cut"] <= checked[split]["rows"]
    assert checked["test"]["cut"] >= 1 and checked["valid"]["cut"] >= 1
    few = json.loads(strata("data", "check", "table", "--data", "t.csv", "--length", "6", "--test-rows", "1", "--json"))
    assert few["test"]["cut"] <= 1


def test_eval_scores_all_of_other_data(home):
    (home / "t.csv").write_text("stars,review\n" + "\n".join(rows(100)) + "\n")
    columns = ["--label-column", "stars", "--text-column", "review"]
    strata("train", "--task", "table", "--data", "t.csv", *columns, *SMALL, "--folder", "run")
    (home / "u.csv").write_text("stars,review\n" + "\n".join(rows(40)) + "\n")
    assert json.loads(strata("eval", "run", "--json"))["rows"] == 10  # its own test rows
    for model in ("run", "run/best.safetensors"):  # the file knows its columns
        other = json.loads(strata("eval", model, "--data", "u.csv", "--json"))
        assert (other["split"], other["rows"]) == ("all", 40)
    assert "all rows, 40 rows" in strata("eval", "run", "--data", "u.csv")
    assert json.loads(strata("eval", "run", "--data", "u.csv", "--split", "test", "--json"))["rows"] == 4
    assert json.loads(strata("eval", "run", "--split", "all", "--json"))["rows"] == 100
    (home / "one.csv").write_text("stars,review\ngood,film\n")  # a single row, with one of the labels
    assert json.loads(strata("eval", "run", "--data", "one.csv", "--json"))["rows"] == 1
    (home / "bad.csv").write_text("stars,review\nnice,film\n")
    assert 'the label "nice" is none of the model' in strata("eval", "run", "--data", "bad.csv", code=3)


def test_resume_needs_a_folder_and_keeps_it(home):
    assert "--resume: expected the folder of a run" in strata("train", "--resume", "", code=2)
    assert "--folder: a resumed run stays in its folder" in strata("train", "--resume", "run", "--folder", "other", code=2)
    assert not (home / "runs").exists() and not (home / "other").exists()


@pytest.mark.parametrize("args, words", [
    (["train", "--clip", "1e308"], "--clip: expected 0 to 1000000, got 1e308"),
    (["train", "--seed", "-1"], "--seed: expected 0 to 9007199254740992, got -1"),
    (["train", "--seed", "1" * 309], "--seed: expected 0 to 9007199254740992, got 1111"),
    (["train", "--epochs", "9223372036854775807"], "--epochs: expected 1 to 1073741824"),
    (["train", "--learning-rate", "nan"], "--learning-rate: expected a finite number, got nan"),
    (["train", "--model-size", "9223372036854775807"], "--model-size: expected 1 to 1048576"),
    (["compare", "--minutes", "nan"], "--minutes: expected a finite number, got nan"),
    (["compare", "--attentions", "hkt:clip=1e308"], "expected 0 to 1000000, got 1e308"),
    (["data", "make", "listops", "--train-rows", "9223372036854775807"], "--train-rows: expected 0 to 1073741824"),
    (["data", "make", "listops", "--data-seed", "-1"], "--data-seed: expected 0 to 9007199254740992, got -1"),
    (["generate", "m", "--temperature", "nan"], "--temperature: expected a finite number, got nan"),
    (["generate", "m", "--top-p", "nan"], "--top-p: expected a finite number, got nan"),
    (["generate", "m", "--seed", "-1"], "--seed: expected 0 to 9007199254740992, got -1"),
    (["inject", "m", "--cut", "nan"], "--cut: expected a finite number, got nan"),
    (["inject", "m", "--budget", "inf"], "--budget: expected a finite number, got inf"),
    (["inject", "m", "--seed", "-1"], "--seed: expected 0 to 9007199254740992, got -1"),
    (["bench", "--rounds", "1e9"], "--rounds: expected a whole number, got 1e9"),
])
def test_extremes_are_refused(home, args, words):
    if args[0] in ("generate", "inject") and args[0] not in strata("--help"):
        pytest.skip(f"this build has no {args[0]}")
    message = strata(*args, code=2)
    assert words in message and len(message) < 300, message


@pytest.mark.parametrize("name", ["flat:train_rows=20", "hkt:data_seed=5", "hkt:task=listops", "hkt:seed=2", "hkt:threads=1"])
def test_compare_refuses_to_pair_unlike_runs(home, name):
    message = strata("compare", "--attentions", "hsa", name, *TINY[:-2], code=2)
    assert f"--attentions {name}: {name.split(':')[1].split('=')[0]} must be the same for all attentions" in message
    assert "Options that may differ are " in message and "levels" in message and "learning_rate" in message


def test_words_of_others_are_escaped_and_cut(home):
    (home / "t.csv").write_text("\x1b[31mred," + "x" * 3_000_000 + "\nb,y\n")
    message = strata("train", "--task", "table", "--data", "t.csv", code=3)
    assert "\\x1b[31mred" in message and "\x1b" not in message and "(3000000 characters)" in message and len(message) < 400
    (home / "c.json").write_text(json.dumps({"\x1b]0;title\x07" + "y" * 2_000_000: 1}))
    message = strata("train", "--config", "c.json", code=2)
    assert "\\x1b]0;" in message and "\x1b" not in message and len(message) < 400
    (home / "u.csv").write_text("label,text\n" + "\n".join(rows(40)) + "\n\x1b[2Jgood\n")
    done = subprocess.run([STRATA, "train", "--task", "table", "--data", "u.csv", *SMALL[:-1], "--folder", "run"], capture_output=True, text=True)
    assert done.returncode == 0 and "\x1b" not in done.stderr and "unusable" in done.stderr


def test_without_a_home(home):
    environment = {name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_CACHE_HOME")}
    assert "neither HOME nor XDG_CACHE_HOME is set" in strata("info", env=environment)
    assert json.loads(strata("info", "--json", env=environment))["cache"] == ""
    assert "no cache" in strata("data", "list", env=environment)
    assert "set XDG_CACHE_HOME" in strata("train", *TINY, env=environment, code=2)


@pytest.mark.parametrize("kind, escapes", [("dumb", False), ("xterm", True), (None, False)])
def test_escapes_only_for_terminals_that_obey_them(home, kind, escapes):
    environment = {name: value for name, value in os.environ.items() if name != "TERM"} | ({"TERM": kind} if kind else {})
    ours, theirs = pty.openpty()
    done = subprocess.Popen([STRATA, "train", *TINY, "--steps", "20", "--folder", "run"], stdout=subprocess.DEVNULL, stderr=theirs, env=environment)
    os.close(theirs)
    said = b""
    try:
        while block := os.read(ours, 4096):
            said += block
    except OSError:  # the other side is closed
        pass
    assert done.wait(timeout=60) == 0
    assert (b"\x1b" in said) == escapes, said
