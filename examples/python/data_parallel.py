# %% [markdown]
# # Data parallel training
#
# Trains a small model with HKT attention by several processes under PyTorch's `DistributedDataParallel`: every process
# has all weights and a part of the rows, and the gradients are averaged while the backward runs. The rows of a step do
# not depend on the number of processes, so any number gives the same losses, up to rounding.
#
#     torchrun --nproc-per-node 2 data_parallel.py
#     python3 data_parallel.py                       # one process

# %%
import argparse
import os
import sys

import strata  # before torch, so that it can prepare the machine
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser(description="Train HKT attention by several processes.")
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
# A function of the step alone. The task: which half of the sequence has the larger sum?


# %%
def rows_of(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(arguments.batch, 32, 16, generator=generator, dtype=torch.float64)
    sums = x.unflatten(1, (2, 16)).sum((2, 3))
    return x, sums.argmax(1)


def own_rows(tensor: Tensor) -> Tensor:
    return tensor.chunk(processes)[rank]


# %% [markdown]
# ## Training


# %%
class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = strata.HktAttention(model_size=16, heads=2, levels=3)
        self.head = nn.Linear(16 * 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        mixed = x + self.attention(x)
        return self.head(mixed.unflatten(1, (2, 16)).mean(2).flatten(1))


torch.manual_seed(1)
model = DistributedDataParallel(Classifier().double())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loss_sum = torch.zeros((), dtype=torch.float64)
for step in range(steps):
    x, labels = rows_of(step)
    loss = nn.functional.cross_entropy(model(own_rows(x)), own_rows(labels))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss_sum = loss.detach() / processes

# The work has a name, so that no thread of PyTorch is the last to let go of it, when Python may have ended already.
total = dist.all_reduce(loss_sum, async_op=True)
total.wait()
if rank == 0:
    print(f"{processes} processes, {arguments.batch // processes} rows each: loss {loss_sum.item():.12f} at step {steps}")
dist.destroy_process_group()
