# %% [markdown]
# # Look inside a model
#
# Trains a tiny HKT model and then looks at what it has learnt: how each head weighs the resolutions, and how much of
# the scores has a direction. Then it asks which tree would stand best for the model's attention, by the score of a
# hierarchy, and checks the answer against the exact KL divergence. docs/MATH.md has the definitions and the proofs.

# %%
import argparse
import sys

import strata  # before torch, so that it can prepare the machine
import torch
from torch import Tensor, nn

TOPICS, WORDS, SENTENCE, SENTENCES = 6, 8, 8, 8  # a word is a topic and a number; sentences of 8 words, 8 in a text
TOKENS, LEVELS, HEADS = SENTENCE * SENTENCES, 3, 2

torch.set_num_threads(1)  # the model is tiny: threads would wait for each other
parser = argparse.ArgumentParser(description="Train a tiny HKT model and look at its levels, its scores and trees.")
parser.add_argument("--steps", type=int, help="training steps (600; 100 with --quick)")
parser.add_argument("--quick", action="store_true", help="a few seconds: fewer steps")
arguments = parser.parse_args([] if "ipykernel" in sys.modules else None)
steps = arguments.steps or (100 if arguments.quick else 600)
torch.manual_seed(0)

# %% [markdown]
# ## A task with sentences and an order
#
# A text has 8 sentences of 8 words. Each sentence has a topic, and half of its words are of other topics. The topics 0
# and 1 come once; the answer is whether 0 comes before 1. A single word says little, so that the mean over neighbours,
# which a coarse level sees, should help.


# %%
def make_texts(count: int) -> tuple[Tensor, Tensor]:
    """Words, (count, TOKENS), and answers, (count)."""
    topics = torch.randint(2, TOPICS, (count, SENTENCES))
    places = torch.rand(count, SENTENCES).argsort(-1)[:, :2]
    topics.scatter_(1, places, torch.tensor([0, 1]).expand(count, 2))
    per_word = topics.repeat_interleave(SENTENCE, 1)
    noise = torch.randint(0, TOPICS, per_word.shape)
    per_word = torch.where(torch.rand(per_word.shape) < 0.5, noise, per_word)
    return per_word * WORDS + torch.randint(0, WORDS, per_word.shape), (places[:, 0] < places[:, 1]).long()


class Reader(nn.Module):
    def __init__(self, model_size: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(TOPICS * WORDS, model_size)
        self.attention = strata.HktAttention(model_size, HEADS, levels=LEVELS, causal=True, psd=True)
        self.head = nn.Linear(model_size, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.attention(self.words(x))).mean(1))


# %% [markdown]
# ## The split of the scores
#
# `S = sym(S) + anti(S)`, and `|anti|^2 / |S|^2` is the share of the scores that has a direction: i looks at j otherwise
# than j looks at i. `pyramid` gives the states of every level and `project` their queries and keys. With `psd=True`
# keys are made from queries and a small antisymmetric matrix, so that the share starts near 0 and the rest is learnt.
# With independent queries and keys it starts near one half.


# %%
@torch.no_grad()
def level_scores(attention: strata.HktAttention, x: Tensor) -> list[Tensor]:
    """Scaled scores of each level before they are mixed, (batch, heads, n, n) with n = ceil(tokens / 2^level)."""
    pairs = [attention.project(states, level) for level, states in enumerate(attention.pyramid(x))]
    return [q @ k.transpose(-1, -2) / attention.head_size**0.5 for q, k in pairs]


def directional_share(scores: Tensor) -> Tensor:
    """|anti(S)|^2 / |S|^2 of each head."""
    anti = (scores - scores.transpose(-1, -2)) / 2
    return anti.square().sum((0, 2, 3)) / scores.square().sum((0, 2, 3))


def shares(model: Reader, x: Tensor) -> Tensor:
    """(levels, heads)"""
    with torch.no_grad():
        return torch.stack([directional_share(scores) for scores in level_scores(model.attention, model.words(x))])


# %% [markdown]
# ## Training

# %%
model, (test_words, test_answers) = Reader(), make_texts(1000)
before = shares(model, test_words[:100])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(steps):
    words, answers = make_texts(64)
    loss = nn.functional.cross_entropy(model(words), answers)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if (step + 1) % 100 == 0:
        print(f"  step {step + 1} of {steps}: loss {loss.item():.3f}", flush=True)
with torch.no_grad():
    accuracy = (model(test_words).argmax(-1) == test_answers).float().mean().item()
