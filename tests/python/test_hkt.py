"""The Python package: operators, module, decoding, exchange with C++."""

import os
import subprocess

import pytest
import torch

import strata

numpy = pytest.importorskip("numpy")

VARIANTS = [
    {},
    {"levels": 1},
    {"levels": 4, "taps": 1},
    {"dense_filters": True, "taps": 2},
    {"input_filter": True, "projection_bias": True},
    {"per_level_projections": True, "key_heads": 2},
    {"psd": True},
    {"psd": True, "per_level_projections": True, "dense_filters": True, "input_filter": True},
    {"rotary": 4},
    {"levels": 4, "level_weights": "level-1"},
]


def make(causal=True, dtype=torch.float64, **options):
    torch.manual_seed(5)
    module = strata.HktAttention(16, 4, causal=causal, **options).to(dtype)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return module


def make_inputs(tokens=7, levels=3, dtype=torch.float64):
    torch.manual_seed(3)
    rows = [(tokens + 2**level - 1) // 2**level for level in range(levels)]
    q = [torch.randn(2, 4, n, 3, dtype=dtype, requires_grad=True) for n in rows]
    k = [torch.randn(2, 2, n, 3, dtype=dtype, requires_grad=True) for n in rows]
    v = torch.randn(2, 2, tokens, 5, dtype=dtype, requires_grad=True)
    weights = torch.softmax(torch.randn(4, levels, dtype=dtype), -1).requires_grad_()
    return q, k, v, weights


@pytest.mark.parametrize("causal", [False, True])
def test_gradcheck(causal):
    q, k, v, weights = make_inputs()
    bias = torch.randn(4, 7, 7, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([7, 4])

    def attend(*tensors):
        out, lse = strata.hkt_attention(
            tensors[:3], tensors[3:6], tensors[6], tensors[7], lengths=lengths, bias=tensors[8], causal=causal
        )
        return out, lse.masked_fill(torch.isinf(lse), 0.0)

    assert torch.autograd.gradcheck(attend, (*q, *k, v, weights, bias))


def test_one_level_is_softmax_attention():
    q, k, v, _ = make_inputs(levels=1)
    out, lse = strata.hkt_attention(q, k, v, torch.ones(4, 1, dtype=torch.float64))
    scores = q[0] @ k[0].repeat_interleave(2, 1).transpose(-1, -2) / 3**0.5
    assert torch.allclose(out, torch.softmax(scores, -1) @ v.repeat_interleave(2, 1))
    assert torch.allclose(lse, torch.logsumexp(scores, -1))


def test_double_backward_is_refused():
    q, k, v, weights = make_inputs()
    out, _ = strata.hkt_attention(q, k, v, weights)
    (first,) = torch.autograd.grad(out.sin().sum(), [v], create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
        first.sum().backward()


def test_errors_name_the_argument():
    q, k, v, weights = make_inputs()
    with pytest.raises(ValueError, match="weights: expected finite numbers"):
        strata.hkt_attention(q, k, v, weights / 0)
    with pytest.raises(RuntimeError, match=r"q\[1\]: expected shape"):
        strata.hkt_attention([q[0], q[0], q[2]], k, v, weights)
    with pytest.raises(ValueError, match="multiple of heads"):
        strata.HktAttention(10, 4)
    with pytest.raises(ValueError, match="attention_dropout"):
        strata.HktAttention(8, 4, attention_dropout=1.0)
    with pytest.raises(ValueError, match="x: expected shape"):
        strata.HktAttention(8, 4)(torch.zeros(3, 8))
    with pytest.raises(ValueError, match="expected a causal module"):
        strata.HktAttention(8, 4).prefill(torch.zeros(1, 3, 8))


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_state_dict_moves_to_cpp_and_back(options, tmp_path):
    module = make(dtype=torch.float32, **options)
    x = torch.randn(2, 13, 16)
    described = {
        "module": "hkt",
        "model_size": 16,
        "heads": 4,
        "key_heads": module.key_heads,
        "levels": module.levels,
        "taps": module.taps,
        "dense_filters": module.dense_filters,
        "input_filter": module.input_filter,
        "per_level_projections": module.per_level_projections,
        "psd": module.psd,
        "projection_bias": options.get("projection_bias", False),
        "causal": True,
        "rotary": module.rotary,
    }
    source, result = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    strata.save_safetensors(source, {"x": x, **module.state_dict()}, described)
    subprocess.run([os.environ["STRATA_RUN_MODULE"], source, result], check=True)
    tensors, _ = strata.load_safetensors(result)
    y = tensors.pop("y")
    # C++ projects queries, keys and values in one product, whose sums some BLAS kernels take in another order.
    torch.testing.assert_close(y, module(x), rtol=0, atol=1e-5)
    fresh = strata.HktAttention(16, 4, causal=True, **options)
    fresh.load_state_dict(tensors)  # strict: the same names, no more and no fewer
    assert torch.equal(fresh(x), module(x))


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_decoding_equals_the_parallel_forward(options, tmp_path):
    module = make(**options)
    x = torch.randn(3, 30, 16, dtype=torch.float64)
    want = module(x)
    starts = [0, 5, 12]
    prompt, cache = module.prefill(x[:, :12], torch.tensor(starts))
    assert torch.allclose(prompt[2], want[2, :12])
    for step in range(18):
        if step == 9:  # saved and restored in the middle
            strata.save_safetensors(tmp_path / "cache.safetensors", cache.state_dict())
            cache = strata.HktCache(strata.load_safetensors(tmp_path / "cache.safetensors")[0])
        tokens = torch.stack([x[b, start + step] for b, start in enumerate(starts)])
        expected = torch.stack([want[b, start + step] for b, start in enumerate(starts)])
        assert torch.allclose(module.step(tokens, cache), expected, rtol=1e-10)


LOW = {  # what is bfloat16: the whole module, or its products; (type of the parameters, autocast)
    "bfloat16 module": (torch.bfloat16, False),
    "autocast": (torch.float32, True),
}


@pytest.mark.parametrize("kind", LOW)
@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_decoding_in_bfloat16(options, kind):
    """A step equals the parallel forward of the same module to the rounding of bfloat16."""
    dtype, autocast = LOW[kind]
    module = make(dtype=dtype, **options)
    x = torch.randn(2, 20, 16).to(dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        want = module(x).detach()
        prompt, cache = module.prefill(x[:, :7], [7, 4])
        torch.testing.assert_close(prompt[0], want[0, :7], atol=0.02, rtol=0.02)
        for step in range(12):
            got = module.step(torch.stack([x[0, 7 + step], x[1, 4 + step]]), cache)
            assert got.dtype == want.dtype == torch.bfloat16
            expected = torch.stack([want[0, 7 + step], want[1, 4 + step]])
            scale = float(want.abs().max())
            assert (got - expected).abs().max() < 0.03 * scale
    assert cache.lengths.tolist() == [19, 16]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_a_cache_may_be_used_with_and_without_autocast(options):
    module = make(dtype=torch.float32, **options)
    x = torch.randn(1, 20, 16)
    want = module(x).detach()
    for first in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=first):
            _, cache = module.prefill(x[:, :8])
        for t in range(8, 13):  # levels 1, 2 and 3 get new states
            with torch.autocast("cpu", torch.bfloat16, enabled=not first):
                got = module.step(x[:, t], cache)
            assert (got.float() - want[:, t]).abs().max() < 0.05 * want.abs().max()


@pytest.mark.parametrize("form", [list, tuple, numpy.array, torch.tensor, lambda n: torch.tensor(n, dtype=torch.int32)])
def test_lengths_in_every_form(form):
    module = make()
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    lengths = form([5, 3])
    out = module(x, lengths=lengths)
    for n, length in enumerate((5, 3)):
        assert torch.allclose(out[n, :length], module(x[n : n + 1, :length])[0])
        assert bool((out[n, length:] == 0).all())  # no bias in the projections
    _, cache = module.prefill(x, lengths)
    assert cache.lengths.tolist() == [5, 3] and cache.lengths.dtype == torch.int64
    q, k, v, weights = make_inputs()
    got, _ = strata.hkt_attention(q, k, v, weights, lengths=lengths)
    assert torch.equal(got, strata.hkt_attention(q, k, v, weights, lengths=torch.tensor([5, 3]))[0])
    newest = [t[:, :, :1].detach() for t in q]
    k, v, weights = [t.detach() for t in k], v.detach(), weights.detach()
    got = strata.hkt_decode(newest, k, v, weights, lengths)
    assert torch.equal(got, strata.hkt_decode(newest, k, v, weights, torch.tensor([5, 3])))


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([5], "lengths: expected 2 numbers from 0 to 9, one per sequence, got 1 numbers"),
        ([5, 10], "got 10 for sequence 1"),
        ([-1, 3], "got -1 for sequence 0"),
        ([5, 3.5], r"lengths\[1\]: expected a whole number, got 3.5"),
        (5, "lengths: expected a list, tuple, numpy array or tensor of whole numbers, got 5"),
        ("53", "lengths: expected a list"),
        (numpy.array([5.0, 3.0]), "lengths: .*float64"),
        (torch.tensor([5.0, 3.0]), "lengths: expected 2 whole numbers"),
        (torch.tensor([True, False]), "lengths: expected 2 whole numbers"),
        (torch.tensor([[5, 3]]), r"lengths: .*shape \(1, 2\)"),
        (torch.tensor([5, 3, 1]), r"lengths: .*shape \(3,\)"),
        (torch.tensor([5, 10]), "lengths: expected .*got 10"),
        (torch.tensor([5, -1]), "lengths: expected .*got -1"),
    ],
)
def test_wrong_lengths(lengths, message):
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    with pytest.raises(ValueError, match=message):
        make()(x, lengths)
    with pytest.raises(ValueError, match=message):
        strata.HktCache.from_prompt(make(), x, lengths)


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_device_and_dtype_of_the_parameters(options):
    module = strata.HktAttention(16, 4, **options, dtype=torch.float64, device="cpu")
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float64}
    assert module(torch.randn(1, 9, 16, dtype=torch.float64)).dtype == torch.float64
    torch.manual_seed(3)
    plain = strata.HktAttention(16, 4, **options)
    torch.manual_seed(3)
    given = strata.HktAttention(16, 4, **options, device=torch.device("cpu"), dtype=torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), given.parameters()))
    skeleton = strata.HktAttention(16, 4, **options, device="meta", dtype=torch.bfloat16)
    assert all(parameter.is_meta and parameter.dtype == torch.bfloat16 for parameter in skeleton.parameters())
    assert skeleton.state_dict().keys() == plain.state_dict().keys()


