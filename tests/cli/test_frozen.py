"""Word pieces and frozen embeddings of a pretrained encoder: the run, its file alone, changed files, what does not go together."""
import json
import os
import shutil
import signal

import numpy
import pytest
from processes import begin, wait_for_steps
from support import home, metrics, same_run, strata, tensors  # noqa: F401 (home is a fixture)
from tiny_models import HUB, read_tensors

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "good", "bad", "film", "##s", "play", "##ing", ".", "!"]
TABLE = "embeddings.word_embeddings.weight"
TEXTS = {"yes": "A good film. Playing films!", "no": "A bad film! Bad plays."}
SMALL = ["--task", "table", "--data", "t.csv", "--tokens", "pieces", "--embeddings", "encoder", "--length", "16", "--model-size", "8",
         "--heads", "2", "--batch", "8", "--threads", "1", "--quiet"]


@pytest.fixture
def encoder(home):  # noqa: F811
    folder = home / "encoder"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(os.path.join(HUB, "bert", name), folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (home / "t.csv").write_text("label,text\n" + "".join(f"{label},{text} {'a ' * i}\n" for i in range(30) for label, text in TEXTS.items()))
    return folder


def rows(folder, name):
    """The frozen rows of a model file."""
    return numpy.frombuffer(tensors(folder / name)["frozen_embedding"], numpy.float32).reshape(len(WORDS) + 2, 16)


def test_the_file_is_enough_once_the_folder_is_gone(home, encoder):
    strata("train", *SMALL, "--attention", "hsa", "--epochs", "2", "--folder", "run")
    table = next(values for name, values in read_tensors(encoder).items() if name.endswith(TABLE))
    assert (rows(home / "run", "best.safetensors")[2:] == table[:len(WORDS)]).all()
    assert not any("frozen" in name for name in tensors(home / "run/last.safetensors")), "it is in the folder"
    record = json.load(open(home / "run/run.json"))
    assert record["options"]["embeddings"] == str(encoder)
    assert [os.path.basename(file["path"]) for file in record["data"]] == ["t.csv", "config.json", "model.safetensors", "vocab.txt"]
    tested = json.load(open(home / "run/result.json"))["test"]
    shutil.rmtree(encoder)
    for model in ("run", "run/best.safetensors"):
        scores = json.loads(strata("eval", model, "--data", "t.csv", "--split", "test", "--json"))
        assert (scores["rows"], scores["accuracy"]) == (tested["rows"], tested["accuracy"])
        line = json.loads(strata("predict", model, "Plays! A zebra, films"))
        assert line["tokens"] == 8 and line["label"] in TEXTS  # play ##s ! a [UNK] [UNK] film ##s
    assert json.loads(strata("eval", "run", "--json"))["accuracy"] == tested["accuracy"]
    assert json.loads(strata("predict", "run", "a " * 40))["cut_at"] == 16
    assert '"##s "' in json.dumps(json.loads(strata("inspect", "run", "--samples", "3", "--json", "--quiet")))


def test_a_stopped_run_goes_on_to_the_same_bits(home, encoder):
    args = [*SMALL, "--attention", "strata", "--epochs", "40", "--log-every", "1", "--save-seconds", "0"]
    strata("train", *args, "--folder", "whole")
    running = begin(*args, "--folder", "parts")
    wait_for_steps(home / "parts", 20, running)
    running.send_signal(signal.SIGKILL)
    running.communicate()
    strata("train", "--resume", "parts")
    same_run(home / "whole", home / "parts")


def test_two_processes_follow_one(home, encoder):
    args = [*SMALL, "--attention", "hsa", "--precision", "float64", "--epochs", "4", "--log-every", "1"]
    for count in (1, 2):
        strata("train", *args, "--processes", count, "--folder", str(count))
    one, two = (metrics(home / count) for count in ("1", "2"))
    assert len(one) == len(two) > 20
    for line, other in zip(one, two):
        assert "loss" not in line or other["loss"] == pytest.approx(line["loss"], rel=1e-9)
    assert tensors(home / "1/best.safetensors")["frozen_embedding"] == tensors(home / "2/best.safetensors")["frozen_embedding"]
    results = [json.load(open(home / count / "result.json"))["test"] for count in ("1", "2")]
    assert results[0]["accuracy"] == results[1]["accuracy"]


@pytest.mark.parametrize("name", ["model.safetensors", "vocab.txt", "config.json"])
def test_changed_files_of_the_folder_are_noticed(home, encoder, name):
    strata("compare", "--attentions", "flat", "hsa", "--seeds", "1", *SMALL, "--epochs", "1", "--folder", "both")
    with open(encoder / name, "ab") as file:
        file.write(b"\n")
    message = strata("compare", "--attentions", "flat", "hsa", "--seeds", "1", *SMALL, "--epochs", "1", "--folder", "both", code=3)
    assert "the data has changed since the run" in message and f"encoder/{name}" in message


@pytest.mark.parametrize("change, code, words", [
    (["--embeddings", "none"], 3, "found no folder"),
    (["--tokens", "words"], 2, "expected --tokens pieces beside --embeddings, got --tokens words"),
    (["--embeddings", ""], 2, "pass it with --embeddings"),
    (["--task", "text"], 2, "only the texts of imdb and table can be read as pieces; use --tokens bytes for the task text"),
])
def test_what_does_not_go_together_is_named(encoder, change, code, words):
    message = strata("train", *SMALL, *change, "--folder", "run", code=code)
    assert words in message and message.count("\n") == 1, message


def test_folders_without_a_tokenizer_or_weights_are_named(home, encoder):
    shutil.copytree(os.path.join(HUB, "gpt2"), home / "other")
    assert "expected tokenizer.json" in strata("train", *SMALL, "--embeddings", "other", "--folder", "run", code=3)
    shutil.copy(encoder / "vocab.txt", home / "other")
    assert "expected an encoder of the BERT family" in strata("train", *SMALL, "--embeddings", "other", "--folder", "run", code=3)
    os.remove(encoder / "model.safetensors")
    assert "expected model.safetensors" in strata("train", *SMALL, "--folder", "run", code=3)
    assert not (home / "run/run.json").exists()
