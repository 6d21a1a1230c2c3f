"""Strata attention: corners, gradients, decoding, packed and padded sequences, the same module in C++, mistakes."""

import copy
import os
import subprocess

import pytest
import torch

import strata

F64 = torch.float64
VARIANTS = [
    {},
    {"positions": "bias", "tables": 2, "places": 4, "levels": 2},
    {"rotary": 4, "key_heads": 2, "input_filter": True},
    {"rotary": 2, "dense_filters": True, "per_level_projections": True, "near": 1},
]
FORMS = ("tree", "streaming", "both sides")
CASES = [(form, options) for form in FORMS for options in VARIANTS]


def make(form, dtype=F64, **options):
    torch.manual_seed(5)
    module = strata.StrataAttention(16, 4, form=form, branching=3, dtype=dtype, **options)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return module


def trees_of(form, *lengths):
    return [strata.Tree.balanced(tokens, 3, "sequence") for tokens in lengths] if form == "tree" else None


def test_corners_are_the_other_modules():
    x = torch.randn(2, 30, 16, dtype=F64)
    for causal, form in ((True, "streaming"), (False, "both sides"), (False, "tree")):
        hkt = strata.HktAttention(16, 4, causal=causal, dtype=F64)
        module = strata.StrataAttention(16, 4, form=form, branching=3, near=1000, dtype=F64)
        module.load_state_dict(hkt.state_dict())
        stars = [strata.Tree.star(30)] * 2 if form == "tree" else None
        assert torch.allclose(module(x, stars), hkt(x), atol=1e-12), form
    for streaming, form in ((True, "streaming"), (False, "tree")):
        hsa = strata.HsaAttention(16, 4, streaming=streaming, branching=3, dtype=F64)
        module = strata.StrataAttention(16, 4, form=form, levels=1, near=1, branching=3, dtype=F64)
        module.load_state_dict(hsa.state_dict(), strict=False)
        assert torch.allclose(module(x, trees_of(form, 30, 30)), hsa(x, trees_of(form, 30, 30)), atol=1e-12), form


