"""strata.inject: HSA in the layers of Hugging Face models; skipped where `transformers` is not installed or too old."""

import copy

import pytest
import tiny_models
import torch
from tiny_models import IDS, MASK

import strata
import strata.huggingface

transformers = pytest.importorskip(
    "transformers", minversion="5.0", reason="strata.inject tests skipped: they need transformers 5 or later"
)

ENCODERS = [
    family + kind
    for family in ("Bert", "Roberta", "DistilBert")
    for kind in ("Model", "ForSequenceClassification", "ForMaskedLM")
]
DECODERS = ["GPT2Model", "GPT2LMHeadModel"]
LEFT = MASK.flip(1)
HOLES = torch.tensor([[1, 1, 0, 1, 1, 1, 0, 1, 0], [0, 1, 0, 0, 1, 1, 1, 0, 0]])


def make(name, layers=4, **options):
    return tiny_models.make(transformers, name, layers, **options)


@torch.no_grad()
def run(model, ids=IDS, mask=MASK, **options):
    """All hidden states and what the model's head gives; padding left out."""
    output = model(input_ids=ids, attention_mask=mask, output_hidden_states=True, **options)
    head = output.logits if "logits" in output else output.last_hidden_state
    real = torch.ones_like(ids).bool() if mask is None else mask.bool()
    # A classifier reads the first place, which must be real.
    return [state[real] for state in output.hidden_states] + [head[real if head.dim() == 3 else real[:, 0]]]


def gap(got, want):
    return float((got - want).abs().max())


def same(got, want):
    return all(torch.equal(a, b) for a, b in zip(got, want))


@pytest.mark.parametrize(
    ("name", "attention"),
    [(name, attention) for name in ENCODERS + DECODERS for attention in ("sdpa", "eager")]
    + [("BertModel", "strata_flat"), ("GPT2Model", "strata_flat")],
)
def test_a_star_is_softmax_and_removal_is_exact(name, attention):
    strata.huggingface.register()
    options = {"branching": 64} if name in DECODERS else {"tree": strata.Tree.star}  # one family, either way
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-13)):
        model = make(name).to(dtype)
        model.set_attn_implementation(attention)
        masks = (LEFT, HOLES, MASK)
        before = [run(model, mask=mask) for mask in masks]
        with strata.inject(model, [0, 1, 2, 3], **options):
            after = [run(model, mask=mask) for mask in masks]
        before, after = sum(before, []), sum(after, [])
        # GPT-2's hidden states are sums over layers and grow to 50, so their rounding counts from there
        assert all(gap(a, b) < tolerance * max(1, float(b.abs().max())) for a, b in zip(after, before) if len(b))
        assert attention == "strata_flat" or not same(after, before)  # it was another way of computing it
        assert same(run(model), before[-len(run(model)) :])


@pytest.mark.parametrize("name", ["BertModel", "RobertaForMaskedLM", "DistilBertModel", "GPT2LMHeadModel"])
def test_only_the_chosen_layers_change(name):
    model = make(name, layers=5)
    before = run(model)
    handle = strata.inject(model, [2, 3], branching=2)
    after = run(model)
    assert handle.layers == [2, 3] and gap(after[3], before[3]) > 1e-3
    assert same(after[:3], before[:3]) and model.config._attn_implementation == "sdpa"
    twin = copy.deepcopy(model)
    handle.remove()
    handle.remove()
    assert same(run(model), before) and same(run(twin), after)
    assert [strata.inject(make(name, layers=n)).layers for n in (1, 4, 5, 6)] == [[0], [3], [2, 4], [3, 5]]
    with strata.inject(model, []):
        assert same(run(model), before)
    with pytest.raises(ZeroDivisionError), strata.inject(model, branching=2):
        raise ZeroDivisionError
    assert same(run(model), before) and not model.base_model._forward_pre_hooks


