"""Streaming attention and its cache in causal models of `transformers`: generate() with Injection.cache(). Skipped where
`transformers` is not installed or too old."""

import pytest
import tiny_models
import torch

import strata
import strata.huggingface

transformers = pytest.importorskip(
    "transformers",
    minversion="5.0",
    reason="streaming caches of Hugging Face models: skipped, they need transformers 5 or later",
)

MODELS = ["LlamaForCausalLM", "Qwen2ForCausalLM", "GPT2LMHeadModel"]
GREEDY = {"max_new_tokens": 30, "do_sample": False, "pad_token_id": 1, "eos_token_id": None}
WAYS = {  # of generate()
    "greedy": {},
    "sampled": {"do_sample": True, "temperature": 1.3, "top_k": 8},
    "beams": {"num_beams": 3, "length_penalty": 0.5},
    "sampled beams": {"num_beams": 2, "do_sample": True, "num_return_sequences": 2},
}
SMALL = {"branching": 2, "near": 2}


def make(name, **options):
    return tiny_models.make(transformers, name, 4, **options)


def prompts():
    """Two texts of 7 and 20 tokens, the shorter one padded on the left."""
    torch.manual_seed(5)
    ids = torch.randint(2, 40, (2, 20))
    mask = torch.tensor([[0] * 13 + [1] * 7, [1] * 20])
    return ids.masked_fill(mask == 0, 1), mask


@torch.no_grad()
def generate(model, ids, mask, **options):
    torch.manual_seed(11)
    return model.generate(ids, attention_mask=mask, **{**GREEDY, **options})


def gap(got, want):
    return float((got - want).abs().max())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_exact_neighbours_generate_what_the_model_generates(name, way):
    """With so many neighbours that no token is averaged, all is as without Strata: the texts of transformers itself."""
    model, (ids, mask) = make(name), prompts()
    want = generate(model, ids, mask, **WAYS[way])
    for layers in ("all", [1, 2]):
        with strata.inject(model, layers, branching=4, near=16) as injection:
            got = generate(model, ids, mask, past_key_values=injection.cache(), **WAYS[way])
        assert torch.equal(got, want), layers


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_generates_what_the_parallel_forward_generates(name, way):
    """With few neighbours: as without any cache, where every token is computed by the parallel form again."""
    model, (ids, mask) = make(name), prompts()
    plain = generate(model, ids, mask, **WAYS[way])
    for layers in ("all", [0, 3]):
        with strata.inject(model, layers, **SMALL) as injection:
            want = generate(model, ids, mask, use_cache=False, **WAYS[way])
            got = generate(model, ids, mask, past_key_values=injection.cache(), **WAYS[way])
        assert torch.equal(got, want) and not torch.equal(got, plain), layers


@pytest.mark.parametrize("attention", ["sdpa", "eager", "strata_flat"])
@pytest.mark.parametrize("options", [{"branching": 3}, SMALL, {"branching": 4, "near": 3}], ids=str)
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_logits_step_by_step(name, options, attention):
    """For a prompt and then one or several tokens at a time, behind left padding."""
    strata.huggingface.register()
    # Transformers' own "eager" makes NaN of padding in float64.
    dtype, tolerance = (torch.float32, 1e-4) if attention == "eager" else (torch.float64, 1e-9)
    model, (prompt, mask) = make(name).to(dtype), prompts()
    model.set_attn_implementation(attention)
    ids = torch.cat([prompt, torch.randint(2, 40, (2, 20))], 1)
    mask = torch.cat([mask, torch.ones(2, 20, dtype=torch.long)], 1)
    places = (mask.cumsum(1) - 1).clamp_min(0)
    for layers in ("all", [1, 3]):
        with strata.inject(model, layers, **options) as injection:
            want = model(ids, attention_mask=mask, position_ids=places).logits
            cache, end = injection.cache(), 0
            for count in (20, 1, 1, 5, 1, 12):
                part = slice(end, end + count)
                end += count
                got = model(
                    ids[:, part], attention_mask=mask[:, :end], position_ids=places[:, part], past_key_values=cache
                ).logits
                real = mask[:, part].bool()
                assert gap(got[real], want[:, part][real]) < tolerance, (layers, end)
            assert cache.get_seq_length() == 40


@torch.no_grad()
def test_padding_does_not_matter():
    model, (ids, mask) = make("LlamaForCausalLM"), prompts()
    with strata.inject(model, "all", **SMALL) as injection:
        both = generate(model, ids, mask, past_key_values=injection.cache())
        alone = generate(model, ids[:1, 13:], mask[:1, 13:], past_key_values=injection.cache())
    assert torch.equal(both[:1, 13:], alone)


