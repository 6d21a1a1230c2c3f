# %% [markdown]
# # A language model with a logarithmic cache
#
# Trains a small language model over bytes whose attention is the streaming form of HSA, and measures it on text that it
# has not seen. Then it writes text step by step. A transformer's cache holds one entry per token; this one holds the
# digits of the length in base 16, so that after 10,000 tokens a step looks at 10 entries instead of 10,000.
#
#     python3 language_model.py book.txt

# %%
import argparse
import math
import sys
import time
from pathlib import Path
from pydoc_data import topics  # Python's own reference manual: a text that every Python has

import strata  # before torch, so that it can prepare the machine
import torch
from torch import Tensor, nn

BRANCHING = 16  # children per family: b
HEIGHTS = 8  # the stream may have up to 16^8 tokens

torch.set_num_threads(1)  # the model is tiny: threads would wait for each other
parser = argparse.ArgumentParser(description="Train a byte language model with streaming HSA and generate from it.")
parser.add_argument("file", nargs="?", help="text file; without it, the reference manual inside Python")
parser.add_argument("--prompt", default="The ", help="text to go on from (%(default)s)")
parser.add_argument("--steps", type=int, help="training steps (400; 100 with --quick)")
parser.add_argument("--tokens", type=int, help="tokens of the longest stream (10000; 1000 with --quick)")
parser.add_argument("--quick", action="store_true", help="a few seconds: a smaller model, fewer steps and tokens")
arguments = parser.parse_args([] if "ipykernel" in sys.modules else None)
steps = arguments.steps or (100 if arguments.quick else 400)
longest = arguments.tokens or (1000 if arguments.quick else 10000)
model_size, layers, window = (32, 1, 128) if arguments.quick else (64, 2, 256)

# %% [markdown]
# ## The text
#
# Bytes are tokens. The last tenth is held out.

# %%
text = Path(arguments.file).read_bytes() if arguments.file else "\n\n".join(topics.topics.values()).encode()
if len(text) < 20 * window:
    sys.exit(f"text: expected at least {20 * window} bytes, got {len(text)}; use a longer file")
