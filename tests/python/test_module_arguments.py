"""What the modules take beside their input: packed sequences, other keys, windows, ALiBi, dropout, and the argument names of
nn.MultiheadAttention."""

import pytest
import torch

import strata

F64 = torch.float64
LENGTHS = [9, 1, 0, 16, 5]


def ends(lengths):
    return [0, *torch.tensor(lengths).cumsum(0).tolist()]


MODULES = {
    "flat": lambda: strata.FlatAttention(16, 4, causal=True, dtype=F64),
    "hkt": lambda: strata.HktAttention(16, 4, key_heads=2, causal=True, dtype=F64),
    "rotary": lambda: strata.HktAttention(16, 4, causal=True, rotary=4, levels=4, input_filter=True, dtype=F64),
    "dense": lambda: strata.HktAttention(16, 4, dense_filters=True, window_size=(5, 2), alibi=True, dtype=F64),
    "streaming": lambda: strata.StrataAttention(16, 4, form="streaming", branching=3, near=2, rotary=2, dtype=F64),
    "hsa": lambda: strata.HsaAttention(16, 4, key_heads=2, streaming=True, branching=3, rotary=4, dtype=F64),
    "both sides": lambda: strata.StrataAttention(16, 4, form="both sides", branching=3, key_heads=1, dtype=F64),
}


@pytest.mark.parametrize("name", MODULES)
def test_packed_sequences_are_as_alone(name):
    torch.manual_seed(0)
    module = MODULES[name]()
    x = torch.randn(1, sum(LENGTHS), 16, dtype=F64, requires_grad=True)
    got = module(x, cu_seqlens=ends(LENGTHS), max_seqlen=16)
    want = torch.cat([module(part) if part.shape[1] else part for part in x.split(LENGTHS, 1)], 1)
    assert torch.allclose(got, want, atol=1e-10)
    dy, inputs = torch.randn_like(got), [x, *module.parameters()]
    for a, b in zip(
        torch.autograd.grad((got * dy).sum(), inputs), torch.autograd.grad((want * dy).sum(), inputs), strict=True
    ):
        assert torch.allclose(a, b, atol=1e-9)


def test_both_layouts_of_rotary_pairs():
    """Interleaved pairs are halves in another order of channels; both are turned as complex numbers are."""
    x, places = torch.randn(2, 3, 7, 10, dtype=F64), torch.tensor([0, 1, 5, 100, 7, 7, 2])
    order = [0, 2, 4, 1, 3, 5, 6, 7, 8, 9]  # first parts of the pairs, second parts, channels that stay
    halves = strata.rotate(x[..., order], places, 6, 500.0)
    interleaved = strata.rotate(x, places, 6, 500.0, interleaved=True)
    assert torch.allclose(interleaved[..., order], halves)
    angles = places[:, None] * 500.0 ** (-torch.arange(0, 6, 2, dtype=F64) / 6)
    turned = torch.view_as_complex(x[..., :6].reshape(2, 3, 7, 3, 2)) * torch.polar(torch.ones_like(angles), angles)
    assert torch.allclose(interleaved[..., :6], torch.view_as_real(turned).flatten(-2))
    assert torch.equal(interleaved[..., 6:], x[..., 6:])
    for kind in (strata.HktAttention, strata.HsaAttention):
        options = {"streaming": True, "branching": 4} if kind is strata.HsaAttention else {"causal": True}
        module = kind(16, 2, rotary=8, rotary_interleaved=True, dtype=F64, **options)
        steps, cache = module.prefill(x.reshape(2, 21, 10)[:, :5].repeat(1, 1, 2)[..., :16])
        rows = x.reshape(2, 21, 10).repeat(1, 1, 2)[..., :16]
        got = [steps, *(module.step(rows[:, t], cache)[:, None] for t in range(5, 21))]
        assert torch.allclose(torch.cat(got, 1), module(rows))