@torch.no_grad()
def test_crop_and_assisted_decoding():
    """Tokens that a draft got wrong are taken back, as far as the history reaches."""
    model, (ids, _) = make("LlamaForCausalLM").double(), prompts()
    ids = ids[1:]
    draft = make(
        "LlamaForCausalLM", num_attention_heads=2, num_key_value_heads=1
    ).double()  # other weights, often wrong
    mask = torch.ones_like(ids)
    with strata.inject(model, "all", **SMALL) as injection:
        end = {"eos_token_id": 0}  # prompt lookup expects one; it is never drawn here
        want = generate(model, ids, mask, past_key_values=injection.cache(), **end)
        assert want.shape == (1, 50)
        for how in ({"prompt_lookup_num_tokens": 4}, {"assistant_model": draft}):
            got = generate(model, ids, mask, past_key_values=injection.cache(history=32), **end, **how)
            assert torch.equal(got, want), how
        cache = injection.cache(history=6)
        first = model(ids, past_key_values=cache).logits
        model(ids[:, :6], past_key_values=cache)  # other tokens, taken back in two crops
        cache.crop(-2)
        cache.crop(-4)
        assert cache.get_seq_length() == 20 and cache.layers[0].is_croppable
        got = model(ids[:, 3:9], past_key_values=cache).logits
        both = model(torch.cat([ids, ids[:, 3:9]], 1)).logits
        assert gap(first, both[:, :20]) < 1e-9 and gap(got, both[:, 20:]) < 1e-9
        with pytest.raises(ValueError, match="can be cropped to 20 or more.* history=6, got 19"):
            cache.crop(-7)
        assert not injection.cache().layers[0].is_croppable


@torch.no_grad()
def test_batches_are_selected_and_repeated():
    model, (ids, _) = make("Qwen2ForCausalLM").double(), prompts()
    more = torch.randint(2, 40, (3, 4))
    with strata.inject(model, [0, 2], **SMALL) as injection:
        cache = injection.cache()
        model(ids, past_key_values=cache)
        cache.batch_repeat_interleave(2)
        cache.batch_select_indices(torch.tensor([0, 2, 3]))
        cache.reorder_cache(torch.tensor([2, 0, 1]))
        got = model(more, past_key_values=cache).logits
        want = model(torch.cat([ids[[1, 0, 1]], more], 1)).logits[:, 20:]
        assert gap(got, want) < 1e-9
        cache.reset()
        assert cache.get_seq_length() == 0
        assert gap(model(ids, past_key_values=cache).logits, model(ids).logits) < 1e-9


@torch.no_grad()
def test_the_cache_grows_with_the_logarithm():
    model = make("LlamaForCausalLM")
    ids = torch.randint(2, 40, (1, 600))
    with strata.inject(model, "all", branching=4, near=2) as injection:
        sizes = []
        for tokens in (75, 150, 300, 600):
            cache = injection.cache()
            model(ids[:, :tokens], past_key_values=cache)
            sizes.append(cache.bytes)
    whole = transformers.DynamicCache(config=model.config)
    model(ids, past_key_values=whole)
    all_keys = sum(x.numel() * x.element_size() for layer in whole.layers for x in (layer.keys, layer.values))
    # 256 tokens reach one height more than 64: near b slots of 2 heads, with a key, a value and a kappa, and a mass.
    height = 4 * (8 * 2 * (8 + 8 + 1) + 8) * 4
    assert sizes[0] == sizes[1] and sizes[2] == sizes[3] == sizes[1] + height and sizes[3] < all_keys / 5


def test_bfloat16():
    model, (ids, mask) = make("LlamaForCausalLM"), prompts()
    with strata.inject(model.bfloat16(), "all", **SMALL) as injection:
        cache = injection.cache()
        text = generate(model, ids, mask, past_key_values=cache)
        assert text.shape == (2, 50) and cache.layers[0].nodes.state["keys"].dtype == torch.float32


@torch.no_grad()
def test_bad_arguments():
    model, (ids, _) = make("LlamaForCausalLM"), prompts()
    with pytest.raises(ValueError, match="near: expected 1 to 2\\^20 for a causal model"):
        strata.inject(model, near=0)
    with pytest.raises(ValueError, match="near: .* 1 for an encoder, got 2"):
        strata.inject(make("BertModel"), near=2)
    with pytest.raises(ValueError, match='tree: expected "balanced" for a causal model'):
        strata.inject(model, tree="windows")
    with pytest.raises(ValueError, match='layers: expected "late", "all" or a list'):
        strata.inject(model, "early")
    windowed = make("Qwen2ForCausalLM", use_sliding_window=True, sliding_window=4, max_window_layers=2)
    with pytest.raises(ValueError, match=r"layers: expected layers without a sliding window, got \[2, 3\]"):
        strata.inject(windowed, "all")
    with strata.inject(make("BertModel")) as encoder, pytest.raises(ValueError, match="cache: expected a causal model"):
        encoder.cache()
    with strata.inject(model, "all") as injection:
        with pytest.raises(ValueError, match="history: expected 0 or more"):
            injection.cache(-1)
        cache = injection.cache()
        with pytest.raises(ValueError, match="past_key_values: expected a cache of the injection"):
            make("LlamaForCausalLM")(ids, past_key_values=cache)
        model(ids, past_key_values=cache)
        with pytest.raises(ValueError, match="attention_mask: .* padding in front only"):
            behind = torch.cat([torch.ones(2, 21), torch.tensor([[1.0], [0.0]])], 1)
            model(ids[:, :2], attention_mask=behind, past_key_values=cache)
        late = injection.cache()
    with pytest.raises(ValueError, match="past_key_values: expected a cache of the injection"):
        model(ids, past_key_values=late)
    with (
        strata.inject(model, "all"),
        pytest.raises(ValueError, match="past_key_values: expected a cache of the injection"),
    ):
        model(ids, past_key_values=late)