@pytest.mark.parametrize("name", ["BertModel", "RobertaModel", "DistilBertModel"])
@pytest.mark.parametrize("tree", ["balanced", "windows"])
def test_padding_counts_for_nothing(name, tree):
    model = make(name)
    with strata.inject(model, [0, 2, 3], tree, branching=2, exact=(0, -1)):
        want = run(model)
        other = torch.where(MASK == 1, IDS, torch.tensor(33))
        assert same(run(model, other), want) or name == "RobertaModel"  # RoBERTa's positions come from the padding's id
        longer = torch.nn.functional.pad(IDS, (0, 3), value=1), torch.nn.functional.pad(MASK, (0, 3))
        assert max(gap(a, b) for a, b in zip(run(model, *longer), want)) < 1e-5
        alone = run(model, IDS[1:, :5], None)
        assert max(gap(a, b[9:]) for a, b in zip(alone, want)) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("name", ["BertModel", "DistilBertModel", "GPT2Model"])
def test_padding_before_and_inside_the_text(name):
    """The tree is that of the real tokens, wherever the padding is."""
    model, text = make(name), torch.randint(2, 40, (1, 21))
    options = {"branching": 3} if name == "GPT2Model" else {"branching": 3, "exact": (0, -1)}
    with strata.inject(model, [0, 2, 3], **options):
        want = model(input_ids=text, position_ids=torch.arange(21)[None]).last_hidden_state
        for mask in ([0] * 4 + [1] * 21, [0, 0] + [1] * 21 + [0] * 3, [1] * 9 + [0] * 2 + [1] * 12):
            mask = torch.tensor(mask)
            rows = torch.randint(2, 40, (2, len(mask)))
            rows[1, mask.bool()] = text
            places = torch.stack([torch.arange(len(mask)), (mask.cumsum(0) - 1).clamp(min=0)])
            both = torch.stack([torch.ones_like(mask), mask])
            got = model(input_ids=rows, position_ids=places, attention_mask=both).last_hidden_state
            assert gap(got[1, mask.bool()], want[0]) < 1e-5 * max(1, float(want.abs().max()))


def test_exact_rows_are_softmax_rows():
    model = make("BertModel", layers=1)  # what the last layer gives out depends on its own rows alone
    before = run(model)[-1]
    with strata.inject(model, [0], branching=2, exact=(0, -1)):
        after = run(model)[-1]
    exact = [0, 8, 9, 13]
    assert gap(after[exact], before[exact]) < 1e-5
    assert all(gap(after[row], before[row]) > 1e-3 for row in (1, 4, 7, 10, 12))
    before = run(model, mask=LEFT)[-1]
    with strata.inject(model, [0], branching=2, exact=(0, -1, 4, -5)):  # for five tokens, both ends twice
        after = run(model, mask=LEFT)[-1]
    exact = [0, 4, 8, 9, 13]
    assert gap(after[exact], before[exact]) < 1e-5
    assert all(gap(after[row], before[row]) > 1e-3 for row in (1, 3, 7, 10, 12))


def projected(attention, x):
    if hasattr(attention, "c_attn"):
        parts = attention.c_attn(x).split(32, -1)
    else:
        parts = attention.query(x), attention.key(x), attention.value(x)
    return [part.view(1, -1, 2, 16).transpose(1, 2)[0] for part in parts]  # (H, T, d) each


@torch.no_grad()
def test_windows_are_the_definition():
    """The matrix of docs/MATH.md, 2.2, for windows of 3 under one root, entry by entry."""
    model = make("BertModel", layers=1)
    attention = model.encoder.layer[0].attention.self
    x, blocks = torch.randn(1, 8, 32), [range(3), range(3, 6), range(6, 8)]
    q, k, v = projected(attention, x)
    mean = lambda t: torch.stack([t[:, list(block)].mean(1) for block in blocks], 1)
    scores, between = q @ k.mT / 4, mean(q) @ mean(k).mT / 4  # (H, T, T), (H, blocks, blocks)
    theta = torch.zeros(2, 8, 8)
    for h in range(2):
        f = [torch.logsumexp(scores[h][list(A)][:, list(A)], -1).mean() for A in blocks]
        for a, A in enumerate(blocks):
            terms = between[h, a] + torch.tensor([float(len(B)) for B in blocks]).log()
            terms[a] = f[a]
            mass = torch.softmax(terms, 0)
            for i in A:
                for b, B in enumerate(blocks):
                    inside = torch.softmax(scores[h, i, list(A)], 0)
                    theta[h, i, list(B)] = mass[b] * inside if a == b else mass[b] / len(B)
    with strata.inject(model, [0], "windows", branching=3):
        got = attention(x, None)[0]
    assert gap(got[0], (theta @ v).transpose(0, 1).reshape(8, 32)) < 1e-5


