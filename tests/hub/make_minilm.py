"""Makes minilm.json, the outputs of all-MiniLM-L6-v2 by `transformers`: python make_minilm.py FOLDER > minilm.json"""

import json
import sys

import torch
import transformers

TEXTS = [
    "A quiet morning by the lake.",
    "The committee met on Tuesday; nobody could agree. In the end, they voted 7 to 5!",
    "Größenwahn, naïveté, 東京 and emoji 😀 in one line.",
    " ".join(f"Sentence number {i} says that {i} times {i} is {i * i}." for i in range(1, 60)),
]

folder = sys.argv[1]
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
model = transformers.AutoModel.from_pretrained(folder).eval()
rows = []
for text in TEXTS:
    inputs = tokenizer(text, truncation=True, max_length=512, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**inputs).last_hidden_state[0]
    pooled = hidden.mean(0)
    rows.append(
        {
            "text": text,
            "tokens": hidden.shape[0],
            "first": [float(f"{x:.6f}") for x in pooled[:8]],
            "norm": float(f"{pooled.norm():.6f}"),
        }
    )
print(
    json.dumps(
        {
            "origin": f"transformers {transformers.__version__}, torch {torch.__version__}, float32 on the CPU",
            "rows": rows,
        },
        indent=1,
        ensure_ascii=False,
    )
)
