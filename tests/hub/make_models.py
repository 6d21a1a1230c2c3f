"""Makes tiny seeded models of each family, with the outputs of the reference implementation (the `transformers` package
on PyPI) for some ids. Run again only to change them: python make_models.py FOLDER"""

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
MODELS = {
    "bert": lambda: BertForSequenceClassification(BertConfig(max_position_embeddings=12, **small)),
    "roberta": lambda: RobertaForSequenceClassification(
        RobertaConfig(max_position_embeddings=12, pad_token_id=1, type_vocab_size=1, **small)
    ),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=32, n_positions=12)),
}

for name, make in MODELS.items():
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
    model.save_pretrained(folder)
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
    with open(os.path.join(folder, "expected.json"), "w") as out_file:
        json.dump(expected, out_file, separators=(",", ":"))
