"""strata.huggingface: attention by name in models of `transformers`; skipped where it is not installed or too old."""

import pathlib
import re
import sys

import pytest
import tiny_models
import torch
from tiny_models import IDS

import strata
import strata.huggingface

transformers = pytest.importorskip(
    "transformers", minversion="5.0", reason="strata.huggingface tests skipped: they need transformers 5 or later"
)

ENCODERS = ["BertModel", "RobertaModel", "DistilBertModel", "ElectraModel", "AlbertModel"]
FLAT = [*ENCODERS, "BertForSequenceClassification", "ModernBertModel", "GPT2LMHeadModel", "LlamaForCausalLM"]
MASKS = {
    "none": torch.ones(2, 9, dtype=torch.long),
    "right": torch.tensor([[1] * 9, [1] * 5 + [0] * 4]),
    "left": torch.tensor([[1] * 9, [0] * 4 + [1] * 5]),
    "both": torch.tensor([[0] + [1] * 8, [0, 0] + [1] * 5 + [0, 0]]),
    "holes": torch.tensor([[1, 1, 0, 1, 1, 1, 1, 0, 1], [0, 1, 0, 0, 1, 1, 1, 0, 0]]),
}


@pytest.fixture(autouse=True)
def registered():
    strata.huggingface.register()


def make(name, **options):
    return tiny_models.make(transformers, name, **options)


@torch.no_grad()
def run(model, attention, mask, **options):
    """All hidden states, and what the head gives; padding left out."""
    model.set_attn_implementation(attention)
    output = model(input_ids=IDS, attention_mask=mask, output_hidden_states=True, **options)
    head = output.logits if "logits" in output else output.last_hidden_state
    real = mask.bool()  # a classifier reads the first place, which must be real
    return [state[real] for state in output.hidden_states] + [head[real if head.dim() == 3 else real[:, 0]]]


def assert_close(got, want, tolerance=1e-5):
    for a, b in zip(got, want, strict=True):
        if not len(b):
            continue
        assert bool(torch.isfinite(a).all())
        assert float((a - b).abs().max()) < tolerance * max(1, float(b.abs().max()))


# ------------------------------------------------------------------------------------------------- flat


@pytest.mark.parametrize("padding", MASKS)
@pytest.mark.parametrize("name", FLAT)
def test_flat_is_softmax(name, padding):
    model = make(name)
    got = run(model, "strata_flat", MASKS[padding])
    for reference in ("sdpa", "eager"):
        assert_close(got, run(model, reference, MASKS[padding]))
    model.to(torch.float64)
    want = run(model, "sdpa", MASKS[padding])
    assert_close(run(model, "strata_flat", MASKS[padding]), want, 1e-12)
    assert any(not torch.equal(a, b) for a, b in zip(got, run(model.float(), "sdpa", MASKS[padding])))


@torch.no_grad()
@pytest.mark.parametrize("name", ["ViTModel"])
def test_models_without_masks(name):
    model, pixels = make(name), torch.randn(2, 3, 12, 12)
    states = []
    for attention in ("sdpa", "strata_flat", "strata_hsa"):
        model.set_attn_implementation(attention)
        trees = {"strata_trees": [strata.Tree.star(17)] * 2} if attention == "strata_hsa" else {}
        states.append(model(pixel_values=pixels, **trees).last_hidden_state)
    assert_close(states[1:], states[:1] * 2)


@torch.no_grad()
@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "LlamaForCausalLM"])
def test_flat_generates_what_softmax_generates(name):
    model = make(name)
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 1, "eos_token_id": None}
    for mask in (MASKS["none"], MASKS["left"]):
        for cache in ({}, {"cache_implementation": "static"}):
            texts = []
            for attention in ("sdpa", "strata_flat"):
                model.set_attn_implementation(attention)
                texts.append(model.generate(IDS, attention_mask=mask, **options, **cache))
            assert texts[0].shape == (2, 21) and torch.equal(*texts)


