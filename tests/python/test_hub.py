"""The command on folders that transformers writes: Llama and Qwen2 with every rotary scaling, against transformers itself.
Skipped where transformers, tokenizers or the command are missing."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import tiny_models
import torch

transformers = pytest.importorskip(
    "transformers", minversion="5.0", reason="tests of Hugging Face folders skipped: they need transformers 5 or later"
)
tokenizers = pytest.importorskip("tokenizers", reason="tests of Hugging Face folders skipped: they need tokenizers")

STRATA = os.environ.get("STRATA_COMMAND") or str(pathlib.Path(sys.executable).parent / "strata")
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PROMPTS = [
    "The miller's daughter counts 1234 boats.\n\n  We'LL see: café, 北京",
    "x = y->z;\n",
    "",
]
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
CASES = {
    "Llama": ("LlamaForCausalLM", {}),
    "Llama, linear scaling, biases, one key head": (
        "LlamaForCausalLM",
        {
            "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
            "attention_bias": True,
            "mlp_bias": True,
            "num_key_value_heads": 1,
        },
    ),
    "Llama 3 scaling, heads of their own size, tied": (
        "LlamaForCausalLM",
        {
            "rope_parameters": {**LLAMA3, "rope_theta": 500.0, "original_max_position_embeddings": 64},
            "head_dim": 12,
            "tie_word_embeddings": True,
        },
    ),
    "Qwen2": ("Qwen2ForCausalLM", {"num_key_value_heads": 2}),
    "Qwen2, tied, linear scaling": (
        "Qwen2ForCausalLM",
        {
            "num_key_value_heads": 1,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6},
        },
    ),
}


def run(*args):
    done = subprocess.run([STRATA, *map(str, args)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module", autouse=True)
def command():
    try:
        done = subprocess.run([STRATA, "generate", "--help"], capture_output=True, text=True)
    except OSError:
        pytest.skip(f"tests of Hugging Face folders skipped: there is no command {STRATA}")
    if done.returncode != 0:
        pytest.skip("tests of Hugging Face folders skipped: this build has only the Python package, not the command")


def make_tokenizer(llama):
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE(ignore_merges=llama))
    split = pre_tokenizers.Split(Regex(WORDS % ("{1,3}" if llama else "")), behavior="isolated")
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, plain])
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|begin|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the miller's daughter counts the boats 123 times and stops"] * 4, trainer)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    if llama:
        begin = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 0)])
        tokenizer.post_processor = processors.Sequence([tokenizer.post_processor, begin])
    else:
        tokenizer.normalizer = normalizers.NFC()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", bos_token="<|begin|>")


@pytest.fixture(scope="module", params=CASES)
def model(request, tmp_path_factory):
    """The folder, the model and its tokenizer."""
    name, options = CASES[request.param]
    folder = tmp_path_factory.mktemp("model")
    sizes = {
        "vocab_size": 330,
        "max_position_embeddings": 256,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": None,
    }
    if name.startswith("Qwen2"):
        sizes.update(intermediate_size=48, num_attention_heads=4)
    made = tiny_models.make(transformers, name, layers=3, **{**sizes, **options})
    with torch.no_grad():
        for key, parameter in made.named_parameters():
            if parameter.dim() == 1:  # norms and biases that can be told apart
                parameter.add_(0.3 * torch.randn_like(parameter))
            elif "embed" in key or "lm_head" in key:
                parameter[320:] = 0  # tokens that the tokenizer lacks
    tokenizer = make_tokenizer(name.startswith("Llama"))
    made.save_pretrained(folder, max_shard_size="20KB")
    tokenizer.save_pretrained(folder)
    assert (folder / "model.safetensors.index.json").exists()
    return folder, made, tokenizer


@torch.no_grad()
def greedy(model, ids, tokens):
    """The likeliest tokens, each as far ahead of the next one as rounding could never be, or the test says nothing."""
    made = []
    for _ in range(tokens):
        best = model(torch.tensor([[*ids, *made]])).logits[0, -1].topk(2)
        if (best.values[0] - best.values[1]).item() < 1e-3:
            break
        made.append(best.indices[0].item())
        if made[-1] == 1:
            break
    return made


def test_greedy_text_is_that_of_transformers(model):
    folder, reference, tokenizer = model
    compared = 0
    for prompt in PROMPTS:
        ids = tokenizer(prompt)["input_ids"] or [0]
        want = greedy(reference, ids, 24)
        line = json.loads(run("generate", folder, prompt, "--tokens", 24, "--temperature", 0, "--json", "--quiet"))
        assert line["prompt_tokens"] == len(ids)
        ended = [1] if line["ended"] == "end of text" else []
        assert [*line["ids"], *ended][: len(want)] == want
        compared += len(want)
    assert compared >= 30


def test_losses_are_those_of_transformers(model, tmp_path):
    """To 1e-5 nats, from the logits of every token."""
    folder, reference, tokenizer = model
    texts = ["the miller counts the boats", "12345 boats, don't stop!", "We've counted café and 北京 again"]
    (tmp_path / "test.tsv").write_text("label\ttext\n" + "".join(f"x\t{text}\n" for text in texts))
    run("inject", folder, "--test", tmp_path / "test.tsv", "--layers", "1,2", "--tree", "balanced", "--branching", "64",
        "--no-times", "--no-curve", "--folder", tmp_path / "out", "--quiet")  # fmt: skip
    nats, tokens = 0.0, 0
    with torch.no_grad():
        for text in texts:
            ids = torch.tensor([tokenizer(text)["input_ids"]])
            logits = reference(ids).logits[0, :-1]
            nats += torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
            tokens += ids.shape[1] - 1
    result = json.loads((tmp_path / "out/inject.json").read_text())
    assert result["before"]["score"] == pytest.approx(nats / tokens, abs=1e-5)
    assert result["after"]["score"] == pytest.approx(nats / tokens, abs=1e-4), "one family is softmax"
