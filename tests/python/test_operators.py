"""torch.library.opcheck for every operator: schema, autograd registration, shapes while tracing, AOT dispatch."""

import pytest
import torch

import strata

opcheck = getattr(torch.library, "opcheck", None)
pytestmark = pytest.mark.skipif(opcheck is None, reason="torch.library.opcheck needs PyTorch 2.4")

ops = torch.ops.strata
TOKENS = 12


class Call(tuple):
    """Arguments with options."""

    def __new__(cls, *arguments, **options):
        made = super().__new__(cls, arguments)
        made.options = options
        return made


def heads(batch=2, count=2, tokens=TOKENS, channels=4, grad=True, token_major=False, seed=0):
    """(batch, heads, tokens, channels); token_major: in the memory order of a projection's output."""
    generator = torch.Generator().manual_seed(seed)
    if token_major:
        made = torch.randn(batch, tokens, count, channels, generator=generator).transpose(1, 2)
    else:
        made = torch.randn(batch, count, tokens, channels, generator=generator)
    return made.detach().requires_grad_(grad)


def levels(rows, **options):
    return [heads(tokens=count, seed=seed, **options) for seed, count in enumerate(rows)]


def hkt(**options):
    weights = torch.softmax(torch.randn(2, 2), -1).requires_grad_(options.get("grad", True))
    rows = (TOKENS, TOKENS // 2)
    return levels(rows, **options), levels(rows, **options), heads(seed=7, **options), weights


def hkt_backward(token_major):
    q, k, v, weights = hkt(grad=False, token_major=token_major)
    out, lse = ops.hkt_attention(q, k, v, weights)
    return torch.randn_like(out), None, q, k, v, weights, out, lse, False


def hkt_packed(levels=2):
    """Two sequences, of 5 and 7 tokens, with everything that goes with them: operands and options."""
    rows = [strata.packed_rows(TOKENS, 2, level) for level in range(levels)]
    q, k = ([heads(batch=1, tokens=count, seed=seed + l) for l, count in enumerate(rows)] for seed in (0, 5))
    weights = torch.softmax(torch.randn(2, levels), -1).requires_grad_()
    tensors = None, None, None, torch.tensor([0, 5, TOKENS]), None, torch.tensor([0.5, 0.25]), torch.tensor([3, 4])
    options = {"max_seqlen": 7, "window_left": 3, "dropout": 0.25}
    return Call(q, k, heads(batch=1, seed=7), weights, *tensors, **options)


def hkt_cross():
    q, _, _, weights = hkt()
    k = levels((20, 10))
    return Call(q, k, heads(tokens=20, seed=9), weights, None, None, torch.tensor([20, 3]), causal=True)


def trees(batch=2):
    return [strata.Tree.balanced(TOKENS, 3).encoded] * batch


def qkv(**options):
    return heads(seed=1, **options), heads(seed=2, **options), heads(seed=3, **options)


def terms(places=3):
    """weights, key_bias, positions."""
    made = torch.rand(2, TOKENS) + 0.5, torch.randn(2, 2, TOKENS), torch.randn(2, 3, places, places)
    return [term.requires_grad_() for term in made]


def one_level(**options):
    q, k, v = qkv(**options)
    return [q], [k], v


def three_levels(key_heads=2, grad=True):
    """q, k, v of three levels, and the weights of the levels."""
    rows = [TOKENS, (TOKENS + 1) // 2, (TOKENS + 3) // 4]
    made = [[torch.randn(2, n, r, 4, requires_grad=grad) for r in rows] for n in (2, key_heads)]
    weights = torch.tensor([[0.5, 0.25, 0.25], [0.2, 0.3, 0.5]], requires_grad=grad)
    return made[0], made[1], torch.randn(2, key_heads, TOKENS, 4, requires_grad=grad), weights


def hsa_backward(token_major):
    q, k, v = one_level(grad=False, token_major=token_major)
    return torch.randn_like(v), torch.randn(2, 2), q, k, v, trees(), None, None, None, None, False, None


def hsa_levels_backward():
    q, k, v, weights = three_levels(1, grad=False)
    return torch.randn(2, 2, TOKENS, 4), None, q, k, v, trees(), None, None, None, weights, False, None


def stream_backward(token_major):
    q, k, v = one_level(grad=False, token_major=token_major)
    out, lse = ops.hsa_stream_attention(q, k, v, 3)
    return torch.randn_like(v), None, q, k, v, out, lse, 3, torch.ones(2, TOKENS), *[None] * 5, 1, False, None


def stream_levels():
    q, k, v, weights = three_levels(1)
    return q, k, v, 3, None, None, None, weights


def stream_levels_backward():
    q, k, v, weights = three_levels(1, grad=False)
    out, lse = ops.hsa_stream_attention(q, k, v, 3, None, None, None, weights, near=2, both_sides=True)
    return torch.randn_like(out), None, q, k, v, out, lse, 3, None, None, None, weights, None, None, 2, True, None


def step():
    state = strata.HsaAttention(8, 2, streaming=True, branching=4).start_stream(2, 3).state
    caches = [state[name].clone() for name in ("keys", "values", "kappas", "masses", "lengths")]
    return (torch.randn(2, 2, 4), torch.randn(2, 2, 4), torch.randn(2, 2, 4), None, None, None, *caches)


def decode():
    q, k, v, weights = hkt(grad=False)
    return [t[:, :, :1] for t in q], k, v, weights, torch.tensor([12, 7])


def append(current):
    """Rows of two levels; of the second sequence no row of level 1 begins."""
    rows = [heads(count=count, tokens=1, grad=False, seed=count) for count in (2, 2, 1, 1, 1)]
    rings = [heads(count=count, tokens=slots, grad=False) for count, slots in ((2, 1), (2, 3), (1, 8), (1, 4), (1, 8))]
    q, k, queries, keys = rows[:2], rows[2:4], rings[:2], rings[2:4]
    return Call(q, k, rows[4], queries, keys, rings[4], torch.tensor([4, 7]), current=current)


def pyramid(input_filter):
    taps = [torch.randn(3, 4) for _ in range(3 if input_filter else 2)]
    rings = [torch.randn(2, 3 + level, 4) for level in range(2)]
    return torch.randn(2, 4), taps, torch.randn(2, 3, 4) if input_filter else None, rings, torch.tensor([4, 7])


def filters(grad=True):
    return torch.randn(2, TOKENS, 4, requires_grad=grad), torch.randn(3, 4, requires_grad=grad)


TREE = strata.Tree.balanced(TOKENS, 3).encoded
CASES = {
    "hkt_attention": [lambda: hkt(), lambda: hkt(token_major=True), hkt_packed, hkt_cross],
    "hkt_attention_backward": [lambda: hkt_backward(False), lambda: hkt_backward(True)],
    "packed_begins": [lambda: (torch.tensor([0, 5, TOKENS]), 3)],
    "hkt_decode": [decode, lambda: Call(*decode(), window=3)],
    "hkt_append": [lambda: append(False), lambda: append(True)],
    "pyramid_step": [lambda: pyramid(False), lambda: pyramid(True)],
    "hsa_attention": [
        lambda: (*one_level(), trees()),
        lambda: (*one_level(token_major=True), trees()),
        lambda: (*one_level(), trees(), *terms()),
        lambda: (*one_level(), [torch.cat(trees())]),
        lambda: (*three_levels(1)[:3], trees(), None, None, None, three_levels()[3]),
    ],
    "hsa_attention_backward": [lambda: hsa_backward(False), lambda: hsa_backward(True), hsa_levels_backward],
    "hierarchy_score": [
        lambda: (*one_level()[:2], trees()),
        lambda: (*one_level()[:2], trees(), *terms()),
        lambda: (*three_levels()[:2], trees(), None, None, None, three_levels()[3]),
    ],
    "hsa_stream_attention": [
        lambda: (*one_level(), 3),
        lambda: Call(
            *one_level(batch=1), 3, None, None, None, None, torch.tensor([0, 5, TOKENS]), torch.tensor([3, 4]), dropout=0.5
        ),
        lambda: (*one_level(token_major=True), 3),
        lambda: (*one_level(), 3, *terms()),
        stream_levels,
    ],
    "hsa_stream_attention_backward": [
        lambda: stream_backward(False),
        lambda: stream_backward(True),
        stream_levels_backward,
    ],
    "hsa_stream_certificate": [
        lambda: (*one_level()[:2], 3),
        lambda: (*three_levels(1)[:2], 3, torch.ones(2, TOKENS), None, three_levels()[3]),
    ],
    "hsa_stream_step": [step],
    "causal_filter": [
        lambda: (*filters(), 2),
        lambda: (filters()[0], torch.randn(3, 4, 4, requires_grad=True), 2),
        lambda: (filters()[0][:1], filters()[1], 2, torch.tensor([0, 5, TOKENS])),
    ],
    "depthwise_filter": [lambda: (*filters(), 1), lambda: (*filters(), 2)],
    "depthwise_filter_backward": [lambda: (torch.randn(2, 6, 4), *filters(grad=False), 2)],
    "tree_windows": [lambda: (10, [4, 2], 0, "sequence")],
    "tree_star": [lambda: (5, "set")],
    "tree_with_ends": [lambda: (TREE, 1, 2)],
    "tree_quadtree": [lambda: (4, 4)],
    "tree_quadtree_order": [lambda: (4, 4)],
    "tree_parents": [lambda: ([-1, 0, 0, 1, 1], "set")],
    "tree_brackets": [lambda: ("[ a b [ c d ] ]",)],
    "tree_from_text": [lambda: ("One two. Three.", False)],
    "tree_from_markdown": [lambda: ("# A\n\nwords here\n", 2, 2)],
    "tree_from_json": [lambda: ('{"a": [1, 2]}', 2, 2)],
    "tree_from_spans": [lambda: (6, torch.tensor([[0, 2], [2, 6]]), "sequence")],
    "tree_from_offsets": [lambda: ([torch.tensor([0, 2, 6])], "sequence")],
    "tree_from_character_spans": [
        lambda: (torch.tensor([[0, 3], [4, 7], [7, 8]]), torch.tensor([[0, 3], [4, 8]]), "sequence")
    ],
    "tree_with_domain": [lambda: (TREE, "set", 0)],
    "tree_spans": [lambda: (TREE,)],
    "tree_batch_windows": [lambda: ([5, 7], [4], 0, "sequence")],
    "tree_batch_spans": [lambda: ([6, 3], [torch.tensor([[0, 2]]), torch.tensor([[1, 3]])], "set")],
    "tree_batch_text": [lambda: (["One two.", "Three."], False)],
    "tree_text": [lambda: (TREE,)],
    "tree_cost": [lambda: (TREE,)],
    "trees_windows": [
        lambda: (torch.tensor([5, 0, 7]), [4], 0, "sequence"),
        lambda: (torch.tensor([9, 2]), [4], 0, "sequence", 1, 1),
    ],
    "sinusoidal_positions": [lambda: (2, 4)],
}


def operators():
    names = torch._C._dispatch_get_all_op_names() if opcheck else []
    return {name.removeprefix("strata::") for name in names if name.startswith("strata::")}


def test_every_operator_is_checked():
    assert operators() == set(CASES)


@pytest.mark.parametrize(
    ("name", "case"), [(name, index) for name, cases in CASES.items() for index in range(len(cases))]
)
def test_opcheck(name, case):
    torch.manual_seed(0)
    call = CASES[name][case]()
    options = call.options if isinstance(call, Call) else {}
    opcheck(getattr(ops, name).default, tuple(call), options)