@torch.no_grad()
@pytest.mark.parametrize("tokens", [4, 9, 12])
def test_flat_cross_attention(tokens):
    model = make("BertLMHeadModel", is_decoder=True, add_cross_attention=True).double()
    states, mask = torch.randn(2, tokens, 32, dtype=torch.float64), torch.ones(2, tokens)
    mask[1, : tokens // 2] = 0
    logits = []
    for attention in ("sdpa", "strata_flat"):
        model.set_attn_implementation(attention)
        for given in (None, mask):
            options = {"encoder_hidden_states": states, "encoder_attention_mask": given}
            logits.append(model(input_ids=IDS, attention_mask=MASKS["right"], **options).logits[MASKS["right"].bool()])
    assert_close(logits[2:], logits[:2], 1e-11)
    assert not torch.allclose(logits[0], logits[1], atol=1e-3)


# ------------------------------------------------------------------------------------------------- HSA


@pytest.mark.parametrize("padding", MASKS)
@pytest.mark.parametrize("name", [*ENCODERS, "BertForSequenceClassification", "DistilBertForMaskedLM"])
def test_hsa_on_stars_is_softmax(name, padding):
    model, mask = make(name), MASKS[padding]
    stars = [strata.Tree.star(int(tokens)) for tokens in mask.sum(1)]
    want = run(model, "sdpa", mask)
    assert_close(run(model, "strata_hsa", mask, strata_trees=stars), want)
    halves = [strata.Tree.balanced(int(tokens), 2) for tokens in mask.sum(1)]
    other = run(model, "strata_hsa", mask, strata_trees=halves)
    assert not torch.allclose(other[1], want[1], atol=1e-3)  # the trees have arrived
    together = torch.cat([tree.encoded for tree in halves])
    assert_close(run(model, "strata_hsa", mask, strata_trees=together), other, 1e-12)


def attend(q, k, v, mask, **options):
    """What a layer of a model calls, with a mask as transformers make it."""
    seen = None if mask is None else mask.bool()[:, None, None]
    module = torch.nn.Module()
    module.is_causal = False
    return transformers.AttentionInterface()["strata_hsa"](module, q, k, v, seen, scaling=0.3, **options)[0]


@pytest.mark.parametrize("padding", MASKS)
def test_the_default_tree_is_balanced_over_the_real_tokens(padding):
    torch.manual_seed(0)
    base = MASKS[padding].repeat_interleave(8, 1)  # 72 tokens: more than one node
    q, k, v = (torch.randn(2, 3, 72, 4, requires_grad=True) for _ in range(3))
    out = attend(q, k, v, base)
    for n, real in enumerate(base.bool()):
        parts = [x[n : n + 1, :, real] for x in (q, k, v)]
        want, _ = strata.hsa_attention(*parts, strata.Tree.balanced(int(real.sum()), 16), scale=0.3)
        torch.testing.assert_close(out[n : n + 1, real], want.transpose(1, 2))
        assert not out[n, ~real].any()
    gradients = torch.autograd.grad(out.square().sum(), (q, k, v))
    assert all(not gradient[~base.bool()[:, None].expand(-1, 3, -1)].any() for gradient in gradients)


@torch.no_grad()
def test_the_amount_of_padding_does_not_matter():
    model = make("BertModel")
    model.set_attn_implementation("strata_hsa")
    ids, places = torch.randint(2, 40, (1, 40)), torch.arange(40)[None]
    want = model(input_ids=ids, position_ids=places).last_hidden_state
    for before, behind in ((0, 3), (5, 0), (17, 9)):
        padded = [torch.nn.functional.pad(x, (before, behind)) for x in (ids, places, torch.ones_like(ids))]
        got = model(**dict(zip(("input_ids", "position_ids", "attention_mask"), padded))).last_hidden_state
        torch.testing.assert_close(got[:, before : before + 40], want, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_sequence_of_padding_alone():
    model = make("BertModel")
    mask = torch.tensor([[1] * 9, [0] * 9])
    for attention in ("strata_flat", "strata_hsa"):
        model.set_attn_implementation(attention)
        got = model(input_ids=IDS, attention_mask=mask).last_hidden_state
        assert bool(torch.isfinite(got).all())
        torch.testing.assert_close(got[:1], model(input_ids=IDS[:1]).last_hidden_state, atol=1e-5, rtol=1e-5)


def test_fewer_key_heads():
    q, k, v = torch.randn(2, 6, 9, 4), torch.randn(2, 2, 9, 4), torch.randn(2, 2, 9, 4)
    stars = [strata.Tree.star(9)] * 2
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(attend(q, k, v, None, strata_trees=stars), want.transpose(1, 2))


# ------------------------------------------------------------------------------------------------- both


@pytest.mark.parametrize("attention", ["strata_flat", "strata_hsa"])
def test_gradients(attention):
    mask = MASKS["left"]
    model = make("BertModel", attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0).train()
    gradients = []
    for name in ("sdpa", attention):
        model.set_attn_implementation(name)
        trees = {"strata_trees": [strata.Tree.star(9), strata.Tree.star(5)]} if name == "strata_hsa" else {}
        model.zero_grad()
        model(input_ids=IDS, attention_mask=mask, **trees).last_hidden_state[mask.bool()].sin().sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert_close(gradients[1:], gradients[:1], 1e-4)


@pytest.mark.parametrize("attention", ["strata_flat", "strata_hsa"])
def test_bfloat16(attention):
    model = make("BertModel")
    want = run(model, attention, MASKS["left"])[-1]
    got = run(model.to(torch.bfloat16), attention, MASKS["left"])[-1]
    assert got.dtype == torch.bfloat16 and float((got - want).abs().max()) < 0.1 * float(want.abs().max())


@pytest.mark.parametrize("attention", ["strata_flat", "strata_hsa"])
def test_saved_models_are_loaded_with_it(attention, tmp_path):
    model = make("BertModel")
    want = run(model, attention, MASKS["left"])
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModel.from_pretrained(tmp_path, attn_implementation=attention).eval()
    assert loaded.config._attn_implementation == attention
    assert all(torch.equal(a, b) for a, b in zip(run(loaded, attention, MASKS["left"]), want))


@pytest.mark.parametrize("attention", ["strata_flat", "strata_hsa"])
@pytest.mark.parametrize("name", ["BertModel", "DistilBertModel"])
def test_compiled(name, attention):
    torch._dynamo.reset()
    model = make(name, layers=2)
    compiled = torch.compile(model, fullgraph=True)
    for mask in (MASKS["none"], MASKS["left"], MASKS["holes"]):
        want = run(model, attention, mask)[-1]
        with torch.no_grad():
            got = compiled(input_ids=IDS, attention_mask=mask).last_hidden_state
        assert_close([got[mask.bool()]], [want])


@torch.no_grad()
@pytest.mark.parametrize("attention", ["strata_flat", "strata_hsa"])
def test_one_graph_serves_all_lengths(attention):
    torch._dynamo.reset()
    model, graphs = make("BertModel", layers=2), []
    model.set_attn_implementation(attention)

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=count)
    for batch, tokens in ((2, 9), (3, 20), (4, 13)):
        ids, mask = torch.randint(2, 40, (batch, tokens)), torch.ones(batch, tokens, dtype=torch.long)
        mask[1, :4] = 0
        got = compiled(input_ids=ids, attention_mask=mask).last_hidden_state
        assert_close([got[mask.bool()]], [model(input_ids=ids, attention_mask=mask).last_hidden_state[mask.bool()]])
    assert len(graphs) == 1


@torch.no_grad()
def test_compiled_with_trees():
    torch._dynamo.reset()
    model, mask = make("BertModel", layers=2), MASKS["left"]
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for branching in (2, 3):
        trees = [strata.Tree.balanced(tokens, branching) for tokens in (9, 5)]
        want = run(model, "strata_hsa", mask, strata_trees=trees)[-1]
        got = compiled(input_ids=IDS, attention_mask=mask, strata_trees=trees).last_hidden_state
        assert_close([got[mask.bool()]], [want])
    with pytest.raises(RuntimeError, match="expected trees of as many tokens as their sequences have"):
        compiled(input_ids=IDS, attention_mask=mask, strata_trees=[strata.Tree.balanced(9, 2)] * 2)


def test_mistakes_are_named(monkeypatch):
    bert, mask = make("BertModel"), MASKS["left"]
    packed = torch.block_diag(torch.ones(4, 4), torch.ones(5, 5)).bool().expand(2, 1, 9, 9)
    nine, five = strata.Tree.balanced(9, 2), strata.Tree.balanced(5, 2)
    for options, words in [
        ({"attention_mask": packed}, 'attention_mask: "strata_hsa" expected 1 for real tokens'),
        ({"attention_mask": torch.where(packed, 0.0, -2.0)}, "got another mask"),
        ({"strata_trees": [nine]}, "strata_trees: expected one per sequence of the batch, 2, got 1"),
        ({"strata_trees": [nine, nine]}, "expected a Tree of 5 tokens for sequence 1, got one of 9"),
        ({"strata_trees": torch.cat([five.encoded, nine.encoded])}, "expected a Tree of 9 tokens for sequence 0"),
        ({"strata_trees": torch.ones(5, dtype=torch.int32)}, "sizes in this tensor are inconsistent"),
        ({"strata_trees": [nine, "star"]}, "expected a strata.Tree or its encoded tensor, got 'star'"),
        ({"strata_trees": "star"}, "expected a list with one Tree per sequence of the batch, got 'star'"),
        ({"output_attentions": True}, 'output_attentions: "strata_hsa" expected False'),
        ({"softcap": 3.0}, 'softcap: "strata_hsa" expected None'),
    ]:
        bert.set_attn_implementation("strata_hsa")
        with pytest.raises(ValueError, match=words):
            bert(input_ids=IDS, **{"attention_mask": mask, **options})
    bert.set_attn_implementation("strata_flat")
    with pytest.raises(ValueError, match='"strata_flat" has no trees; use "strata_hsa"'):
        bert(input_ids=IDS, strata_trees=[nine, nine])
    for attention in ("strata_flat", "strata_hsa"):
        bert.set_attn_implementation(attention)
        with pytest.raises(ValueError, match=f'dropout: "{attention}" expected 0'):
            bert.train()(input_ids=IDS)
        bert.eval()
    for name, options in [
        ("GPT2LMHeadModel", {}),
        ("LlamaForCausalLM", {}),
        ("ModernBertModel", {}),
        ("BertLMHeadModel", {"is_decoder": True}),
    ]:
        model = make(name, **options)
        model.set_attn_implementation("strata_hsa")
        for given in (None, mask):
            with pytest.raises(ValueError, match=r'expected an encoder.* use "strata_flat", or strata.inject\(model\)'):
                model(input_ids=IDS, attention_mask=given)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match="expected transformers 5 or later; run pip install"):
        strata.huggingface.register()


