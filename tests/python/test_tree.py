"""Trees from Python data: lists, spans, boundaries, offset mappings, batches; properties, copies, refusals."""

import copy
import pickle
import random
import re
from pathlib import Path

import pytest
import torch

import strata
from strata import Tree

numpy = pytest.importorskip("numpy")

FORMS = {
    "list": list,
    "tuple": tuple,
    "numpy": numpy.array,
    "unsigned numpy": lambda values: numpy.array(values, dtype=numpy.uint16),
    "tensor": torch.tensor,
    "int32 tensor": lambda values: torch.tensor(values, dtype=torch.int32),
}


def random_nesting(generator, depth=0):
    """Lists in lists with tokens between them."""
    items = []
    for _ in range(generator.randint(1, 4)):
        nest = depth < 4 and generator.random() < 0.4
        items.append(random_nesting(generator, depth + 1) if nest else generator.choice(["word", 7, None, 1.5, {}]))
    return items if generator.random() < 0.5 else tuple(items)


def spans_by_recursion(data, first=0):
    """A reference: (tokens, spans of all lists)."""
    place, spans = first, []
    for item in data:
        if isinstance(item, (list, tuple)):
            place, inner = spans_by_recursion(item, place)
            spans += inner
        else:
            place += 1
    return place, [*spans, (first, place)]


def families(spans):
    """What spans become: those of two and more tokens, once each."""
    return sorted({tuple(span) for span in spans if span[1] - span[0] >= 2})


def test_nested_lists_are_the_families():
    generator = random.Random(4)
    sizes = set()
    for _ in range(200):
        data = random_nesting(generator)
        tokens, spans = spans_by_recursion(data)
        tree = Tree.nested(data)
        assert tree.tokens == len(tree) == tokens
        assert sorted(map(tuple, tree.spans().tolist())) == (families(spans) or [(0, 1)])
        assert tree == Tree.from_spans(tokens, spans)
        sizes.add(tree.families)
    assert len(sizes) > 5
    tree = Tree.nested([["The", "cat"], [["sat", "down"], "."]])
    assert tree.spans().tolist() == [[0, 5], [0, 2], [2, 5], [2, 4]] and tree.depth == 3
    assert Tree.nested("a b c d e".split(), domain="set") == Tree.star(5)


def test_nesting_may_be_deep():
    data = ["first"]
    for n in range(100_000):
        data = [data, n]
    tree = Tree.nested(data)
    assert (tree.tokens, tree.families, tree.depth, tree.cost) == (100_001, 100_000, 100_000, 400_000)
    only = ["token"]
    for _ in range(100_000):
        only = [only]
    assert Tree.nested(only) == Tree.star(1, "sequence")


def test_nested_refusals_say_where():
    with pytest.raises(ValueError, match=r"data\[1\]\[0\]: expected at least one item, got an empty list"):
        Tree.nested([1, [[], 2]])
    with pytest.raises(ValueError, match="data: expected at least one item"):
        Tree.nested([])
    with pytest.raises(ValueError, match="data: expected a list or tuple, got 'words'"):
        Tree.nested("words")
    with pytest.raises(ValueError, match="data: expected a list or tuple"):
        Tree.nested(7)
    itself = [1, 2]
    itself.append([3, itself])
    with pytest.raises(ValueError, match=r"data\[2\]\[1\]: .* a list that contains itself"):
        Tree.nested(itself)
    shared = [1, 2]
    assert Tree.nested([shared, shared]).tokens == 4
    deep = []
    for _ in range(1000):
        deep = [deep]
    with pytest.raises(ValueError, match=r"data\[0\]\[0\]\[0\]\[0\]\[0\]\[0\]\.\.\[0\]"):
        Tree.nested(deep)


@pytest.mark.parametrize("form", FORMS)
def test_spans_in_every_form(form):
    make = FORMS[form]
    spans = [(3, 7), (0, 3), (7, 9), (4, 6), (4, 6), (8, 9)]
    tree = Tree.from_spans(9, make(spans))
    assert sorted(map(tuple, tree.spans().tolist())) == families([*spans, (0, 9)])
    assert tree == Tree.nested([[0, 1, 2], [3, [4, 5], 6], [7, 8]])
    assert tree == Tree.from_offsets([make([0, 3, 4, 6, 7, 9]), make([0, 1, 4, 5])])
    assert Tree.windows(2, make([2])) == Tree.star(2, "sequence")
    if form != "unsigned numpy":
        assert Tree.parents(make([2, 2, -1])) == Tree.star(2, "sequence")
    assert Tree.from_spans(9, iter(spans)) == tree
    assert Tree.from_spans(numpy.int64(9), spans) == Tree.from_spans(torch.tensor(9), spans) == tree


