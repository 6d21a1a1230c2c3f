"""DistributedDataParallel and FSDP2 over two processes on Gloo follow one process."""

import copy
import os
import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

import strata

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs Gloo")


def model():
    torch.manual_seed(4)
    return torch.nn.Sequential(
        strata.HktAttention(8, 2, levels=2), strata.HsaAttention(8, 2, streaming=True, branching=3)
    ).double()


def data():
    torch.manual_seed(5)
    return torch.randn(4, 9, 8, dtype=torch.float64)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start(rank, port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)


def leave():
    """Ends the process at once. A thread of Gloo may still free its last work, which needs the interpreter, and with
    PyTorch 2.15 that aborts a process whose Python is ending."""
    dist.destroy_process_group()
    os._exit(0)


def half(rank):
    return data()[2 * rank : 2 * rank + 2]


def run_ddp(rank, port, results):
    start(rank, port)
    parallel = DistributedDataParallel(model())
    parallel(half(rank)).square().mean().backward()
    if rank == 0:
        results["gradients"] = [parameter.grad.clone() for parameter in parallel.parameters()]
    leave()


def run_fsdp(rank, port, results):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    start(rank, port)
    sharded, mesh = model(), init_device_mesh("cpu", (2,))
    for module in sharded:
        fully_shard(module, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    sharded(half(rank)).square().mean().backward()
    gradients = [parameter.grad.full_tensor() for parameter in sharded.parameters()]
    if rank == 0:
        results["gradients"] = [gradient.clone() for gradient in gradients]
    leave()


def expected():
    whole = copy.deepcopy(model())
    whole(data()).square().mean().backward()
    return [parameter.grad for parameter in whole.parameters()]


def spawned(function):
    with mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(function, (free_port(), results), nprocs=2)
        return list(results["gradients"])


@pytest.mark.parametrize("function", [run_ddp, run_fsdp])
def test_two_processes_have_the_gradients_of_one(function):
    if function is run_fsdp and tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6):
        pytest.skip("FSDP2 needs PyTorch 2.6")
    for got, want in zip(spawned(function), expected(), strict=True):
        torch.testing.assert_close(got, want, atol=1e-14, rtol=1e-12)
