"""The operators on a GPU against the CPU's; skipped where there is no GPU or the build has no CUDA kernels."""

import pytest
import torch

import strata

try:
    strata.hkt_attention(
        [torch.zeros(1, 1, 1, 8, device="cuda")],
        [torch.zeros(1, 1, 1, 8, device="cuda")],
        torch.zeros(1, 1, 1, 8, device="cuda"),
        torch.ones(1, 1, device="cuda"),
    )
except Exception as error:  # noqa: BLE001 (torch without CUDA raises several kinds)
    pytest.skip(f"CUDA tests skipped: {str(error).splitlines()[0]}", allow_module_level=True)


def hkt_inputs(tokens, levels, size, dtype, device):
    generator = torch.Generator().manual_seed(1)
    make = lambda *shape: torch.randn(*shape, generator=generator).to(dtype).to(device).requires_grad_()
    rows = [(tokens + 2**l - 1) // 2**l for l in range(levels)]
    q, k = ([make(2, 2, n, size) for n in rows] for _ in range(2))
    weights = torch.softmax(torch.randn(2, levels, generator=generator), -1).to(device).requires_grad_()
    return q, k, make(2, 2, tokens, size), weights


def run_hkt(dtype, device, **options):
    q, k, v, weights = hkt_inputs(200, 3, 64, dtype, device)
    out, lse = strata.hkt_attention(q, k, v, weights, **options)
    (out.float().square().sum() + lse.float().sum()).backward()
    return [t.detach().float().cpu() for t in [out, lse, *[x.grad for x in [*q, *k, v, weights]]]]


def close(got, want, tolerance):
    for a, b in zip(got, want):
        assert (a - b).abs().max() <= tolerance * b.abs().max()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-4), (torch.bfloat16, 3e-2)])
def test_hkt_equals_the_cpu(dtype, tolerance, causal):
    close(run_hkt(dtype, "cuda", causal=causal), run_hkt(dtype, "cpu", causal=causal), tolerance)


ARGUMENTS = {
    "window": {"causal": True, "window_size": (37, -1)},
    "alibi": {"causal": True, "alibi_slopes": [0.5, 0.1]},
    "dropout": {"dropout_p": 0.3, "dropout_state": [5, 9]},
    "all": {"window_size": (60, 20), "alibi_slopes": [0.5, 0.1], "dropout_p": 0.1, "dropout_state": [1, 2], "lengths": [200, 70]},
}


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-4), (torch.bfloat16, 3e-2)])
def test_arguments_equal_the_cpus(name, dtype, tolerance):
    """Dropout included: both draw the same weights."""
    results = []
    for device in ("cuda", "cpu"):
        options = dict(ARGUMENTS[name])
        for tensor in ("alibi_slopes", "dropout_state"):
            if tensor in options:
                options[tensor] = torch.tensor(options[tensor], device=device)
        results.append(run_hkt(dtype, device, **options))
    finite = [x.isfinite() for x in results[1]]
    close([x[at] for x, at in zip(results[0], finite)], [x[at] for x, at in zip(results[1], finite)], tolerance)


@pytest.mark.parametrize("kind", ["hkt", "strata"])
def test_packed_modules_equal_the_cpus(kind):
    lengths = [70, 1, 0, 128, 33]
    cu_seqlens = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])
    x = torch.randn(1, sum(lengths), 64)
    results = []
    for device in ("cuda", "cpu"):
        torch.manual_seed(8)
        module = strata.HktAttention(64, 4, causal=True, rotary=8) if kind == "hkt" else strata.StrataAttention(64, 4, form="streaming")
        module.to(device)
        inputs = [x.to(device).requires_grad_(), *module.parameters()]
        y = module(inputs[0], cu_seqlens=cu_seqlens.to(device), max_seqlen=128)
        results.append([t.detach().cpu() for t in (y, *torch.autograd.grad(y.sin().sum(), inputs))])
    close(*results, 1e-3)