@torch.no_grad()
def test_the_streaming_form_is_the_definition():
    model = make("GPT2Model", layers=1, scale_attn_weights=False)
    attention, x = model.h[0].attn, torch.randn(1, 11, 32)
    q, k, v = projected(attention, x)
    rows = []
    for i in range(11):  # token 10 of branching 2 sees 0..7, 8..9 and 10: the digits of its place
        blocks, start = [], 0
        for size in (8, 4, 2, 1):
            if i & size:
                blocks.append(range(start, start + size))
                start += size
        blocks.append([i])
        mean = lambda t, blocks=blocks: torch.stack([t[:, list(block)].mean(1) for block in blocks], 1)
        sizes = torch.tensor([float(len(block)) for block in blocks])
        p = torch.softmax((mean(k) @ q[:, i, :, None])[..., 0] + sizes.log(), -1)
        rows.append((p.unsqueeze(1) @ mean(v)).reshape(32))
    with strata.inject(model, [0], branching=2):
        assert gap(attention(x)[0][0], attention.c_proj(torch.stack(rows))) < 1e-5


def test_trees_by_length_by_batch_and_set_anew():
    model = make("BertModel")
    calls = []

    def halves(length):
        calls.append(length)
        return strata.Tree.balanced(length, 2)

    with strata.inject(model, "late", "balanced", branching=2) as handle:
        want = run(model)
        handle.tree = halves
        assert same(run(model), want) and same(run(model), want) and sorted(calls) == [5, 9]
        handle.tree = [halves(9), halves(5).encoded]
        assert same(run(model), want)
        with pytest.raises(ValueError, match="expected one per sequence of the batch, 1, got 2"):
            run(model, IDS[:1], None)
        handle.tree = [halves(9), halves(6)]
        with pytest.raises(ValueError, match="expected a Tree of 5 tokens for sequence 1, got one of 6"):
            run(model)
        handle.tree = lambda length: "star"
        with pytest.raises(ValueError, match="expected a strata.Tree or its encoded tensor, got 'star'"):
            run(model)


@torch.no_grad()
def test_gpt2_stays_causal():
    model = make("GPT2LMHeadModel")
    ids = torch.randint(40, (1, 40))
    with strata.inject(model, [1, 3], branching=3):
        clean = model(ids).logits
        for t in range(0, 40, 7):
            other = ids.clone()
            other[0, t] = (other[0, t] + 1) % 40
            dirty = model(other).logits
            assert torch.equal(dirty[:, :t], clean[:, :t]) and not torch.equal(dirty[:, t], clean[:, t])
        assert gap(run(model)[-1][9:], run(model, IDS[1:, :5], None)[-1]) < 1e-5  # padding behind the text