def test_the_page_prints_what_it_says(capsys):
    page = (pathlib.Path(__file__).parents[2] / "docs" / "INJECT.md").read_text()
    program, said = re.search(
        r"## In Python: `strata.huggingface`.*?```python\n(.*?)```\n+```\n(.*?)```", page, re.S
    ).groups()
    exec(program, {})
    assert capsys.readouterr().out == said


# ------------------------------------------------------------------------------------------------- real weights


@torch.no_grad()
def test_minilm():
    folder = tiny_models.minilm()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = [
        "A river runs past the old mill, and the miller's daughter counts the boats that do not stop. " * 3,
        "Attention is a weighted mean.",
    ]
    embeddings = {}
    for side in ("left", "right"):
        batch = tokenizer(texts, padding=True, return_tensors="pt", padding_side=side)
        places = (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)
        real = batch["attention_mask"].bool()
        assert not real.all() and real[1, 0] == (side == "right")
        for attention in ("sdpa", "strata_flat", "strata_hsa"):
            model = transformers.AutoModel.from_pretrained(folder, attn_implementation=attention).eval()
            states = model(**batch, position_ids=places).last_hidden_state.masked_fill(~real[..., None], 0.0)
            embeddings[attention, side] = torch.nn.functional.normalize(states.sum(1), dim=-1)
    for side in ("left", "right"):
        torch.testing.assert_close(embeddings["strata_flat", side], embeddings["sdpa", "right"], atol=1e-5, rtol=0)
        cosine = (embeddings["strata_hsa", side] * embeddings["sdpa", side]).sum(-1)
        assert bool((cosine > 0.8).all()) and bool((cosine[:1] < 1 - 1e-5).all()), "near the original, and not it"
    torch.testing.assert_close(embeddings["strata_hsa", "left"], embeddings["strata_hsa", "right"], atol=1e-5, rtol=0)
