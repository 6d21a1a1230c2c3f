"""Decoding caches: steps equal the parallel forward in any order of steps, crops and reorderings, for sequences of different
lengths; windows drop what no token sees; memory is allocated ahead."""

import os
import random
import subprocess

import pytest
import torch

import strata

F64 = torch.float64
HKT = {
    "flat": {"levels": 1},
    "flat, rotary, grouped heads": {"levels": 1, "rotary": 4, "key_heads": 2},
    "flat, filtered": {"levels": 1, "input_filter": True, "taps": 2},
    "hkt": {"levels": 3},
    "hkt, one tap": {"levels": 4, "taps": 1, "rotary": 2},
    "hkt, rotary, grouped heads": {"levels": 3, "rotary": 4, "key_heads": 2, "input_filter": True},
    "hkt, dense": {"levels": 2, "dense_filters": True, "per_level_projections": True, "key_heads": 1},
}
HSA = {
    "hsa": {"branching": 3},
    "hsa, rotary": {"branching": 2, "rotary": 4, "l2_energy": True},
    "hsa, terms": {"branching": 4, "positions": "bias", "tables": 2, "places": 4, "normalize": True},
}
STRATA = {
    "strata": {"branching": 2, "near": 2, "levels": 2},
    "strata, rotary, grouped heads": {"branching": 3, "near": 2, "levels": 3, "rotary": 4, "key_heads": 2},
    "strata, filtered": {
        "branching": 2,
        "near": 3,
        "levels": 3,
        "input_filter": True,
        "positions": "bias",
        "tables": 2,
    },
    "strata, one level": {"branching": 4, "near": 1, "levels": 1},
}
EVERY = {**HKT, **HSA, **STRATA}


def make(name, dtype=F64, **more):
    torch.manual_seed(2)
    if name in HKT:
        module = strata.HktAttention(16, 4, causal=True, dtype=dtype, **HKT[name], **more)
    elif name in HSA:
        module = strata.HsaAttention(16, 4, streaming=True, dtype=dtype, **HSA[name], **more)
    else:
        module = strata.StrataAttention(16, 4, form="streaming", dtype=dtype, **STRATA[name], **more)
    for parameter in module.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return module


def parallel(module, x, window=None):
    """The forward of one sequence, (T, model); a window as a bias, by its definition."""
    if window is None:
        return module(x.unsqueeze(0))[0]
    at = torch.arange(len(x))
    seen = (at >= at.unsqueeze(1) - window) & (at <= at.unsqueeze(1))
    return module(x.unsqueeze(0), bias=torch.zeros(len(x), len(x), dtype=F64).masked_fill(~seen, -float("inf")))[0]


class Texts:
    """The tokens that a cache has seen, as a list of vectors per sequence: the definition of what it may hold."""

    def __init__(self, module, starts, window=None, **options):
        self.module, self.window = module, window
        longest = max(starts)
        x = torch.randn(len(starts), longest, 16, dtype=F64)
        for n, start in enumerate(starts):
            x[n, start:] = float("nan")
        if window is not None:
            options["window"] = window
        self.rows = [list(x[n, :start]) for n, start in enumerate(starts)]
        out, self.cache = module.prefill(x, starts, **options)
        for n, start in enumerate(starts):
            if start > 0:
                want = parallel(module, torch.stack(self.rows[n]), window)
                assert torch.allclose(out[n, :start], want, rtol=1e-9, atol=1e-11)

    def step(self):
        x = torch.randn(len(self.rows), 16, dtype=F64)
        got = self.module.step(x, self.cache)
        for n, row in enumerate(x):
            self.rows[n].append(row)
            want = parallel(self.module, torch.stack(self.rows[n]), self.window)[-1]
            assert torch.allclose(got[n], want, rtol=1e-9, atol=1e-11), (n, len(self.rows[n]))

    def reorder(self, indices):
        self.rows = [list(self.rows[n]) for n in indices]
        self.cache.reorder(indices)

    def crop(self, lengths):
        self.rows = [row[:length] for row, length in zip(self.rows, lengths)]
        self.cache.crop(lengths)


