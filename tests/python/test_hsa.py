"""HSA in Python: operators, trees, module, streaming, the hierarchy score, exchange with C++."""

import copy
import os
import subprocess

import pytest
import torch

import strata

numpy = pytest.importorskip("numpy")

F64 = torch.float64
VARIANTS = [
    {},
    {"l2_energy": True, "normalize": True},
    {"positions": "bias", "causal": True},
    {"positions": "learned"},
    {"positions": "sinusoidal", "normalize": True},
    {"streaming": True, "branching": 4},
    {"streaming": True, "branching": 4, "positions": "bias", "tables": 3, "places": 4, "l2_energy": True},
    {"streaming": True, "branching": 4, "positions": "sinusoidal", "tables": 3, "places": 4},
    {"rotary": 8},
]


def inputs(tokens, batch=1, heads=2, size=3, dtype=F64):
    torch.manual_seed(2)
    return [torch.randn(batch, heads, tokens, size, dtype=dtype, requires_grad=True) for _ in range(3)]


def make(dtype=F64, **options):
    torch.manual_seed(6)
    module = strata.HsaAttention(16, 2, **options).to(dtype)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return module


@pytest.mark.parametrize("options", VARIANTS)
def test_modules_train_under_autocast(options):
    torch.manual_seed(1)
    module, x = make(torch.float32, **options), torch.randn(2, 20, 16)
    trees = () if options.get("streaming") else ([strata.Tree.balanced(20, 4)] * 2,)
    want = module(x, *trees)
    with torch.autocast("cpu", torch.bfloat16):
        out = module(x, *trees)
        out.float().square().sum().backward()
    assert (out.float() - want).abs().max() < 0.05 * want.abs().max()
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())


def test_gradcheck_of_the_tree_form():
    q, k, v = inputs(7)
    weights = torch.tensor([[1.0, 0.5, 2.0, 1.0, 1.0, 0.0, 1.5]], dtype=F64)
    weights.requires_grad_()
    key_bias = torch.randn(1, 2, 7, dtype=F64, requires_grad=True)
    positions = torch.randn(2, 1, 3, 3, dtype=F64, requires_grad=True)
    tree = strata.Tree.balanced(7, 3)

    def attend(q, k, v, key_bias, positions):
        return strata.hsa_attention(q, k, v, tree, weights=weights.detach(), key_bias=key_bias, positions=positions)

    assert torch.autograd.gradcheck(attend, (q, k, v, key_bias, positions))
    real = weights.detach() > 0  # at weight 0 the gradient is defined as 0
    (got,) = torch.autograd.grad(strata.hsa_attention(q, k, v, tree, weights=weights)[0].sin().sum(), [weights])
    for t in range(7):
        if not real[0, t]:
            assert got[0, t] == 0
            continue
        step = torch.zeros_like(weights)
        step[0, t] = 1e-6
        up, down = (
            strata.hsa_attention(q, k, v, tree, weights=weights.detach() + sign * step)[0].sin().sum()
            for sign in (1, -1)
        )
        assert abs(float((up - down) / 2e-6 - got[0, t])) < 1e-7


def test_gradcheck_of_the_streaming_form():
    q, k, v = inputs(11)
    key_bias = torch.randn(1, 2, 11, dtype=F64, requires_grad=True)
    positions = torch.randn(2, 3, 3, 3, dtype=F64, requires_grad=True)

    def attend(q, k, v, key_bias, positions):
        return strata.hsa_stream_attention(q, k, v, 3, key_bias=key_bias, positions=positions)

    assert torch.autograd.gradcheck(attend, (q, k, v, key_bias, positions))


def test_star_is_softmax_attention():
    q, k, v = inputs(9)
    out, score = strata.hsa_attention(q, k, v, strata.Tree.star(9))
    scores = q @ k.transpose(-1, -2) / 3**0.5
    assert torch.allclose(out, torch.softmax(scores, -1) @ v)
    assert torch.allclose(score, torch.logsumexp(scores, -1).mean(-1))


