"""torch.compile with inductor, static and dynamic shapes, torch.export, the FLOP counter."""

import pytest
import torch

import strata

pytestmark = pytest.mark.skipif(not hasattr(torch.library, "register_fake"), reason="needs PyTorch 2.4")


@pytest.fixture(autouse=True)
def capture_trees():
    """Operators that make trees have outputs of open sizes; graphs hold them by default from PyTorch 2.9 on."""
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        yield


MODULES = {
    "flat": lambda: strata.FlatAttention(16, 2, causal=True),
    "hkt": lambda: strata.HktAttention(16, 2, levels=3, causal=True),
    "hkt dense filters": lambda: strata.HktAttention(16, 2, levels=2, dense_filters=True, input_filter=True),
    "streaming": lambda: strata.HsaAttention(16, 2, streaming=True, branching=4),
    "streaming sinusoidal": lambda: strata.HsaAttention(
        16, 2, streaming=True, branching=4, positions="sinusoidal", tables=3, places=4
    ),
}


class TreeModule(torch.nn.Module):
    """The tree form with trees that are made inside the graph."""

    def __init__(self, **options):
        super().__init__()
        self.attention = strata.HsaAttention(16, 2, **options)

    def forward(self, x):
        lengths = torch.full((x.shape[0],), x.shape[1])
        return self.attention(x, [torch.ops.strata.trees_windows(lengths, [4], 0, "sequence")])


MODULES["tree"] = TreeModule
MODULES["tree sinusoidal"] = lambda: TreeModule(positions="sinusoidal", places=4)


def made(name):
    torch.manual_seed(3)
    return MODULES[name]()


def step(module, x):
    """Output and gradients."""
    module.zero_grad()
    x = x.detach().requires_grad_()
    out = module(x)
    out.square().sum().backward()
    return [out.detach(), x.grad, *(parameter.grad.clone() for parameter in module.parameters())]


def assert_close(got, want):
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=2e-4)


@pytest.mark.parametrize("name", MODULES)
def test_compiled_modules_are_right(name):
    torch._dynamo.reset()
    module = made(name)
    x = torch.randn(2, 20, 16)
    assert_close(step(torch.compile(module, fullgraph=True), x), step(module, x))


@pytest.mark.parametrize("name", MODULES)
def test_one_graph_serves_all_lengths(name):
    torch._dynamo.reset()
    module, graphs = made(name), []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend=count)
    for tokens in (20, 13, 32, 7, 21):
        x = torch.randn(2, tokens, 16)
        torch.testing.assert_close(compiled(x), module(x))
    assert len(graphs) == 1


@pytest.mark.parametrize("name", ["flat", "hkt", "streaming", "tree"])
def test_inductor_with_dynamic_shapes(name):
    torch._dynamo.reset()
    module = made(name)
    compiled = torch.compile(module, fullgraph=True, dynamic=True)
    for tokens in (20, 13):
        x = torch.randn(2, tokens, 16)
        assert_close(step(compiled, x), step(module, x))


@pytest.mark.parametrize("name", MODULES)
def test_export(name):
    module = made(name)
    x = torch.randn(2, 20, 16)
    exported = torch.export.export(module, (x,)).module()
    torch.testing.assert_close(exported(x), module(x))


@pytest.mark.parametrize("name", ["flat", "hkt", "streaming"])
def test_export_with_open_lengths(name):
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 9):
        pytest.skip("older PyTorch cannot prove the bounds of a pyramid's lengths")
    module = made(name)
    open_length = ({1: torch.export.Dim.AUTO},)  # PyTorch cannot prove bounds that the user gives for three levels
    exported = torch.export.export(module, (torch.randn(2, 20, 16),), dynamic_shapes=open_length).module()
    for length in (9, 33):
        x = torch.randn(2, length, 16)
        torch.testing.assert_close(exported(x), module(x))


def flops(call):
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


def test_flops_of_flat_attention_are_those_of_torch():
    q, k, v = (torch.randn(2, 3, 10, 8, requires_grad=True) for _ in range(3))
    weights = torch.ones(3, 1)
    assert flops(lambda: strata.hkt_attention([q], [k], v, weights)) == 2 * (2 * 3 * 10 * 10 * 8) * 2


def test_flops_of_the_tree_form_follow_the_cost_of_the_tree():
    q, k, v = (torch.randn(1, 2, 12, 4) for _ in range(3))
    tree = strata.Tree.balanced(12, 3)
    cost = int(torch.ops.strata.tree_cost(tree.encoded))
    assert flops(lambda: strata.hsa_attention(q, k, v, tree)) == 2 * cost * 2 * (4 + 4)
    star = strata.Tree.star(12)
    assert flops(lambda: strata.hsa_attention(q, k, v, star)) == 2 * 144 * 2 * (4 + 4)


def test_flops_of_a_backward_are_counted():
    module = strata.HsaAttention(16, 2, streaming=True, branching=4)
    x = torch.randn(1, 20, 16, requires_grad=True)
    forward = flops(lambda: module(x))
    both = flops(lambda: module(x).sum().backward())
    assert 0 < 2 * forward < both