@pytest.mark.parametrize("history", [0, 1, 5, 40])
@pytest.mark.parametrize("name", EVERY)
def test_steps_crops_and_reorderings(name, history, tmp_path):
    """Crops reach back into the prompt, repeat, and are followed by other tokens; the cache is also saved and restored."""
    choose = random.Random(history)
    texts = Texts(make(name), [0, 3, 17], history=history)
    floors = [max(0, start - history) for start in (0, 3, 17)]
    for turn in range(30):
        move = choose.choice(["step", "step", "step", "crop", "reorder", "save"])
        if move == "step":
            texts.step()
        elif move == "crop":
            lengths = [choose.randint(floor, len(rows)) for floor, rows in zip(floors, texts.rows)]
            texts.crop(lengths)
        elif move == "reorder":
            indices = [choose.randrange(len(texts.rows)) for _ in range(choose.choice([2, 3, 4]))]
            floors = [floors[n] for n in indices]
            texts.reorder(indices)
        else:
            strata.save_safetensors(tmp_path / "cache.safetensors", texts.cache.state_dict())
            state = strata.load_safetensors(tmp_path / "cache.safetensors")[0]
            if name in HSA:
                texts.cache = texts.module.start_stream(len(texts.rows), history=history)
                texts.cache.load_state_dict(state)
            else:
                texts.cache = type(texts.cache)(state)
        floors = [max(floor, len(rows) - history) for floor, rows in zip(floors, texts.rows)]
        assert texts.cache.lengths.tolist() == [len(rows) for rows in texts.rows], turn


@pytest.mark.parametrize("window", [0, 1, 3, 6, 100])
@pytest.mark.parametrize("name", HKT)
def test_windows(name, window):
    """A window of `left` tokens before each, with crops; the memory does not grow with the text."""
    module = make(name)
    texts = Texts(module, [0, 2, 13], window, history=4)
    size = texts.cache.bytes
    for turn in range(25):
        texts.step()
        if turn % 6 == 5:
            texts.crop([max(0, len(rows) - back) for rows, back in zip(texts.rows, (4, 0, 3))])
        if turn == 10:
            texts.reorder([2, 0, 1])
    assert texts.cache.bytes == size and texts.cache.window == window
    assert texts.cache.state["values"].shape[2] == window + 1 + 4
    for level in range(1, module.levels):
        assert texts.cache.state[f"level_{level}.keys"].shape[2] == (window + 4) // 2**level + 2


def test_a_window_drops_keys():
    """Without a history the keys of level 0 are exactly those that a token sees."""
    _, cache = make("hkt").prefill(torch.randn(1, 50, 16, dtype=F64), window=7)
    rows = {level: cache.state[f"level_{level}.keys"].shape[2] for level in range(3)}
    assert rows == {0: 8, 1: 5, 2: 3} and cache.state["values"].shape[2] == 8


def test_capacity_is_given_or_doubled():
    module = make("hkt")
    _, cache = module.prefill(torch.randn(2, 5, 16, dtype=F64), capacity=40)
    keys = cache.state["level_1.keys"]
    assert cache.state["values"].shape[2] == 40 and keys.shape[2] == 20
    place = keys.data_ptr()
    for _ in range(35):
        module.step(torch.randn(2, 16, dtype=F64), cache)
    assert cache.state["level_1.keys"].data_ptr() == place  # written in place
    module.step(torch.randn(2, 16, dtype=F64), cache)
    assert cache.state["values"].shape[2] == 80


@pytest.mark.parametrize("name", ["hsa, rotary", "strata"])
def test_streams_add_heights(name):
    """A stream that outgrows its heights gets another, and its nodes and log stay."""
    module = make(name)
    texts = Texts(module, [1, 3], capacity=1, history=6)
    heights = {texts.cache.state["masses"].shape[1]}
    for turn in range(30):
        texts.step()
        heights.add(texts.cache.state["masses"].shape[1])
        if turn % 9 == 8:
            texts.crop([len(rows) - 5 for rows in texts.rows])
    assert heights == {2, 3, 4, 5}


def test_one_number_crops_all_sequences():
    module = make("flat")
    x = torch.randn(3, 9, 16, dtype=F64)
    _, cache = module.prefill(x, [2, 9, 6])
    cache.crop(5)
    assert cache.lengths.tolist() == [2, 5, 5]
    cache.crop(-3)
    assert cache.lengths.tolist() == [0, 2, 2]
    want = module(x[:, :3])[1:, 2]
    assert torch.allclose(module.step(x[:, 2], cache)[1:], want)


