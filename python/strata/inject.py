"""HSA instead of softmax in chosen layers of a Hugging Face transformer: the same q, k and v, without training."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from strata._decoding import check_history
from strata._real_tokens import Arrangement, all_real, arrange, real_keys, require
from strata._trees_of_batch import built_trees, check_trees
from strata.hsa_ops import hsa_attention, hsa_stream_attention
from strata.tree import Tree, _encoded

if TYPE_CHECKING:
    from strata.huggingface_cache import StreamCache, StreamLayer

NAME = "strata_inject"  # of the attention function below, for transformers
FAMILIES = {  # where the layers are
    "bert": "encoder",
    "roberta": "encoder",
    "distilbert": "transformer",
    "gpt2": "h",
    "llama": "layers",
    "qwen2": "layers",
}
CAUSAL = ("gpt2", "llama", "qwen2")
EXPECTED = "BERT, RoBERTa, DistilBERT, GPT-2, Llama or Qwen2 of transformers"
WIDEST = 2**20  # children of a node
MASK = (
    "attention_mask: expected 1 for real tokens and 0 for padding, as tokenizers make it (with a cache: a DynamicCache or "
    "Injection.cache(), and padding in front only), because HSA supports no other mask"
)
TreeChoice = str | Tree | Callable[[int], Tree] | Sequence[Tree]  # see `tree` of inject()


def inject(
    model: torch.nn.Module,
    layers: str | Iterable[int] = "late",
    tree: TreeChoice = "balanced",
    *,
    branching: int = 16,
    near: int = 1,
    exact: Iterable[int] = (),
) -> Injection:
    """Replaces softmax by HSA in the chosen layers of a BERT, RoBERTa, DistilBERT, GPT-2, Llama or Qwen2 model of
    `transformers`, in place.

    model      with or without a head; its attn_implementation must be "sdpa" (the default) or "eager"
    layers     "late" (every second layer from the last back to the middle), "all" or a list of layer numbers, from 0
    tree       encoders: "balanced", "windows" (windows of `branching` tokens under one root), a function from a length
               to a Tree (called once per length), or a list with one Tree per sequence of the batch. Trees are over
               the real tokens. Causal models: "balanced" only
    branching  children per node
    near       causal models: families of each height that a token sees, its own included, as in Strata attention; the
               newest (near - 1) branching tokens, at least, are exact. 1 is streaming HSA
    exact      encoders: places of tokens that still attend to all tokens, counted from the first real token; negative
               places count from the last one. Trees that are built here keep the runs 0, 1, .. and -1, -2, .. as
               children of the root: pass (0, -1) for [CLS] and [SEP]

    Padding may stand before, behind and inside the text, and counts for nothing; other masks are not supported. Causal
    models use the streaming form, which is strictly causal. With generate(past_key_values=injection.cache()) a token
    takes O(near b log T) in these layers; the growing cache of transformers works too, but a step then computes the rows
    of all T tokens and keeps the last one. The model can
    be trained without attention dropout, and compiled with torch.compile(fullgraph=True) unless `tree` is a function.
    It does not return attention weights.

    Returns an Injection: call remove() on it, or use it in a `with` statement, to restore the old attention.
    """
    family = getattr(getattr(model, "config", None), "model_type", None)
    base: Any = getattr(model, "base_model", None)
    if family not in FAMILIES or not hasattr(base, FAMILIES[family]):
        raise ValueError(f"model: expected {EXPECTED}, got {type(model).__name__}")
    if not getattr(model, "_supports_attention_backend", False):
        raise ValueError("model: expected transformers 5 or later, which finds attention functions by name")
    causal = family in CAUSAL
    if causal != bool(getattr(model.config, "is_causal", causal)) or getattr(model.config, "is_decoder", False):
        raise ValueError(
            "model: expected BERT and RoBERTa as encoders, and GPT-2, Llama and Qwen2 as causal models; see its config"
        )
    if hasattr(base, "strata_injection"):
        raise ValueError("model: HSA is injected already; call remove() on that injection first")
    modules = _attention_modules(base, family)
    chosen = _chosen(layers, len(modules))
    windowed = [layer for layer in chosen if getattr(modules[layer], "sliding_window", None) is not None]
    if windowed:
        raise ValueError(f"layers: expected layers without a sliding window, got {windowed}; choose others")
    return Injection(base, modules, chosen, tree, branching, near, exact, causal)


def _attention_modules(base: Any, family: str) -> list[Any]:
    """One per layer."""
    if family == "gpt2":
        return [block.attn for block in base.h]
    if family in CAUSAL:
        return [layer.self_attn for layer in base.layers]
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
        near: int,
        exact: Iterable[int],
        causal: bool,
    ) -> None:
        most = 64 if causal else WIDEST  # the limit of the streaming form
        if not isinstance(branching, int) or not 2 <= branching <= most:
            raise ValueError(f"branching: expected a number from 2 to {most}, got {branching!r}")
        if not isinstance(near, int) or not 1 <= near <= WIDEST or (near > 1 and not causal):
            raise ValueError(f"near: expected 1 to 2^20 for a causal model and 1 for an encoder, got {near!r}")
        self.layers, self.branching, self.near, self.causal = layers, branching, near, causal
        self.exact = _numbers("exact", exact)
        if causal and self.exact:
            raise ValueError("exact: expected () for a causal model, which uses the streaming form; use near")
        self.tree = tree
        from transformers import AttentionInterface

        AttentionInterface.register(NAME, _attend)
        self._base, self._configs = base, [(modules[layer], modules[layer].config) for layer in layers]
        self._count = len(modules)
        self._called_with: object = None  # the StreamCache of the newest call, and its layers that wait for attention
        self._waiting: dict[int, StreamLayer] = {}
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
            raise ValueError('tree: expected "balanced" for a causal model, which uses the streaming form')
        if isinstance(tree, Tree):
            tree = [tree]
        if not callable(tree) and not isinstance(tree, (list, tuple)) and tree not in ("balanced", "windows"):
            raise ValueError(f'tree: expected "balanced", "windows", a function or a list of trees, got {tree!r}')
        self._tree = tree
        self._kept: dict[int, Tensor] = {}  # by length

    def cache(self, history: int = 0) -> StreamCache:
        """An empty cache of a causal model, for its `past_key_values`: O(near b log T) nodes in the injected layers, all keys and
        values in the others. One serves one batch of texts, in any way that transformers decodes: greedy, sampled, with
        beams, after left padding. `history` tokens can be taken back, as assisted decoding needs it.

            model.generate(ids, past_key_values=injection.cache())
        """
        if not self.causal:
            raise ValueError("cache: expected a causal model (GPT-2, Llama, Qwen2), got an encoder")
        from strata.huggingface_cache import StreamCache

        return StreamCache(self, self._count, check_history(history))

    def _expect(self, layer: int, waiting: StreamLayer) -> None:
        """Called by the cache, before the attention of the layer: it passes the layer of the cache to the attention."""
        held = getattr(self._called_with, "layers", ())
        if self._base is None or layer >= len(held) or held[layer] is not waiting or layer in self._waiting:
            raise ValueError(
                "past_key_values: expected a cache of the injection that is in this model; make one by injection.cache()"
            )
        self._waiting[layer] = waiting

    def _arranged_prompt(self, mask: Tensor | None, query: Tensor, key: Tensor) -> Arrangement:
        return _arranged(mask, query, key, True)

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
        if layers == "all":
            return list(range(count))
        if layers != "late":
            raise ValueError(f'layers: expected "late", "all" or a list of numbers, got "{layers}"')
        return sorted(range(count - 1, count // 2 - 1, -2))
    chosen = sorted(set(_numbers("layers", layers)))
    if any(layer not in range(count) for layer in chosen):
        raise ValueError(f"layers: expected numbers from 0 to {count - 1} (-1 is not the last), got {chosen}")
    return chosen


def _check_call(base: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """Runs before every call of the model, checks what the layers cannot see, and notes the cache."""
    injection: Injection = base.strata_injection
    if injection.causal and not torch.compiler.is_compiling():
        injection._called_with = next((x for x in (*args, *kwargs.values()) if hasattr(x, "get_seq_length")), None)
        injection._waiting.clear()
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
    layer = injection._waiting.pop(module.layer_idx, None) if injection._waiting else None
    if layer is not None:
        out = layer.attend(query, key, value, attention_mask, scaling, MASK)
        return out.transpose(1, 2).contiguous(), None
    arranged = _arranged(attention_mask, query, key, injection.causal)
    if injection.causal:
        # A row depends only on its own query, so zeros can replace the queries that are not in the cache.
        before = key.shape[2] - query.shape[2]
        query = torch.nn.functional.pad(query, (0, 0, before, 0))
        q, k, v = (arranged.to_front(x) for x in (query, key, value))
        out = hsa_stream_attention(q, k, v, injection.branching, near=injection.near, scale=scaling)[0]
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