def test_a_captured_graph_draws_anew():
    """Seed and offset are read from device memory, so a replay drops what they say then."""
    q = torch.randn(1, 2, 64, 64, device="cuda", dtype=torch.bfloat16)
    weights, state = torch.ones(2, 1, device="cuda"), torch.tensor([3, 0], device="cuda")
    call = lambda: strata.hkt_attention([q], [q], q, weights, dropout_p=0.5, dropout_state=state)[0]
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    graph.replay()
    first = out.clone()
    state[1] += 1
    graph.replay()
    assert not torch.equal(out, first)
    assert torch.equal(out, call())
    state[1] -= 1
    graph.replay()
    assert torch.equal(out, first)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_causal_filter_equals_the_cpu(dtype, tolerance):
    torch.manual_seed(3)
    x, weight = torch.randn(3, 77, 40, dtype=dtype), torch.randn(4, 40, dtype=dtype)
    results = []
    for device in ("cpu", "cuda"):
        inputs = [t.detach().to(device).requires_grad_() for t in (x, weight)]
        y = strata.causal_filter(*inputs, 2)
        results.append([t.cpu() for t in (y, *torch.autograd.grad(y.sin().sum(), inputs))])
    close(results[1], results[0], tolerance)


def run_hsa(dtype, device):
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 2, 300, 64, generator=generator).to(dtype).to(device).requires_grad_() for _ in range(3))
    out, score = strata.hsa_attention(q, k, v, strata.Tree.balanced(300, 16))
    (out.float().square().sum() + score.float().sum()).backward()
    return [t.detach().float().cpu() for t in (out, score, q.grad, k.grad, v.grad)]


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-4), (torch.bfloat16, 3e-2)])
def test_hsa_equals_the_cpu(dtype, tolerance):
    close(run_hsa(dtype, "cuda"), run_hsa(dtype, "cpu"), tolerance)


def run_hsa_with_all_terms(dtype, device, streaming):
    torch.manual_seed(3)
    q, k, v = (torch.randn(1, 2, 300, 32).to(dtype).to(device).requires_grad_() for _ in range(3))
    bias = torch.randn(1, 2, 300).to(device).requires_grad_()
    positions = torch.randn(2, 3, 16, 16).to(device).requires_grad_()
    weights = torch.rand(1, 300).to(device).requires_grad_(not streaming)
    if streaming:
        out, _ = strata.hsa_stream_attention(q, k, v, 16, weights=weights, key_bias=bias, positions=positions)
    else:
        tree = strata.Tree.balanced(300, 16, domain="sequence")
        out, _ = strata.hsa_attention(q, k, v, tree, weights=weights, key_bias=bias, positions=positions)
    out.float().square().sum().backward()
    inputs = [q, k, v, bias, positions] + ([] if streaming else [weights])
    return [t.detach().float().cpu() for t in (out, *(x.grad for x in inputs))]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-4), (torch.bfloat16, 3e-2)])
def test_hsa_with_all_terms_equals_the_cpu(dtype, tolerance, streaming):
    close(run_hsa_with_all_terms(dtype, "cuda", streaming), run_hsa_with_all_terms(dtype, "cpu", streaming), tolerance)


STRATA = {
    "tree": dict(form="tree", levels=3, positions="bias", places=16),
    "streaming": dict(form="streaming", levels=3, near=2, key_heads=2, rotary=16),
    "both sides": dict(form="both sides", levels=2, near=2, positions="bias", tables=2),
}


def run_strata(form, dtype, device):
    torch.manual_seed(4)
    module = strata.StrataAttention(64, 4, dtype=dtype, **STRATA[form]).to(device)
    x = torch.randn(2, 150, 64).to(dtype).to(device).requires_grad_()
    out = module(x, lengths=[150, 90])
    out.float().square().sum().backward()
    grads = [p.grad for p in module.parameters() if p.grad is not None]
    return [t.detach().double().cpu() for t in (out, x.grad, *grads)]


@pytest.mark.parametrize("form", STRATA)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-9), (torch.float32, 1e-4), (torch.bfloat16, 5e-2)])
def test_strata_equals_the_cpu(dtype, tolerance, form):
    close(run_strata(form, dtype, "cuda"), run_strata(form, dtype, "cpu"), tolerance)