def test_packed_equals_padded_equals_one_by_one():
    trees = [strata.Tree.balanced(5, 2), strata.Tree.windows(9, [3, 2], shift=1), strata.Tree.star(1)]
    q, k, v = inputs(15)
    packed, scores = strata.hsa_attention(q, k, v, trees)
    start = 0
    padded = [torch.zeros(3, 2, 9, 3, dtype=F64) for _ in range(3)]
    for n, tree in enumerate(trees):
        piece = slice(start, start + tree.tokens)
        out, score = strata.hsa_attention(q[:, :, piece], k[:, :, piece], v[:, :, piece], tree)
        assert torch.equal(packed[:, :, piece], out) and torch.equal(scores[n], score[0])
        for whole, tensor in zip(padded, (q, k, v)):
            whole[n, :, : tree.tokens] = tensor[0, :, piece].detach()
        start += tree.tokens
    out, _ = strata.hsa_attention(*padded, trees)
    assert torch.equal(out[1, :, :9], packed[0, :, 5:14])
    assert bool((out[0, :, 5:] == 0).all())


@pytest.mark.parametrize("tokens", [24, 50])
def test_the_score_finds_the_tree_closest_to_softmax(tokens):
    """The chosen tree has the smallest true KL, computed from dense attention matrices."""
    torch.manual_seed(8)
    q, k = (torch.randn(1, 2, tokens, 4, dtype=F64).repeat_interleave(3, 2)[:, :, :tokens] for _ in range(2))
    v = torch.eye(tokens, dtype=F64).expand(1, 2, tokens, tokens)  # the output is the attention matrix itself
    candidates = strata.window_family(tokens, windows=(3, 4), shifts=3) + [
        strata.Tree.balanced(tokens, 2, domain="set")
    ]
    assert len(candidates) == 7
    softmax = torch.softmax(q @ k.transpose(-1, -2) / 2, -1)
    lse = torch.logsumexp(q @ k.transpose(-1, -2) / 2, -1)
    true_kl = []
    for tree in candidates:
        theta, score = strata.hsa_attention(q, k, v, tree)
        kl = (theta * (theta.log() - softmax.log())).sum((-1, -2))
        assert torch.allclose(strata.kl_gap(lse, score), kl, rtol=1e-8)
        true_kl.append(float(kl.sum()))
    best, scores = strata.best_tree(q, k, candidates)
    assert best is candidates[true_kl.index(min(true_kl))]
    assert len(set(true_kl)) == len(candidates) and len(scores) == len(candidates)
    with pytest.raises(ValueError, match="max_cost"):
        strata.best_tree(q, k, candidates, max_cost=3)


def test_streaming_is_strictly_causal():
    module = make(streaming=True, branching=3)
    x = torch.randn(1, 40, 16, dtype=F64)
    clean = module(x)
    for t in range(0, 40, 3):
        changed = x.clone()
        changed[:, t] += 1
        dirty = module(changed)
        assert torch.equal(dirty[:, :t], clean[:, :t])
        assert not torch.allclose(dirty[:, t], clean[:, t])


@pytest.mark.parametrize("options", [v for v in VARIANTS if v.get("streaming")], ids=str)
def test_decoding_equals_the_parallel_form(options, tmp_path):
    module = make(**options)
    x = torch.randn(2, 200, 16, dtype=F64)
    want = module(x)
    cache = module.start_stream(2)
    for t in range(200):
        if t == 77:  # saved and restored in the middle
            strata.save_safetensors(tmp_path / "cache.safetensors", cache.state_dict())
            cache = module.start_stream(2)
            cache.load_state_dict(strata.load_safetensors(tmp_path / "cache.safetensors")[0])
        assert torch.allclose(module.step(x[:, t], cache), want[:, t], rtol=1e-10, atol=1e-12)
    assert cache.entries(4).tolist() == [0 + 2 + 0 + 3, 0 + 2 + 0 + 3]  # 200 = 3020 in base 4


