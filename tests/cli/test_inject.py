"""strata inject on tiny models: before and after, the curve, JSON and the page, own heads, causal models, and mistakes."""
import json
import pathlib
import subprocess

import pytest

from test_embed import STRATA, model, strata  # noqa: F401 (model is a fixture)
from test_report import page
from tiny_models import write_gpt2, write_modern


def write_rows(path, rows=40):
    words = ["ab", "abc. ", "cd", "abcdef", "b! "]
    with open(path, "w") as file:
        file.write("label\ttext\n")
        for i in range(rows):
            file.write(f"{'yes' if i % 2 else 'no'}\t{' '.join(words[(i * 7 + j * j) % 5] for j in range(4 + i % 5)) + (' aa' if i % 2 else ' c')}\n")


@pytest.fixture
def rows(model):  # noqa: F811
    write_rows("train.tsv")
    write_rows("test.tsv", 20)
    return model


def inject(*args, code=0):
    return strata("inject", *args, "--quiet", *([] if "--lengths" in args else ["--no-times"]), code=code, stdin="")


def test_before_after_curve_and_page(rows):
    text = inject(rows, "--train", "train.tsv", "--test", "test.tsv", "--budget", "1", "--cut", "0.2", "--lengths", "8,64", "--folder", "out")
    data = json.load(open("out/inject.json"))
    assert data["before"]["attention_share"] == 1 and data["before"]["agreement"] == 1
    assert 0 <= data["after"]["score"] <= 1 and f"{100 * data['after']['score']:.2f}%" in text
    assert len(data["gaps"]["nats_per_token"]) == 2 and len(data["gaps"]["nats_per_token"][0]) == len(data["gaps"]["trees"])
    assert all(gap >= -1e-6 for layer in data["gaps"]["nats_per_token"] for gap in layer)
    late, auto = data["curve"]["late"], data["curve"]["auto"]
    assert [point["layers"] for point in late] == [[], [1], [1, 0]]
    assert late[0] == data["before"] and all(b["attention_share"] < a["attention_share"] for a, b in zip(late, late[1:]))
    for one, other in zip(late, auto):
        assert other["attention_share"] <= one["attention_share"] + 0.02
    assert [row["tokens"] for row in data["time"]] == [8, 64] and "model" not in data["time"][1], "the model has fewer positions"
    record = data["record"]
    assert record["command"] == "inject" and record["options"]["seed"] == 1 and record["options"]["cut"] == 0.2
    assert record["options"]["lengths"] == [8, 64] and record["versions"] and record["started"] <= record["finished"]
    assert [pathlib.Path(entry["path"]).name for entry in record["data"]][1:] == ["train.tsv", "test.tsv"]
    assert all(len(entry["sha256"]) == 64 for entry in record["data"]) and record["data"][0]["files"] >= 3
    shown = page(pathlib.Path("out/inject.html"))
    assert shown["inject"] == data and shown["kind"] == "inject"
    subprocess.run([STRATA, "report", "out"], check=True)
    assert "choose another --folder" in inject(rows, "--train", "train.tsv", "--folder", "out", code=4), "nothing is overwritten"


def test_the_same_rows_give_the_same_numbers_in_any_batch(rows):
    results = []
    for batch in (1, 7):
        inject(rows, "--train", "train.tsv", "--test", "test.tsv", "--layers", "late", "--batch", batch, "--folder", f"b{batch}")
        data = json.load(open(f"b{batch}/inject.json"))
        results.append((data["plan"], data["after"]["attention_share"], data["curve"]["late"][-1]["attention_share"]))
    assert results[0] == results[1]


def test_the_models_own_head_takes_names_and_numbers_of_classes(model):  # noqa: F811
    (model / "test.tsv").write_text("label\ttext\n" + "".join(f"{i % 3 if i % 2 else f'LABEL_{i % 3}'}\tab abc ab{'c' * i}\n" for i in range(9)))
    inject(model, "--test", "test.tsv", "--layers", "1", "--folder", "own")
    data = json.load(open("own/inject.json"))
    assert data["test"]["head"] == "own" and data["test"]["rows"] == 9
    config = json.loads((model / "config.json").read_text())
    del config["id2label"], config["label2id"]  # as files of two classes come
    (model / "config.json").write_text(json.dumps({**config, "num_labels": 3}))
    inject(model, "--test", "test.tsv", "--layers", "1", "--folder", "plain")
    assert json.load(open("plain/inject.json"))["before"] == data["before"]


