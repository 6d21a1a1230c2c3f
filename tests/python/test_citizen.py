"""Good behaviour inside PyTorch: transforms, checkpointing, copies, threads, odd inputs, memory, missing gradients."""

import copy
import gc
import io
import pickle
import resource
import threading

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import strata

F64 = torch.float64
needs_func = pytest.mark.skipif(not hasattr(torch.library, "register_vmap"), reason="torch.func needs PyTorch 2.5")
TREE = strata.Tree.balanced(12, 3)
MODULES = {
    "flat": lambda **o: strata.FlatAttention(16, 2, **o),
    "hkt": lambda **o: strata.HktAttention(16, 2, levels=3, causal=True, **o),
    "tree": lambda **o: strata.HsaAttention(16, 2, **o),
    "streaming": lambda **o: strata.HsaAttention(16, 2, streaming=True, branching=4, **o),
}


def made(name, **options):
    torch.manual_seed(5)
    return MODULES[name](**options)


def call(module, x):
    trees = isinstance(module, strata.HsaAttention) and not module.streaming
    return module(x, [strata.Tree.balanced(x.shape[1], 4)] * x.shape[0]) if trees else module(x)


def attentions():
    """Every attention operator as a function of q, k, v (1, 2, 12, 4)."""
    weights = torch.full((2, 1), 1.0, dtype=F64)
    return {
        "flat": lambda q, k, v: strata.hkt_attention([q], [k], v, weights, causal=True)[0],
        "hkt": lambda q, k, v: strata.hkt_attention(
            [q, q[:, :, ::2]], [k, k[:, :, ::2]], v, torch.full((2, 2), 0.5, dtype=F64)
        )[0],
        "tree": lambda q, k, v: strata.hsa_attention(q, k, v, TREE)[0],
        "streaming": lambda q, k, v: strata.hsa_stream_attention(q, k, v, 3)[0],
    }


def qkv(batch=1):
    torch.manual_seed(1)
    return [torch.randn(batch, 2, 12, 4, dtype=F64) for _ in range(3)]


@needs_func
@pytest.mark.parametrize("name", attentions())
def test_torch_func(name):
    attend, (q, k, v) = attentions()[name], qkv()
    q.requires_grad_()
    loss = lambda *args: attend(*args).square().sum()  # noqa: E731
    want = torch.autograd.grad(loss(q, k, v), q)[0]
    torch.testing.assert_close(torch.func.grad(loss)(q.detach(), k, v), want)
    out, pull = torch.func.vjp(attend, q.detach(), k, v)
    torch.testing.assert_close(pull(2 * out)[0], want)
    small = lambda q: attend(q, k, v)[0, 0, 3]  # noqa: E731
    rows = [torch.autograd.grad(attend(q, k, v)[0, 0, 3, i], q)[0] for i in range(4)]
    torch.testing.assert_close(torch.func.jacrev(small)(q.detach()), torch.stack(rows))


