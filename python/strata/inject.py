"""HSA instead of softmax in chosen layers of a Hugging Face transformer: the same q, k and v, without training."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from strata.tree import Tree, _encoded, hsa_attention, hsa_stream_attention

NAME = "strata_hsa"  # of the attention function below, for transformers
FAMILIES = ("bert", "roberta", "gpt2")
TreeChoice = str | Tree | Callable[[int], Tree] | Sequence[Tree]  # see `tree` of inject()


def inject(
    model: torch.nn.Module,
    layers: str | Iterable[int] = "late",
    tree: TreeChoice = "balanced",
    *,
    branching: int = 16,
    exact: Iterable[int] = (),
) -> Injection:
    """Replaces softmax by HSA in the chosen layers of a BERT, RoBERTa or GPT-2 model of `transformers`, in place.

    model      with or without a head; its attn_implementation must be "sdpa" (the default) or "eager"
    layers     "late" (every second layer from the last back to the middle) or a list of layer numbers, from 0
    tree       encoders: "balanced", "windows" (windows of `branching` tokens under one root), a function from a length
               to a Tree (called once per length), or a list with one Tree per sequence of the batch.
               GPT-2: "balanced" only
    branching  children per node
    exact      encoders: places of tokens that still attend to all tokens; negative places count from the last real
               token. Trees that are built here keep the runs 0, 1, .. and -1, -2, .. as children of the root: pass
               (0, -1) for [CLS] and [SEP]

    Padding must follow the text; other masks are not supported. GPT-2 uses the streaming form, which is strictly
    causal. It also works with a growing cache, as in generate(), but a step then computes the rows of all T tokens and
    keeps the last one: it takes O(T b log T), not O(b log T). The model can be trained without attention dropout. It
    does not return attention weights.

    Returns an Injection: call remove() on it, or use it in a `with` statement, to restore the old attention.
    """
    family = getattr(getattr(model, "config", None), "model_type", None)
    base: Any = getattr(model, "base_model", None)
    if family not in FAMILIES or not hasattr(base, "h" if family == "gpt2" else "encoder"):
        raise ValueError(f"model: expected BERT, RoBERTa or GPT-2 of transformers, got {type(model).__name__}")
    if not getattr(model, "_supports_attention_backend", False):
        raise ValueError("model: expected transformers 5 or later, which finds attention functions by name")
    causal = family == "gpt2"
    if causal != bool(getattr(model.config, "is_causal", causal)) or getattr(model.config, "is_decoder", False):
        raise ValueError("model: expected BERT and RoBERTa as encoders and GPT-2 as a causal model; see its config")
    if hasattr(base, "strata_injection"):
        raise ValueError("model: HSA is injected already; call remove() on that injection first")
    modules = [block.attn for block in base.h] if causal else [layer.attention.self for layer in base.encoder.layer]
    return Injection(base, modules, _chosen(layers, len(modules)), tree, branching, exact, causal)


class Injection:
    """The change that inject() made to a model. Set `tree` between calls of the model if it is a list: such a list
    belongs to one batch."""

    def __init__(
        self,
        base: Any,
        modules: list[Any],
        layers: list[int],
        tree: TreeChoice,
        branching: int,
        exact: Iterable[int],
        causal: bool,
    ) -> None:
        most = 64 if causal else 2**20  # the limit of the streaming form
        if not isinstance(branching, int) or not 2 <= branching <= most:
            raise ValueError(f"branching: expected a number from 2 to {most}, got {branching!r}")
        self.layers, self.branching, self.causal = layers, branching, causal
        self.exact = _numbers("exact", exact)
        if causal and self.exact:
            raise ValueError("exact: expected () for GPT-2, which uses the streaming form")
        self.tree = tree
        from transformers import AttentionInterface

        AttentionInterface.register(NAME, _attend)
        self._base, self._configs = base, [(modules[layer], modules[layer].config) for layer in layers]
        self._hook = base.register_forward_pre_hook(_check_call, with_kwargs=True)
        base.strata_injection = self
        for module, config in self._configs:
            # A layer uses its config only to find its attention. The masks are made from the model's config, which is
            # unchanged.
            module.config = copy.copy(config)
            module.config._attn_implementation = NAME
            module.strata_injection = self

    @property
    def tree(self) -> TreeChoice:
        return self._tree

    @tree.setter
    def tree(self, tree: TreeChoice) -> None:
        if self.causal and tree != "balanced":
            raise ValueError('tree: expected "balanced" for GPT-2, which uses the streaming form')
        if isinstance(tree, Tree):
            tree = [tree]
        if not callable(tree) and not isinstance(tree, (list, tuple)) and tree not in ("balanced", "windows"):
            raise ValueError(f'tree: expected "balanced", "windows", a function or a list of trees, got {tree!r}')
        self._tree = tree
        self._kept: dict[int, Tensor] = {}  # by length

    def remove(self) -> None:
        """Restores the attention of the layers. A second call does nothing."""
        if self._base is None:
            return
        for module, config in self._configs:
            module.config = config
            del module.strata_injection
        del self._base.strata_injection
        self._hook.remove()
        self._base, self._configs = None, []

    def __enter__(self) -> Injection:  # noqa: PYI034 (Self needs Python 3.11)
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _trees(self, lengths: list[int]) -> list[Tensor]:
        """One encoded tree per sequence."""
        if isinstance(self._tree, (list, tuple)):
            if len(self._tree) != len(lengths):
                raise ValueError(f"tree: expected one per sequence of the batch, {len(lengths)}, got {len(self._tree)}")
            trees = _encoded(self._tree)
        else:
            for length in set(lengths) - set(self._kept):
                self._kept[length] = _encoded([self._tree_of(length)])[0]
            trees = [self._kept[length] for length in lengths]
        for n, (tree, length) in enumerate(zip(trees, lengths)):
            if not isinstance(tree, torch.Tensor) or int(tree[0]) != length:
                what = f"one of {int(tree[0])}" if isinstance(tree, torch.Tensor) else repr(tree)
                raise ValueError(f"tree: expected a Tree of {length} tokens for sequence {n}, got {what}")
        return trees

    def _tree_of(self, length: int) -> Tree:
        if callable(self._tree):
            return self._tree(length)
        windows = [self.branching]
        if self._tree == "windows":
            windows.append(max(2, -(-length // self.branching)))
        before = next(n for n in range(length + 1) if n not in self.exact)
        behind = next(n for n in range(length + 1) if -1 - n not in self.exact)
        if before + behind == 0 or before + behind >= length:
            return Tree.windows(length, windows)
        return Tree.windows(length - before - behind, windows).with_ends(before, behind)


def _numbers(name: str, values: Iterable[int]) -> list[int]:
    try:
        return [operator.index(value) for value in values]
    except TypeError:
        raise ValueError(f"{name}: expected a list of whole numbers, got {values!r}") from None


def _chosen(layers: str | Iterable[int], count: int) -> list[int]:
    if isinstance(layers, str):
        if layers != "late":
            raise ValueError(f'layers: expected "late" or a list of numbers, got "{layers}"')
        return sorted(range(count - 1, count // 2 - 1, -2))
    chosen = sorted(set(_numbers("layers", layers)))
    if any(layer not in range(count) for layer in chosen):
        raise ValueError(f"layers: expected numbers from 0 to {count - 1} (-1 is not the last), got {chosen}")
    return chosen


def _check_call(base: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """Runs before every call of the model and checks what the layers cannot see."""
    wanted = kwargs.get("output_attentions")
    if base.config.output_attentions if wanted is None else wanted:
        raise ValueError(
            "output_attentions: expected False, as HSA never computes the attention matrix; call remove() first"
        )
    if base.config._attn_implementation not in ("sdpa", "eager"):
        raise ValueError(
            'attn_implementation: expected "sdpa" or "eager", whose masks can be read, '
            f'got "{base.config._attn_implementation}"'
        )


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Called by transformers. query: (B, H, Q, d), key and value: (B, H, K, d), Q < K with a cache.
    Returns (B, Q, H, d), None."""
    injection: Injection = module.strata_injection
    if dropout > 0:
        raise ValueError(
            f"dropout: expected 0, because HSA has no attention dropout, got {dropout}; call model.eval(), or create "
            "the model with attention_probs_dropout_prob=0 (GPT-2: attn_pdrop=0)"
        )
    lengths = _lengths(attention_mask, query, key, injection.causal)
    if injection.causal:
        # A row depends only on its own query, so zeros can replace the queries that are not in the cache.
        before = key.shape[2] - query.shape[2]
        rows = torch.nn.functional.pad(query, (0, 0, before, 0))
        out, _ = hsa_stream_attention(rows, key, value, injection.branching, scale=scaling)
        return out[:, :, before:].transpose(1, 2).contiguous(), None
    out, _ = hsa_attention(query, key, value, injection._trees(lengths), scale=scaling)
    out = out.transpose(1, 2).contiguous()
    if injection.exact:
        out = _with_exact_rows(out, query, key, value, lengths, injection.exact, scaling)
    return out, None


