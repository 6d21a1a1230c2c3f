"""Level weights that training does not change: as in C++, and in `strata train --level-weights`."""

import os
import subprocess

import pytest
import torch

import strata

FIXED = [("uniform", [1 / 3] * 3), ("level-0", [1, 0, 0]), ("level-2", [0, 0, 1]), ([0.5, 0.5, 0], [0.5, 0.5, 0])]


@pytest.mark.parametrize(("kind", "form"), [("hkt", None), ("strata", "tree"), ("strata", "streaming")])
@pytest.mark.parametrize(("level_weights", "expected"), FIXED, ids=str)
def test_fixed_level_weights_are_those_of_cpp(kind, form, level_weights, expected, tmp_path):
    torch.manual_seed(4)
    shape = {} if form is None else {"form": form, "branching": 3}
    make_module = strata.HktAttention if kind == "hkt" else strata.StrataAttention
    module = make_module(16, 4, level_weights=level_weights, **shape)
    assert torch.allclose(module.level_weights(), torch.tensor(expected, dtype=torch.float32).expand(4, 3))
    described = {"module": kind, "model_size": 16, "heads": 4, "key_heads": 4, "levels": 3, "taps": 3, "rotary": 0}
    described |= dict.fromkeys(["dense_filters", "input_filter", "per_level_projections", "psd", "projection_bias"], False)
    described |= {"causal": False, "form": form, "branching": 3, "near": 2, "positions": "none", "tables": 1, "places": 16}
    described["level_weights"] = " ".join(map(str, expected))
    x, tree = torch.randn(1, 13, 16), strata.Tree.balanced(13, 3)
    trees = [tree] if form == "tree" else []
    source, result = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    encoded = {"tree": tree.encoded} if trees else {}
    strata.save_safetensors(source, {"x": x, **module.state_dict(), **encoded}, described)
    subprocess.run([os.environ["STRATA_RUN_MODULE"], source, result], check=True)
    tensors, _ = strata.load_safetensors(result)
    assert torch.equal(tensors.pop("made_weights"), module.level_weights())
    y = tensors.pop("y")
    assert torch.allclose(y, module(x, *([trees] if trees else [])), atol=1e-6)
    assert torch.equal(tensors["level_logits"], module.level_logits)
    make_module(16, 4, level_weights=level_weights, **shape).load_state_dict(tensors)  # strict
    make_module(16, 4, **shape).load_state_dict(tensors)  # learned from there on


@pytest.mark.parametrize(("level_weights", "expected"), FIXED, ids=str)
def test_fixed_level_weights_stay(level_weights, expected):
    module = strata.HktAttention(8, 2, level_weights=level_weights)
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=0.1)
    module(torch.randn(2, 9, 8)).pow(2).sum().backward()
    optimizer.step()
    assert module.level_logits.grad is None
    assert torch.allclose(module.level_weights(), torch.tensor(expected, dtype=torch.float32).expand(2, 3))
    learned, fixed = (sum(p.numel() for p in m.parameters() if p.requires_grad) for m in (strata.HktAttention(8, 2), module))
    assert learned == fixed + 2 * 3


def test_the_finest_level_alone_is_flat_attention():
    torch.manual_seed(6)
    module = strata.HktAttention(16, 4, causal=True, level_weights="level-0", dtype=torch.float64)
    flat = strata.FlatAttention(16, 4, causal=True, dtype=torch.float64)
    shared = {name: value for name, value in module.state_dict().items() if name in flat.state_dict()}
    flat.load_state_dict(shared | {"level_logits": torch.zeros(4, 1)})
    x = torch.randn(2, 13, 16, dtype=torch.float64)
    assert torch.allclose(module(x), flat(x))


@pytest.mark.parametrize(
    ("level_weights", "words"),
    [
        ("level-3", "level_weights: expected learned, uniform or level-0 to level-2, because levels is 3, got \"level-3\""),
        ("level", "got \"level\""),
        ([0.5, 0.5], "expected a name, or 3 weights, one per level"),
        ([0.5, 0.6, -0.1], "none below 0"),
        ([0.5, 0.25, 0.5], "with the sum 1"),
        ([float("nan"), 0.5, 0.5], "with the sum 1"),
        (2, r"got 2 \(int\)"),
    ],
)
def test_wrong_level_weights(level_weights, words):
    with pytest.raises(ValueError, match=words):
        strata.HktAttention(8, 2, level_weights=level_weights)
