"""strata train, eval and predict as a user meets them: whole runs, interruptions, resumption, records."""

import json
import os
import signal
import subprocess
import time

import pytest

from support import STRATA, TINY, home, strata, tensors, same_run  # noqa: F401 (home is a fixture)


@pytest.mark.parametrize("attention", ["flat", "hkt", "hsa", "strata"])
def test_train_eval_predict(home, attention):
    result = json.loads(strata("train", "--attention", attention, *TINY, "--folder", "run", "--json", "--tensorboard"))
    assert result["steps"] == 32 and result["test"]["rows"] == 64
    assert result["score_ratio"] == {"flat": 1.0, "hkt": 1.3125}.get(attention, result["score_ratio"])
    for name in ("run.json", "metrics.jsonl", "best.safetensors", "last.safetensors", "result.json"):
        assert (home / "run" / name).exists()
    assert len(list((home / "run" / "tensorboard").iterdir())) == 1
    evaluated = json.loads(strata("eval", "run", "--json"))
    assert evaluated["accuracy"] == result["test"]["accuracy"]
    assert evaluated["loss"] == pytest.approx(result["test"]["loss"], rel=1e-6)
    line = json.loads(strata("predict", "run", "[MAX 2 [MIN 4 7 ] 0 ]"))
    assert line["input"] == "[MAX 2 [MIN 4 7 ] 0 ]" and line["label"] in "0123456789"
    assert sum(line["probabilities"].values()) == pytest.approx(1)
    many = strata("predict", "run/best.safetensors", stdin="[SM 1 2 ]\n3\n").splitlines()
    assert [json.loads(answer)["input"] for answer in many] == ["[SM 1 2 ]", "3"]


def test_one_bad_input_does_not_stop_the_others(home):
    strata("train", *TINY, "--steps", 2, "--folder", "run")
    done = subprocess.run([STRATA, "predict", "run", "[MAX 2", "[MIN 1 2 ]"], capture_output=True, text=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 3 and "error" in answers[0] and "label" in answers[1]


def test_same_seed_same_bits_and_other_seed_others(home):
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        strata("train", *TINY, "--folder", folder, "--seed", seed)
    same_run(home / "a", home / "b")
    assert tensors(home / "a/last.safetensors") != tensors(home / "c/last.safetensors")


def test_starts_anew_with_its_arguments(home):
    """Where nobody set the count of spins, the command sets it and starts itself again (cli/main.cc)."""
    environment = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([STRATA, "predict", "a run", "two words"], env=environment, capture_output=True, text=True)
    assert done.returncode == 4 and "a run: there is no such file" in done.stderr, done.stderr


def stopped_and_resumed(home, how, args):
    """A whole run, and one that is stopped by a signal and resumed, in the folders whole and parts."""
    strata("train", *args, "--folder", "whole")
    running = subprocess.Popen([STRATA, "train", *args, "--folder", "parts"], stderr=subprocess.PIPE, text=True)
    while not (home / "parts/metrics.jsonl").exists() or len(open(home / "parts/metrics.jsonl").readlines()) < 6:
        assert running.poll() is None, "finished before it could be interrupted"
        time.sleep(0.01)
    running.send_signal(how)
    message = running.communicate(timeout=60)[1]
    assert not (home / "parts/result.json").exists(), "finished before it could be interrupted"
    if how == signal.SIGINT:
        assert running.returncode == 130 and "strata train --resume parts" in message
    strata("train", "--resume", "parts")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("attention", ["hkt", "hsa", "strata"])
def test_resume_goes_on_to_the_same_bits(home, attention, how):
    stopped_and_resumed(home, how, ["--attention", attention, *TINY, "--epochs", "10", "--eval-every", "20", "--log-every", "7", "--save-seconds", "0",
                                    "--hide", "0.1"])
    same_run(home / "whole", home / "parts")


@pytest.mark.parametrize("attention", ["flat", "hkt", "hkt --filters dense", "hsa"])
def test_runs_on_a_gpu_repeat_and_resume_to_the_same_bits(home, attention):
    if "cuda" not in json.loads(strata("info", "--json"))["devices"]:
        pytest.skip("there is no GPU here, or this build has no CUDA kernels")
    # Batches of the size of real ones: with few tokens, torch's atomics come in order by themselves.
    args = ["--attention", *attention.split(), "--device", "cuda", "--precision", "bf16", "--batch", "256", "--train-rows", "4096", "--valid-rows", "256",
            "--test-rows", "256", "--model-size", "128", "--epochs", "12", "--eval-every", "40", "--log-every", "7", "--save-seconds", "0"]
    stopped_and_resumed(home, signal.SIGKILL, args)
    strata("train", *args, "--folder", "again")
    same_run(home / "whole", home / "again")
    same_run(home / "whole", home / "parts")


def test_resuming_is_recorded(home):
    running = subprocess.Popen([STRATA, "train", *TINY, "--epochs", "20", "--folder", "run"], stderr=subprocess.PIPE, text=True)
    while not (home / "run/metrics.jsonl").exists():
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=60)
    before = json.load(open(home / "run/run.json"))
    assert "finished" not in before and "resumed" not in before
    strata("train", "--resume", "run", "--quiet")
    after = json.load(open(home / "run/run.json"))
    assert after["started"] == before["started"] and len(after["resumed"]) == 1 and after["resumed"][0]["versions"] == before["versions"]
    assert after["finished"] >= after["resumed"][0]["at"]


