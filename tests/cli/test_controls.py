"""Controls of a comparison: fixed level weights, windows, filters before flat attention; the recall task; scores by place."""

import json
import math

import pytest

from support import TINY, home, strata  # noqa: F401 (home is a fixture)

SHORT = [*TINY, "--layers", "1", "--epochs", "1", "--quiet"]


def result(folder):
    return json.load(open(folder / "result.json"))


def weights(folder):
    return json.loads(strata("inspect", folder, "--samples", "4", "--json"))["layers"][0]["heads"][0]["weights"]


@pytest.mark.parametrize("option, expected", [("uniform", [1 / 3, 1 / 3, 1 / 3]), ("level-0", [1, 0, 0]), ("level-2", [0, 0, 1])])
def test_fixed_level_weights_stay(home, option, expected):
    strata("train", *SHORT, "--attention", "hkt", "--level-weights", option, "--folder", "run")
    assert weights("run") == pytest.approx(expected, abs=1e-6)
    strata("train", *SHORT, "--attention", "hkt", "--folder", "learned")
    assert weights("learned") != pytest.approx([1 / 3] * 3, abs=1e-6)
    # What is fixed is no parameter: 2 heads of 3 levels.
    assert result(home / "learned")["parameters"] == result(home / "run")["parameters"] + 6


def test_fixed_level_weights_are_the_same_by_several_processes(home):
    args = [*SHORT, "--attention", "strata", "--level-weights", "uniform", "--precision", "float64", "--dropout", "0"]
    strata("train", *args, "--folder", "one")
    strata("train", *args, "--folder", "two", "--processes", 2)
    losses = [result(home / name)["test"]["loss"] for name in ("one", "two")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


def test_the_level_must_be_there(home):
    said = strata("train", *SHORT, "--attention", "hkt", "--levels", 2, "--level-weights", "level-2", "--folder", "run", code=2)
    assert "level_weights: expected a level below 2" in said, said


def test_a_window_changes_what_is_seen_and_counted(home):
    for window in (0, 4, 1000):
        strata("train", *SHORT, "--attention", "flat", "--window", window, "--folder", f"w{window}")
    results = {window: result(home / f"w{window}") for window in (0, 4, 1000)}
    assert results[1000]["test"] == results[0]["test"] and results[1000]["score_ratio"] == results[0]["score_ratio"] == 1
    assert results[4]["test"] != results[0]["test"]
    length = 64  # of listops
    assert results[4]["score_ratio"] == pytest.approx(sum(min(length, i + 5) - max(0, i - 4) for i in range(length)) / length**2)
    assert "window: expected 0 for hsa" in strata("train", *SHORT, "--attention", "hsa", "--window", 4, "--folder", "hsa", code=2)


def test_an_input_filter_before_flat_attention(home):
    for name, more in (("plain", []), ("filtered", ["--input-filter"])):
        strata("train", *SHORT, "--attention", "flat", *more, "--folder", name)
    plain, filtered = result(home / "plain"), result(home / "filtered")
    assert filtered["parameters"] == plain["parameters"] + 3 * 16  # three taps of 16 channels
    assert filtered["test"]["loss"] != plain["test"]["loss"]


def test_bits_by_place_make_the_whole(home):
    (home / "text.txt").write_text("the cat sat on the mat. " * 400)
    args = ["--task", "text", "--data", "text.txt", "--length", "50", *TINY, "--train-rows", "0", "--valid-rows", "0", "--test-rows", "0",
            "--layers", "1", "--epochs", "1", "--quiet"]
    for count in (1, 2):
        strata("train", *args, "--folder", str(count), "--processes", count)
        test = result(home / str(count))["test"]
        assert [part["name"] for part in test["parts"]] == ["0", "1", "2-3", "4-7", "8-15", "16-31", "32-49"]
        targets = sum(part["targets"] for part in test["parts"])
        assert sum(part["loss"] * part["targets"] for part in test["parts"]) / targets == pytest.approx(test["loss"], rel=1e-5)
    said = json.loads(strata("eval", "1", "--json"))
    assert [part["targets"] for part in said["parts"]] == [part["targets"] for part in result(home / "1")["test"]["parts"]]
    assert "--length: expected at most 50, the length of the model, whose positions are learned, got 200" in strata("eval", "1", "--length", 200, code=2)


@pytest.mark.parametrize("attention", ["flat", "hkt", "hsa", "strata"])
def test_models_without_a_table_of_positions_read_longer_texts(home, attention):
    (home / "text.txt").write_text("the cat sat on the mat. " * 400)
    strata("train", "--task", "text", "--data", "text.txt", "--length", "50", "--positions", "rotary", "--attention", attention, *TINY,
           "--train-rows", "0", "--valid-rows", "0", "--test-rows", "0", "--layers", "1", "--epochs", "1", "--branching", "4", "--quiet", "--folder", "run")
    parts = {length: json.loads(strata("eval", "run", "--length", length, "--json"))["parts"] for length in (50, 400)}
    assert [part["name"] for part in parts[400]][-3:] == ["64-127", "128-255", "256-399"]
    assert all(math.isfinite(part["loss"]) for part in parts[400])
    assert parts[50][0]["targets"] > parts[400][0]["targets"]  # one per window; longer windows are fewer


def test_recall_is_scored_by_accuracy_and_distance(home):
    args = ["--task", "recall", "--length", "40", "--pairs", "2", "--train-rows", "4000", "--valid-rows", "200", "--test-rows", "400",
            "--model-size", "32", "--heads", "4", "--layers", "2", "--epochs", "1", "--batch", "32", "--threads", "2", "--quiet"]
    strata("train", *args, "--attention", "strata", "--positions", "rotary", "--folder", "run")
    test = result(home / "run")["test"]
    assert [part["name"] for part in test["parts"]] == ["4-7", "8-15", "16-31", "32-39"]
    assert sum(part["targets"] for part in test["parts"]) == 400
    right = sum(part["accuracy"] * part["targets"] for part in test["parts"]) / 400
    assert right == pytest.approx(test["accuracy"])
    said = strata("eval", "run")
    # Of training rows that ask several keys, the last answer is at the distance of the row's label.
    strata("train", *args, "--questions", 2, "--steps", 3, "--folder", "asks")
    parts = json.loads(strata("eval", "asks", "--split", "train", "--json"))["parts"]
    assert sum(part["targets"] for part in parts) == 4000
    assert "bits per byte" not in said and said.splitlines()[2].startswith("distance") and said.count("\n32-39 ") == 1, said
    table = strata("compare", *args, "--attentions", "flat", "strata:near=1", "--seeds", 1, "--steps", "3", "--folder", "all")
    assert "test accuracy, %" in table
    assert "expected none for the task recall" in strata("train", *args, "--data", "x.txt", "--folder", "no", code=2)
    assert "length: expected 24 or more for --pairs 2 and --questions 1, got 20" in strata("train", *args, "--length", "20", "--folder", "no", code=2)
    assert "questions: expected at most 2, one for each of --pairs, got 3" in strata("train", *args, "--questions", 3, "--folder", "no", code=2)