@pytest.mark.parametrize(("form", "options"), CASES, ids=str)
def test_every_parameter_gets_its_gradient(form, options):
    module = make(form, **options)
    x = torch.randn(1, 11, 16, dtype=F64)
    trees = trees_of(form, 11)
    module(x, trees).sin().sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name
        flat, gradient = parameter.detach().view(-1), parameter.grad.view(-1)
        at, sums = int(gradient.abs().argmax()), []
        kept = flat[at].item()
        for step in (1e-6, -1e-6):
            flat[at] = kept + step
            sums.append(module(x, trees).sin().sum().item())
        flat[at] = kept
        assert gradient[at].item() == pytest.approx((sums[0] - sums[1]) / 2e-6, rel=1e-5), name


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_decoding_equals_the_parallel_form(options, tmp_path):
    module = make("streaming", **options)
    x = torch.randn(2, 60, 16, dtype=F64)
    want = module(x)
    for prompt in (0, 1, 20):
        starts = [prompt, prompt * 2 // 3]
        out, cache = module.prefill(x[:, :prompt], starts)
        assert torch.allclose(out[0], want[0, :prompt])
        for step in range(35):
            if step == 9:  # saved and restored in the middle
                strata.save_safetensors(tmp_path / "cache.safetensors", cache.state_dict())
                cache = strata.StrataCache(strata.load_safetensors(tmp_path / "cache.safetensors")[0])
            rows = torch.stack([x[n, start + step] for n, start in enumerate(starts)])
            got = module.step(rows, cache)
            assert torch.allclose(got, torch.stack([want[n, s + step] for n, s in enumerate(starts)]), atol=1e-10), step
    empty = module.start_stream(2)
    assert torch.allclose(module.step(x[:, 0], empty), want[:, 0]) and empty.bytes > 0


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_packed_padded_and_single_sequences_agree(options):
    module = make("tree", **options)
    x = torch.randn(1, 20, 16, dtype=F64)
    packed = module(x, trees_of("tree", 13, 6, 1))
    first = 0
    for tokens in (13, 6, 1):
        own = x[:, first : first + tokens]
        alone = module(own, trees_of("tree", tokens))
        assert torch.allclose(packed[:, first : first + tokens], alone)
        first += tokens
    if options.get("positions") != "bias":  # the trees that the module makes are sets
        padded = torch.full((2, 13, 16), float("nan"), dtype=F64)
        padded[0], padded[1, :6] = x[0, :13], x[0, 13:19]
        out = module(padded, lengths=[13, 6])
        sets = [module(x[:, :13], strata.Tree.balanced(13, 3)), module(x[:, 13:19], strata.Tree.balanced(6, 3))]
        assert torch.allclose(out[0], sets[0][0]) and torch.allclose(out[1, :6], sets[1][0])


def test_lengths_hide_padding_on_both_sides():
    module = make("both sides")
    x = torch.randn(2, 25, 16, dtype=F64)
    dirty = x.clone()
    dirty[1, 17:] = float("nan")
    out = module(dirty, lengths=[25, 17])
    assert torch.equal(out[0], module(x, lengths=[25, 25])[0])
    assert torch.equal(out[1, :17], module(x, lengths=[25, 17])[1, :17])


@pytest.mark.parametrize(("form", "options"), CASES, ids=str)
def test_state_dict_moves_to_cpp_and_back(form, options, tmp_path):
    module = make(form, torch.float32, **options)
    x = torch.randn(2, 13, 16)
    trees = trees_of(form, 13, 13)
    described = {
        "module": "strata",
        "model_size": 16,
        "heads": 4,
        "psd": False,
        "projection_bias": False,
        "causal": False,
    }
    for name in ("key_heads", "levels", "taps", "dense_filters", "input_filter", "per_level_projections", "rotary"):
        described[name] = getattr(module, name)
    for name in ("form", "branching", "near", "positions"):
        described[name] = getattr(module, name)
    described |= {name: options.get(name, default) for name, default in (("tables", 1), ("places", 16))}
    source, result = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    encoded = {f"tree_{n}": tree.encoded for n, tree in enumerate(trees or [])}
    strata.save_safetensors(source, {"x": x, **module.state_dict(), **encoded}, described)
    subprocess.run([os.environ["STRATA_RUN_MODULE"], source, result], check=True)
    tensors, _ = strata.load_safetensors(result)
    y = tensors.pop("y")
    assert torch.allclose(y, module(x, trees), atol=1e-5)
    fresh = strata.StrataAttention(16, 4, form=form, branching=3, **options)
    fresh.load_state_dict(tensors)  # strict: the same names, no more and no fewer
    assert torch.equal(fresh(x, trees), module(x, trees))


def test_scores_of_several_levels_are_closest_to_hkt():
    """The KL gap to HKT is exact, and a larger score is a smaller gap."""
    torch.manual_seed(2)
    q, k = ([torch.randn(1, 2, rows, 4, dtype=F64) for rows in (24, 12, 6)] for _ in range(2))
    v, weights = torch.eye(24, dtype=F64).expand(1, 2, 24, 24), torch.tensor([[0.5, 0.3, 0.2]] * 2, dtype=F64)
    softmax, lse = strata.hkt_attention(q, k, v, weights)
    gaps = []
    for tree in (strata.Tree.balanced(24, 2), strata.Tree.balanced(24, 5), strata.Tree.star(24)):
        theta, score = strata.hsa_attention(q, k, v, tree, level_weights=weights)
        gap = strata.kl_gap(lse, score)
        assert torch.allclose(gap, (theta * (theta.log() - softmax.log())).sum((-1, -2)))
        gaps.append(gap.sum().item())
    assert gaps[0] > gaps[2] - 1e-12 and gaps[1] > gaps[2] - 1e-12 and gaps[2] == pytest.approx(0, abs=1e-10)
    best, _ = strata.best_tree(q, k, [strata.Tree.balanced(24, 2), strata.Tree.balanced(24, 5)], level_weights=weights)
    assert best.cost == strata.Tree.balanced(24, 2 if gaps[0] < gaps[1] else 5).cost


def test_rotary_scores_depend_on_differences():
    q, k = torch.randn(2, 1, 2, 9, 8, dtype=F64)
    place = torch.arange(9)
    scores = [strata.rotate(q, place + s, 8) @ strata.rotate(k, place + s, 8).mT for s in (0, 500)]
    assert torch.allclose(scores[0], scores[1])
    turned = torch.view_as_complex(torch.stack([q[..., :4], q[..., 4:]], -1)) * torch.polar(
        torch.ones(9, 4, dtype=F64), place[:, None] * 10000.0 ** (-torch.arange(4, dtype=F64) / 4)
    )
    assert torch.allclose(strata.rotate(q, place, 8), torch.cat([turned.real, turned.imag], -1))
    for module in (
        strata.FlatAttention(16, 2, causal=True, rotary=8, dtype=F64),
        strata.HsaAttention(16, 2, streaming=True, branching=5, rotary=8, dtype=F64),
    ):
        x = torch.randn(1, 20, 16, dtype=F64)
        want = module(x)
        _, cache = module.prefill(x[:, :7])
        for t in range(7, 20):
            assert torch.allclose(module.step(x[:, t], cache), want[:, t])


def test_mistakes_are_named():
    for options, words in (
        ({"near": 0}, "near: expected 1 to"),
        ({"form": "streaming", "branching": 65}, "branching: expected 2 to 64"),
        ({"form": "ring"}, "form: expected one of tree, streaming, both sides"),
        ({"positions": "rotary"}, "positions: expected none or bias"),
        ({"rotary": 3}, "rotary: expected an even number of channels, at most the head size 4"),
        ({"rotary": 6}, "rotary: expected an even number of channels"),
        ({"psd": True}, "psd: expected False"),
        ({"levels": 9}, "levels: expected 1 to 8"),
    ):
        with pytest.raises(ValueError, match=words):
            strata.StrataAttention(16, 4, **options)
    x = torch.randn(2, 5, 16)
    with pytest.raises(ValueError, match="trees: expected one per sequence"):
        strata.StrataAttention(16, 4)(x)
    with pytest.raises(ValueError, match="trees: expected none"):
        strata.StrataAttention(16, 4, form="streaming")(x, [strata.Tree.star(5)] * 2)
    with pytest.raises(ValueError, match="expected the streaming form"):
        strata.StrataAttention(16, 4).start_stream(1)
    cache = strata.StrataAttention(16, 4, form="streaming").start_stream(2)
    with pytest.raises(ValueError, match="cache: expected 3 levels, near = 3"):
        strata.StrataAttention(16, 4, form="streaming", near=3).step(x[:, 0], cache)
    with pytest.raises(ValueError, match='expected a tensor named "keys"'):
        strata.StrataCache({})
    q = torch.randn(1, 2, 8, 4)
    for arguments, words in (
        (([q, q[:, :, :3]], [q, q[:, :, :4]]), r"q\[1\]: expected shape"),
        (([q, q[:, :, :4]], [q]), "q, k: expected 1 to 8 levels of each"),
        (([q], [q[:, :1].expand(-1, 3, -1, -1)]), "k: expected a number of heads that divides"),
        (([q, q[:, :, :4]], [q, q[:, :, :4]]), "level_weights: expected shape"),
    ):
        with pytest.raises(RuntimeError, match=words):
            strata.hsa_stream_attention(*arguments, q, 4)
    with pytest.raises(ValueError, match="expected weights that sum to 1"):
        strata.hsa_stream_attention([q, q[:, :, :4]], [q, q[:, :, :4]], q, 4, level_weights=torch.ones(2, 2))


@pytest.mark.parametrize("both_sides", [False, True])
def test_the_certificate_bounds_the_divergence(both_sides):
    torch.manual_seed(11)
    q, k = ([torch.randn(1, 2, rows, 4, dtype=F64) for rows in (90, 45, 23)] for _ in range(2))
    v, mix = torch.zeros(1, 2, 90, 1, dtype=F64), torch.softmax(torch.randn(2, 3, dtype=F64), -1)
    lse = strata.hkt_attention(q, k, v, mix, causal=not both_sides)[1]
    options = dict(near=2, both_sides=both_sides, level_weights=mix)
    gap = lse - strata.hsa_stream_attention(q, k, v, 4, **options)[1]
    bound = strata.hsa_stream_certificate(q, k, 4, **options)
    assert bound.shape == gap.shape and (gap <= bound + 1e-12).all() and gap.max() > 1e-3
    assert not strata.hsa_stream_certificate([x.requires_grad_() for x in q], k, 4, **options).requires_grad


@pytest.mark.parametrize("form", ["tree", "streaming", "both sides"])
def test_modules_in_bfloat16(form):
    module = make(form, dtype=torch.bfloat16, levels=3)
    torch.nn.init.normal_(module.level_logits)
    x = torch.randn(2, 20, 16)
    want = copy.deepcopy(module).float()(x, lengths=[20, 20])
    assert (module(x.bfloat16(), lengths=[20, 20]).float() - want).abs().max() < 0.05 * want.abs().max()