data = torch.tensor(list(text))
train_data, test_data = data[: len(data) * 9 // 10], data[len(data) * 9 // 10 :]
print(f"text: {len(train_data):,} bytes to learn from, {len(test_data):,} held out")

# %% [markdown]
# ## The model
#
# `strata.HsaAttention(streaming=True)` is strictly causal. It needs no position embeddings: `positions="bias"` learns
# one table of terms between siblings for each height of the tree. `forward` takes whole windows, for training; `step`
# takes one byte per sequence and a list of caches, one per layer. Both compute the same.


# %%
class Layer(nn.Module):
    def __init__(self, model_size: int) -> None:
        super().__init__()
        self.attention = strata.HsaAttention(
            model_size, 4, streaming=True, branching=BRANCHING, positions="bias", tables=HEIGHTS, places=BRANCHING
        )
        self.norm = nn.LayerNorm(model_size)
        wide = 4 * model_size
        self.mixer = nn.Sequential(
            nn.LayerNorm(model_size), nn.Linear(model_size, wide), nn.GELU(), nn.Linear(wide, model_size)
        )

    def forward(self, states: Tensor) -> Tensor:
        """(batch, tokens, model)"""
        states = states + self.attention(self.norm(states))
        return states + self.mixer(states)

    def step(self, states: Tensor, stream: strata.HsaStreamCache) -> Tensor:
        """(batch, model): one more token per sequence."""
        states = states + self.attention.step(self.norm(states), stream)
        return states + self.mixer(states)


class LanguageModel(nn.Module):
    def __init__(self, model_size: int, layers: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, model_size)
        self.layers = nn.ModuleList([Layer(model_size) for _ in range(layers)])
        self.head = nn.Sequential(nn.LayerNorm(model_size), nn.Linear(model_size, 256))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the next byte, (batch, tokens, 256); x: (batch, tokens)."""
        states = self.bytes(x)
        for layer in self.layers:
            states = layer(states)
        return self.head(states)

    def start_streams(self, batch: int) -> list[strata.HsaStreamCache]:
        """Empty caches, one per layer."""
        return [layer.attention.start_stream(batch, capacity=HEIGHTS) for layer in self.layers]

    @torch.no_grad()
    def step(self, x: Tensor, streams: list[strata.HsaStreamCache]) -> Tensor:
        """Logits of the next byte, (batch, 256), after one more byte per sequence; x: (batch)."""
        states = self.bytes(x)
        for layer, stream in zip(self.layers, streams):
            states = layer.step(states, stream)
        return self.head(states)


torch.manual_seed(0)
model = LanguageModel(model_size, layers)
print(f"model: {sum(p.numel() for p in model.parameters()):,} parameters, layers of streaming HSA: {layers}")

# %% [markdown]
# ## Training
#
# The loss is printed in bits per byte: a text of n bytes would compress to n times that many bits.


# %%
def bits_per_byte(windows: Tensor) -> Tensor:
    """Mean over windows of bytes, (batch, tokens + 1)."""
    logits = model(windows[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()) / math.log(2)


optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.5e-2, total_steps=steps)
for step in range(steps):
    starts = torch.randint(len(train_data) - window - 1, (16, 1))
    loss = bits_per_byte(train_data[starts + torch.arange(window + 1)])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if (step + 1) % 50 == 0:
        print(f"  step {step + 1} of {steps}: {loss.item():.3f} bits per byte", flush=True)

with torch.no_grad():
    held_out = test_data[: len(test_data) // window * window].view(-1, window)[:64]
    frequencies = (torch.bincount(train_data, minlength=256) + 1) / (len(train_data) + 256)
    frequency_bits = -frequencies[held_out].log2().mean().item()
    print(f"held out: {bits_per_byte(held_out).item():.3f} bits per byte")
    print(f"frequencies of single bytes: {frequency_bits:.3f} bits per byte")

# %% [markdown]
# ## Step by step
#
# A step equals the parallel form to rounding: the logits of held-out text, computed both ways. 300 tokens pass 256 =
# 16^2, where the tree gets a new height.

# %%
checked = test_data[:300].unsqueeze(0)
streams = model.start_streams(batch=1)
stepped = torch.stack([model.step(checked[:, t], streams) for t in range(checked.shape[1])], 1)
with torch.no_grad():
    difference = (stepped - model(checked)).abs().max().item()
print(f"largest difference between steps and the parallel form: {difference:.1e}\n")

# %% [markdown]
# ## Writing, and what the cache holds
#
# Each line says how many entries the cache of a layer holds, and for how many tokens they stand. The newest tokens have
# one entry each, older ones one for 16, 256, .. of them: as many as the sum of the digits of the length in base 16.


# %%
def held_tokens(stream: strata.HsaStreamCache, tokens: int) -> int:
    """How many tokens the entries of a stream of this many tokens stand for."""
    digits = [tokens // BRANCHING**height % BRANCHING for height in range(HEIGHTS)]
    return int(sum(stream.state["masses"][0, height, :digit].sum() for height, digit in enumerate(digits)))


prompt, written = list(arguments.prompt.encode()) or [32], []
streams, start = model.start_streams(batch=1), time.perf_counter()
print(f"{'tokens':>8} {'entries':>8} {'stand for':>10} {'full cache':>11} {'us per token':>13}")
for tokens in range(1, longest + 1):
    byte = prompt[tokens - 1] if tokens <= len(prompt) else written[-1]
    logits = model.step(torch.tensor([byte]), streams)
    written.append(int(torch.multinomial(torch.softmax(logits[0] / 0.8, -1), 1)))
    if tokens == longest or tokens in (10, 100, 1000, 10000, 100000):
        entries = int(streams[0].entries(BRANCHING))
        each = (time.perf_counter() - start) / tokens * 1e6
        print(f"{tokens:>8} {entries:>8} {held_tokens(streams[0], tokens):>10} {tokens:>11} {each:>13.0f}", flush=True)
sample = bytes(written[len(prompt) - 1 : len(prompt) + 300]).decode(errors="replace")
print(f"\n{arguments.prompt}{sample}")