@torch.no_grad()
def test_gpt2_with_a_cache():
    model = make("GPT2LMHeadModel")
    ids = torch.randint(40, (2, 23))
    with strata.inject(model, [0, 3], branching=3):
        want, cache, got = model(ids).logits, None, []
        for part in ids.split([7, 1, 1, 5, 9], dim=1):
            output = model(part, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            got.append(output.logits)
        assert gap(torch.cat(got, 1), want) < 1e-4
        options = {"max_new_tokens": 30, "do_sample": False, "pad_token_id": 1, "attention_mask": torch.ones_like(ids)}
        cached = model.generate(ids, use_cache=True, **options)
        assert torch.equal(cached, model.generate(ids, use_cache=False, **options))
        for tokens in (1, 7):
            with pytest.raises(ValueError, match="DynamicCache"):
                model(
                    ids[:, :tokens],
                    past_key_values=transformers.StaticCache(model.config, max_cache_len=30),
                    use_cache=True,
                )
    assert not torch.equal(cached, model.generate(ids, **options))


@torch.no_grad()
def test_gpt2_generates_after_left_padding():
    """What is generated does not depend on the padding in front of the prompt."""
    model = make("GPT2LMHeadModel")
    options = {"max_new_tokens": 25, "do_sample": False, "pad_token_id": 1, "eos_token_id": None}
    short, long = torch.randint(2, 40, (1, 7)), torch.randint(2, 40, (1, 20))
    ids = torch.cat([torch.nn.functional.pad(short, (13, 0), value=1), long])
    mask = torch.tensor([[0] * 13 + [1] * 7, [1] * 20])
    with strata.inject(model, [1, 3], branching=3):
        alone = [model.generate(row, attention_mask=torch.ones_like(row), **options) for row in (short, long)]
        for cache in (True, False):
            both = model.generate(ids, attention_mask=mask, use_cache=cache, **options)
            assert torch.equal(both[:1, 13:], alone[0]) and torch.equal(both[1:], alone[1])
    assert not torch.equal(model.generate(ids, attention_mask=mask, **options), both)


@pytest.mark.parametrize("name", ["BertModel", "GPT2Model"])
def test_bfloat16(name):
    model = make(name)
    options = {"branching": 2} if name == "GPT2Model" else {"branching": 2, "exact": (0,)}
    with strata.inject(model, **options):
        want = run(model)[-1]
        got = run(model.to(torch.bfloat16))[-1]
    assert got.dtype == torch.bfloat16 and gap(got.float(), want) < 0.1 * float(want.abs().max())


def test_gradients():
    for model, options in [
        (
            make("BertModel", attention_probs_dropout_prob=0, hidden_dropout_prob=0),
            {"tree": strata.Tree.star, "exact": (0, -1)},
        ),
        (make("GPT2Model", attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0), {"branching": 64}),
    ]:
        model.train()
        gradients = []
        for layers in ([], [0, 1, 2, 3]):
            with strata.inject(model, layers, **options):
                model.zero_grad()
                model(input_ids=IDS[:, :5]).last_hidden_state.sin().sum().backward()
            gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
        assert gap(*gradients) < 1e-4 * float(gradients[0].abs().max())


def test_mistakes_are_named():
    bert, gpt2 = make("BertModel"), make("GPT2Model")
    for model, options, words in [
        (torch.nn.Linear(2, 2), {}, "expected BERT, RoBERTa, DistilBERT, GPT-2, Llama or Qwen2 of transformers, got Linear"),
        (make("ElectraModel"), {}, "got ElectraModel"),
        (make("BertModel", is_decoder=True), {}, "as encoders"),
        (bert, {"layers": [4]}, r"layers: expected numbers from 0 to 3 .* got \[4\]"),
        (bert, {"layers": [-1]}, "-1 is not the last"),
        (bert, {"layers": "early"}, 'layers: expected "late", "all" or a list'),
        (bert, {"layers": 3}, "layers: expected a list of whole numbers, got 3"),
        (bert, {"tree": "sentences"}, 'tree: expected "balanced", "windows"'),
        (bert, {"branching": 1}, "branching: expected a number from 2"),
        (bert, {"exact": 0}, "exact: expected a list of whole numbers, got 0"),
        (gpt2, {"branching": 65}, "branching: expected a number from 2 to 64"),
        (gpt2, {"tree": "windows"}, 'tree: expected "balanced" for a causal model'),
        (gpt2, {"exact": (0,)}, r"exact: expected \(\) for a causal model"),
    ]:
        with pytest.raises(ValueError, match=words):
            strata.inject(model, **options)
    before = run(bert)
    with (
        strata.inject(bert, exact=(6,)),
        pytest.raises(ValueError, match="sequence 1 of the batch has 5 tokens, too few"),
    ):
        run(bert)
    for model in (bert, gpt2):
        handle = strata.inject(model)
        with pytest.raises(ValueError, match="injected already"):
            strata.inject(model, [0])
        scores = torch.where(torch.arange(9) < 5, 0.0, -2.0).expand(2, 1, 9, 9)  # not hidden, only less liked
        if model is gpt2:
            scores = torch.ones(9, 9).triu(1).mul(-2).expand(2, 1, 9, 9)
        packed = torch.block_diag(torch.ones(4, 4), torch.ones(5, 5)).tril().bool().expand(2, 1, 9, 9)
        for bad in (packed, scores, torch.zeros(2, 9)):
            with pytest.raises(ValueError, match="attention_mask: expected 1 for real tokens and 0 for padding"):
                model(input_ids=IDS, attention_mask=bad)
        with pytest.raises(ValueError, match="output_attentions: expected False"):
            model(input_ids=IDS, output_attentions=True)
        with pytest.raises(ValueError, match="dropout: expected 0, because HSA has no attention dropout"):
            model.train()(input_ids=IDS)
        model.eval()
        model.config._attn_implementation = "flex_attention"
        with pytest.raises(ValueError, match='expected "sdpa", "eager" or "strata_flat"'):
            model(input_ids=IDS)
        model.config._attn_implementation = "sdpa"
        handle.remove()
    assert same(run(bert), before)


def children(tree):
    """Of every family, from the root: tokens as numbers, families as lists."""
    numbers = tree.encoded.tolist()
    families = numbers[1]
    begin, rest = numbers[2 : 3 + families], numbers[3 + families :]
    inside = lambda f: [child if child >= 0 else inside(~child) for child in rest[begin[f] : begin[f + 1]]]
    return inside(0)


def test_exact_tokens_at_the_ends_stand_beside_the_tree():
    def tree(injection, length):
        (made,) = injection._trees(torch.tensor([length]))
        return children(strata.Tree(made))

    with strata.inject(make("BertModel"), tree="windows", branching=3, exact=(0, -1)) as injection:
        assert tree(injection, 9) == [0, [[1, 2, 3], [4, 5, 6], [7]], 8]
        injection.tree = "balanced"
        assert tree(injection, 13) == [0, [[[1, 2, 3], [4, 5, 6], [7, 8, 9]], [[10, 11]]], 12]
        assert tree(injection, 2) == [0, 1]
    with strata.inject(make("BertModel"), branching=3, exact=(0, 4)) as injection:
        assert tree(injection, 5) == [0, [[1, 2, 3], [4]]]
        assert tree(injection, 1) == [0]
    with strata.inject(make("BertModel"), tree="windows", branching=3) as injection:
        assert tree(injection, 11) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10]]


@torch.no_grad()
def test_minilm():
    folder = tiny_models.minilm()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    texts = ["The old mill stands by the river, where the boats that carry flour do not stop. " * 4, "It is old."]
    embeddings = {}
    for side in ("left", "right"):
        batch = tokenizer(texts, padding=True, return_tensors="pt", padding_side=side)
        places = (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)
        real = batch["attention_mask"].bool()[..., None]

        def embed(batch=batch, places=places, real=real):
            states = model(**batch, position_ids=places).last_hidden_state.masked_fill(~real, 0.0)
            return torch.nn.functional.normalize(states.sum(1), dim=-1)

        before = embed()
        with strata.inject(model, "late", branching=8, exact=(0, -1)):
            embeddings[side] = embed()
        cosine = (embeddings[side] * before).sum(-1)
        assert bool((cosine > 0.9).all()) and bool((cosine[:1] < 1 - 1e-6).all()), "near the original, and not it"
        with strata.inject(model, range(6), strata.Tree.star):
            torch.testing.assert_close(embed(), before, atol=1e-5, rtol=0)
    torch.testing.assert_close(embeddings["left"], embeddings["right"], atol=1e-5, rtol=0)
