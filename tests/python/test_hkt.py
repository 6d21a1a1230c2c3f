"""The Python package: operators, module, decoding, exchange with C++."""

import os
import subprocess

import pytest
import torch

import strata

VARIANTS = [
    {},
    {"levels": 1},
    {"levels": 4, "taps": 1},
    {"dense_filters": True, "taps": 2},
    {"input_filter": True, "projection_bias": True},
    {"per_level_projections": True, "key_heads": 2},
    {"psd": True},
    {"psd": True, "per_level_projections": True, "dense_filters": True, "input_filter": True},
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
        strata.HktAttention(8, 4, attention_dropout=0.1)
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
    }
    source, result = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    strata.save_safetensors(source, {"x": x, **module.state_dict()}, described)
    subprocess.run([os.environ["STRATA_RUN_MODULE"], source, result], check=True)
    tensors, _ = strata.load_safetensors(result)
    y = tensors.pop("y")
    assert torch.equal(y, module(x))
    fresh = strata.HktAttention(16, 4, causal=True, **options)
    fresh.load_state_dict(tensors)  # strict: the same names, no more and no fewer
    assert torch.equal(fresh(x), y)


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
