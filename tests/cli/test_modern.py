"""Modern blocks and grouped heads through the command: every attention, records, resumption, text, injection, refusals."""

import json
import signal

import pytest

from support import TINY, home, same_run, strata, tensors  # noqa: F401 (home is a fixture)
from test_train import stopped_and_resumed

MODERN = ["--block", "modern", "--heads", "4", "--key-heads", "2"]


@pytest.mark.parametrize("attention", ["flat", "hkt", "hsa", "strata"])
def test_every_attention_trains_in_a_modern_block(home, attention):
    args = ["--attention", attention, *TINY, *MODERN, "--steps", "8"]
    result = json.loads(strata("train", *args, "--folder", "run", "--json"))
    options = json.load(open(home / "run/run.json"))["options"]
    assert options["block"] == "modern" and options["positions"] == "rotary" and options["key_heads"] == 2
    names = tensors(home / "run/best.safetensors")
    assert len(names["layer_0_attention.key.weight"]) == len(names["layer_0_attention.query.weight"]) // 2
    assert len(names["layer_0_ffn.gate.weight"]) == 48 * 16 * 4 and not any("bias" in name and "sibling" not in name for name in names)
    assert json.loads(strata("eval", "run", "--json"))["accuracy"] == result["test"]["accuracy"]
    assert sum(json.loads(strata("predict", "run", "[MAX 2 [MIN 4 7 ] 0 ]"))["probabilities"].values()) == pytest.approx(1)
    assert "layer" in strata("inspect", "run", "--samples", "2")


def test_a_modern_run_resumes_to_the_same_bits(home):
    stopped_and_resumed(home, signal.SIGKILL, ["--attention", "strata", *TINY, *MODERN, "--epochs", "10", "--eval-every", "20", "--log-every", "7",
                                               "--save-seconds", "0"])
    same_run(home / "whole", home / "parts")


def test_a_run_from_before_there_were_blocks_is_classic(home):
    strata("train", *TINY, "--steps", "4", "--folder", "run", "--quiet")
    run = json.load(open(home / "run/run.json"))
    assert run["options"]["block"] == "classic" and run["options"]["positions"] == "learned"
    for name in ("block", "key_heads"):
        del run["options"][name]
    (home / "run/run.json").write_text(json.dumps(run))
    (home / "run/result.json").unlink()
    before = tensors(home / "run/last.safetensors")
    strata("train", "--resume", "run", "--quiet")
    assert tensors(home / "run/last.safetensors") == before and json.loads(strata("eval", "run", "--json"))["rows"] == 64


def made(model, prompt, tokens):
    return json.loads(strata("generate", model, prompt, "--tokens", tokens, "--temperature", 0, "--quiet", "--json"))


def test_text_from_a_modern_model(home):
    (home / "text.txt").write_text("to be, or not to be: that is the question. " * 200)
    for attention in ("flat", "hkt", "hsa", "strata"):
        strata("train", "--task", "text", "--data", "text.txt", "--attention", attention, *MODERN, "--model-size", "16", "--length", "32", "--steps", "20",
               "--branching", "4", "--folder", attention, "--quiet")
        whole, text = made(attention, "to be", 40), ""
        for _ in range(6):
            text += made(attention, "to be" + text, 1)["text"]
        assert whole["tokens"] == 40 and ("\ufffd" in text or whole["text"].startswith(text)), "no longest text, and caches equal prompts"
    (home / "test.tsv").write_text("label\ttext\n" + "x\tto be, or not to be: that is\n" * 4)
    strata("inject", "flat", "--test", "test.tsv", "--layers", "1", "--tree", "balanced", "--branching", "4", "--no-times", "--folder", "out", "--quiet")
    assert json.load(open(home / "out/inject.json"))["after"]["attention_share"] < 1


def test_injection_into_a_classifier_with_grouped_heads(home):
    strata("train", "--attention", "flat", *TINY, *MODERN, "--steps", "4", "--folder", "run", "--quiet")
    (home / "test.tsv").write_text("label\ttext\n" + "".join(f"{i}\t[MAX {i} [MIN 4 7 ] 0 ]\n" for i in range(8)))
    strata("inject", "run", "--test", "test.tsv", "--layers", "0,1", "--no-times", "--folder", "out", "--quiet")
    assert json.load(open(home / "out/inject.json"))["after"]["attention_share"] < 1


def test_blocks_can_be_compared(home):
    table = strata("compare", "--attentions", "flat", "flat:block=modern:key_heads=1", *TINY[:-2], "--steps", "4", "--seeds", "2", "--folder", "cmp", "--jobs", "1")
    assert "flat:block=modern:key_heads=1" in table
    options = [json.load(open(run))["options"] for run in sorted((home / "cmp").glob("*/run.json"))]
    assert {(o["block"], o["positions"], o["key_heads"]) for o in options} == {("classic", "learned", 0), ("modern", "rotary", 1)}
    assert json.load(open(home / "cmp/compare.json"))["options"]["positions"] == "learned", "as plans of earlier versions say"
    (home / "modern.toml").write_text('[model]\nblock = "modern"\nkey_heads = 1\n')
    strata("train", "--config", "modern.toml", *TINY, "--steps", "2", "--folder", "from-file", "--quiet")
    assert json.load(open(home / "from-file/run.json"))["options"]["positions"] == "rotary"


@pytest.mark.parametrize("args, words", [
    (["--key-heads", "3"], "key_heads: expected a divisor of heads = 4, got 3"),
    (["--attention", "hkt", "--psd"], "psd: expected positions that are not rotary"),
    (["--attention", "hkt", "--psd", "--positions", "none", "--key-heads", "2"], "psd: expected key_heads = heads = 4"),
    (["--block", "modem"], "--block: expected one of classic, modern, got modem (did you mean modern?)"),
    (["--key-heads", "-1"], "--key-heads: expected 0 to 65536, got -1"),
])
def test_refusals(home, args, words):
    message = strata("train", "--block", "modern", *TINY, "--heads", "4", *args, "--folder", "run", code=2)
    assert words in message, message
