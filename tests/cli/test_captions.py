"""Captions from start to end: documents of an image and a sentence, in one tree."""

import json
import random

import pytest

from support import home, strata, tensors  # noqa: F401 (home is a fixture)

SIDE = 8
TINY = {"task": "captions", "data": "images", "image-side": SIDE, "model-size": 16, "heads": 2, "batch": 32, "threads": 1}


def train(folder, code=0, **options):
    """strata train with the options of TINY but for these."""
    given = {**TINY, **{name.replace("_", "-"): value for name, value in options.items()}}
    return strata("train", "--quiet", "--folder", folder,
                  *(word for name, value in given.items() if value is not None for word in (f"--{name}", value)),
                  code=code)


def level(label):
    return 10 * label + (10 if label in (0, 1, 8, 9) else 150)


def write_images(folder, train=400, test=60):
    """Images whose grey levels say what class they are of, with some noise; those of vehicles are dark."""
    folder.mkdir(exist_ok=True)
    draw = random.Random(5)
    for name, rows in (("train", train), ("test", test)):
        images = (bytes([row % 10]) + bytes(level(row % 10) + draw.randrange(8) for _ in range(1024)) for row in range(rows))
        (folder / f"{name}.bin").write_bytes(b"".join(images))


def result(folder):
    return json.load(open(folder / "result.json"))


def test_every_attention_trains_and_inspects(home):
    write_images(home / "images")
    for name, attention, tree in (("flat", "flat", "task"), ("hkt", "hkt", "task"), ("hsa", "hsa", "task"),
                                  ("balanced", "hsa", "balanced"), ("star", "hsa", "star"), ("strata", "strata", "task"),
                                  ("stream", "strata", "none")):
        train(name, attention=attention, tree=tree, steps=2)
        test = result(home / name)["test"]
        assert {part["label"] for part in test["classes"]} == {"no", "yes"}
        assert all(set("0123456789").isdisjoint(wrong["text"]) and " " in wrong["text"] for wrong in test["worst"]), "the words alone"
    assert result(home / "hsa")["score_ratio"] < 0.1 < 1 == result(home / "star")["score_ratio"]
    example = json.loads(strata("inspect", "hsa", "--samples", 2, "--examples", 1, "--json"))["examples"][0]
    assert all(token.isdigit() for token in example["tokens"][:SIDE * SIDE])
    assert all(token.isalpha() for token in example["tokens"][SIDE * SIDE:]) and example["label"] in ("no", "yes")
    begin, children = example["tree"]["child_begin"], example["tree"]["children"]
    assert children[begin[0]:begin[1]] == [~1, ~2], "an image and a caption"


def test_a_model_learns_from_both_and_predicts(home):
    """Even images are easily told apart; no answer is possible from the words or from the pixels alone."""
    write_images(home / "images", train=4000, test=400)
    train("run", attention="hsa", model_size=32, dropout=0, epochs=6, learning_rate=5e-3)
    assert result(home / "run")["test"]["accuracy"] > 0.8
    caption, image = b"this picture does not show an animal", bytes([level(5) + 4] * (SIDE * SIDE))
    for words, answer in ((b"this picture shows an animal", "yes"), (b"this picture shows a vehicle", "no")):
        (home / "input").write_bytes(words + b"\n" + image)
        for model in ("run", "run/best.safetensors"):
            said = json.loads(strata("predict", model, "--file", "input"))
            assert (said["label"], said["tokens"]) == (answer, SIDE * SIDE + len(words.split())), said
            assert "cut_at" not in said
    (home / "input").write_bytes(caption + b"\n" + b"\n" * (SIDE * SIDE))  # grey levels that are line ends
    assert json.loads(strata("predict", "run", "--file", "input"))["tokens"] == SIDE * SIDE + 7
    (home / "input").write_bytes(caption + b"\n" + image[:-1])
    strata("predict", "run", "--file", "input", code=3)
    # The file knows its side; another one is refused.
    assert 320 < json.loads(strata("eval", "run/best.safetensors", "--data", "images", "--split", "test", "--json"))["rows"] < 400
    assert "--image-side: expected 8, that of the model, got 16" in strata("eval", "run", "--image-side", 16, code=2)
    assert "min_length: applies to the task listops only, but the task is captions" in strata("eval", "run", "--min-length", 4, code=2)


def test_images_alone_may_be_small_too(home):
    write_images(home / "images", train=2000, test=100)
    train("run", task="cifar10", length=64, attention="hsa", image_side=None, dropout=0, epochs=4, learning_rate=5e-3)
    assert result(home / "run")["test"]["accuracy"] > 0.8
    (home / "input").write_bytes(bytes([level(3) + 4] * 64))
    assert json.loads(strata("predict", "run", "--file", "input"))["label"] == "cat"
    (home / "input").write_bytes(bytes(1024))
    strata("predict", "run", "--file", "input", code=3)
    # The positions of another width would mean other places.
    assert "--length: expected 64, the pixels of the model's images, got 256" in strata("eval", "run", "--length", 256, code=2)


def test_the_same_seed_gives_the_same_captions(home):
    write_images(home / "images")
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        train(name, attention="hsa", steps=3, data_seed=seed, hide=0.1)
    weights = [tensors(home / name / "last.safetensors") for name in "abc"]
    assert weights[0] == weights[1] != weights[2]


@pytest.mark.parametrize("options, code, words", [
    ({"image_side": 12}, 2, "image_side: expected 32, 16 or 8, got 12"),
    ({"image_side": 64}, 2, "--image-side: expected 8 to 32, got 64"),
    ({"length": 100}, 2, "length: expected 73, the pixels of an image and the longest caption, got 100"),
    ({"jitter": 1}, 2, "jitter: applies to the task cifar10 only, but the task is captions"),
    ({"tree": "quadtree", "attention": "hsa"}, 2, "--tree: the rows of captions have no quadtree structure"),
    ({"tree": "text", "attention": "hsa"}, 2, "--tree: the rows of captions have no text structure"),
    ({"data": "nowhere"}, 3, "nowhere: expected a folder with CIFAR-10; download it with"),
    ({"task": "cifar10"}, 2, "image_side: applies to the task captions only"),
])
def test_what_is_refused(home, options, code, words):
    write_images(home / "images", train=20, test=10)
    assert words in train("run", code, **options)


def test_list_and_check(home):
    write_images(home / "images")
    listed = next(task for task in json.loads(strata("data", "list", "--json")) if task["task"] == "captions")
    assert (listed["length"], listed["tree"], listed["state"]) == (265, "captioned", "not in the cache")
    args = ["data", "check", "captions", "--data", "images", "--image-side"]
    for side in (8, 16, 32):
        train = json.loads(strata(*args, side, "--json"))["train"]
        assert 280 < train["rows"] == sum(train["labels"].values()) < 360 and min(train["labels"].values()) > 100
        assert (train["length"]["min"], train["length"]["max"]) == (side**2 + 5, side**2 + 9)
    (home / "images/train.bin").write_bytes((home / "images/train.bin").read_bytes()[:-100])
    assert "1 unusable rows" in strata(*args, 8, code=3)
