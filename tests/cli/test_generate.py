"""strata generate on tiny models: caches against prompts read anew, sampling, stop texts, the window, and mistakes."""
import json
import signal
import subprocess

import pytest

from test_embed import STRATA, strata
from tiny_models import write_bert, write_gpt2, write_modern


@pytest.fixture
def gpt2(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_gpt2(tmp_path)
    return tmp_path


@pytest.fixture(params=["llama", "qwen2"])
def modern(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_modern(tmp_path, request.param)
    return tmp_path


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Language models of ours, a few steps old."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text("to be, or not to be: that is the question. " * 200)
    for attention in ("flat", "hkt", "hsa", "strata"):
        subprocess.run([STRATA, "train", "--task", "text", "--data", str(folder / "text.txt"), "--attention", attention, "--length", "32", "--steps", "40",
                        "--model-size", "16", "--heads", "2", "--folder", str(folder / attention), "--quiet"], check=True, capture_output=True)
    return folder


def generate(*args, code=0):
    return strata("generate", *args, "--quiet", code=code, stdin="")


def made(*args):
    return json.loads(generate(*args, "--json"))


def one_by_one(model, prompt, tokens, *args):
    """Greedy text, with the whole prompt read anew for every token."""
    text = ""
    for _ in range(tokens):
        text += made(model, prompt + text, "--tokens", 1, "--temperature", 0, *args)["text"]
    return text


def test_caches_equal_prompts_read_anew(gpt2, runs):
    for model in (gpt2, runs / "flat", runs / "hkt", runs / "hsa", runs / "strata"):
        # Both ways write bytes that are no whole character as U+FFFD, so that only other texts can be compared.
        at_once = made(model, "abc", "--tokens", 6, "--temperature", 0)["text"]
        assert "\ufffd" in at_once or at_once == one_by_one(model, "abc", 6), model
    for layers, branching in (("0,1", 64), ("1", 64)):
        assert made(gpt2, "abcdef", "--temperature", 0, "--tokens", 20, "--layers", layers, "--branching", branching)["text"] == \
            made(gpt2, "abcdef", "--temperature", 0, "--tokens", 20)["text"], "as many children as tokens: softmax"


def test_modern_models_with_their_caches(modern):
    whole = made(modern, "abc 12", "--tokens", 12, "--temperature", 0)
    assert whole["prompt_tokens"] == (7 if "llama" in (modern / "config.json").read_text() else 6), "Llama's texts begin with a token"
    assert len(whole["ids"]) == whole["tokens"] == 12
    for layers in ("0,1", "1"):
        streamed = made(modern, "abc 12", "--tokens", 12, "--temperature", 0, "--layers", layers, "--branching", 64)
        assert streamed["ids"] == whole["ids"], "as many children as tokens: softmax"
    assert made(modern, "ab" * 40, "--tokens", 70)["tokens"] == 70, "longer than the model reads"
    assert made(modern, "", "--tokens", 3)["prompt_tokens"] == 1
    config = json.loads((modern / "config.json").read_text())
    (modern / "generation_config.json").write_text(json.dumps({"eos_token_id": [whole["ids"][2]]}))
    cut = made(modern, "abc 12", "--tokens", 12, "--temperature", 0)
    assert cut["ended"] == "end of text" and whole["ids"][:3].index(whole["ids"][2]) == cut["tokens"]
    (modern / "config.json").write_text(json.dumps({**config, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}))
    assert "expected a rope_type of default, linear, llama3 or yarn, got dynamic" in generate(modern, "abc", code=3)
    (modern / "config.json").write_text(json.dumps({**config, "model_type": "mistral"}))
    assert 'bert, roberta, gpt2, llama or qwen2, got "mistral"' in generate(modern, "abc", code=3)
    (modern / "config.json").write_text(json.dumps(config))
    (modern / "tokenizer.json").unlink()
    assert "expected tokenizer.json" in generate(modern, "abc", code=3)


def test_modern_caches_equal_prompts_read_anew(modern):
    """The bytes of the alphabet alone, so that a text can be read again."""
    whole = made(modern, "abc", "--tokens", 8, "--temperature", 0)
    text = bytes(whole["ids"]) if max(whole["ids"]) < 256 else b""
    for count in range(1, 8):
        (modern / "prompt").write_bytes(b"abc" + text[:count])
        assert made(modern, "--file", "prompt", "--tokens", 1, "--temperature", 0)["ids"] == [whole["ids"][count]]


def test_ctrl_c_keeps_what_was_written(runs):
    running = subprocess.Popen([STRATA, "generate", str(runs / "hsa"), "to be", "--tokens", "1000000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout.read(20).startswith("to be")
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 130 and "ended by an interrupt" in errors, errors


def test_seeds_and_sampling(runs):
    texts = {made(runs / "hkt", "to be", "--seed", seed, "--tokens", 20)["text"] for seed in (1, 1, 2, 3)}
    assert len(texts) == 3
    assert made(runs / "hkt", "to be", "--seed", 1, "--top-k", 1)["text"] == made(runs / "hkt", "to be", "--temperature", 0)["text"]
    printed = generate(runs / "hsa", "to be", "--tokens", 10, "--temperature", 0)
    assert printed == "to be" + made(runs / "hsa", "to be", "--tokens", 10, "--temperature", 0)["text"] + "\n"


def test_stop_texts_and_ends(runs):
    whole = made(runs / "flat", "to be", "--tokens", 30, "--temperature", 0)
    assert whole["ended"] == "tokens" and whole["tokens"] == 30
    stop = whole["text"][3:5]
    cut = made(runs / "flat", "to be", "--tokens", 30, "--temperature", 0, "--stop", "never", "--stop", stop)
    assert cut["ended"] == "stop" and cut["text"] == whole["text"][:whole["text"].index(stop)]


def test_longer_than_the_model_reads(runs, gpt2):
    assert made(runs / "hkt", "be " * 40, "--tokens", 70)["tokens"] == 70
    assert made(gpt2, "be " * 40, "--tokens", 70)["tokens"] == 70
    assert made(runs / "flat", "", "--tokens", 5)["prompt_tokens"] == 1
    streamed, flat = (made(gpt2, "ab" * 25, "--tokens", 8, "--layers", layers, "--branching", 2)["cache_bytes"] for layers in ("0,1", "none"))
    assert streamed < flat


def test_a_gpu_writes_the_same_text(gpt2, runs):
    tried = subprocess.run([STRATA, "generate", runs / "flat", "a", "--device", "cuda", "--tokens", "1"], capture_output=True, text=True)
    if tried.returncode == 2 and "--device:" in tried.stderr:
        pytest.skip(tried.stderr.strip())
    for model in (*(runs / name for name in ("flat", "hkt", "hsa", "strata")), gpt2):
        options = ("that", "--tokens", "40", "--temperature", "0")
        assert made(model, *options, "--device", "cuda")["text"] == made(model, *options)["text"], model


def test_mistakes_are_named(gpt2, runs, tmp_path):
    assert "got a classifier" in generate(classifier(tmp_path), code=3)
    assert "--attention hsa" in generate(runs / "flat", "--layers", "0", code=2)
    assert "numbers from 0 to 1" in generate(gpt2, "--layers", "9", code=2)
    assert "put the prompt in quotes" in generate(gpt2, "one", "two", code=2)
    assert "--temprature: not an option of generate (did you mean --temperature?)" in generate(gpt2, "one", "--temprature", code=2)
    assert "--top-p: expected 1e-06 to 1, got 0" in generate(gpt2, "one", "--top-p", "0", code=2)
    assert "--seed: expected 0 to 9007199254740992, got -1" in generate(gpt2, "one", "--seed", "-1", code=2)
    assert "--temperature: expected a finite number, got nan" in generate(gpt2, "one", "--temperature", "nan", code=2)
    (tmp_path / "bert").mkdir()
    write_bert(tmp_path / "bert")
    assert "got an encoder" in generate(tmp_path / "bert", code=3)


def classifier(folder):
    subprocess.run([STRATA, "train", "--steps", "1", "--train-rows", "64", "--valid-rows", "16", "--test-rows", "16", "--model-size", "16", "--heads", "2",
                    "--folder", str(folder / "run"), "--quiet"], check=True, capture_output=True)
    return folder / "run"


def test_a_cache_of_nodes_grows_with_the_logarithm_of_the_text(runs):
    """With rotary positions there is no longest text, also where a height has few nodes."""
    subprocess.run([STRATA, "train", "--task", "text", "--data", str(runs / "text.txt"), "--attention", "strata", "--length", "32", "--steps", "2",
                    "--model-size", "16", "--heads", "2", "--branching", "2", "--positions", "rotary", "--folder", str(runs / "rotary"), "--quiet"],
                   check=True, capture_output=True)
    short, long = (made(runs / "rotary", "to be", "--tokens", tokens) for tokens in (100, 1600))
    assert long["tokens"] == 1600 and long["ended"] == "tokens"
    assert short["cache_nodes"] < long["cache_nodes"] <= short["cache_nodes"] + 4 * 4  # four more heights of near b nodes
    assert long["cache_node_bytes"] < long["every_token_bytes"] / 10
    # Memory is taken height by height, also of families of 16: two heights for 20 tokens, of 16 and of 32 nodes.
    for name, nodes in (("hsa", 2 * 16), ("strata", 2 * 32)):
        text = made(runs / name, "", "--tokens", 20)
        assert text["cache_bytes"] < 1.5 * nodes * text["cache_node_bytes"] / text["cache_nodes"], text
    shown = subprocess.run([STRATA, "generate", runs / "rotary", "to be", "--tokens", "40"], capture_output=True, text=True, check=True, input="")
    assert "nodes in each layer" in shown.stderr
    assert "cache_nodes" not in made(runs / "flat", "to be", "--tokens", 5)
