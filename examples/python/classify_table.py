# %% [markdown]
# # Classify your table
#
# Reads a CSV file with a column of texts and a column of labels, trains a small classifier on the bytes of the texts,
# once with flat attention and once with HKT attention, and prints the accuracies on rows that were held out. Both
# models have the same sizes, the same steps and the same seeds. Without a file the script makes a table of short
# messages itself.
#
#     python3 classify_table.py mail.csv --text-column subject --label-column folder

# %%
import argparse
import csv
import random
import sys
from collections import Counter

import strata  # before torch, so that it can prepare the machine
import torch
from torch import Tensor, nn

torch.set_num_threads(1)  # the model is tiny: threads would wait for each other
parser = argparse.ArgumentParser(description="Train flat and HKT attention on a table and compare them.")
parser.add_argument("file", nargs="?", help="CSV file with a header; without it a small table is made")
parser.add_argument("--text-column", default="text", help="column with the text (%(default)s)")
parser.add_argument("--label-column", default="label", help="column with the label (%(default)s)")
parser.add_argument("--tokens", type=int, default=96, help="bytes that are read of each text (%(default)s)")
parser.add_argument("--steps", type=int, help="training steps (200; 50 with --quick)")
parser.add_argument("--seeds", type=int, help="runs of each model (3; 1 with --quick)")
parser.add_argument("--quick", action="store_true", help="a few seconds: fewer rows, steps and seeds")
arguments = parser.parse_args([] if "ipykernel" in sys.modules else None)
steps = arguments.steps or (50 if arguments.quick else 200)
seeds = range(arguments.seeds or (1 if arguments.quick else 3))

# %% [markdown]
# ## The table
#
# A row is a pair of a text and a label. The table that the script makes has messages on four topics, which share
# most of their words and have a typing error here and there.

# %%
TOPICS = {
    "delivery": ["parcel", "courier", "shipment", "tracking number", "delivery"],
    "payment": ["invoice", "refund", "credit card", "bank transfer", "receipt"],
    "account": ["password", "login", "profile", "email address", "username"],
    "product": ["battery", "screen", "charger", "cable", "keyboard"],
}
OPENINGS = ["Hello, ", "Hi team, ", "Good morning, ", "Please help: ", "Again: ", ""]
SENTENCES = ["where is my {}", "I have a question about the {}", "the {} is wrong", "there is a problem with my {}"]
ENDINGS = [".", ", since Monday.", ", please answer soon.", "! Thank you.", ", as I wrote last week."]


def make_table(rows: int) -> list[tuple[str, str]]:
    """Messages with one typing error in every second one, in a fixed random order."""
    choose, table = random.Random(0), []
    for row in range(rows):
        label = choose.choice(list(TOPICS))
        sentence = choose.choice(SENTENCES).format(choose.choice(TOPICS[label]))
        text = choose.choice(OPENINGS) + sentence + choose.choice(ENDINGS)
        if row % 2:
            place = choose.randrange(len(text))
            text = text[:place] + choose.choice("abcdefghij") + text[place + 1 :]
        table.append((text, label))
    return table


