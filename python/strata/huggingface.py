"""Strata's attention under a name that Hugging Face's transformers know: the models themselves stay unchanged.

    import strata.huggingface
    strata.huggingface.register()
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="strata_hsa")
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from strata._real_tokens import Arrangement, all_real, arrange, real_keys
from strata._trees_of_batch import built_trees, check_trees, split_trees
from strata.ops import hkt_attention, hkt_decode
from strata.hsa_ops import hsa_attention
from strata.tree import Tree, Trees, _encoded

FLAT, HSA = "strata_flat", "strata_hsa"  # values of attn_implementation
BRANCHING = 16  # of the trees that are used when none are given
ENCODERS_ONLY = (
    f'attn_implementation "{HSA}": expected an encoder, whose tokens all see each other, because a node of a tree looks '
    f'ahead, got a causal or windowed model; use "{FLAT}", or strata.inject(model) for the causal form of HSA in GPT-2'
)
MASK = (
    f'attention_mask: "{HSA}" expected 1 for real tokens and 0 for padding, as tokenizers make it, got another mask; '
    f'use "{FLAT}" for masks between tokens'
)


def register() -> None:
    """Adds two values of `attn_implementation` to transformers (5 or later), for this process. A second call changes
    nothing.

    "strata_flat"  softmax attention by the operators of Strata, exactly. Causal models, padding and other masks, grouped
                   key heads and caches work.
    "strata_hsa"   HSA on trees, for encoders that find their attention by name: BERT, RoBERTa, DistilBERT, ELECTRA and
                   others. `model(..., strata_trees=[..])` gives one Tree per sequence, over its tokens without padding;
                   the default is the balanced tree of 16 children per node. Padding may stand anywhere and counts for
                   nothing.

    Neither has attention dropout or returns attention weights.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise ImportError(
            "strata.huggingface: expected transformers 5 or later; run pip install --upgrade transformers"
        ) from error
    # Without a mask function under the same name, transformers would pass no mask at all, and padding would count.
    for name, attend, mask in ((FLAT, _attend_flat, _flat_mask), (HSA, _attend_hsa, _hsa_mask)):
        AttentionInterface.register(name, attend)
        AttentionMaskInterface.register(name, mask)


# ------------------------------------------------------------------------------------------------- masks


def _flat_mask(*arguments: Any, mask_function: Any, **options: Any) -> Tensor | None:
    """Called by transformers once per call of a model. Boolean, True where a row sees a key: (B, 1, 1, K) if all rows see
    the same keys, otherwise (B, 1, Q, K); None if all see all, or if the mask is plainly causal."""
    from transformers.masking_utils import bidirectional_mask_function, sdpa_mask

    if mask_function is bidirectional_mask_function and options.get("allow_is_bidirectional_skip"):
        options["q_length"] = 1  # all rows are alike
    make_mask: Callable[..., Tensor | None] = sdpa_mask
    return make_mask(*arguments, mask_function=mask_function, **options)


def _hsa_mask(*arguments: Any, mask_function: Any, **options: Any) -> Tensor | None:
    from transformers.masking_utils import bidirectional_mask_function

    if mask_function is not bidirectional_mask_function:
        raise ValueError(ENCODERS_ONLY)
    return _flat_mask(*arguments, mask_function=mask_function, **options)


def _refuse(name: str, dropout: float, options: dict[str, Any]) -> None:
    """What other attention functions of transformers offer and these two do not."""
    if dropout > 0:
        raise ValueError(
            f'dropout: "{name}" expected 0, because it has no attention dropout, got {dropout}; call model.eval(), or '
            "create the model without it (BERT: attention_probs_dropout_prob=0)"
        )
    if options.get("output_attentions"):
        raise ValueError(
            f'output_attentions: "{name}" expected False, because it never computes the attention matrix; '
            'use attn_implementation="eager"'
        )
    for option, meaning in (("softcap", "capped scores"), ("s_aux", "attention sinks"), ("cache", "a paged cache")):
        if options.get(option) is not None:
            raise ValueError(
                f'{option}: "{name}" expected None, because it has no {meaning}; use another implementation'
            )


# ------------------------------------------------------------------------------------------------- flat


