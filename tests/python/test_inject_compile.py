"""Models with injected HSA under torch.compile(fullgraph=True); skipped where `transformers` is not installed or too old."""

import pytest
import tiny_models
import torch
from tiny_models import IDS, MASK

import strata

transformers = pytest.importorskip(
    "transformers", minversion="5.0", reason="strata.inject tests skipped: they need transformers 5 or later"
)

LEFT = MASK.flip(1)
HOLES = torch.tensor([[1, 1, 0, 1, 1, 1, 0, 1, 0], [0, 1, 0, 0, 1, 1, 1, 0, 0]])
PACKED = torch.block_diag(torch.ones(4, 4), torch.ones(5, 5)).tril().bool().expand(2, 1, 9, 9)
CASES = {
    "balanced": ("BertModel", {"branching": 2}),
    "windows": ("RobertaModel", {"tree": "windows", "branching": 3}),
    "exact": ("DistilBertModel", {"branching": 2, "exact": (0, -1)}),
    "streaming": ("GPT2Model", {"branching": 3}),
}


def make(name):
    return tiny_models.make(transformers, name, layers=2)


def compiled(model, **options):
    torch._dynamo.reset()
    return torch.compile(model, fullgraph=True, **options)


def states(model, mask, ids=IDS):
    """The last hidden states of the real tokens."""
    cache = {"use_cache": False} if "GPT2" in str(type(model.config)) else {}
    real = torch.ones_like(ids) if mask is None else mask
    return model(input_ids=ids, attention_mask=mask, **cache).last_hidden_state[real.bool()]


def assert_close(got, want):
    assert float((got - want).abs().max()) < 1e-4 * max(1, float(want.abs().max()))


def step(call, model, mask):
    """Hidden states and all gradients."""
    model.zero_grad()
    out = states(call, mask)
    out.sin().sum().backward()
    return [out.detach()] + [p.grad for p in model.parameters() if p.grad is not None and p.grad.any()]


@pytest.mark.parametrize("case", CASES)
def test_states_and_gradients(case):
    name, options = CASES[case]
    model = make(name)  # in evaluation mode: no dropout
    graph = compiled(model, backend="aot_eager")
    with strata.inject(model, [1], **options):
        for mask in (None, MASK, LEFT, HOLES):
            for got, want in zip(step(graph, model, mask), step(model, model, mask), strict=True):
                assert_close(got, want)


@torch.no_grad()
@pytest.mark.parametrize("case", ["exact", "streaming"])
def test_inductor(case):
    name, options = CASES[case]
    model = make(name)
    graph = compiled(model)
    with strata.inject(model, [1], **options):
        injected = states(graph, LEFT)
        assert_close(injected, states(model, LEFT))
        assert_close(states(graph, HOLES), states(model, HOLES))  # the same graph
    removed = states(graph, LEFT)
    assert_close(removed, states(model, LEFT))
    assert float((removed - injected).abs().max()) > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
def test_one_graph_serves_all_lengths(case):
    name, options = CASES[case]
    model, graphs = make(name), []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    graph = compiled(model, dynamic=True, backend=count)
    with strata.inject(model, [1], **options):
        for batch, tokens in ((2, 9), (3, 20), (4, 13)):
            ids, mask = torch.randint(2, 40, (batch, tokens)), torch.ones(batch, tokens, dtype=torch.long)
            mask[1, :4] = 0
            assert_close(states(graph, mask, ids), states(model, mask, ids))
    assert len(graphs) == 1


@torch.no_grad()
def test_given_trees():
    model = make("BertModel")
    graph = compiled(model, backend="aot_eager")
    with strata.inject(model) as injection:
        for branching in (2, 3):
            injection.tree = [strata.Tree.balanced(tokens, branching) for tokens in (9, 5)]
            assert_close(states(graph, LEFT), states(model, LEFT))
        injection.tree = [strata.Tree.star(9)] * 2
        with pytest.raises(RuntimeError, match="expected trees of as many tokens as their sequences have"):
            states(graph, LEFT)
        injection.tree = strata.Tree.star
        with pytest.raises(Exception, match="a compiled graph cannot call a function of lengths"):
            states(graph, LEFT)


@torch.no_grad()
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_graphs_refuse_what_they_cannot_do(backend):
    """When they run, because it depends on values."""
    for name, options in (("BertModel", {"exact": (6,)}), ("BertModel", {}), ("GPT2Model", {})):
        model = make(name)
        graph = compiled(model, backend=backend)
        words = "too few for places" if options else "expected 1 for real tokens and 0 for padding"
        with strata.inject(model, [0], **options), pytest.raises(RuntimeError, match=words):
            states(graph, MASK) if options else graph(input_ids=IDS, attention_mask=PACKED)