def test_bad_arguments():
    hkt, streaming = make("hkt"), make("hsa")
    x = torch.randn(2, 9, 16, dtype=F64)
    _, cache = hkt.prefill(x, history=3)
    with pytest.raises(ValueError, match="sequence 0 has 9 tokens and can be cropped to 6 or more.* history=3, got 5"):
        cache.crop(5)
    cache.crop(7)
    with pytest.raises(ValueError, match="sequence 1 has 7 tokens and can be cropped to 6 or more"):
        cache.crop([7, 5])
    assert cache.lengths.tolist() == [7, 7]  # a refusal changes nothing
    hkt.step(x[:, 0], cache)
    with pytest.raises(ValueError, match="sequence 0 has 8 tokens and can be cropped to 6 or more"):
        cache.crop(5)  # what the ninth token has overwritten is lost
    cache.crop(7)
    with pytest.raises(ValueError, match="max_length: expected 2 numbers, one per sequence, got 3"):
        cache.crop([7, 7, 7])
    with pytest.raises(ValueError, match="max_length: expected a whole number, got 1.5"):
        cache.crop(1.5)
    with pytest.raises(ValueError, match="indices: expected numbers from 0 to 1, got 2"):
        cache.reorder([0, 2])
    with pytest.raises(ValueError, match="indices: expected a list"):
        cache.reorder(torch.tensor([0.0, 1.0]))
    with pytest.raises(ValueError, match="history: expected 0 or more"):
        streaming.prefill(x, history=-1)
    with pytest.raises(ValueError, match="window: expected 0 or more"):
        hkt.prefill(x, window=-1)
    with pytest.raises(ValueError, match="capacity: expected 0 or more tokens"):
        hkt.prefill(x, capacity=-1)
    with pytest.raises(ValueError, match="capacity: expected 1 or more heights"):
        streaming.start_stream(2, 0)
    _, cache = streaming.prefill(x)
    with pytest.raises(ValueError, match="can be cropped to 9 or more.* history=0"):
        cache.crop(-1)
    with pytest.raises(ValueError, match='HktCache: expected a tensor named "values", found none'):
        strata.HktCache({"lengths": torch.zeros(1)})


@pytest.mark.parametrize("name", EVERY)
def test_python_goes_on_from_a_cache_of_cpp(name, tmp_path):
    module, x = make(name, torch.float32), torch.randn(2, 20, 16)
    described = {"module": "hkt" if name in HKT else "hsa" if name in HSA else "strata", "prefill": 11}
    defaults = {"causal": name in HKT, "psd": False, "streaming": True, "tables": 1, "places": 16, "positions": "none"}
    options = {"key_heads": 4, "taps": 3, "dense_filters": False, "input_filter": False, "normalize": False, **defaults}
    options |= {"per_level_projections": False, "projection_bias": False, "l2_energy": False, "rotary": 0}
    options |= {"form": "streaming", "model_size": 16, "heads": 4, **EVERY[name], **described}
    source, result = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    strata.save_safetensors(source, {"x": x, **module.state_dict()}, options)
    subprocess.run([os.environ["STRATA_RUN_MODULE"], source, result], check=True)
    state, _ = strata.load_safetensors(result)
    if name in HSA:
        cache = module.start_stream(2, history=4)
        cache.load_state_dict(state)
    else:
        cache = (strata.HktCache if name in HKT else strata.StrataCache)(state)
    want = module(x)
    for _ in range(2):
        for t in range(cache.lengths[0], 20):
            assert torch.allclose(module.step(x[:, t], cache), want[:, t], atol=1e-4)
        cache.crop(16)


@pytest.mark.parametrize("name", EVERY)
def test_steps_read_no_number(name):
    """On a GPU a number that the host reads stops it until the device is done: a step reads none."""
    dispatch = pytest.importorskip("torch.utils._python_dispatch")

    class Refuse(dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            name = str(function)
            assert not any(word in name for word in ("_local_scalar_dense", "nonzero", "masked_select", "_to_cpu")), (
                name
            )
            return function(*args, **(kwargs or {}))

    module = make(name)
    for starts in ([9, 9], [9, 4]):
        _, cache = module.prefill(
            torch.randn(2, 9, 16, dtype=F64), starts, history=3, **({"window": 5} if name in HKT else {})
        )
        with Refuse():
            for _ in range(12):
                module.step(torch.randn(2, 16, dtype=F64), cache)
    with Refuse(), pytest.raises(AssertionError):
        cache.lengths.max().item()


@pytest.mark.parametrize("name", ["hkt, rotary, grouped heads", "strata, filtered"])
@pytest.mark.parametrize("kind", ["module", "autocast"])
def test_bfloat16(name, kind):
    """A step with a window, after a crop, equals the parallel forward to the rounding of bfloat16."""
    module = make(name, torch.bfloat16 if kind == "module" else torch.float32)
    x = torch.randn(2, 20, 16).to(module.value.weight.dtype)
    options = {"window": 64} if name in HKT else {}
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind == "autocast"):
        want = module(x)
        out, cache = module.prefill(x[:, :14], history=6, **options)
        assert torch.equal(out, want[:, :14])
        for _ in range(2):
            got = torch.stack([module.step(x[:, t], cache) for t in range(cache.lengths[0], 20)], 1)
            assert torch.allclose(got, want[:, -got.shape[1] :], atol=0.05), (
                (got - want[:, -got.shape[1] :]).abs().max()
            )
            cache.crop(15)