def _lengths(mask: Tensor | None, query: Tensor, key: Tensor, causal: bool) -> list[int]:
    """The number of real tokens of each sequence; they must come first. mask: (B, 1, Q, K), True or 0 where a row sees
    a key, or None."""
    batch, rows, tokens = query.shape[0], query.shape[2], key.shape[2]
    if not causal and rows != tokens:
        raise ValueError(f"attention: expected as many keys as queries in an encoder, got {tokens} and {rows}")
    if mask is None:  # every row sees all keys or, if causal, all keys up to its own
        if 1 < rows < tokens:
            raise ValueError("past_key_values: expected a growing cache (DynamicCache), got one of fixed size")
        return [tokens] * batch
    if not isinstance(mask, torch.Tensor) or mask.dim() != 4 or mask.shape[1] != 1:
        raise ValueError("attention_mask: expected shape (batch, tokens), 1 for real tokens, then 0 for padding")
    seen = mask if mask.dtype == torch.bool else mask == 0
    real = seen[:, 0, -1].sum(-1, keepdim=True)  # (B, 1): the last row sees all real tokens
    place = torch.arange(tokens, device=key.device)
    want = (place < real).unsqueeze(1)  # (B, 1, K)
    if causal:
        want = want & (place <= place[tokens - rows :, None])
    right = bool((seen[:, 0] == want).all()) and bool((real > 0).all())
    if mask.dtype != torch.bool:
        right = right and bool((mask[~seen] < -1e3).all())  # it hides keys and does not change the other scores
    if rows < tokens:
        right = right and bool((real == tokens).all())
    if not right:
        raise ValueError(
            "attention_mask: expected all real tokens first and padding after them (with a cache: no padding, and a "
            'DynamicCache), because HSA supports no other mask; set padding_side="right" in the tokenizer'
        )
    return real.expand(batch, 1).squeeze(1).tolist()


def _with_exact_rows(
    out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: list[int],
    exact: list[int],
    scaling: float | None,
) -> Tensor:
    """`out`, (B, T, H, d), with softmax attention in the rows `exact`."""
    places = [[place if place >= 0 else length + place for place in exact] for length in lengths]
    for n, (row, length) in enumerate(zip(places, lengths)):
        if any(place not in range(length) for place in row):
            raise ValueError(f"exact: sequence {n} of the batch has {length} tokens, too few for places {exact}")
    rows = torch.tensor(places, device=query.device)  # (B, R)
    index = rows[:, None, :, None].expand(-1, query.shape[1], -1, query.shape[3])
    real = torch.arange(key.shape[2], device=key.device) < torch.tensor(lengths, device=key.device)[:, None]
    softmax = torch.nn.functional.scaled_dot_product_attention(
        query.gather(2, index), key, value, attn_mask=real[:, None, None], scale=scaling
    )  # (B, H, R, d)
    where = {(n, place): r for n, row in enumerate(places) for r, place in enumerate(row)}  # each place once
    sequence, place = torch.tensor(list(where), device=out.device).T
    column = torch.tensor(list(where.values()), device=out.device)
    return out.index_put((sequence, place), softmax.transpose(1, 2)[sequence, column])