def test_grouped_heads_of_hsa_are_repeated_keys():
    torch.manual_seed(6)
    grouped = strata.HsaAttention(16, 4, key_heads=2, dtype=F64)
    whole = strata.HsaAttention(16, 4, dtype=F64)
    with torch.no_grad():
        for name in ("query", "key", "value", "out"):
            weight = getattr(grouped, name).weight
            if name in ("key", "value"):
                weight = weight.view(2, 4, 16).repeat_interleave(2, 0).reshape(16, 16)
            getattr(whole, name).weight.copy_(weight)
    x = torch.randn(2, 20, 16, dtype=F64)
    tree = [strata.Tree.balanced(20, 4)] * 2
    assert torch.allclose(grouped(x, tree), whole(x, tree))
    streams = [strata.HsaAttention(16, 4, key_heads=heads, streaming=True, branching=4, dtype=F64) for heads in (2, 4)]
    for stream, from_tree in zip(streams, (grouped, whole), strict=True):
        stream.load_state_dict(from_tree.state_dict())
    want = streams[1](x)
    assert torch.allclose(streams[0](x), want)
    out, cache = streams[0].prefill(x[:, :7])
    rows = [out, *(streams[0].step(x[:, t], cache)[:, None] for t in range(7, 20))]
    assert torch.allclose(torch.cat(rows, 1), want)


def test_keys_may_come_from_elsewhere():
    torch.manual_seed(1)
    module = strata.HktAttention(16, 4, key_heads=2, dtype=F64)
    x, memory = torch.randn(2, 11, 16, dtype=F64), torch.randn(2, 20, 16, dtype=F64)
    q, k = ([module.project(state, level)[at] for level, state in enumerate(module.pyramid(source))]
            for at, source in enumerate((x, memory)))  # fmt: skip
    v = module.split_heads(module.value(memory), 2)
    mixed, _ = strata.hkt_attention(q, k, v, module.level_weights(), key_lengths=[20, 7])
    want = module.out(mixed.transpose(1, 2).reshape(2, 11, 16))
    assert torch.allclose(module(x, key=memory, key_lengths=[20, 7]), want)
    padding = torch.arange(20) >= torch.tensor([20, 7])[:, None]
    assert torch.equal(module(x, key=memory, key_padding_mask=padding), module(x, key=memory, key_lengths=[20, 7]))
    changed = memory.clone()
    changed[1, 7:] = torch.nan
    assert torch.equal(module(x, key=changed, key_padding_mask=padding), module(x, key=memory, key_padding_mask=padding))
    packed = module(x.reshape(1, 22, 16), key=memory.reshape(1, 40, 16), cu_seqlens=[0, 11, 22], key_cu_seqlens=[0, 20, 40])
    assert torch.allclose(packed.reshape(2, 11, 16), module(x, key=memory))


def test_masks_are_those_of_multihead_attention():
    """With one level and the same weights the modules compute the same, mask by mask."""
    torch.manual_seed(2)
    theirs = torch.nn.MultiheadAttention(16, 4, bias=False, batch_first=True, dtype=F64)
    ours = strata.FlatAttention(embed_dim=16, num_heads=4, bias=False, dropout=0.0, dtype=F64)
    with torch.no_grad():
        for name, part in zip(("query", "key", "value"), theirs.in_proj_weight.chunk(3), strict=True):
            getattr(ours, name).weight.copy_(part)
        ours.out.weight.copy_(theirs.out_proj.weight)
    x = torch.randn(3, 10, 16, dtype=F64)
    hidden = torch.rand(10, 10) < 0.3
    hidden.fill_diagonal_(False)
    added = torch.randn(10, 10, dtype=F64)
    padding = torch.arange(10) >= torch.tensor([10, 6, 3])[:, None]
    for options in ({}, {"attn_mask": hidden}, {"attn_mask": added}):
        want, _ = theirs(x, x, x, need_weights=False, **options)
        assert torch.allclose(ours(x, **options), want)
    want, _ = theirs(x, x, x, key_padding_mask=padding, need_weights=False)
    real = ~padding
    assert torch.allclose(ours(x, key_padding_mask=padding)[real], want[real])
    causal, _ = theirs(x, x, x, attn_mask=torch.ones(10, 10, dtype=torch.bool).triu(1), need_weights=False)
    assert torch.allclose(ours(x, is_causal=True), causal)


