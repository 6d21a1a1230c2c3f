"""HSA instead of softmax in chosen layers of a Hugging Face transformer: the same q, k and v, without training."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from strata._real_tokens import Arrangement, all_real, arrange, real_keys, require
from strata._trees_of_batch import built_trees, check_trees
from strata.hsa_ops import hsa_attention, hsa_stream_attention
from strata.tree import Tree, _encoded

NAME = "strata_inject"  # of the attention function below, for transformers
FAMILIES = {"bert": "encoder", "roberta": "encoder", "distilbert": "transformer", "gpt2": "h"}  # where the layers are
WIDEST = 2**20  # children of a node
MASK = (
    "attention_mask: expected 1 for real tokens and 0 for padding, as tokenizers make it (with a cache: a DynamicCache, "
    "and no padding at the end), because HSA supports no other mask"
)
TreeChoice = str | Tree | Callable[[int], Tree] | Sequence[Tree]  # see `tree` of inject()


def inject(
    model: torch.nn.Module,
    layers: str | Iterable[int] = "late",
    tree: TreeChoice = "balanced",
    *,
    branching: int = 16,
    exact: Iterable[int] = (),
) -> Injection:
    """Replaces softmax by HSA in the chosen layers of a BERT, RoBERTa, DistilBERT or GPT-2 model of `transformers`, in
    place.

    model      with or without a head; its attn_implementation must be "sdpa" (the default) or "eager"
    layers     "late" (every second layer from the last back to the middle) or a list of layer numbers, from 0
    tree       encoders: "balanced", "windows" (windows of `branching` tokens under one root), a function from a length
               to a Tree (called once per length), or a list with one Tree per sequence of the batch. Trees are over
               the real tokens. GPT-2: "balanced" only
    branching  children per node
    exact      encoders: places of tokens that still attend to all tokens, counted from the first real token; negative
               places count from the last one. Trees that are built here keep the runs 0, 1, .. and -1, -2, .. as
               children of the root: pass (0, -1) for [CLS] and [SEP]

    Padding may stand before, behind and inside the text, and counts for nothing; other masks are not supported. GPT-2
    uses the streaming form, which is strictly causal. It also works with a growing cache, as in generate(), but a step
    then computes the rows of all T tokens and keeps the last one: it takes O(T b log T), not O(b log T). The model can
    be trained without attention dropout, and compiled with torch.compile(fullgraph=True) unless `tree` is a function.
    It does not return attention weights.

    Returns an Injection: call remove() on it, or use it in a `with` statement, to restore the old attention.
    """
    family = getattr(getattr(model, "config", None), "model_type", None)
    base: Any = getattr(model, "base_model", None)
    if family not in FAMILIES or not hasattr(base, FAMILIES[family]):
        raise ValueError(
            f"model: expected BERT, RoBERTa, DistilBERT or GPT-2 of transformers, got {type(model).__name__}"
        )
    if not getattr(model, "_supports_attention_backend", False):
        raise ValueError("model: expected transformers 5 or later, which finds attention functions by name")
    causal = family == "gpt2"
    if causal != bool(getattr(model.config, "is_causal", causal)) or getattr(model.config, "is_decoder", False):
        raise ValueError("model: expected BERT and RoBERTa as encoders and GPT-2 as a causal model; see its config")
    if hasattr(base, "strata_injection"):
        raise ValueError("model: HSA is injected already; call remove() on that injection first")
    modules = _attention_modules(base, family)
    return Injection(base, modules, _chosen(layers, len(modules)), tree, branching, exact, causal)


def _attention_modules(base: Any, family: str) -> list[Any]:
    """One per layer."""
    if family == "gpt2":
        return [block.attn for block in base.h]
    layers = getattr(base, FAMILIES[family]).layer
    return [layer.attention if family == "distilbert" else layer.attention.self for layer in layers]


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
        most = 64 if causal else WIDEST  # the limit of the streaming form
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
        """The trees in use, as `tree` of inject(); a list belongs to one batch."""
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

    def _trees(self, lengths: Tensor) -> list[Tensor]:
        """One encoded tree per sequence, or those of all sequences in one tensor."""
        if isinstance(self._tree, (list, tuple)):
            trees = _encoded(self._tree)
        elif callable(self._tree):
            trees = self._called(lengths)
        else:
            windows = [self.branching, WIDEST] if self._tree == "windows" else [self.branching]
            return built_trees(lengths, windows, *self._ends())
        check_trees("tree", trees, lengths)
        return trees

    def _called(self, lengths: Tensor) -> list[Tensor]:
        if torch.compiler.is_compiling():
            raise ValueError(
                "tree: expected a name or a list of trees, because a compiled graph cannot call a function of lengths; "
                "set the `tree` of the injection to a list before each batch"
            )
        wanted = lengths.tolist()
        for length in set(wanted) - set(self._kept):
            self._kept[length] = _encoded([self._tree(length)])[0]  # type: ignore[operator]
        return [self._kept[length] for length in wanted]

    def _ends(self) -> tuple[int, int]:
        """How many tokens at the beginning and at the end are exact."""
        count = len(self.exact) + 1
        before = next(n for n in range(count) if n not in self.exact)
        return before, next(n for n in range(count) if -1 - n not in self.exact)


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
    if base.config._attn_implementation not in ("sdpa", "eager", "strata_flat"):
        raise ValueError(
            'attn_implementation: expected "sdpa", "eager" or "strata_flat", whose masks can be read, '
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
    arranged = _arranged(attention_mask, query, key, injection.causal)
    if injection.causal:
        # A row depends only on its own query, so zeros can replace the queries that are not in the cache.
        before = key.shape[2] - query.shape[2]
        query = torch.nn.functional.pad(query, (0, 0, before, 0))
        q, k, v = (arranged.to_front(x) for x in (query, key, value))
        out = hsa_stream_attention(q, k, v, injection.branching, scale=scaling)[0]
        return arranged.back(out)[:, :, before:].transpose(1, 2).contiguous(), None
    q, k, v = (arranged.to_front(x) for x in (query, key, value))
    out = hsa_attention(q, k, v, injection._trees(arranged.lengths), scale=scaling)[0]
    if injection.exact:
        out = _with_exact_rows(out, q, k, v, arranged.lengths, injection.exact, scaling)
    return arranged.back(out).transpose(1, 2).contiguous(), None


def _arranged(mask: Tensor | None, query: Tensor, key: Tensor, causal: bool) -> Arrangement:
    """Where the real tokens are. mask: (B, 1, Q, K), True or 0 where a row sees a key, or None."""
    rows, tokens = query.shape[2], key.shape[2]
    if not causal and rows != tokens:
        raise ValueError(f"attention: expected as many keys as queries in an encoder, got {tokens} and {rows}")
    if mask is None:  # every row sees all keys or, if causal, all keys up to its own
        if 1 < rows < tokens:
            raise ValueError("past_key_values: expected a growing cache (DynamicCache), got one of fixed size")
        return all_real(key)
    real = real_keys(mask, query, key, causal, MASK)
    # With a cache the last key is that of the last query; in a cache of fixed size it is not.
    require((real[:, -1] if rows < tokens else real.any(1)).all(), MASK)
    return arrange(real)


def _with_exact_rows(
    out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Tensor,
    exact: list[int],
    scaling: float | None,
) -> Tensor:
    """`out`, (B, H, T, d), with softmax attention in the rows `exact`. The real tokens come first."""
    places = torch.tensor(exact, device=query.device)
    rows = torch.where(places >= 0, places, lengths[:, None] + places)  # (B, R)
    inside = ((rows >= 0) & (rows < lengths[:, None])).all(1)
    short = f"tokens, too few for places {exact}"
    if torch.compiler.is_compiling():
        require(inside.all(), f"exact: a sequence of the batch has fewer {short}")
        rows = rows.clamp(min=0).clamp(max=key.shape[2] - 1)
    elif not bool(inside.all()):
        n = int((~inside).nonzero()[0, 0])
        raise ValueError(f"exact: sequence {n} of the batch has {int(lengths[n])} {short}")
    index = rows[:, None, :, None].expand(-1, query.shape[1], -1, query.shape[3])
    real = torch.arange(key.shape[2], device=key.device) < lengths[:, None]
    softmax = torch.nn.functional.scaled_dot_product_attention(
        query.gather(2, index), key, value, attn_mask=real[:, None, None], scale=scaling
    )  # (B, H, R, d)
    # Each place is written once: places that occur again go to a spare row behind the others.
    spare = out.shape[2]
    again = (rows[:, :, None] == rows[:, None, :]).tril(-1).any(-1)
    index = rows.masked_fill(again, spare)[:, None, :, None].expand_as(softmax)
    return torch.nn.functional.pad(out, (0, 0, 0, 1)).scatter(2, index, softmax)[:, :, :spare]