@pytest.mark.parametrize("key_heads", [0, -1, 3, 8])
def test_key_heads_must_divide(key_heads):
    with pytest.raises(ValueError, match="key_heads: expected a divisor of heads = 4"):
        strata.HktAttention(16, 4, key_heads=key_heads)


def test_padding_may_hold_anything():
    module = make(causal=False)
    x = torch.randn(1, 9, 16, dtype=torch.float64)
    padded = torch.cat([x, torch.full((1, 4, 16), float("nan"), dtype=torch.float64)], 1)
    got = module(padded, torch.tensor([9]))[:, :9]
    assert torch.allclose(got, module(x))
    got.sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in module.parameters())


def test_flat_attention_is_one_level():
    assert strata.FlatAttention(8, 2).levels == 1


def test_trains():
    """A few steps of AdamW on a copy task bring the loss down: gradients reach everything with the right sign."""
    torch.manual_seed(0)
    module = strata.HktAttention(16, 4, causal=True)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    x = torch.randn(4, 32, 16)
    losses = []
    for _ in range(60):
        loss = ((module(x) - x) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.skipif(int(torch.__version__.split(".")[0]) < 2, reason="torch.compile needs PyTorch 2")
def test_torch_compile():
    module = make(dtype=torch.float32)
    x = torch.randn(2, 40, 16)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(x), module(x), atol=1e-6)
    compiled(x).sum().backward()
    gradients = [parameter.grad.clone() for parameter in module.parameters()]
    module.zero_grad()
    module(x).sum().backward()
    for compiled_gradient, parameter in zip(gradients, module.parameters()):
        assert torch.allclose(compiled_gradient, parameter.grad, atol=1e-5)
