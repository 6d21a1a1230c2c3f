"""Tiny pretrained models in a folder, as Hugging Face has them."""
import json
import os
import shutil
import struct

import numpy

HUB = os.path.join(os.path.dirname(__file__), "../hub")


def byte_letters():
    """The letter that byte-level BPE has for every byte: printable ones stand for themselves, the others follow from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


def read_tensors(folder):
    """The tensors of all safetensors files of a folder."""
    tensors = {}
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".safetensors"):
            continue
        with open(os.path.join(folder, name), "rb") as file:
            size, = struct.unpack("<Q", file.read(8))
            header, body = json.loads(file.read(size)), file.read()
        header.pop("__metadata__", None)
        for tensor, entry in header.items():
            assert entry["dtype"] == "F32"
            tensors[tensor] = numpy.frombuffer(body[slice(*entry["data_offsets"])], numpy.float32).reshape(entry["shape"])
    return tensors


def write_tensors(path, tensors):
    at, written = 0, {}
    for name, values in tensors.items():
        written[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    text = json.dumps(written).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(values.tobytes() for values in tensors.values()))


def write_config(folder, family, **changes):
    with open(os.path.join(HUB, family, "config.json")) as file:
        config = json.load(file)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump({**config, **changes}, file)


def write_gpt2(folder, positions=64):
    """GPT-2 of two layers with random embeddings of the 256 bytes and the end of text."""
    random = numpy.random.default_rng(1)
    tensors = read_tensors(os.path.join(HUB, "gpt2"))
    for name, values in tensors.items():
        if name.endswith(("wte.weight", "wpe.weight")):
            tensors[name] = random.normal(0, 1, (257 if name.endswith("wte.weight") else positions, values.shape[1])).astype(numpy.float32)
        if name.endswith("wte.weight"):
            tensors[name][256] = 0  # texts do not end by themselves
    write_tensors(os.path.join(folder, "model.safetensors"), tensors)
    write_config(folder, "gpt2", vocab_size=257, n_positions=positions, n_ctx=positions)
    with open(os.path.join(folder, "vocab.json"), "w") as file:
        json.dump({letter: i for i, letter in enumerate([*byte_letters(), "<|endoftext|>"])}, file)
    with open(os.path.join(folder, "merges.txt"), "w") as file:
        file.write("#version: 0.2\n")


WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def write_modern(folder, family="llama", positions=64):
    """Llama or Qwen2 of two layers with random embeddings of the 256 bytes, a token before texts and one at their end."""
    random = numpy.random.default_rng(2)
    tensors = read_tensors(os.path.join(HUB, family))
    for name, values in tensors.items():
        if name in ("model.embed_tokens.weight", "lm_head.weight"):
            tensors[name] = random.normal(0, 1, (258, values.shape[1])).astype(numpy.float32)
            tensors[name][256:] = 0  # texts do not end by themselves
    write_tensors(os.path.join(folder, "model.safetensors"), tensors)
    write_config(folder, family, vocab_size=258, max_position_embeddings=positions, bos_token_id=256, eos_token_id=[257])
    llama = family == "llama"
    around = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|begin|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
              "pair": [], "special_tokens": {"<|begin|>": {"id": "<|begin|>", "ids": [256], "tokens": ["<|begin|>"]}}}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": 256 + i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
                         for i, token in enumerate(("<|begin|>", "<|end|>"))],
        "normalizer": None if llama else {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": WORDS % ("{1,3}" if llama else "")}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]},
        "post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}, around]}
        if llama else {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
                  "byte_fallback": False, "ignore_merges": llama, "vocab": {letter: i for i, letter in enumerate(byte_letters())}, "merges": []},
    }
    with open(os.path.join(folder, "tokenizer.json"), "w") as file:
        json.dump(tokenizer, file)


def write_bert(folder):
    for name in ("config.json", "model.safetensors"):
        shutil.copy(os.path.join(HUB, "bert", name), folder)
    letters = [f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz"]
    with open(os.path.join(folder, "vocab.txt"), "w") as file:
        file.write("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", *letters]) + "\n")