STREAMS = [v for v in VARIANTS if v.get("streaming")]


@pytest.mark.parametrize("kind", ["bfloat16 module", "autocast"])
@pytest.mark.parametrize("options", [*STREAMS, {**STREAMS[0], "normalize": True}], ids=str)
def test_decoding_in_bfloat16(options, kind):
    """A step equals the parallel form of the same module to the rounding of bfloat16. The cache is float32."""
    autocast = kind == "autocast"
    module = make(torch.float32 if autocast else torch.bfloat16, **options)
    x = torch.randn(2, 50, 16).to(module.value.weight.dtype)
    exact = copy.deepcopy(module).double()(x.double()).detach()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        want = module(x).detach()
        cache = module.start_stream(2)
        got = torch.stack([module.step(x[:, t], cache) for t in range(50)], 1)
        _, filled = module.prefill(x[:, :30])
        after = torch.stack([module.step(x[:, t], filled) for t in range(30, 50)], 1)
    assert got.dtype == after.dtype == want.dtype == torch.bfloat16 and cache.state["keys"].dtype == torch.float32
    scale = float(exact.abs().max())
    assert (got.double() - exact).abs().max() < 0.05 * scale
    assert (got.float() - want.float()).abs().max() < 2**-6 * scale
    assert (after.float() - want[:, 30:].float()).abs().max() < 2**-6 * scale


@pytest.mark.parametrize("options", STREAMS, ids=str)
def test_streams_of_different_lengths(options, tmp_path):
    """Prompts of different lengths fill one cache; it goes on as each sequence alone, also saved and restored."""
    module = make(**options)
    x = torch.randn(5, 160, 16, dtype=F64)
    want = module(x)
    starts = [0, 1, 16, 63, 100]
    prompts = x[:, :100].clone()
    for n, start in enumerate(starts):
        prompts[n, start:] = float("nan")
    out, cache = module.prefill(prompts, lengths=starts)
    for n, start in enumerate(starts):
        assert torch.allclose(out[n, :start], want[n, :start]) and bool((out[n, start:] == 0).all())
        alone = module.start_stream(1)
        for t in range(start):
            module.step(x[n : n + 1, t], alone)
        digits = alone.entries(4)
        assert cache.entries(4)[n] == digits[0] == sum(int(digit) for digit in numpy.base_repr(start, 4))
        rest = start
        for height in range(10):  # the entries of each height are the same; what lies beyond is never read
            held = rest % 4
            for name in ("keys", "values", "kappas"):
                got, expected = cache.state[name][n, :, height, :held], alone.state[name][0, :, height, :held]
                assert torch.allclose(got, expected)
            assert torch.equal(cache.state["masses"][n, height, :held], alone.state["masses"][0, height, :held])
            rest //= 4
    for step in range(60):
        if step == 25:
            strata.save_safetensors(tmp_path / "cache.safetensors", cache.state_dict())
            cache = module.start_stream(5)
            cache.load_state_dict(strata.load_safetensors(tmp_path / "cache.safetensors")[0])
        tokens = torch.stack([x[n, start + step] for n, start in enumerate(starts)])
        expected = torch.stack([want[n, start + step] for n, start in enumerate(starts)])
        assert torch.allclose(module.step(tokens, cache), expected, rtol=1e-10, atol=1e-12)
    assert cache.lengths.tolist() == [start + 60 for start in starts]


