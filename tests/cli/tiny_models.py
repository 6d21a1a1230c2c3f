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


def write_gpt2(folder, positions=64):
    """GPT-2 of two layers with random embeddings of the 256 bytes and the end of text."""
    with open(os.path.join(HUB, "gpt2/model.safetensors"), "rb") as file:
        size, = struct.unpack("<Q", file.read(8))
        header, body = json.loads(file.read(size)), file.read()
    header.pop("__metadata__", None)
    random = numpy.random.default_rng(1)
    tensors = {}
    for name, entry in header.items():
        assert entry["dtype"] == "F32"
        tensors[name] = numpy.frombuffer(body[slice(*entry["data_offsets"])], numpy.float32).reshape(entry["shape"])
        if name.endswith(("wte.weight", "wpe.weight")):
            tensors[name] = random.normal(0, 1, (257 if name.endswith("wte.weight") else positions, entry["shape"][1])).astype(numpy.float32)
        if name.endswith("wte.weight"):
            tensors[name][256] = 0  # texts do not end by themselves
    at, written = 0, {}
    for name, values in tensors.items():
        written[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    text = json.dumps(written).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(values.tobytes() for values in tensors.values()))
    with open(os.path.join(HUB, "gpt2/config.json")) as file:
        config = json.load(file)
    config.update(vocab_size=257, n_positions=positions, n_ctx=positions)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)
    with open(os.path.join(folder, "vocab.json"), "w") as file:
        json.dump({letter: i for i, letter in enumerate([*byte_letters(), "<|endoftext|>"])}, file)
    with open(os.path.join(folder, "merges.txt"), "w") as file:
        file.write("#version: 0.2\n")


def write_bert(folder):
    for name in ("config.json", "model.safetensors"):
        shutil.copy(os.path.join(HUB, "bert", name), folder)
    letters = [f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz"]
    with open(os.path.join(folder, "vocab.txt"), "w") as file:
        file.write("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", *letters]) + "\n")