@needs_func
@pytest.mark.parametrize("name", attentions())
def test_vmap_and_gradients_per_sample(name):
    attend, (q, k, v) = attentions()[name], qkv(3)
    one = lambda q, k, v: attend(q[None], k[None], v[None])[0]  # noqa: E731
    want = torch.cat([attend(q[i : i + 1], k[i : i + 1], v[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(torch.vmap(one)(q, k, v), want)
    torch.testing.assert_close(torch.vmap(one, in_dims=(0, 0, None))(q, k, v[0])[0], attend(q[:1], k[:1], v[:1])[0])
    loss = lambda q, k, v: one(q, k, v).square().sum()  # noqa: E731
    per_sample = torch.vmap(torch.func.grad(loss))(q, k, v)
    torch.testing.assert_close(per_sample[1], torch.func.grad(loss)(q[1], k[1], v[1]))


@needs_func
@pytest.mark.parametrize("name", attentions())
def test_forward_mode_and_second_derivatives_are_refused(name):
    attend, (q, k, v) = attentions()[name], qkv()
    with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
        torch.func.jvp(lambda q: attend(q, k, v), (q,), (torch.ones_like(q),))
    q.requires_grad_()
    (first,) = torch.autograd.grad(attend(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises((NotImplementedError, RuntimeError), match="cannot be differentiated twice"):
        first.sum().backward()


def test_operators_without_a_gradient_refuse_to_be_asked_for_one():
    q = torch.randn(1, 2, 1, 4, requires_grad=True)
    k, v, weights, lengths = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4), torch.ones(2, 1), torch.tensor([5])
    with pytest.raises((NotImplementedError, RuntimeError), match="no_grad"):
        strata.hkt_decode([q], [k], v, weights, lengths)
    with torch.no_grad():
        assert strata.hkt_decode([q], [k], v, weights, lengths).shape == (1, 2, 1, 4)
    cache = strata.HsaAttention(8, 2, streaming=True).start_stream(1).state
    state = [cache[name] for name in ("keys", "values", "kappas", "masses", "lengths")]
    rows = torch.randn(3, 1, 2, 4, requires_grad=True)
    with pytest.raises((NotImplementedError, RuntimeError), match="no_grad"):
        torch.ops.strata.hsa_stream_step(*rows, None, None, None, *state)


def test_streaming_weights_have_their_gradient():
    q, k, v = qkv(2)
    weights = (torch.rand(2, 12, dtype=F64) + 0.2).requires_grad_()
    key_bias = torch.randn(2, 2, 12, dtype=F64, requires_grad=True)
    positions = torch.randn(2, 2, 3, 3, dtype=F64, requires_grad=True)

    def attend(weights, key_bias, positions):
        return strata.hsa_stream_attention(q, k, v, 3, weights=weights, key_bias=key_bias, positions=positions)

    assert torch.autograd.gradcheck(attend, (weights, key_bias, positions))


def test_the_hierarchy_score_has_its_gradients():
    q, k, _ = (t.requires_grad_() for t in qkv())
    weights = (torch.rand(1, 12, dtype=F64) + 0.2).requires_grad_()
    key_bias = torch.randn(1, 2, 12, dtype=F64, requires_grad=True)

    def score(q, k, weights, key_bias):
        return strata.hierarchy_score(q, k, TREE, weights=weights, key_bias=key_bias)

    assert torch.autograd.gradcheck(score, (q, k, weights, key_bias))


def test_a_backward_runs_once_unless_the_graph_is_kept():
    q, k, v = (t.requires_grad_() for t in qkv())
    out = strata.hsa_attention(q, k, v, TREE)[0].sum()
    out.backward(retain_graph=True)
    out.backward()
    with pytest.raises(RuntimeError, match="second time"):
        out.backward()
    with torch.no_grad():
        changed = strata.hkt_attention([q], [k], v, torch.ones(2, 1, dtype=F64))[0]
    assert changed.grad_fn is None
    out = strata.hkt_attention([q], [k], v, torch.ones(2, 1, dtype=F64))[0].sum()
    with torch.no_grad():
        q.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


@pytest.mark.parametrize("name", MODULES)
def test_checkpointing_and_deterministic_algorithms(name):
    module, x = made(name), torch.randn(2, 20, 16)
    torch.use_deterministic_algorithms(True)
    try:
        want = torch.autograd.grad(call(module, x).square().sum(), list(module.parameters()))
        out = checkpoint(lambda x: call(module, x), x.requires_grad_(), use_reentrant=False)
        got = torch.autograd.grad(out.square().sum(), list(module.parameters()))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("name", MODULES)
def test_copies_and_meta_tensors(name):
    module, x = made(name), torch.randn(2, 20, 16)
    want = call(module, x)
    assert torch.equal(call(copy.deepcopy(module), x), want)
    assert torch.equal(call(pickle.loads(pickle.dumps(module)), x), want)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    other = made(name)
    other.load_state_dict(torch.load(file))
    assert torch.equal(call(other, x), want)
    on_meta = call(copy.deepcopy(module).to("meta"), x.to("meta"))
    assert on_meta.is_meta and on_meta.shape == want.shape


@pytest.mark.parametrize("name", MODULES)
def test_threads_compute_what_one_computes(name):
    module = made(name)
    inputs = [torch.randn(2, 20, 16) for _ in range(4)]
    want, got = [call(module, x).detach() for x in inputs], [None] * 4

    def work(index):
        for _ in range(10):
            out = call(module, inputs[index])
            out.sum().backward()
            got[index] = out.detach()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("name", attentions())
def test_views_and_expanded_inputs(name):
    attend, (q, k, v) = attentions()[name], qkv(2)
    q, k, v = q[:1], k[:1], v[:1]
    want = attend(q, k, v)
    strided = [torch.empty(1, 2, 24, 8, dtype=F64)[:, :, ::2, ::2].copy_(t) for t in (q, k, v)]
    torch.testing.assert_close(attend(*strided), want)
    token_major = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v)]
    torch.testing.assert_close(attend(*token_major), want)
    one_head = [t[:, :1].expand(1, 2, 12, 4) for t in (q, k, v)]
    torch.testing.assert_close(attend(*one_head), attend(*(t.clone() for t in one_head)))


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("shape", [(0, 5, 16), (2, 0, 16), (1, 1, 16)])
def test_empty_and_tiny_inputs(name, shape):
    module = made(name)
    x = torch.randn(shape, requires_grad=True)
    out = call(module, x)
    out.sum().backward()
    assert out.shape == shape and x.grad.shape == shape and bool(out.isfinite().all())


def test_memory_does_not_grow():
    """10,000 calls of every kind, forward and backward."""
    cases = [(attend, [t.requires_grad_() for t in qkv()]) for attend in attentions().values()]

    def run(count):
        for _ in range(count):
            for attend, args in cases:
                attend(*args).sum().backward()
        gc.collect()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    before = run(500)
    assert run(2000) - before < 8 * 1024  # kilobytes