def test_caches_refuse_what_does_not_fit():
    module = make(streaming=True, branching=4)
    _, cache = module.prefill(torch.zeros(1, 15, 16, dtype=F64), capacity=2)
    with pytest.raises(ValueError, match=r"x: expected shape \(1, 16\), got \(2, 16\)"):
        module.step(torch.zeros(2, 16, dtype=F64), cache)
    with pytest.raises(ValueError, match=r'expected "keys" of shape .*, got shape'):
        cache.load_state_dict(module.start_stream(2, 2).state_dict())
    with pytest.raises(ValueError, match="cache: expected torch.float32 like the module, got torch.float64"):
        module.float().step(torch.zeros(1, 16), cache)
    with pytest.raises(ValueError, match="expected the streaming form"):
        make().prefill(torch.zeros(1, 3, 16, dtype=F64))
    _, empty = module.prefill(torch.zeros(2, 0, 16))
    assert empty.lengths.tolist() == [0, 0] and module.step(torch.zeros(2, 16), empty).shape == (2, 16)


FORMS = [list, tuple, numpy.array, torch.tensor, lambda n: torch.tensor(n, dtype=torch.int32)]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_padding_by_lengths(options):
    """Every sequence of a padded batch gives what it gives alone, whatever the padding holds."""
    module = make(**options, projection_bias=True)
    x = torch.randn(3, 20, 16, dtype=F64)
    lengths = [20, 7, 0]
    dirty = x.clone()
    for n, length in enumerate(lengths):
        dirty[n, length:] = float("nan")
    trees = {"none": None}
    if not module.streaming:
        trees["of the lengths"] = strata.Tree.batch_balanced(lengths, 16)
    for given in trees.values():
        got = module(dirty, given, lengths=lengths)
        for n, length in enumerate(lengths):
            alone = None if module.streaming else strata.Tree.balanced(length, 16)
            assert torch.allclose(got[n, :length], module(x[n : n + 1, :length], alone)[0])
            assert torch.equal(got[n, length:], module.out.bias.expand(20 - length, -1))
        module.zero_grad()
        got.square().sum().backward()
        assert all(torch.isfinite(parameter.grad).all() for parameter in module.parameters())
        for form in FORMS:
            assert torch.equal(module(dirty, given, lengths=form(lengths)), got)


def test_lengths_with_trees_that_cover_the_padding():
    module = make()
    tree, x = strata.Tree.balanced(12, 3), torch.randn(2, 12, 16, dtype=F64)
    weights = torch.rand(2, 12, dtype=F64) + 0.5
    hidden = torch.arange(12) >= torch.tensor([[12], [8]])
    for given, want in ((None, (~hidden).to(F64)), (weights, weights.masked_fill(hidden, 0.0))):
        got = module(x, [tree, tree], given, lengths=[12, 8])
        assert torch.allclose(got[~hidden], module(x, [tree, tree], want)[~hidden])
        assert bool((got[hidden] == 0).all())


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([5], "lengths: expected 2 numbers from 0 to 9, one per sequence, got 1 numbers"),
        ([5, 10], "got 10 for sequence 1"),
        ([5, None], r"lengths\[1\]: expected a whole number, got None"),
        (5, "lengths: expected a list"),
        (torch.tensor([5.0, 3.0]), "lengths: expected 2 whole numbers"),
        (torch.tensor([5, 3, 1]), r"lengths: .*shape \(3,\)"),
        (torch.tensor([5, 10]), "lengths: expected numbers from 0 to tokens = 9, got 10"),
        (torch.tensor([5, -1]), "lengths: expected numbers from 0 to tokens = 9, got -1"),
    ],
)
def test_wrong_lengths(streaming, lengths, message):
    module = make(streaming=streaming)
    with pytest.raises(ValueError, match=message):
        module(torch.zeros(2, 9, 16, dtype=F64), lengths=lengths)
    if streaming:
        with pytest.raises(ValueError, match=message):
            module.prefill(torch.zeros(2, 9, 16, dtype=F64), lengths)


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_device_and_dtype_of_the_parameters(options):
    module = strata.HsaAttention(16, 2, **options, dtype=F64, device="cpu")
    assert {parameter.dtype for parameter in module.parameters()} == {F64}
    assert module(torch.randn(1, 9, 16, dtype=F64), lengths=[9]).dtype == F64
    torch.manual_seed(3)
    plain = strata.HsaAttention(16, 2, **options)
    torch.manual_seed(3)
    given = strata.HsaAttention(16, 2, **options, device=torch.device("cpu"), dtype=torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), given.parameters()))
    skeleton = strata.HsaAttention(16, 2, **options, device="meta", dtype=torch.bfloat16)
    assert all(parameter.is_meta and parameter.dtype == torch.bfloat16 for parameter in skeleton.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"branching": 1}, "branching: expected 2 to"),
        ({"branching": 65, "streaming": True}, "branching: expected 2 to 64, got 65"),
        ({"tables": 0}, "tables, places: expected 1 or more"),
        ({"positions": "some"}, "positions: expected none, sinusoidal, learned or bias"),
        ({"positions": "bias", "streaming": True, "places": 4}, "places: expected 16 like branching"),
    ],
)
def test_constructors_refuse(options, message):
    with pytest.raises(ValueError, match=message):
        strata.HsaAttention(16, 2, **options)


