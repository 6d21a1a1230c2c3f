# %% [markdown]
# # A Llama whose cache grows with the logarithm of the text
#
# `strata.inject` lets layers of a Llama or Qwen2 model of Hugging Face's transformers attend by the streaming form: the
# newest tokens exactly, those further back through means of 16, 256, .. tokens. `injection.cache()` is a cache of
# transformers for it, so that `generate()` works as always. Nothing is trained.
#
#     python3 generate_llama.py models/Qwen2-0.5B --prompt "The old house" --near 8
#
# Without a folder it makes a small Llama of random weights, which shows the sizes and writes nonsense.

# %%
import argparse
import sys

import strata  # before torch, so that it can prepare the machine
import torch
import transformers

parser = argparse.ArgumentParser(description="Generate with streaming attention in a Llama or Qwen2 model.")
parser.add_argument("folder", nargs="?", help="a Hugging Face folder; without it, a small Llama of random weights")
parser.add_argument("--prompt", default="The old house", help="text to go on from (%(default)s)")
parser.add_argument("--tokens", type=int, help="tokens to write (600; 150 with --quick)")
parser.add_argument("--near", type=int, default=2, help="families of each height that a token sees (%(default)s)")
parser.add_argument("--branching", type=int, default=16, help="children of a family (%(default)s)")
parser.add_argument("--quick", action="store_true", help="a few seconds: fewer tokens")
arguments = parser.parse_args([] if "ipykernel" in sys.modules else None)
tokens = arguments.tokens or (150 if arguments.quick else 600)

# %%
torch.manual_seed(0)
if arguments.folder:
    model = transformers.AutoModelForCausalLM.from_pretrained(arguments.folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.folder)
    ids = tokenizer(arguments.prompt, return_tensors="pt").input_ids
else:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4}
    config = transformers.LlamaConfig(vocab_size=256, num_key_value_heads=2, **sizes)
    model, tokenizer = transformers.LlamaForCausalLM(config).eval(), None
    ids = torch.tensor([list(arguments.prompt.encode())])
options = {"max_new_tokens": tokens, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
mask = torch.ones_like(ids)

# %% [markdown]
# ## The same text where all neighbours are exact
#
# With so many neighbours that no token is averaged, the model writes what it writes without Strata.

# %%
original = model.generate(ids, attention_mask=mask, **options)
enough = -(-original.shape[1] // arguments.branching)
with strata.inject(model, "all", branching=arguments.branching, near=enough) as injection:
    exact = model.generate(ids, attention_mask=mask, past_key_values=injection.cache(), **options)
print(f"near={enough}: the same text as without Strata: {torch.equal(exact, original)}")

# %% [markdown]
# ## Few neighbours, and a cache that hardly grows

# %%
with strata.inject(model, "all", branching=arguments.branching, near=arguments.near) as injection:
    for count in (tokens // 4, tokens):
        cache = injection.cache()
        text = model.generate(ids, attention_mask=mask, past_key_values=cache, **{**options, "max_new_tokens": count})
        growing = transformers.DynamicCache(config=model.config)
        with torch.no_grad():
            model(text, past_key_values=growing)
        every = sum(x.numel() * x.element_size() for layer in growing.layers for x in (layer.keys, layer.values))
        print(
            f"near={arguments.near}: {text.shape[1]} tokens: {cache.bytes:,} bytes of cache, {every:,} with every token"
        )
    # The parallel forward of the whole text gives the logits of every step.
    with torch.no_grad():
        again = model(text).logits[:, ids.shape[1] - 1 : -1].argmax(-1)
    agree = float((again == text[:, ids.shape[1] :]).float().mean())
print(f"tokens that the parallel forward would have chosen too: {agree:.1%}")
if tokenizer is not None:
    print(tokenizer.decode(text[0], skip_special_tokens=True))