def _attend_flat(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    strata_trees: object = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Called by transformers. query: (B, H, Q, d), key: (B, Hk, K, d), value: (B, Hk, K, dv); the mask broadcasts to
    (B, H, Q, K), True where a row sees a key, or numbers that are added to the scores. Returns (B, Q, H, dv), None."""
    _refuse(FLAT, dropout, options)
    if strata_trees is not None:
        raise ValueError(f'strata_trees: expected None, because "{FLAT}" has no trees; use "{HSA}"')
    rows = query.shape[2]
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    causal = bool(rows > 1 and attention_mask is None and is_causal)  # as for transformers' "sdpa"
    if causal and key.shape[2] > rows:  # an empty cache of fixed size
        key, value = key[:, :, :rows], value[:, :, :rows]
        position_bias = None if position_bias is None else position_bias[..., :rows]
    if _can_decode(query, key, value, attention_mask) and position_bias is None:
        out = _decoded(query, key, value, attention_mask, scaling)
    else:
        bias = _with_terms(_bias_of(attention_mask, query.dtype), position_bias)
        query, key, value, bias = _square(query, key, value, bias)
        out, _ = hkt_attention([query], [key], value, _one_level(query), bias=bias, causal=causal, scale=scaling)
    return out[:, :, :rows].transpose(1, 2).contiguous(), None


def _one_level(query: Tensor) -> Tensor:
    compute = torch.float64 if query.dtype == torch.float64 else torch.float32
    return torch.ones(query.shape[1], 1, dtype=compute, device=query.device)


def _can_decode(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether this is one new token of a cache, for which there is an operator without gradients."""
    if query.shape[2] != 1 or key.shape[2] == 1 or query.device.type not in ("cpu", "cuda"):
        return False
    if mask is not None and (mask.dtype != torch.bool or mask.shape[1] != 1):
        return False
    return not (torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)))


def _decoded(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None) -> Tensor:
    """One row: the keys that it sees come first."""
    arranged = all_real(key) if mask is None else arrange(mask[:, 0, 0].expand(key.shape[0], key.shape[2]))
    k, v = arranged.to_front(key), arranged.to_front(value)
    return hkt_decode([query], [k], v, _one_level(query), arranged.lengths, scale=scaling)


def _bias_of(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """What the mask adds to the scores; -inf where it hides a key, so that a row without keys gives 0."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, -float("inf"))
    return mask.masked_fill(mask <= torch.finfo(mask.dtype).min / 2, -float("inf")).to(dtype)


def _with_terms(bias: Tensor | None, terms: Tensor | None) -> Tensor | None:
    if terms is None:
        return bias
    return terms if bias is None else bias + terms.to(bias.dtype)


def _square(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """As many rows as keys: rows of zeros that are not used, or keys that no row sees."""
    rows, tokens = query.shape[2], key.shape[2]
    if rows == tokens:
        return query, key, value, bias
    pad = torch.nn.functional.pad
    if rows < tokens:
        if bias is not None and bias.shape[2] != 1:
            bias = pad(bias, (0, 0, 0, tokens - rows))
        return pad(query, (0, 0, 0, tokens - rows)), key, value, bias
    if bias is None:
        bias = torch.zeros(1, 1, 1, tokens, dtype=query.dtype, device=query.device)
    bias = pad(bias.expand(-1, -1, -1, tokens), (0, rows - tokens), value=-float("inf"))
    return query, pad(key, (0, 0, 0, rows - tokens)), pad(value, (0, 0, 0, rows - tokens)), bias


# ------------------------------------------------------------------------------------------------- HSA


def _attend_hsa(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    strata_trees: Trees | Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Called by transformers. query: (B, H, T, d), key and value: (B, Hk, T, d); the mask is (B, 1, 1 or T, T) and says
    which tokens are real. Returns (B, T, H, d), None; padding gives 0."""
    _refuse(HSA, dropout, options)
    if position_bias is not None:
        raise ValueError(f'position_bias: "{HSA}" expected None, because trees have no pairs of tokens; use "{FLAT}"')
    if is_causal is None:
        is_causal = getattr(module, "is_causal", False)
    if is_causal and attention_mask is None:
        raise ValueError(ENCODERS_ONLY)
    if query.shape[2] != key.shape[2]:
        raise ValueError(
            f'attention: "{HSA}" expected as many keys as queries, because both are the tokens of one tree, '
            f'got {key.shape[2]} and {query.shape[2]}; use "{FLAT}" for models with cross-attention'
        )
    if key.shape[1] != query.shape[1]:
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    arranged = all_real(key)
    if attention_mask is not None:
        arranged = arrange(real_keys(attention_mask, query, key, False, MASK))
    q, k, v = (arranged.to_front(x) for x in (query, key, value))
    out, _ = hsa_attention(q, k, v, _trees_of(strata_trees, arranged), scale=scaling)
    return arranged.back(out).transpose(1, 2).contiguous(), None


def _trees_of(given: Trees | Tensor | None, arranged: Arrangement) -> list[Tensor]:
    """The trees of a batch: balanced, or those that were given, one per sequence or all in one tensor."""
    if given is None:
        return built_trees(arranged.lengths, [BRANCHING])
    if isinstance(given, torch.Tensor):
        if not torch.compiler.is_compiling():
            check_trees("strata_trees", split_trees(given), arranged.lengths)
        return [given]
    if not isinstance(given, (Tree, list, tuple)):
        raise ValueError(f"strata_trees: expected a list with one Tree per sequence of the batch, got {given!r}")
    trees = _encoded(given)
    check_trees("strata_trees", trees, arranged.lengths)
    return trees