class Span:
    """As spaCy's: places of tokens, and of characters."""

    def __init__(self, start, end, start_char=None, end_char=None):
        self.start, self.end, self.start_char, self.end_char = start, end, start_char, end_char

    def __iter__(self):  # over its tokens
        return iter(range(self.start, self.end))


def test_spans_as_objects():
    spans = [Span(0, 2), Span(2, 5)]
    assert Tree.from_spans(5, spans) == Tree.from_spans(5, [(0, 2), (2, 5)])


@pytest.mark.parametrize("form", ["list", "tuple", "numpy", "tensor"])
def test_character_spans(form):
    text = "Unseen words. End."
    offsets = [(0, 0), (0, 2), (2, 6), (6, 12), (12, 13), (13, 17), (17, 18), (0, 0)]
    words = [found.span() for found in re.finditer(r"\w+[.]?", text)]
    sentences = [(0, 13), (14, 18)]
    tree = Tree.from_character_spans(FORMS[form](offsets), FORMS[form](words + sentences))
    assert tree == Tree.nested([0, [[[1, 2], [3, 4]], [5, 6]], 7])
    objects = [Span(None, None, begin, end) for begin, end in words + sentences]
    assert Tree.from_character_spans(offsets, objects) == tree
    assert Tree.from_character_spans([(0, 0), (0, 0)], []).spans().tolist() == [[0, 2]]


