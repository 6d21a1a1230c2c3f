"""Makes tiny seeded models of each family, with the outputs of the reference implementation (the `transformers` package
on PyPI) for some ids. Run again only to change them: python make_models.py FOLDER [NAME ..]"""

import json
import os
import sys

import torch
import transformers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    RobertaConfig,
    RobertaForSequenceClassification,
)

IDS = [[3, 17, 25, 4, 9, 30, 11, 2], [5, 6, 7, 8, 12, 1, 1, 1]]
LENGTHS = [8, 5]
small = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 32,
    "num_labels": 3,
}
grouped = {**small, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 40}
grouped.pop("num_labels")
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
MODELS = {
    # Frequencies on both sides of the blend, and in it.
    "llama": lambda: LlamaForCausalLM(
        LlamaConfig(
            rope_parameters={**LLAMA3, "rope_theta": 30.0, "original_max_position_embeddings": 20},
            head_dim=8,
            rms_norm_eps=1e-5,
            bos_token_id=0,
            eos_token_id=[1, 2],
            **grouped,
        )
    ),
    "llama_linear": lambda: LlamaForCausalLM(
        LlamaConfig(
            rope_parameters={"rope_type": "linear", "factor": 2.5, "rope_theta": 10000.0},
            attention_bias=True,
            mlp_bias=True,
            **{**grouped, "num_key_value_heads": 1},
        )
    ),
    # Channels that stay, are blended and are scaled.
    "qwen2_yarn": lambda: Qwen2ForCausalLM(
        Qwen2Config(
            rope_parameters={
                "rope_type": "yarn",
                "factor": 4.0,
                "rope_theta": 50.0,
                "beta_fast": 2.5,
                "beta_slow": 0.5,
                "original_max_position_embeddings": 20,
            },
            **{**grouped, "hidden_size": 32, "max_position_embeddings": 80},
        )
    ),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(tie_word_embeddings=True, rope_theta=1000.0, **grouped)),
    "bert": lambda: BertForSequenceClassification(BertConfig(max_position_embeddings=12, **small)),
    "roberta": lambda: RobertaForSequenceClassification(
        RobertaConfig(max_position_embeddings=12, pad_token_id=1, type_vocab_size=1, **small)
    ),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=32, n_positions=12)),
}


def greedy(model, ids, tokens=16):
    """The likeliest tokens after `ids`, the whole text read anew for each, and how far ahead of the next each one is."""
    ids, ahead = list(ids), []
    for _ in range(tokens):
        best = model(torch.tensor([ids])).logits[0, -1].topk(2)
        ids.append(best.indices[0].item())
        ahead.append((best.values[0] - best.values[1]).item())
    return {"ids": ids[-tokens:], "least_ahead": round(min(ahead), 6)}


for name, make in MODELS.items():
    if len(sys.argv) > 2 and name not in sys.argv[2:]:
        continue
    torch.manual_seed(7)
    model = make().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # as made, they are too small to tell much
            parameter.add_(0.3 * torch.randn_like(parameter))
        ids = torch.tensor(IDS)
        mask = (torch.arange(ids.shape[1])[None] < torch.tensor(LENGTHS)[:, None]).long()
        inputs = {"input_ids": ids, "attention_mask": mask, "output_hidden_states": True}
        if name == "roberta":
            inputs["position_ids"] = torch.arange(2, 2 + ids.shape[1])[None]
        out = model(**inputs)
    folder = os.path.join(sys.argv[1], name)
    model.save_pretrained(folder, **({"max_shard_size": "8KB"} if name == "qwen2" else {}))
    os.path.exists(os.path.join(folder, "generation_config.json")) and os.remove(
        os.path.join(folder, "generation_config.json")
    )
    expected = {
        "origin": f"transformers {transformers.__version__}, torch {torch.__version__}, tests/hub/make_models.py",
        "ids": IDS,
        "lengths": LENGTHS,
        "hidden": [[round(x, 6) for x in h.flatten().tolist()] for h in out.hidden_states],
        "logits": [round(x, 6) for x in out.logits.flatten().tolist()],
    }
    if "Causal" in type(model).__name__:
        with torch.no_grad():
            expected["greedy"] = greedy(model, IDS[0])
    with open(os.path.join(folder, "expected.json"), "w") as out_file:
        json.dump(expected, out_file, separators=(",", ":"))
