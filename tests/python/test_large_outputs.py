"""Large outputs on the CPU lie in huge pages (src/torch/output_memory.cc), and are tensors like any other."""

import os
import subprocess
import sys

import torch

import strata

HUGE_PAGE = 2 << 20
TOKENS = 16384  # one head of 64 float32 channels has 4 MB, from where on outputs count as large

PROGRAM = """
import torch, strata
x = torch.ones(1, 1, 16384, 64)
print(torch.ops.strata.hsa_stream_attention([x], [x], x, branching=16)[0].data_ptr() % (2 << 20))
"""


def attend(x):
    return torch.ops.strata.hsa_attention([x], [x], x, [strata.Tree.balanced(x.shape[2], 16).encoded])[0]


def test_large_outputs_begin_at_a_huge_page():
    torch.manual_seed(0)
    for layout in (lambda t: t, lambda t: t.transpose(1, 2).contiguous().transpose(1, 2)):  # head-major, token-major
        x = layout(torch.randn(1, 2, TOKENS, 64)).requires_grad_()
        y = attend(x)
        assert y.data_ptr() % HUGE_PAGE == 0
        assert torch.equal(y, attend(x)) and y.stride() == x.stride()
        (gradient,) = torch.autograd.grad(y.sum(), x)
        assert gradient.shape == x.shape and gradient.isfinite().all()


def test_large_outputs_are_tensors_like_any_other():
    torch.manual_seed(0)
    with torch.no_grad():
        y = attend(torch.randn(1, 1, TOKENS, 64))
    kept = y.clone()
    y.resize_(1, 1, 2 * TOKENS, 64)
    assert torch.equal(y[:, :, :TOKENS], kept)
    assert (y[:, :, :TOKENS].numpy() == kept.numpy()).all()
    with torch.inference_mode():
        assert attend(torch.randn(1, 1, TOKENS, 64)).is_inference()


def test_huge_pages_can_be_turned_off():
    def offset(value):
        done = subprocess.run([sys.executable, "-c", PROGRAM], env={**os.environ, "STRATA_HUGE_PAGES": value}, capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert offset("1") == 0
    assert offset("0") != 0  # the C library puts its own numbers in front