def test_crossing_spans_name_both():
    with pytest.raises(ValueError, match=r"spans\[2\] = \(4, 7\) and spans\[0\] = \(5, 8\) cross"):
        Tree.from_spans(9, [(5, 8), (0, 2), (4, 7)])
    with pytest.raises(ValueError, match=r"spans\[0\] = \(0, 5\) and spans\[1\] = \(3, 8\) cross"):
        Tree.from_character_spans([(0, 9)], [(0, 5), (3, 8)])
    with pytest.raises(ValueError, match=r"spans\[1\]: .*spans\[0\] = \(0, 2\) and spans\[1\] = \(1, 3\) cross"):
        Tree.batch_spans([4, 4], [[(0, 2)], [(0, 2), (1, 3)]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Tree.from_spans(4, [(0, 1.5)]), r"spans\[0\]: expected a whole number, got 1.5"),
        (lambda: Tree.from_spans(4, [(0, 1, 2)]), r"spans\[0\]: expected one of pairs"),
        (lambda: Tree.from_spans(4, ["ab"]), r"spans\[0\]: expected one of pairs"),
        (lambda: Tree.from_spans(4, 7), "spans: expected a list of pairs"),
        (lambda: Tree.from_spans(4, "0 2"), "spans: expected a list of pairs"),
        (lambda: Tree.from_spans(4, torch.zeros(2, 2)), "spans: expected whole numbers of shape"),
        (lambda: Tree.from_spans(4, torch.zeros(2, 3, dtype=torch.long)), r"spans: .*shape \(2, 3\)"),
        (lambda: Tree.from_spans(4, numpy.zeros((2, 2))), "spans: expected whole numbers"),
        (lambda: Tree.from_spans(4, [(0, 2**70)]), r"spans\[0\]: expected a number of at most 64 bits"),
        (lambda: Tree.star(-(2**70)), "tokens: expected a number of at most 64 bits"),
        (lambda: Tree.from_spans("4", []), "tokens: expected a whole number, got '4'"),
        (lambda: Tree.from_spans(True, []), "tokens: expected a whole number, got True"),
        (lambda: Tree.from_spans(-1, []), "tokens: expected 0"),
        (lambda: Tree.from_spans(4, [(2, 9)]), r"spans\[0\]: expected 0 <= begin"),
        (lambda: Tree.from_offsets([0, 3]), r"levels\[0\]: expected a list, tuple, numpy array or tensor"),
        (lambda: Tree.from_offsets(torch.tensor([0, 3])), "levels: expected a list with one list of boundaries"),
        (lambda: Tree.from_offsets([]), "at least one level"),
        (lambda: Tree.from_offsets([[0, 3], [0, 2]]), "the number of items of the level below"),
        (lambda: Tree.from_offsets([torch.tensor([0.0, 3.0])]), r"levels\[0\]: .*float32"),
        (lambda: Tree.windows(9, 4), "windows: expected a list"),
        (lambda: Tree.windows(9, [4], "0"), "shift: expected a whole number"),
        (lambda: Tree.balanced(9, 2.5), "branching: expected a whole number"),
        (lambda: Tree.star(9, None), "domain: expected a str, got None"),
        (lambda: Tree.star(9, "grid"), "needs a width; use tree.with_domain"),
        (lambda: Tree.star(9).with_domain("grid"), "width: expected 1 or more"),
        (lambda: Tree.star(9).with_domain("cube"), "domain: expected set, sequence or grid"),
        (lambda: Tree.parents([0, "a"]), r"parents\[1\]: expected a whole number"),
        (lambda: Tree.text(b"bytes"), "text: expected a str"),
        (lambda: Tree.batch_text("one text"), "texts: expected a list of str"),
        (lambda: Tree.batch_text(["one", 2]), r"texts\[1\]: expected a str, got 2"),
        (lambda: Tree.batch_windows([4, -1], [2]), r"lengths\[1\]"),
        (lambda: Tree.batch_windows(4, [2]), "lengths: expected a list"),
        (lambda: Tree.batch_spans([4], [[(0, 2)], []]), "one list per length"),
        (lambda: Tree.batch_spans([4], 3), "spans: expected one list of spans per sequence"),
        (lambda: Tree([1, 2]), "encoded: expected an int32 tensor"),
        (lambda: Tree(torch.zeros(3)), "encoded: expected an int32 tensor"),
        (lambda: strata.window_family(9, shifts=0), "shifts: expected 1 or more"),
        (lambda: strata.hsa_attention(*[torch.zeros(1, 1, 2, 2)] * 3, 5), "trees: expected a strata.Tree"),
        (lambda: strata.hsa_attention(*[torch.zeros(1, 1, 2, 2)] * 3, [[0, 2]]), r"trees\[0\]: expected a strata.Tree"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("form", FORMS)
def test_batches_are_the_single_trees(form):
    lengths = [5, 0, 12, 1, 7]
    made = FORMS[form](lengths)
    assert Tree.batch_balanced(made, 3) == [Tree.balanced(n, 3) for n in lengths]
    windows = Tree.batch_windows(made, [4, 2], shift=1, domain="set")
    assert windows == [Tree.windows(n, [4, 2], 1, "set") for n in lengths]
    spans = [[(0, 2), (2, 5)], [], [(3, 9)], [], [(1, 3)]]
    want = [Tree.from_spans(n, each) for n, each in zip(lengths, spans)]
    assert Tree.batch_spans(made, [FORMS[form](each) if each else each for each in spans]) == want


def test_batches_of_text():
    texts = ["One two. Three.", "", "Ein Satz.\n\nÜber uns."] * 5
    for characters in (False, True):
        trees, leaves = Tree.batch_text(texts, characters)
        single = [Tree.text(text, characters) for text in texts]
        assert trees == [tree for tree, _ in single]
        assert all(torch.equal(rows, want) for rows, (_, want) in zip(leaves, single)) and len(leaves) == len(texts)


def test_the_trees_of_a_batch_in_one_tensor():
    forest = strata.trees_windows(torch.tensor([5, 0, 7]), [3])
    assert torch.equal(forest, torch.cat([tree.encoded for tree in Tree.batch_balanced([5, 0, 7], 3)]))
    want = [Tree.windows(6, [3]).with_ends(1, 2), Tree.windows(3, [3])]  # the second has no tokens between its ends
    forest = strata.trees_windows(torch.tensor([9, 3]), [3], before=1, behind=2)
    assert torch.equal(forest, torch.cat([tree.encoded for tree in want]))
    with pytest.raises((ValueError, RuntimeError), match="before, behind: expected 0 or more"):
        strata.trees_windows(torch.tensor([9]), [3], before=-1)


@pytest.mark.parametrize(
    "tree",
    [Tree.star(1), Tree.star(9), Tree.balanced(27, 3), Tree.windows(50, [4, 3], 2), Tree.quadtree(5, 6)],
)
def test_cost_and_depth_are_those_printed(tree):
    head = repr(tree).splitlines()[0]
    assert head == (
        f"Tree: {len(tree)} tokens, {tree.families} families, depth {tree.depth}, score products {tree.cost}"
    )


def test_a_tree_without_tokens():
    empty = Tree.from_spans(0, [])
    assert (len(empty), empty.families, empty.depth, empty.cost) == (0, 0, 0, 0) and empty.spans().shape == (0, 2)


def test_equality_hash_and_copies():
    tree, other = Tree.balanced(9, 3), Tree.windows(9, [3])
    assert tree == other and hash(tree) == hash(other) and tree is not other
    assert len({tree, other, Tree.balanced(9, 2), Tree.balanced(9, 3, "set")}) == 3
    assert tree != Tree.balanced(9, 3, "set") and tree != tree.encoded and tree != "balanced"
    for copied in (copy.copy(tree), copy.deepcopy(tree), pickle.loads(pickle.dumps(tree))):
        assert type(copied) is Tree and copied == tree
    assert copy.deepcopy(tree).encoded.data_ptr() != tree.encoded.data_ptr()


def domain_lines(tree):
    return [line.split()[0] for line in repr(tree).splitlines()[1:]]


def test_domains():
    tree = Tree.balanced(8, 4)
    assert set(domain_lines(tree)) == {"sequence"}
    for domain in ("set", "sequence"):
        changed = tree.with_domain(domain)
        assert set(domain_lines(changed)) == {domain} and torch.equal(changed.spans(), tree.spans())
        assert changed.with_domain("sequence") == tree
        assert Tree.balanced(8, 4, domain) == changed == Tree.from_spans(8, tree.spans(), domain)
    assert set(domain_lines(tree.with_domain("grid", 2))) == {"grid"}
    with pytest.raises(ValueError, match="width: expected 0, as only a grid has one"):
        tree.with_domain("set", 2)


def test_domains_choose_the_position_table():
    """Sequences use table 0, grids of width w table w, sets none."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 1, 4, 2, dtype=torch.float64)
    positions = torch.randn(1, 3, 4, 4, dtype=torch.float64)
    tree = Tree.star(4)
    for domain, table in (("set", None), ("sequence", 0), ("grid", 2)):
        changed = tree.with_domain(domain, 2 if domain == "grid" else 0)
        scores = q @ k.transpose(-1, -2) / 2**0.5
        if table is not None:
            scores = scores + positions[:, table] * (1 - torch.eye(4, dtype=torch.float64))
        out, score = strata.hsa_attention(q, k, v, changed, positions=positions)
        torch.testing.assert_close(out, torch.softmax(scores, -1) @ v)
        want = torch.logsumexp(scores, -1).mean(-1)
        torch.testing.assert_close(score, want)
        torch.testing.assert_close(strata.hierarchy_score(q, k, changed, positions=positions), want)


def test_the_best_tree_depends_on_positions():
    """Terms that forbid two neighbours to see each other make the other window the better one."""
    torch.manual_seed(1)
    q, k = torch.randn(2, 1, 2, 12, 4, dtype=torch.float64)
    candidates = [Tree.windows(12, [3, 4]), Tree.windows(12, [4, 3])]
    tables = [torch.zeros(2, 1, 4, 4, dtype=torch.float64) for _ in range(2)]
    tables[0][..., 3, :] = tables[0][..., :, 3] = -50.0
    tables[1][..., 3, :] = tables[1][..., :, 3] = 50.0
    for positions in tables:
        best, scores = strata.best_tree(q, k, candidates, positions=positions)
        want = [float(strata.hierarchy_score(q, k, tree, positions=positions).sum()) for tree in candidates]
        torch.testing.assert_close(scores, torch.tensor(want, dtype=torch.float64))
        assert best is candidates[want.index(max(want))]
    assert not torch.allclose(scores, strata.best_tree(q, k, candidates)[1])


def test_trees_of_data_attend():
    """Nested lists in attention: a tree of two sentences gives the rows that its definition gives."""
    torch.manual_seed(2)
    q, k, v = torch.randn(3, 1, 1, 4, 3, dtype=torch.float64)
    out, _ = strata.hsa_attention(q, k, v, Tree.nested([["a", "b"], ["c", "d"]], "set"))
    assert not torch.allclose(out, strata.hsa_attention(q, k, v, Tree.star(4))[0])
    forest = torch.cat([Tree.star(4).encoded, Tree.nested([["a", "b"], ["c", "d"]], "set").encoded])
    both, _ = strata.hsa_attention(*(torch.cat([t, t]) for t in (q, k, v)), forest)
    assert torch.equal(both[1:], out)


def test_every_operator_has_a_function():
    """ops.py, hsa_ops.py and tree.py call each operator of the library, and their public names have docstrings."""
    names = torch._C._dispatch_get_all_op_names() if hasattr(torch._C, "_dispatch_get_all_op_names") else []
    operators = {name.removeprefix("strata::") for name in names if name.startswith("strata::")}
    folder = Path(strata.__file__).parent
    source = "".join((folder / name).read_text() for name in ("ops.py", "hsa_ops.py", "tree.py"))
    called = set(re.findall(r"torch\.ops\.strata\.(\w+)\(", source))
    assert len(called) > 25
    if operators:
        assert {name for name in operators if not name.endswith("_backward")} == called
    for module in (strata.ops, strata.hsa_ops, strata.tree):
        for name, value in vars(module).items():
            if getattr(value, "__module__", None) == module.__name__ and not name.startswith("_"):
                assert value.__doc__, name
    for name, value in vars(Tree).items():
        if not name.startswith("_") and name != "encoded":
            assert getattr(value, "__func__", value).__doc__, name