def test_a_run_of_our_own_uses_its_head_and_its_tree(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    subprocess.run([STRATA, "train", "--task", "listops", "--attention", "flat", "--steps", "3", "--train-rows", "64", "--valid-rows", "16", "--test-rows", "16",
                    "--model-size", "16", "--heads", "2", "--folder", "run", "--quiet"], check=True, capture_output=True)
    with open("test.tsv", "w") as file:
        file.write("label\ttext\n7\t[MAX 2 7 [MIN 4 1 ] 0 ]\n2\t[MIN 2 [MAX 9 3 ] 5 ]\n")
    inject("run", "--test", "test.tsv", "--tree", "sentences", "--cut", "0.1", "--folder", "out")
    data = json.load(open("out/inject.json"))
    assert data["test"]["head"] == "own" and data["test"]["rows"] == 2 and data["example"]["tokens"][0] == "[MAX"
    subprocess.run([STRATA, "train", "--task", "listops", "--attention", "hkt", "--steps", "1", "--train-rows", "64", "--valid-rows", "16", "--test-rows", "16",
                    "--model-size", "16", "--heads", "2", "--folder", "hkt", "--quiet"], check=True, capture_output=True)
    assert "got hkt attention" in inject("hkt", "--test", "test.tsv", code=2)
    open("test.tsv", "a").write("12\t[MAX 1 2 ]\n")
    assert 'got "12"' in inject("run", "--test", "test.tsv", "--layers", "1", code=3)


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen2"])
def test_a_causal_model_loses_nats(tmp_path, monkeypatch, family):
    monkeypatch.chdir(tmp_path)
    if family == "gpt2":
        write_gpt2(tmp_path)
    else:
        write_modern(tmp_path, family)
    (tmp_path / "test.tsv").write_text("label\ttext\n" + "".join(f"x\tabc de fgh i{'klm' * (i % 3)}\n" for i in range(8)))
    inject(tmp_path, "--test", "test.tsv", "--tree", "balanced", "--branching", "2", "--layers", "1", "--folder", "out")
    data = json.load(open("out/inject.json"))
    assert data["causal"] and data["test"]["measure"] == "nats per token" and data["before"]["score"] > 0
    assert data["after"]["score"] != data["before"]["score"] and data["after"]["attention_share"] < 1
    inject(tmp_path, "--test", "test.tsv", "--tree", "balanced", "--branching", "64", "--layers", "0,1", "--no-curve", "--folder", "star")
    star = json.load(open("star/inject.json"))
    assert all(abs(gap) < 1e-5 for layer in star["gaps"]["nats_per_token"] for gap in layer), "one family is softmax"
    assert star["after"]["score"] == pytest.approx(star["before"]["score"], abs=1e-5) and "curve" not in star and "time" not in star


def test_mistakes_are_named(rows):
    assert 'got "' in inject(rows, "--test", "test.tsv", "--layers", "1", code=3), "labels that are not the head's"
    assert "Raise --budget" in inject(rows, "--train", "train.tsv", "--budget", "0.01", code=2)
    assert "expected --texts, --test or --train" in inject(rows, code=2)
    assert "no choice of layers and trees" in inject(rows, "--train", "train.tsv", "--cut", "0.999", code=2)
    assert "numbers from 0 to 1" in inject(rows, "--train", "train.tsv", "--layers", "7", code=2)
    assert "config.json" in inject(rows / "nowhere", "--train", "train.tsv", code=3)
    assert "expected a name that ends in" in inject(rows, "--train", "vocab.txt", code=3)
    weights = (rows / "model.safetensors").read_bytes()
    (rows / "model.safetensors").write_bytes(weights[:-4000] + b"\xff" * 4000)
    assert "its weights may be damaged" in inject(rows, "--train", "train.tsv", "--test", "test.tsv", "--layers", "1", code=3)
    (rows / "model.safetensors").write_bytes(weights)
    assert "nolabel" in inject(rows, "--train", "train.tsv", "--label-column", "nolabel", code=3)
