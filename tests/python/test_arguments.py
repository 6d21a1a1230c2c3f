"""The arguments of today's models, alone and in random combinations, against plain formulas in float64.

A failure prints the seed of its combination: pytest tests/python/test_arguments.py -k 'combination and seed'."""

import math
import random

import pytest
import torch

import strata

F64 = torch.float64


def philox(key, counter):
    """Philox4x32-10: four words of 32 bits."""
    low = 0xFFFFFFFF
    c, k0, k1 = list(counter), key & low, key >> 32
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k0, b & low, (a >> 32) ^ c[3] ^ k1, a & low]
        k0, k1 = (k0 + 0x9E3779B9) & low, (k1 + 0xBB67AE85) & low
    return c


def kept(state, p, batch, head, row, block, bit):
    """Whether a weight is kept: entry `bit` of eight neighbours."""
    key = (state[0] + state[1] * 0x9E3779B97F4A7C15) % 2**64
    word = philox(key, (block, row, head, batch))[bit // 2]
    return (word >> (16 * (bit % 2)) & 0xFFFF) >= round(p * 65536)


def dropout_factors(state, p, batch, heads, rows, keys):
    factors = torch.zeros(heads, rows, keys, dtype=F64)
    for h in range(heads):
        for i in range(rows):
            for j in range(keys):
                factors[h, i, j] = kept(state, p, batch, h, i, j // 8, j % 8) / (1 - round(p * 65536) / 65536)
    return factors


def plain(q, k, v, weights, *, batch=0, length=None, key_length=None, bias=None, causal=False, window=(-1, -1), slopes=None,
          dropout=0.0, state=None):  # fmt: skip
    """HKT attention of one sequence by whole matrices. q, k: lists of (H, rows, d), v: (Hk, keys, dv)."""
    heads, rows, d = q[0].shape
    keys = v.shape[1]
    group = heads // v.shape[0]
    scores = torch.zeros(heads, rows, keys, dtype=F64)
    for level, (x, y) in enumerate(zip(q, k, strict=True)):
        fine_q = x.repeat_interleave(2**level, 1)[:, :rows]
        fine_k = y.repeat_interleave(2**level, 1)[:, :keys].repeat_interleave(group, 0)
        scores = scores + weights[:, level, None, None] * (fine_q @ fine_k.transpose(1, 2))
    scores = scores / math.sqrt(d)
    i, j = torch.arange(rows)[:, None], torch.arange(keys)[None]
    if slopes is not None:
        scores = scores - slopes[:, None, None] * (i - j).abs()
    if bias is not None:
        scores = scores + bias
    seen = (i < (rows if length is None else length)) & (j < (keys if key_length is None else key_length))
    if causal:
        seen = seen & (j <= i)
    if window[0] >= 0:
        seen = seen & (j >= i - window[0])
    if window[1] >= 0:
        seen = seen & (j <= i + window[1])
    scores = scores.masked_fill(~seen, -math.inf)
    empty = (scores == -math.inf).all(-1, keepdim=True)
    attention = torch.softmax(scores.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)
    if dropout > 0:
        attention = attention * dropout_factors(state, dropout, batch, heads, rows, keys)
    return attention @ v.repeat_interleave(group, 0)


def pyramid(generator, heads, rows, levels, d=4, batch=None):
    shape = (heads,) if batch is None else (batch, heads)
    return [torch.randn(*shape, -(-rows // 2**level), d, generator=generator, dtype=F64) for level in range(levels)]


def convex(generator, heads, levels):
    return torch.softmax(torch.randn(heads, levels, generator=generator, dtype=F64), -1)


def gradients(loss, inputs):
    return torch.autograd.grad(loss, inputs, allow_unused=True)


def expect_same(got, want, where):
    for n, (x, y) in enumerate(zip(got, want, strict=True)):
        zero = torch.zeros(()) if x is None else torch.zeros_like(x)
        x, y = (zero if g is None else g for g in (x, y))
        assert torch.allclose(x, y.reshape(x.shape), atol=1e-10, rtol=1e-9), f"{where}: tensor {n}"


@pytest.mark.parametrize("seed", range(40))
def test_a_random_combination_equals_the_plain_formula(seed):
    chance = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    key_heads, group, levels, batch = chance.choice([1, 2]), chance.choice([1, 2]), chance.choice([1, 2, 3]), 2
    rows = chance.choice([1, 9, 17, 33])
    keys = rows if chance.random() < 0.5 else chance.choice([1, 8, 21])
    options, rules = {}, {}
    if chance.random() < 0.5:
        options["causal"] = rules["causal"] = True
    if chance.random() < 0.5:
        options["window_size"] = rules["window"] = (chance.choice([-1, 0, 3, 11]), chance.choice([-1, 0, 2, 9]))
    if chance.random() < 0.4:
        options["alibi_slopes"] = rules["slopes"] = 2.0 ** -torch.arange(1.0, key_heads * group + 1, dtype=F64)
    if chance.random() < 0.4:
        options["dropout_p"] = rules["dropout"] = chance.choice([0.1, 0.5])
        options["dropout_state"], rules["state"] = torch.tensor([seed, 5]), (seed, 5)
    lengths, key_lengths = [chance.randint(0, rows) for _ in range(batch)], [chance.randint(0, keys) for _ in range(batch)]
    if keys == rows and chance.random() < 0.5:
        key_lengths = lengths
        options["lengths"] = lengths
    else:
        options["lengths"], options["key_lengths"] = lengths, key_lengths
    bias = torch.randn(key_heads * group, rows, keys, generator=generator, dtype=F64) if chance.random() < 0.3 else None
    q, k = pyramid(generator, key_heads * group, rows, levels, batch=batch), pyramid(generator, key_heads, keys, levels, batch=batch)
    v = torch.randn(batch, key_heads, keys, 3, generator=generator, dtype=F64)
    weights = convex(generator, key_heads * group, levels)
    inputs = [x.requires_grad_() for x in (*q, *k, v, weights)]
    out, _ = strata.hkt_attention(q, k, v, weights, bias=bias, **options)
    want = torch.stack([
        plain([x[b] for x in q], [x[b] for x in k], v[b], weights, batch=b, length=lengths[b], key_length=key_lengths[b],
              bias=bias, **rules) for b in range(batch)
    ])  # fmt: skip
    dout = torch.randn(out.shape, generator=generator, dtype=F64)
    expect_same([out], [want], f"seed {seed}, {options}")
    expect_same(gradients((out * dout).sum(), inputs), gradients((want * dout).sum(), inputs), f"gradients, seed {seed}, {options}")


def pack(sequences):
    """Levels of several sequences, lists of (H, rows, d) each, as packed tensors (1, H, rows, d) with the rows that
    packed_rows asks for; those that belong to no sequence are NaN."""
    packed = []
    total = sum(levels[0].shape[1] for levels in sequences)
    for level in range(len(sequences[0])):
        rows = torch.cat([levels[level] for levels in sequences], 1)
        missing = strata.packed_rows(total, len(sequences), level) - rows.shape[1]
        filler = torch.full((rows.shape[0], missing, rows.shape[2]), math.nan, dtype=F64)
        packed.append(torch.cat([rows, filler], 1)[None])
    return packed


def ends(lengths):
    return [0, *torch.tensor(lengths).cumsum(0).tolist()]


@pytest.mark.parametrize("lengths", [[5, 16, 1, 0, 11], [7], [0, 0, 3], [64, 65, 2]])
@pytest.mark.parametrize("levels", [1, 3])
def test_packed_sequences_are_as_alone(lengths, levels):
    generator = torch.Generator().manual_seed(sum(lengths))
    q = [pyramid(generator, 4, n, levels) for n in lengths]
    k = [pyramid(generator, 2, n, levels) for n in lengths]
    v = [torch.randn(2, n, 3, generator=generator, dtype=F64) for n in lengths]
    weights = convex(generator, 4, levels)
    leaves = [x.requires_grad_() for levels_of in (*q, *k) for x in levels_of] + [x.requires_grad_() for x in v] + [weights.requires_grad_()]
    state = torch.tensor([11, 3])
    out, lse = strata.hkt_attention(
        pack(q), pack(k), torch.cat(v, 1)[None], weights, causal=True, window_size=(20, -1), dropout_p=0.2, dropout_state=state,
        cu_seqlens=ends(lengths),
    )  # fmt: skip
    assert lse.shape == (1, 4, sum(lengths))
    want = torch.cat([
        plain(q[n], k[n], v[n], weights, batch=n, causal=True, window=(20, -1), dropout=0.2, state=(11, 3))
        for n in range(len(lengths))
    ], 1)[None]  # fmt: skip
    dout = torch.randn(out.shape, generator=generator, dtype=F64)
    expect_same([out], [want], lengths)
    expect_same(gradients((out * dout).sum(), leaves), gradients((want * dout).sum(), leaves), lengths)


@pytest.mark.parametrize("dense", [False, True])
def test_the_filter_keeps_packed_sequences_apart(dense):
    lengths = [5, 1, 0, 8, 3]
    x = torch.randn(1, sum(lengths), 4, dtype=F64, requires_grad=True)
    weight = torch.randn(3, 4, 4, dtype=F64, requires_grad=True) if dense else torch.randn(3, 4, dtype=F64, requires_grad=True)
    cu = torch.tensor(ends(lengths))
    for stride in (1, 2):
        got = strata.causal_filter(x, weight, stride, cu)
        alone = [strata.causal_filter(part, weight, stride) for part in x.split(lengths, 1)]
        want = torch.cat(alone, 1)
        assert got.shape[1] == strata.packed_rows(sum(lengths), len(lengths), stride - 1)
        assert (got[:, want.shape[1] :] == 0).all()
        dy = torch.randn_like(want)
        expect_same([got[:, : want.shape[1]]], [want], stride)
        grads = gradients((got[:, : want.shape[1]] * dy).sum(), [x, weight])
        expect_same(grads, gradients((want * dy).sum(), [x, weight]), stride)


@pytest.mark.parametrize("both_sides", [False, True])
def test_packed_streams_are_as_alone(both_sides):
    lengths, levels = [40, 3, 0, 17], 2
    generator = torch.Generator().manual_seed(0)
    q = [pyramid(generator, 4, n, levels) for n in lengths]
    k = [pyramid(generator, 2, n, levels) for n in lengths]
    v = [torch.randn(2, n, 3, generator=generator, dtype=F64) for n in lengths]
    weights = convex(generator, 4, levels)
    leaves = [x.requires_grad_() for levels_of in (*q, *k) for x in levels_of] + [x.requires_grad_() for x in v] + [weights.requires_grad_()]
    options = {"near": 2, "both_sides": both_sides, "level_weights": weights}
    out, _ = strata.hsa_stream_attention(pack(q), pack(k), torch.cat(v, 1)[None], 3, cu_seqlens=ends(lengths), **options)
    alone = [
        strata.hsa_stream_attention([x[None] for x in q[n]], [x[None] for x in k[n]], v[n][None], 3, **options)[0]
        for n in range(len(lengths))
    ]
    want = torch.cat(alone, 2)
    dout = torch.randn(out.shape, generator=generator, dtype=F64)
    expect_same([out], [want], lengths)
    expect_same(gradients((out * dout).sum(), leaves), gradients((want * dout).sum(), leaves), lengths)


def test_streams_drop_by_height_and_node():
    """With `near` without end all entries are leaves, whose draws are those of HKT's keys."""
    generator = torch.Generator().manual_seed(1)
    q, k = pyramid(generator, 2, 30, 1, batch=2), pyramid(generator, 2, 30, 1, batch=2)
    v = torch.randn(2, 2, 30, 3, generator=generator, dtype=F64)
    state = torch.tensor([8, 1])
    weights = torch.ones(2, 1, dtype=F64)
    hkt, _ = strata.hkt_attention(q, k, v, weights, causal=True, dropout_p=0.3, dropout_state=state)
    stream, _ = strata.hsa_stream_attention(q[0], k[0], v, 4, near=100, dropout_p=0.3, dropout_state=state)
    assert torch.allclose(hkt, stream)
    dropped, _ = strata.hsa_stream_attention(q[0], k[0], v, 2, near=1, dropout_p=0.3, dropout_state=state)
    whole, _ = strata.hsa_stream_attention(q[0], k[0], v, 2, near=1)
    assert not torch.allclose(dropped, whole)


def test_dropout_follows_torchs_generator():
    q = torch.randn(1, 2, 20, 4)
    torch.manual_seed(3)
    one = strata.attention(q, q, q, dropout_p=0.5)
    two = strata.attention(q, q, q, dropout_p=0.5)
    torch.manual_seed(3)
    assert torch.equal(one, strata.attention(q, q, q, dropout_p=0.5))
    assert not torch.equal(one, two)
    near = strata.attention(q, q, q, dropout_p=0.5, near=2, is_causal=True)
    assert near.shape == q.shape


def test_attention_takes_every_argument():
    generator = torch.Generator().manual_seed(2)
    q, k = (torch.randn(1, 4, n, 8, generator=generator, dtype=F64) for n in (12, 20))
    slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])
    got = strata.attention(q, k, k, window_size=(6, 2), alibi_slopes=slopes)
    want = plain([q[0]], [k[0]], k[0], torch.ones(4, 1, dtype=F64), window=(6, 2), slopes=slopes.double())
    assert torch.allclose(got[0], want)
    packed = strata.attention(q, q, q, is_causal=True, cu_seqlens=[0, 5, 12])
    alone = torch.cat([strata.attention(part, part, part, is_causal=True) for part in q.split([5, 7], 2)], 2)
    assert torch.allclose(packed, alone)
    stream = strata.attention(q, q, q, is_causal=True, cu_seqlens=[0, 5, 12], near=1, branching=2)
    assert not torch.allclose(stream, alone)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"window_size": 3}, "window_size: expected a pair"),
        ({"window_size": (-2, 0)}, "window_size: expected -1 or more as left, got -2"),
        ({"dropout_p": 1.0}, "dropout: expected a probability from 0 to 0.9999, got 1"),
        ({"cu_seqlens": [0, 3]}, "the last number to be the 6 rows"),
        ({"cu_seqlens": [1, 6]}, "expected 0 as the first number, got 1"),
        ({"cu_seqlens": [0, 5, 4, 6]}, "do not fall, got 5 and then 4"),
        ({"cu_seqlens": [0, 6], "max_seqlen": 3}, "lengths: expected 0 to tokens = 3, got 6"),
        ({"cu_seqlens": [0, 6], "lengths": [6]}, "expected none with cu_seqlens"),
        ({"key_cu_seqlens": [0, 6]}, "cu_seqlens: expected it with key_cu_seqlens"),
        ({"alibi_slopes": torch.tensor([math.inf] * 2, dtype=F64)}, "slopes: expected finite numbers, got inf"),
        ({"alibi_slopes": torch.ones(3, dtype=F64)}, "slopes: expected shape"),
    ],
)
def test_mistakes_are_named(options, words):
    q = torch.randn(1, 2, 6, 4, dtype=F64)
    with pytest.raises((RuntimeError, ValueError), match=words.replace("(", "\\(")):
        strata.hkt_attention([q], [q], q, torch.ones(2, 1, dtype=F64), **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"near": 1, "window_size": (1, 1)}, "window_size: expected none with near"),
        ({"near": 1, "alibi_slopes": torch.ones(2)}, "alibi_slopes: expected none with near"),
        ({"tree": strata.Tree.star(6), "dropout_p": 0.1}, "dropout_p: expected 0 with a tree"),
        ({"tree": strata.Tree.star(6), "cu_seqlens": [0, 6]}, "cu_seqlens: expected none with a tree"),
    ],
)
def test_what_does_not_combine_is_refused(options, words):
    q = torch.randn(1, 2, 6, 4)
    with pytest.raises(ValueError, match=words):
        strata.attention(q, q, q, **options)


def test_cross_attention_is_refused_where_keys_share_scores():
    q, k = torch.randn(1, 2, 6, 4), torch.randn(1, 2, 7, 4)
    with pytest.raises(ValueError, match="cross-attention goes with levels alone"):
        strata.attention(q, k, k, near=1)
