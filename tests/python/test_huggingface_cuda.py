"""Attention by name and injection in Hugging Face models on a GPU follow the CPU; skipped where there is none."""

import pytest
import torch
from tiny_models import IDS, MASK, make

import strata
from strata import huggingface

transformers = pytest.importorskip("transformers", minversion="5")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device found", allow_module_level=True)
try:
    strata.hsa_stream_attention(*(torch.zeros(1, 1, 1, 8, device="cuda") for _ in range(3)), 4)
except RuntimeError as error:
    pytest.skip(f"CUDA tests skipped: {str(error).splitlines()[0]}", allow_module_level=True)

PADDED = {"right": MASK, "left": MASK.flip(1)}


def states(model, device, mask, **options):
    with torch.no_grad():
        out = model.to(device)(input_ids=IDS.to(device), attention_mask=mask.to(device), **options)
    return out.last_hidden_state.float().cpu()[mask.bool()]


@pytest.mark.parametrize("side", PADDED)
@pytest.mark.parametrize("name", ["strata_flat", "strata_hsa"])
def test_attention_by_name(name, side):
    huggingface.register()
    model = make(transformers, "BertModel", attn_implementation=name)
    want = states(model, "cpu", PADDED[side])
    torch.testing.assert_close(states(model, "cuda", PADDED[side]), want, atol=2e-5, rtol=2e-4)
    model = model.to("cpu", torch.bfloat16)
    assert (states(model, "cuda", PADDED[side]) - want).norm() <= 0.1 * want.norm()


@pytest.mark.parametrize("side", PADDED)
@pytest.mark.parametrize("name", ["BertModel", "GPT2Model"])
def test_injection(name, side):
    model = make(transformers, name)
    with strata.inject(model, [1, 3]):
        want = states(model, "cpu", PADDED[side])
        torch.testing.assert_close(states(model, "cuda", PADDED[side]), want, atol=2e-5, rtol=2e-4)


@pytest.mark.parametrize("flat", [False, True])
def test_generated_text_is_that_of_the_cpu(flat):
    huggingface.register()
    options = {"attn_implementation": "strata_flat"} if flat else {}
    model = make(transformers, "GPT2LMHeadModel", **options)
    injection = None if flat else strata.inject(model, [1])
    texts = []
    for device in ("cpu", "cuda"):
        arguments = {"attention_mask": PADDED["left"].to(device), "max_new_tokens": 8, "do_sample": False}
        texts.append(model.to(device).generate(IDS.to(device), pad_token_id=1, **arguments).cpu())
    assert torch.equal(texts[0], texts[1])
    if injection is not None:
        injection.remove()


@pytest.mark.parametrize("way", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
@torch.no_grad()
def test_streaming_cache(way):
    """generate() with the streaming cache writes the same text on both devices."""
    model = make(transformers, "LlamaForCausalLM").double()
    texts = []
    for device in ("cpu", "cuda"):
        with strata.inject(model.to(device), "all", branching=2, near=2) as injection:
            options = {"max_new_tokens": 30, "do_sample": False, "pad_token_id": 1, "eos_token_id": None, **way}
            mask = MASK.flip(1).to(device)
            cache = injection.cache()
            texts.append(model.generate(IDS.to(device), attention_mask=mask, past_key_values=cache, **options).cpu())
    assert torch.equal(*texts)