def read_table(path: str, text_column: str, label_column: str) -> list[tuple[str, str]]:
    """Rows (text, label) of a CSV file with a header, shuffled in a fixed order."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        for column in (text_column, label_column):
            if column not in (reader.fieldnames or []):
                got = f"got {reader.fieldnames}; name another with --text-column or --label-column"
                sys.exit(f'{path}: expected a column "{column}", {got}')
        table = [(row[text_column] or "", row[label_column] or "") for row in reader]
    random.Random(0).shuffle(table)
    return table


if arguments.file:
    table = read_table(arguments.file, arguments.text_column, arguments.label_column)
else:
    table = make_table(400 if arguments.quick else 1600)
labels = sorted({label for _, label in table})
if len(labels) < 2 or len(table) < 10:
    sys.exit(f"table: expected at least 10 rows and 2 labels, got {len(table)} rows and {len(labels)} labels")

# %% [markdown]
# ## Bytes as tokens
#
# A text is a row of bytes, cut at `--tokens` and padded with zeros on the right. `lengths` says how many bytes are
# real; the attention never looks at the rest. Every fifth row is held out.


# %%
def encode(texts: list[str], tokens: int) -> tuple[Tensor, Tensor]:
    """Bytes, (rows, tokens), and lengths, (rows)."""
    rows = [(text.encode() or b" ")[:tokens] for text in texts]
    lengths = torch.tensor([len(row) for row in rows])
    return torch.tensor([list(row.ljust(int(lengths.max()), b"\0")) for row in rows]), lengths


x, lengths = encode([text for text, _ in table], arguments.tokens)
y = torch.tensor([labels.index(label) for _, label in table])
held_out = torch.arange(len(table)) % 5 == 4
common = Counter(y[held_out].tolist()).most_common(1)[0][1] / int(held_out.sum())
print(f"table: {len(table)} rows, {len(labels)} labels, {x.shape[1]} bytes")
print(f"the most common label has {common:.1%} of the held-out rows\n")


# %% [markdown]
# ## The model
#
# Two layers of attention with a residual connection, then the mean over the real tokens. The kind of attention is the
# only difference. `input_filter=True` puts a causal filter of three taps in front of each attention, so that both kinds
# see pairs and triples of bytes.


# %%
class Classifier(nn.Module):
    def __init__(self, kind: type[strata.HktAttention], tokens: int, labels: int, model_size: int = 64) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, model_size), nn.Embedding(tokens, model_size)
        self.attention = nn.ModuleList([kind(model_size, heads=4, input_filter=True) for _ in range(2)])
        self.norms = nn.ModuleList([nn.LayerNorm(model_size) for _ in range(3)])
        self.head = nn.Linear(model_size, labels)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        states = self.bytes(x) + self.places.weight[: x.shape[1]]
        for attention, norm in zip(self.attention, self.norms):
            states = states + attention(norm(states), lengths=lengths)
        real = torch.arange(x.shape[1]) < lengths.unsqueeze(1)
        mean = (states * real.unsqueeze(-1)).sum(1) / lengths.unsqueeze(1)
        return self.head(self.norms[2](mean))


def train(kind: type[strata.HktAttention], seed: int) -> tuple[float, int]:
    """Accuracy on the held-out rows, and how many parameters the model has."""
    torch.manual_seed(seed)
    model = Classifier(kind, x.shape[1], len(labels))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    rows = torch.nonzero(~held_out).squeeze(1)
    for step in range(steps):
        batch = rows[torch.randint(len(rows), (32,))]
        loss = nn.functional.cross_entropy(model(x[batch], lengths[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 50 == 0 or step + 1 == steps:
            print(f"  {kind.__name__}, seed {seed}: step {step + 1} of {steps}, loss {loss.item():.3f}", flush=True)
    with torch.no_grad():
        parts = zip(x[held_out].split(256), lengths[held_out].split(256))
        guesses = torch.cat([model(*part).argmax(-1) for part in parts])
    return (guesses == y[held_out]).float().mean().item(), sum(p.numel() for p in model.parameters())


# %% [markdown]
# ## The comparison

# %%
results = {kind.__name__: [train(kind, seed) for seed in seeds] for kind in (strata.FlatAttention, strata.HktAttention)}
print(f"\naccuracy on {int(held_out.sum())} held-out rows:")
print(f"{'attention':14} {'parameters':>10} {'mean':>7}   seed by seed")
for name, runs in results.items():
    accuracies = [accuracy for accuracy, _ in runs]
    listed = "  ".join(f"{accuracy:.1%}" for accuracy in accuracies)
    print(f"{name:14} {runs[0][1]:>10,} {sum(accuracies) / len(accuracies):>7.1%}   {listed}")