@pytest.mark.parametrize("kind", [strata.HsaAttention, strata.StrataAttention])
def test_names_of_multihead_attention_on_trees(kind):
    torch.manual_seed(7)
    module = kind(embed_dim=16, num_heads=4, bias=True, dropout=0.0, branching=4, dtype=F64)
    assert module.heads == 4 and module.query.bias is not None
    x = torch.randn(2, 12, 16, dtype=F64)
    padding = torch.arange(12) >= torch.tensor([12, 5])[:, None]
    assert torch.equal(module(x, key_padding_mask=padding), module(x, lengths=[12, 5]))
    with pytest.raises(ValueError, match="lengths: expected none with key_padding_mask"):
        module(x, lengths=[12, 5], key_padding_mask=padding)


def test_windows_and_alibi_of_the_module():
    torch.manual_seed(3)
    x = torch.randn(1, 30, 16, dtype=F64)
    module = strata.HktAttention(16, 4, causal=True, window_size=(6, -1), alibi=True, dtype=F64)
    plain = strata.HktAttention(16, 4, dtype=F64)
    plain.load_state_dict(module.state_dict())
    i = torch.arange(30)
    slopes = 2.0 ** (-8.0 * torch.arange(1, 5, dtype=F64) / 4)
    bias = -slopes[:, None, None] * (i[:, None] - i).abs()
    bias = bias.masked_fill((i > i[:, None]) | (i < i[:, None] - 6), -torch.inf)
    assert torch.allclose(module(x), plain(x, bias=bias[None]))


def test_dropout_is_for_training():
    x = torch.randn(2, 20, 16)
    for module in (
        strata.HktAttention(16, 4, dropout=0.5),
        strata.StrataAttention(16, 4, form="streaming", attention_dropout=0.5),
        strata.HsaAttention(16, 4, streaming=True, attention_dropout=0.5),
    ):
        module.train()
        torch.manual_seed(4)
        first = module(x)
        assert not torch.equal(first, module(x))
        torch.manual_seed(4)
        assert torch.equal(first, module(x))
        module.eval()
        assert torch.equal(module(x), module(x))


def test_a_window_of_the_module_is_that_of_its_cache():
    torch.manual_seed(5)
    module = strata.HktAttention(16, 4, causal=True, window_size=(7, -1), dtype=F64)
    x = torch.randn(2, 40, 16, dtype=F64)
    want = module(x)
    got, cache = module.prefill(x[:, :13])
    rows = [got, *(module.step(x[:, t], cache)[:, None] for t in range(13, 40))]
    assert torch.allclose(torch.cat(rows, 1), want)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: strata.HktAttention(16, 4, embed_dim=16), "model_size, embed_dim: expected one of them"),
        (lambda: strata.HktAttention(16), "heads: expected a number, got none"),
        (lambda: strata.StrataAttention(16, 4, attention_dropout=0.1), "attention_dropout: expected 0 with trees"),
        (lambda: strata.HsaAttention(16, 4, attention_dropout=0.1), "0 with trees, whose tokens share weights"),
        (lambda: strata.HsaAttention(16, 4, key_heads=3), "key_heads: expected a divisor of heads = 4"),
        (lambda: strata.StrataAttention(16, 4, alibi=True), "alibi, window_size: expected none"),
        (lambda: strata.HktAttention(16, 4, causal=True, alibi=True).prefill(torch.zeros(1, 2, 16)), "without alibi"),
        (
            lambda: strata.HktAttention(16, 4)(
                torch.zeros(1, 3, 16), key_padding_mask=torch.tensor([[True, False, False]])
            ),
            "padding on the right alone",
        ),
        (lambda: strata.HktAttention(16, 4)(torch.zeros(1, 3, 16), key=torch.zeros(1, 3, 8)), "key: expected shape"),
        (
            lambda: strata.HktAttention(16, 4, psd=True)(torch.zeros(1, 3, 16), key=torch.zeros(1, 3, 16)),
            "key: expected none with psd",
        ),
        (
            lambda: strata.StrataAttention(16, 4)(torch.zeros(1, 3, 16), cu_seqlens=[0, 3]),
            "cu_seqlens: expected none with trees",
        ),
    ],
)
def test_mistakes_are_named(make, words):
    with pytest.raises((ValueError, TypeError), match=words):
        make()
