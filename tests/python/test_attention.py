"""strata.attention against plain formulas and torch's own function."""

import math

import pytest
import torch

import strata


def plain(q, k, v, allowed=None, added=0.0, scale=None):
    """Softmax attention, written out; rows that may see nothing are zero."""
    groups = q.shape[-3] // k.shape[-3]
    k, v = (x.repeat_interleave(groups, -3) for x in (k, v))
    s = q @ k.transpose(-1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale) + added
    if allowed is not None:
        s = s.masked_fill(~allowed, -float("inf"))
    return torch.nan_to_num(torch.softmax(s, -1)) @ v


def inputs(*front, heads=4, key_heads=4, tokens=37, seed=1):
    generator = torch.Generator().manual_seed(seed)
    make = lambda h, d: torch.randn(*front, h, tokens, d, dtype=torch.float64, generator=generator).requires_grad_()
    return make(heads, 8), make(key_heads, 8), make(key_heads, 6)


def expect_equal(got, want, leaves):
    assert got.shape == want.shape
    assert torch.allclose(got, want, atol=1e-10)
    grads = [torch.autograd.grad(x.square().sum(), leaves, retain_graph=True) for x in (got, want)]
    for ours, theirs in zip(*grads):
        assert torch.allclose(ours, theirs, atol=1e-9)


@pytest.mark.parametrize("front", [(), (2,), (2, 3)])
def test_any_dimensions_before_the_heads(front):
    q, k, v = leaves = inputs(*front)
    expect_equal(strata.attention(q, k, v), plain(q, k, v), leaves)


def test_causal_scaled_and_grouped():
    q, k, v = leaves = inputs(2, key_heads=2)
    causal = torch.ones(37, 37, dtype=torch.bool).tril()
    expect_equal(
        strata.attention(q, k, v, is_causal=True, scale=0.3, enable_gqa=True), plain(q, k, v, causal, scale=0.3), leaves
    )


@pytest.mark.parametrize("shape", [(37, 37), (4, 37, 37), (2, 1, 37, 37), (2, 1, 1, 37), (2, 4, 37, 37)])
def test_masks_broadcast(shape):
    q, k, v = leaves = inputs(2)
    allowed = torch.rand(shape, generator=torch.Generator().manual_seed(4)) < 0.6
    expect_equal(strata.attention(q, k, v, attn_mask=allowed), plain(q, k, v, allowed), leaves)
    added = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    expect_equal(strata.attention(q, k, v, added), plain(q, k, v, added=added), leaves)


def test_masks_of_many_dimensions():
    q, k, v = leaves = inputs(2, 3)
    allowed = torch.rand(3, 1, 37, 37, generator=torch.Generator().manual_seed(6)) < 0.6
    expect_equal(strata.attention(q, k, v, attn_mask=allowed), plain(q, k, v, allowed), leaves)


def test_rows_that_may_see_nothing_are_zero():
    q, k, v = inputs(1)
    allowed = torch.ones(37, 37, dtype=torch.bool)
    allowed[5] = False
    out = strata.attention(q, k, v, attn_mask=allowed)
    assert (out[:, :, 5] == 0).all() and torch.isfinite(out).all()


@pytest.mark.skipif(not hasattr(torch.nn.functional, "scaled_dot_product_attention"), reason="torch 1.13 has none")
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.2}])
def test_takes_the_place_of_torchs(options):
    q, k, v = leaves = inputs(2)
    peer = torch.nn.functional.scaled_dot_product_attention
    expect_equal(strata.attention(q, k, v, **options), peer(q, k, v, **options), leaves)


def coarse(x, level):
    return x[..., :: 2**level, :].detach().clone().requires_grad_()


def test_levels_are_hkts():
    q, k, v = inputs(2)
    levels = [(coarse(q, level), coarse(k, level)) for level in (1, 2)]
    weights = torch.softmax(torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2)), -1)
    leaves = [q, k, v, *levels[0], *levels[1]]
    lists = [[x, *(pair[i] for pair in levels)] for i, x in enumerate((q, k))]
    want, _ = strata.hkt_attention(*lists, v, weights, causal=True)
    expect_equal(strata.attention(q, k, v, is_causal=True, levels=levels, level_weights=weights), want, leaves)
    uniform, _ = strata.hkt_attention(*lists, v, torch.full((4, 3), 1 / 3, dtype=torch.float64))
    expect_equal(strata.attention(q, k, v, levels=levels), uniform, leaves)


def test_corners_of_tree_and_near():
    q, k, v = leaves = inputs(1)
    causal = torch.ones(37, 37, dtype=torch.bool).tril()
    expect_equal(strata.attention(q, k, v, tree=strata.Tree.star(37)), plain(q, k, v), leaves)
    expect_equal(strata.attention(q, k, v, is_causal=True, near=100, branching=4), plain(q, k, v, causal), leaves)
    expect_equal(strata.attention(q, k, v, near=100, branching=4), plain(q, k, v), leaves)
    balanced, _ = strata.hsa_attention(q, k, v, strata.Tree.balanced(37, 4))
    expect_equal(strata.attention(q, k, v, tree=strata.Tree.balanced(37, 4)), balanced, leaves)
    streamed, _ = strata.hsa_stream_attention(q, k, v, 4, near=2)
    expect_equal(strata.attention(q, k, v, is_causal=True, near=2, branching=4), streamed, leaves)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dropout_p": 1.0}, "dropout_p: expected a probability from 0 to less than 1, got 1.0"),
        ({"tree": 1, "near": 2}, "tree, near: expected one of them"),
        ({"near": 2, "attn_mask": torch.ones(37, 37)}, "attn_mask: expected none with near"),
        ({"tree": 1, "attn_mask": torch.ones(37, 37)}, "attn_mask: expected none with tree"),
        ({"is_causal": True, "attn_mask": torch.ones(37, 37)}, "attn_mask: expected none with is_causal"),
        ({"is_causal": True, "tree": 1}, "is_causal: expected False with a tree"),
        ({"near": 0}, "near"),
    ],
)
def test_what_does_not_combine_is_named(options, words):
    with pytest.raises((ValueError, RuntimeError), match=words):
        strata.attention(*inputs(1), **options)


def test_wrong_shapes_are_named():
    q, k, v = inputs(1)
    with pytest.raises(ValueError, match="key: expected as many tokens as query with near, 37, got 30; cross-attention"):
        strata.attention(q, k[:, :, :30], v[:, :, :30], near=1)
    with pytest.raises(ValueError, match="key: expected as many heads as query, 4, got 2; pass enable_gqa=True"):
        strata.attention(q, k[:, :2], v[:, :2])
    with pytest.raises(ValueError, match="query: expected .* got Tensor of torch.float64, shape"):
        strata.attention(q[0, 0], k, v)