def test_something_must_tell_the_tree():
    with pytest.raises(ValueError, match="trees: expected one per sequence, got none; or pass lengths="):
        make()(torch.zeros(1, 3, 16, dtype=F64))


def test_padding_may_hold_anything():
    module = make(l2_energy=True)
    tree = strata.Tree.balanced(9, 3)
    x = torch.randn(1, 9, 16, dtype=F64)
    weights = torch.ones(1, 9, dtype=F64)
    weights[0, 6:] = 0
    dirty = x.clone()
    dirty[0, 6:] = float("nan")
    clean, got = module(x, tree, weights), module(dirty, tree, weights)
    assert torch.equal(clean, got)
    got.sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in module.parameters())


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_state_dict_moves_to_cpp_and_back(options, tmp_path):
    module = make(dtype=torch.float32, **options)
    trees = None if module.streaming else [strata.Tree.balanced(13, 4), strata.Tree.windows(13, [2, 3])]
    x = torch.randn(2, 13, 16)
    described = {"module": "hsa", "model_size": 16, "heads": 2}
    for name in ("streaming", "branching", "causal", "l2_energy", "normalize", "positions", "tables", "places", "rotary"):
        described[name] = getattr(module, name)
    source, result = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    encoded = {f"tree_{n}": tree.encoded for n, tree in enumerate(trees or [])}
    strata.save_safetensors(source, {"x": x, **module.state_dict(), **encoded}, described)
    subprocess.run([os.environ["STRATA_RUN_MODULE"], source, result], check=True)
    tensors, _ = strata.load_safetensors(result)
    y = tensors.pop("y")
    assert torch.allclose(y, module(x, trees), atol=1e-6)
    fresh = strata.HsaAttention(16, 2, **options)
    fresh.load_state_dict(tensors)
    assert torch.equal(fresh(x, trees), module(x, trees))


def test_trees_print_and_refuse():
    assert repr(strata.Tree.brackets("[MAX 2 [MIN 4 7 ] ]")).splitlines()[0] == (
        "Tree: 7 tokens, 3 families, depth 3, score products 33"
    )
    assert sorted(strata.Tree.quadtree_order(3, 5).tolist()) == list(range(15))
    assert strata.Tree.quadtree(3, 5).tokens == 15
    assert strata.Tree.parents([3, 3, 4, 4, -1]).families == 2
    ends = strata.Tree.windows(3, [2]).with_ends(1, 1)
    assert torch.equal(ends.encoded, strata.Tree.parents([8, 5, 5, 6, 8, 7, 7, 8, -1]).encoded)
    with pytest.raises(ValueError, match="closes no bracket"):
        strata.Tree.brackets("1 ]")
    with pytest.raises(ValueError, match="second root"):
        strata.Tree.parents([-1, -1])
    with pytest.raises(ValueError, match="domain: expected set"):
        strata.Tree.star(3, "cube")
    q, k, v = inputs(6)
    with pytest.raises(RuntimeError, match="cover 5 tokens together, q has 6"):
        strata.hsa_attention(q, k, v, [strata.Tree.star(2), strata.Tree.star(3)])
    with pytest.raises(RuntimeError, match="has 7 tokens, q has 6"):
        strata.hsa_attention(q, k, v, strata.Tree.star(7))
    with pytest.raises(ValueError, match="weights: expected finite numbers of 0 or more"):
        strata.hsa_attention(q, k, v, strata.Tree.star(6), weights=-torch.ones(1, 6, dtype=F64))
    broken = strata.Tree.balanced(6, 2).encoded.clone()
    broken[-8] = 99  # a child beyond the tokens
    with pytest.raises((ValueError, RuntimeError)):
        strata.hsa_attention(q, k, v, [broken])
    with pytest.raises(ValueError, match="trees: expected none in the streaming form"):
        make(streaming=True)(torch.zeros(1, 3, 16, dtype=F64), strata.Tree.star(3))


