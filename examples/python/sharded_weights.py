# %% [markdown]
# # Sharded weights
#
# Trains a small language model with streaming HSA under PyTorch's FSDP2 (`fully_shard`, PyTorch 2.6 or later): every
# process keeps a part of the weights, of their gradients and of the optimizer's state, and gathers a layer's weights
# while it computes with them. The losses are those of one process, up to rounding.
#
#     torchrun --nproc-per-node 2 sharded_weights.py
#     python3 sharded_weights.py                     # one process

# %%
import argparse
import os
import sys

import strata  # before torch, so that it can prepare the machine
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

parser = argparse.ArgumentParser(description="Train streaming HSA with sharded weights.")
parser.add_argument("--steps", type=int, default=60, help="training steps (%(default)s)")
parser.add_argument("--batch", type=int, default=24, help="rows per step, of all processes together (%(default)s)")
parser.add_argument("--quick", action="store_true", help="a few seconds: 10 steps")
arguments = parser.parse_args([] if "ipykernel" in sys.modules else None)
steps = 10 if arguments.quick else arguments.steps

# %% [markdown]
# ## The processes
#
# torchrun tells each process its rank by variables. Without them this is a group of one.

# %%
torch.set_num_threads(1)
if "RANK" in os.environ:
    dist.init_process_group("gloo")
else:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
rank, processes = dist.get_rank(), dist.get_world_size()
if arguments.batch % processes != 0:
    sys.exit(f"--batch: expected a multiple of {processes}, the number of processes, got {arguments.batch}")

# %% [markdown]
# ## The rows of a step
#
# A function of the step alone: sequences of a few symbols, each of which repeats the one three places before.


# %%
def rows_of(step: int) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    start = torch.randint(0, 8, (arguments.batch, 3), generator=generator)
    return start.repeat(1, 11).chunk(processes)[rank]


# %% [markdown]
# ## The model
#
# `fully_shard` is called on every layer, then on the whole, as for any other model.


# %%
class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.attention = strata.HsaAttention(32, 2, streaming=True, branching=4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(self.norm(x))


torch.manual_seed(1)
model = nn.Sequential(nn.Embedding(8, 32), Layer(), Layer(), nn.Linear(32, 8)).double()
every = sum(parameter.numel() for parameter in model.parameters())
mesh = init_device_mesh("cpu", (processes,))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
own = sum(parameter.to_local().numel() for parameter in model.parameters())

# %% [markdown]
# ## Training

# %%
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loss_sum = torch.zeros((), dtype=torch.float64)
for step in range(steps):
    rows = rows_of(step)
    loss = nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss_sum = loss.detach() / processes

# The work has a name, so that no thread of PyTorch is the last to let go of it, when Python may have ended already.
total = dist.all_reduce(loss_sum, async_op=True)
total.wait()
if rank == 0:
    print(f"rank 0 keeps {own:,} of {every:,} weights")
    print(f"{processes} processes, {arguments.batch // processes} rows each: loss {loss_sum.item():.12f} at step {steps}")
dist.destroy_process_group()