print(f"accuracy on 1000 new texts: {accuracy:.1%}\n")

# %% [markdown]
# ## What it has learnt
#
# The weights of a head sum to one.

# %%
after, weights = shares(model, test_words[:100]), model.attention.level_weights().detach()
print(f"{'head':>4} {'level':>6} {'weight':>7}   directional share before and after training")
for head in range(HEADS):
    for level in range(LEVELS):
        share = f"{before[level, head]:.4f} -> {after[level, head]:.4f}"
        print(f"{head:>4} {level:>6} {weights[head, level]:>7.3f}   {share}")

# %% [markdown]
# ## The attention as queries and keys
#
# The mix of the levels is flat attention on longer queries and keys: those of all levels side by side, each repeated
# for the tokens that it covers. `hkt_attention` returns `lse`, the log of the sum of each row; with one level and the
# longer queries and keys it must return the same.


# %%
@torch.no_grad()
def flat_pair(attention: strata.HktAttention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q and k whose flat attention is the HKT attention, (batch, heads, tokens, levels * size), and its lse."""
    pairs = [attention.project(states, level) for level, states in enumerate(attention.pyramid(x))]
    q, k, weights = [pair[0] for pair in pairs], [pair[1] for pair in pairs], attention.level_weights()
    _, lse = strata.hkt_attention(q, k, torch.zeros_like(k[0]), weights, causal=True)

    def side_by_side(parts: list[Tensor]) -> Tensor:
        return torch.cat([part.repeat_interleave(2**level, 2)[:, :, :TOKENS] for level, part in enumerate(parts)], -1)

    mixed = [weights[:, level].view(-1, 1, 1) * part for level, part in enumerate(q)]
    return side_by_side(mixed), side_by_side(k), lse


q, k, lse = flat_pair(model.attention, model.words(test_words[:1]).detach())
scale = model.attention.head_size**-0.5
_, flat_lse = strata.hkt_attention([q], [k], torch.zeros_like(k), torch.ones(HEADS, 1), causal=True, scale=scale)
print(f"\nlargest difference of lse between HKT and its flat form: {(lse - flat_lse).abs().max().item():.1e}")

# %% [markdown]
# ## Which tree stands for it best?
#
# HSA is the closest attention to softmax that respects a tree, and the score of a tree says how close it is, in linear
# time. The candidates have windows of some size; with a shift of half a window they cut through the sentences. A star,
# one family of all tokens, is full attention itself. `best_tree` takes the largest score (summed over the heads) among
# the trees that cost at most a quarter of full attention. `kl_gap` turns a score into the KL divergence from full
# attention, summed over the rows. With the identity as values the output of HSA is its matrix, so that the same
# divergence can be summed entry by entry.

# %%
names = [f"windows of {window}, shift {shift}" for window in (2, 4, 8, 16) for shift in (0, window // 2)] + ["star"]
trees = [*strata.window_family(TOKENS, (2, 4, 8, 16), shifts=2), strata.Tree.star(TOKENS)]
costs = [tree.cost for tree in trees]
best, scores = strata.best_tree(q, k, trees, max_cost=TOKENS**2 // 4, causal=True, scale=scale)

later = torch.ones(TOKENS, TOKENS).triu(1).bool()
softmax = torch.softmax((q @ k.transpose(-1, -2) * scale).masked_fill(later, -float("inf")), -1)
identity, rows = torch.eye(TOKENS).expand(1, HEADS, -1, -1), []
for name, tree, cost, score in zip(names, trees, costs, scores.tolist()):
    matrix, root = strata.hsa_attention(q, k, identity, [tree], causal=True, scale=scale)
    gap = strata.kl_gap(lse, root).sum().item()
    summed = (torch.xlogy(matrix, matrix) - torch.xlogy(matrix, softmax)).sum().item()
    rows.append((score, gap, summed, cost, name + (" <- best_tree" if tree is best else "")))
rows.sort(reverse=True)
print(f"\n{'score':>8} {'KL gap':>9} {'summed':>9} {'cost':>6}   tree")
for score, gap, summed, cost, name in rows:
    print(f"{score:>8.4f} {round(gap, 3) + 0.0:>9.3f} {round(summed, 3) + 0.0:>9.3f} {cost:>6}   {name}")  # no -0.000
falls = all(above[2] < below[2] for above, below in zip(rows, rows[1:]))
print(f"the larger score has the smaller gap: {'yes' if falls else 'no'}")