def test_strata_decodes_on_the_gpu():
    torch.manual_seed(5)
    module = strata.StrataAttention(64, 4, branching=4, dtype=torch.float64, **STRATA["streaming"]).to("cuda")
    x = torch.randn(2, 90, 64, dtype=torch.float64, device="cuda")
    with torch.no_grad():
        want = module(x)
        _, cache = module.prefill(x[:, :40], capacity=5)
        for t in range(40, 90):
            assert torch.allclose(module.step(x[:, t], cache), want[:, t], atol=1e-10), t


STREAMS = {
    "hkt": (strata.HktAttention, {"levels": 3, "causal": True, "rotary": 8, "key_heads": 2, "input_filter": True}, {}),
    "window": (strata.HktAttention, {"levels": 3, "causal": True}, {"window": 9}),
    "hsa": (strata.HsaAttention, {"streaming": True, "branching": 4, "rotary": 8}, {}),
    "strata": (strata.StrataAttention, {"form": "streaming", "branching": 4, "levels": 3, "rotary": 8}, {}),
}


@pytest.mark.parametrize("starts", [[40, 40, 40], [40, 13, 26]], ids=["alike", "different"])
@pytest.mark.parametrize("name", STREAMS)
def test_decoding_steps_wait_for_nothing(name, starts):
    """Steps and reorderings on a GPU equal the CPU's, and copy nothing to the host."""
    kind, options, how = STREAMS[name]
    x = torch.randn(3, 90, 64, dtype=torch.float64)
    order = [2, 0, 2]
    got = {}
    for device in ("cpu", "cuda"):
        torch.manual_seed(6)
        module = kind(64, 4, dtype=torch.float64, **options).to(device)
        rows = x.to(device)
        indices = torch.tensor(order, device=device)
        with torch.no_grad():
            _, cache = module.prefill(rows[:, :40], starts, history=8, **how)
            if device == "cuda":
                torch.cuda.set_sync_debug_mode("error")
            try:
                steps = [module.step(rows[:, t], cache) for t in range(40, 60)]
                if len(set(starts)) == 1:
                    cache.reorder(indices)
                steps += [module.step(rows[:, t], cache) for t in range(60, 75)]
            finally:
                torch.cuda.set_sync_debug_mode("default")
            cache.crop(-8)
            steps += [module.step(rows[:, t], cache) for t in range(75, 90)]
        got[device] = torch.stack(steps).cpu()
    assert torch.allclose(got["cuda"], got["cpu"], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_decoding_equals_the_cpu(dtype, tolerance, window):
    """Caches with more slots than tokens, and rings with fewer; grouped heads."""
    torch.manual_seed(9)
    levels, slots = 3, 100 if window is None else 24
    q = [torch.randn(3, 4, 1, 32).to(dtype) for _ in range(levels)]
    k = [torch.randn(3, 2, slots // 2**level + 2, 32).to(dtype) for level in range(levels)]
    v, weights = torch.randn(3, 2, slots, 48).to(dtype), torch.softmax(torch.randn(4, levels), -1)
    weights = weights.to(torch.float64 if dtype == torch.float64 else torch.float32)
    lengths = torch.tensor([100, 1, 37])
    want = strata.hkt_decode(q, k, v, weights, lengths, window=window)
    there = lambda list: [t.to("cuda") for t in list]
    got = strata.hkt_decode(there(q), there(k), *there([v, weights, lengths]), window=window)
    close([got.double().cpu()], [want.double()], tolerance)


@pytest.mark.parametrize("name", STREAMS)
def test_a_captured_step_serves_every_token(name):
    """Captured once and replayed 100 times, a step gives what eager steps give; the cache then goes on."""
    kind, options, how = STREAMS[name]
    torch.manual_seed(7)
    module = kind(64, 4, dtype=torch.float64, **options).to("cuda")
    x = torch.randn(3, 160, 64, dtype=torch.float64, device="cuda")
    starts, caches = [40, 13, 26], []
    with torch.no_grad():
        for _ in range(2):
            caches.append(module.prefill(x[:, :40], starts, **how)[1])
            if name in ("hkt", "window"):
                caches[-1].reserve(200)
        eager, replayed = caches
        row = torch.zeros(3, 64, dtype=torch.float64, device="cuda")
        module.step(row, module.prefill(x[:, :1])[1])  # warm up
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = module.step(row, replayed)
        for t in range(40, 140):
            row.copy_(x[:, t])
            graph.replay()
            assert torch.allclose(out, module.step(x[:, t], eager), rtol=1e-9, atol=1e-11), t
        replayed.count_replays(100)
        for t in range(140, 160):
            assert torch.allclose(module.step(x[:, t], replayed), module.step(x[:, t], eager), rtol=1e-9, atol=1e-11), t
    assert torch.equal(replayed.lengths, eager.lengths)


def test_modules_move_to_the_gpu():
    torch.manual_seed(0)
    x = torch.randn(2, 100, 64)
    for module in (
        strata.HktAttention(model_size=64, heads=4, levels=3, causal=True, rotary=16),
        strata.HsaAttention(64, 4, streaming=True, rotary=16),
    ):
        want = module(x)
        got = module.to("cuda")(x.to("cuda"))
        assert (got.cpu() - want).abs().max() < 1e-4


def test_graph_capture():
    q, k, v, weights = hkt_inputs(256, 3, 64, torch.bfloat16, "cuda")
    dout = torch.randn_like(v)
    work = lambda: torch.autograd.grad(strata.hkt_attention(q, k, v, weights)[0], [*q, *k, v, weights], dout)
    want = work()
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = work()
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(got, want))  # the same bits


def test_mistakes_are_named():
    q, k, v, weights = hkt_inputs(64, 2, 16, torch.float32, "cuda")
    with pytest.raises(Exception, match="move all tensors to one device"):
        strata.hkt_attention(q, k, v, weights.cpu())
    with pytest.raises(Exception, match="expected float32, float64 or bfloat16"):
        strata.hkt_attention([x.int() for x in q], [x.int() for x in k], v.int(), weights)
    with pytest.raises(Exception, match="broadcasts over batch or heads"):
        bias = torch.zeros(64, 64, device="cuda", requires_grad=True)
        strata.hkt_attention(q, k, v, weights, bias=bias)[0].sum().backward()


MODULES = {
    "hkt": lambda: strata.HktAttention(64, 4, levels=3, causal=True),
    "hkt dense, per level": lambda: strata.HktAttention(
        64, 4, levels=3, dense_filters=True, per_level_projections=True, input_filter=True
    ),
    "hkt psd": lambda: strata.HktAttention(64, 4, levels=2, psd=True),
    "hsa normalised": lambda: strata.HsaAttention(64, 4, streaming=True, normalize=True),
    "hsa l2, learned": lambda: strata.HsaAttention(
        64, 4, streaming=True, l2_energy=True, positions="learned", tables=2
    ),
    "strata streaming": lambda: strata.StrataAttention(64, 4, form="streaming", levels=3, rotary=16),
    "strata both sides": lambda: strata.StrataAttention(64, 4, form="both sides", levels=3),
    "hsa l2 normalised, sinusoidal": lambda: strata.HsaAttention(
        64, 4, streaming=True, l2_energy=True, normalize=True, positions="sinusoidal"
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_train_under_autocast(name):
    torch.manual_seed(0)
    x = torch.randn(2, 100, 64)
    module = MODULES[name]()
    want = module(x)
    module, moved = module.to("cuda"), x.to("cuda").requires_grad_()
    with torch.autocast("cuda", torch.bfloat16):
        out = module(moved)
        out.float().square().sum().backward()
    close([out.detach().float().cpu()], [want.detach()], 5e-2)
    assert moved.grad.isfinite().all() and all(p.grad is None or p.grad.isfinite().all() for p in module.parameters())