def test_documents():
    source = "# Über uns\n\nEin Satz. Noch einer.\n\n![Bild](x.png)\n"
    tree, leaves = strata.Tree.markdown(source, 2, 3)
    raw = source.encode()
    words = [raw[begin:end].decode() for begin, end, image, _, _ in leaves.tolist() if not image]
    assert words == ["Über", "uns", "Ein", "Satz.", "Noch", "einer."]
    assert tree.tokens == 6 + 2 * 3 and leaves[-1].tolist()[2:] == [1, 1, 2]
    assert strata.Tree.text("One two. Three.\n\nFour.")[0].tokens == 4
    assert strata.Tree.text("ab c", characters=True)[0].tokens == 3
    assert strata.Tree.json('{"a": [1, "two words"], "p": {"image": "x"}}')[0].tokens == 2 + 3 + 4
    with pytest.raises(ValueError, match="byte"):
        strata.Tree.json('{"a": [1, }')


def test_double_backward_is_refused():
    q, k, v = inputs(6)
    out, _ = strata.hsa_attention(q, k, v, strata.Tree.balanced(6, 2))
    (first,) = torch.autograd.grad(out.sin().sum(), [v], create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
        first.sum().backward()


@pytest.mark.skipif(int(torch.__version__.split(".")[0]) < 2, reason="torch.compile needs PyTorch 2")
def test_torch_compile():
    x = torch.randn(2, 40, 16)
    for options, trees in (({}, [strata.Tree.balanced(40, 4).encoded] * 2), ({"streaming": True}, None)):
        module = make(dtype=torch.float32, **options)
        compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
        assert torch.allclose(compiled(x, trees), module(x, trees), atol=1e-6)
        compiled(x, trees).sum().backward()


@pytest.fixture
def capture_trees():
    """As in test_compile.py."""
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        yield


@pytest.mark.skipif(not hasattr(torch.library, "register_fake"), reason="needs PyTorch 2.4")
@pytest.mark.parametrize("streaming", [False, True])
def test_lengths_in_a_compiled_graph(streaming, capture_trees):
    """One graph serves all batches and lengths."""
    torch._dynamo.reset()
    module, graphs = make(dtype=torch.float32, streaming=streaming, branching=4), []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend=count)
    for tokens, lengths in ((20, [20, 7]), (13, [0, 5]), (32, [31, 32])):
        x, counts = torch.randn(2, tokens, 16), torch.tensor(lengths)
        torch.testing.assert_close(compiled(x, lengths=counts), module(x, lengths=counts))
    assert len(graphs) == 1
    torch._dynamo.reset()
    inductor = torch.compile(module, fullgraph=True)
    x, counts = torch.randn(2, 20, 16), torch.tensor([20, 7])
    want = torch.autograd.grad(module(x, lengths=counts).square().sum(), list(module.parameters()))
    got = torch.autograd.grad(inductor(x, lengths=counts).square().sum(), list(module.parameters()))
    for a, b in zip(got, want):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=2e-4)