def test_flat_attention_takes_the_input_filter(home):
    parameters = []
    for extra in ([], ["--input-filter"]):
        folder = f"run{len(parameters)}"
        parameters.append(json.loads(strata("train", "--attention", "flat", *extra, *TINY, "--steps", "2", "--json", "--quiet", "--folder", folder))["parameters"])
    layers, taps, size = 2, 3, 16
    assert parameters[1] - parameters[0] == layers * taps * size


def test_language_model(home):
    (home / "book.txt").write_text("the quick brown fox jumps over the lazy dog. " * 400)
    for attention in ("flat", "hkt", "hsa", "strata"):
        result = json.loads(strata("train", "--task", "text", "--data", "book.txt", "--length", "32", "--attention", attention, "--model-size",
                                   "32", "--heads", "2", "--batch", "16", "--epochs", "6", "--threads", "1", "--dropout", "0", "--folder", attention, "--json"))
        assert result["test"]["loss"] < 1.0, attention  # a uniform guess over 28 characters is 3.3
    answer = json.loads(strata("predict", "hkt", "the quick brown fox jumps ove"))
    assert answer["next"][0]["text"] == "r" and answer["bits_per_byte"] < 2


def test_own_table_with_bad_rows(home):
    rows = ["label,text"] + [f"{'good' if i % 2 else 'bad'},{'wonderful film' if i % 2 else 'terrible film'} number {i}" for i in range(200)]
    rows.insert(50, "good")  # no text
    (home / "reviews.csv").write_text("\n".join(rows))
    done = subprocess.run([STRATA, "train", "--task", "table", "--data", "reviews.csv", "--attention", "hsa", "--length", "32", *TINY[6:],
                           "--epochs", "8", "--folder", "run", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "1 unusable training rows" in done.stderr and "line 51" in done.stderr
    assert json.loads(done.stdout)["test"]["accuracy"] > 0.9
    assert json.loads(strata("predict", "run", "a wonderful film"))["label"] == "good"


def test_texts_as_words(home):
    rows = [("good", "a fine film, truly fine.") if i % 2 else ("bad", "a dull film. Dull!") for i in range(60)]
    (home / "t.csv").write_text("label,text\n" + "".join(f'{label},"{text}"\n' for label, text in rows))
    strata("train", "--task", "table", "--data", "t.csv", "--tokens", "words", "--words", "6", "--length", "8", "--attention", "hsa", "--model-size",
           "16", "--heads", "2", "--batch", "8", "--epochs", "8", "--threads", "1", "--dropout", "0", "--folder", "run")
    answer = json.loads(strata("predict", "run", "Dull, dull, DULL film"))
    assert answer["label"] == "bad" and answer["tokens"] == 6 and "cut_at" not in answer
    assert json.loads(strata("predict", "run", "fine " * 9))["cut_at"] == 8
    whole = json.loads(strata("eval", "run", "--json"))
    moved = json.loads(strata("eval", "run/best.safetensors", "--data", "t.csv", "--json"))  # the words are the model's own
    assert whole["accuracy"] == moved["accuracy"] == 1.0
    assert "only the texts of imdb and table" in strata("train", *TINY, "--tokens", "words", "--folder", "no", code=2)


def test_strata_attention_in_all_its_forms(home):
    """On the task's tree, on a blind one, without one; positions that are rotated; what it does not take."""
    for extra in (["--tree", "balanced"], ["--tree", "none", "--near", "1"], ["--tree", "none", "--positions", "rotary"], ["--levels", "1"]):
        folder = "-".join(word.strip("-") for word in extra)
        strata("train", "--attention", "strata", *TINY, *extra, "--steps", 4, "--folder", folder, "--quiet")
        answer = json.loads(strata("predict", folder, "[MAX 2 [MIN 4 7 ] 0 ]"))
        assert sum(answer["probabilities"].values()) == pytest.approx(1)
    for extra, words in ((["--psd"], "psd: expected false for strata"), (["--normalize"], "normalize: expected false for strata"),
                         (["--sibling-positions", "learned"], "sibling_positions: expected bias or none for strata, got learned")):
        assert words in strata("train", "--attention", "strata", *TINY, *extra, "--folder", "refused", code=2)
    assert "tree: expected a tree for hsa, got none" in strata("train", "--attention", "hsa", "--tree", "none", *TINY, "--folder", "refused", code=2)
    assert "KL gap" in strata("inspect", "levels-1", "--samples", 4)
