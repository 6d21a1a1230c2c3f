"""strata inspect on models trained for the purpose."""
import json
import struct

import pytest

from support import TINY, home, strata  # noqa: F401 (home is a fixture)


def set_weights(path, name, value, first, last):
    """Overwrites the floats [first, last) of a tensor in a safetensors file."""
    data = bytearray(open(path, "rb").read())
    size, = struct.unpack("<Q", data[:8])
    begin, end = json.loads(data[8:8 + size])[name]["data_offsets"]
    count = (end - begin) // 4
    place = 8 + size + begin + 4 * first
    data[place:place + 4 * (min(last, count) - first)] = struct.pack("<f", value) * (min(last, count) - first)
    open(path, "wb").write(data.replace(b"strata.sha256", b"other.sha256."))  # as from elsewhere, without a digest of ours


def layers(home, *args):
    strata("train", *TINY, "--folder", "run", *args)
    result = json.loads(strata("inspect", "run", "--samples", "12", "--json", "--quiet"))
    assert json.load(open(home / "run/inspect.json")) == result
    assert result["samples"] == 12 and len(result["layers"]) == 2
    return [head for layer in result["layers"] for head in layer["heads"]]


def test_hkt(home):
    heads = layers(home, "--attention", "hkt")
    assert len(heads) == 4
    for head in heads:
        assert sum(head["weights"]) == pytest.approx(1)
        assert len(head["psd"]["levels"]) == len(head["symmetry"]) == 3
        # The projections are 8 x 16, so that sym(M) has as many negative eigenvalues as positive ones.
        assert not head["psd"]["sufficient_condition"]
        error = head["error"]
        assert error["residual"] < 1e-9
        assert error["resolution"] + error["filter"] + error["correction"] == pytest.approx(error["kl"], abs=1e-9)
        assert error["kl"] > 0
        for level in head["symmetry"]:
            assert 0 <= level["directional_share"] <= 1
            assert max(level["orthogonality"], level["upsampling"], level["projection"]) < 1e-9
            assert level["filters"] < 1e-5  # of states in float32
        assert all(0.3 < level["beyond_keys"] <= 1 for level in head["psd"]["levels"])
        assert [step["levels"] for step in head["decay"]] == [1, 2, 3]
        assert all(step["worst"] <= 1 and step["kl"] <= step["bound"] + 1e-12 for step in head["decay"])
        assert head["decay"][0]["kl"] > 0 and head["decay"][2]["kl"] == pytest.approx(0, abs=1e-12)
        fine = head["gaussianity"]["scores"][0]
        assert fine["tested"] > 0 and fine["kurtosis"] <= fine["ceiling"] and fine["expected_kurtosis"] < fine["ceiling"]
        assert fine["kurtosis_ratio"] == pytest.approx(fine["kurtosis"] / fine["expected_kurtosis"], rel=0.2)  # of medians
        assert 0 <= fine["kurtosis_p"] <= 1 and 0 <= fine["skewness_p"] <= 1
        assert fine["rejected"] < 0.5 or min(fine["kurtosis_p"], fine["skewness_p"]) < 0.5
    # Short expressions leave too few coarse rows; that is said, and the rest is computed.
    assert "too few" in heads[0]["gaussianity"]["scores"][2]["problem"]


@pytest.mark.parametrize("options", [["--filters", "dense"], ["--input-filter"]], ids=" ".join)
def test_filters_of_every_kind(home, options):
    for head in layers(home, "--attention", "hkt", *options):
        assert all(level["filters"] < 1e-5 for level in head["symmetry"])


def test_psd_by_construction(home):
    for head in layers(home, "--attention", "hkt", "--psd"):
        assert head["psd"]["sufficient_condition"]
        assert all(level["beyond_keys"] < 1e-5 for level in head["psd"]["levels"])
        assert head["psd"]["scores"]["negative_mass"] < 1e-9


@pytest.mark.parametrize("attention", ["hkt", "flat"])
def test_rotary_models_have_no_bilinear_form(home, attention):
    for head in layers(home, "--attention", attention, "--positions", "rotary"):
        assert head["psd"]["problem"] == "does not apply: rotary positions"
        assert not {"levels", "sufficient_condition"} & head["psd"].keys()
        assert 0 < head["psd"]["scores"]["negative_mass"] < 1  # of S itself
        for level in head["symmetry"]:
            assert level["problem"] == head["psd"]["problem"] and not {"projection", "filters"} & level.keys()
            assert 0 < level["directional_share"] < 1 and max(level["orthogonality"], level["upsampling"]) < 1e-9
    shown = strata("inspect", "run", "--samples", "12", "--quiet")
    assert "the PSD condition, and the split of projections: does not apply: rotary positions" in shown
    assert all(line.split()[2 + len(head["weights"])] == "-" for line in shown.splitlines() if line.startswith(("0 ", "1 ")))


def test_flat_attention_is_its_own_reference(home):
    for head in layers(home, "--attention", "flat"):
        assert head["error"]["kl"] == pytest.approx(0, abs=1e-12) and head["weights"] == [1.0]


def test_hsa(home):
    for head in layers(home, "--attention", "hsa"):
        assert sum(head["mass_by_depth"]) == pytest.approx(1)
        assert head["kl_gap"] > 0 and 0 < head["cost"] < 1
        assert head["energy"] < 1e-9
        assert all(other["kl_gap"] > 0 for other in head["alternatives"])
        assert all(other["cost"] <= min(other["linear_bound"], other["logarithm_bound"]) for other in head["alternatives"])


def test_strata_on_trees(home):
    heads = layers(home, "--attention", "strata", "--tree", "task")
    assert len(heads) == 4
    for head in heads:
        assert sum(head["mass_by_depth"]) == pytest.approx(1)
        assert head["kl_gap"] >= -1e-9 and len(head["alternatives"]) == 5 and head["energy"] < 1e-9


@pytest.mark.parametrize(
    "options", [["strata", "--tree", "none", "--near", "1"], ["strata", "--tree", "none", "--branching", "4"]], ids=" ".join
)
def test_forms_without_a_tree(home, options):
    heads = layers(home, "--attention", *options)
    assert len(heads) == 4 and json.load(open(home / "run/inspect.json"))["form"] == "stream"
    for head in heads:
        near = {(one["branching"], one["near"]): one for one in head["alternatives"]}
        assert len(near) == 12
        for one in [head, *near.values()]:
            assert -1e-9 <= one["kl"] <= one["range_bound"] + 1e-9 <= one["certificate"] + 2e-9
            assert 0 < one["cost"] <= 1
        own = near[head["branching"], head["near"]]
        assert own["kl"] == pytest.approx(head["kl"]) and own["certificate"] == pytest.approx(head["certificate"])
        for branching in (4, 8, 16, 32):
            assert near[branching, 1]["kl"] >= near[branching, 2]["kl"] - 1e-12 >= near[branching, 4]["kl"] - 2e-12


def test_language_models_with_a_logarithmic_cache(home):
    text = home / "text"
    text.mkdir()
    (text / "train.txt").write_text("the quick brown fox jumps over the lazy dog. " * 60)
    for options in (["hsa"], ["strata", "--positions", "rotary"]):
        strata("train", "--task", "text", "--data", text / "train.txt", "--length", "64", "--model-size", "16", "--heads", "2",
               "--threads", "1", "--epochs", "1", "--attention", *options, "--branching", "4", "--folder", options[0])
        result = json.loads(strata("inspect", options[0], "--samples", "3", "--json", "--quiet"))
        assert result["form"] == "stream" and result["causal"] and not result["problems"]
        assert all(0 <= head["kl"] <= head["certificate"] for layer in result["layers"] for head in layer["heads"])
    shown = strata("inspect", "strata", "--samples", "3", "--quiet")
    assert "certificate" in shown and "near 1, 2, 4" in shown


def test_a_star_has_no_gap(home):
    for head in layers(home, "--attention", "hsa", "--tree", "star", "--sibling-positions", "none"):
        assert head["kl_gap"] == pytest.approx(0, abs=1e-9) and head["cost"] == 1


def damaged(home, name, value, first=0, last=10**9):
    """What inspect says of a model of which some weights were overwritten."""
    strata("train", *TINY, "--attention", "hkt", "--steps", 4, "--folder", "run")
    set_weights(home / "run/best.safetensors", name, value, first, last)
    return json.loads(strata("inspect", "run", "--samples", "6", "--json", "--quiet"))


def test_one_head_that_is_not_finite(home):
    result = damaged(home, "layer_1_attention.query.weight", float("nan"), 0, 1)  # a row of head 0
    assert [("problem" in head) for layer in result["layers"] for head in layer["heads"]] == [False, False, True, False]
    assert "weights layer_1_attention.query.weight are not finite" in result["problems"][0]
    assert "layer 1, head 0: its queries of level 0 are not finite" in result["problems"][1]
    assert result["layers"][1]["heads"][1]["error"]["kl"] > 0
    table = strata("inspect", "run", "--samples", "6", "--quiet")
    assert "not computed: layer 1, head 0" in table and table.count("\n1 ") == 1


@pytest.mark.parametrize("name", ["value.weight", "level_logits"])
def test_a_layer_that_cannot_be_reached(home, name):
    result = damaged(home, "layer_0_attention." + name, float("nan"))
    assert result["layers"][1]["heads"] == [] and "layer 1: " in result["problems"][-1]
    assert "not computed: layer 1" in strata("inspect", "run", "--samples", "6", "--quiet")


def test_constant_scores(home):
    result = damaged(home, "layer_0_attention.query.weight", 0.0)
    for head in result["layers"][0]["heads"]:
        assert "covariance is zero" in head["gaussianity"]["scores"][0]["problem"]
        assert head["error"]["kl"] == 0 and head["symmetry"][0]["directional_share"] == 0
    assert result["layers"][1]["heads"][0]["error"]["kl"] > 0 and result["problems"] == []


def test_language_models_and_long_rows(home):
    (home / "book.txt").write_text("".join(f"Line {i} of a book of {i * i} lines.\n" for i in range(900)))
    for attention in ("hkt", "hsa"):
        strata("train", *TINY, "--task", "text", "--data", "book.txt", "--length", 100, "--attention", attention, "--steps", 2, "--folder",
               attention)
        result = json.loads(strata("inspect", attention, "--samples", "2", "--json", "--quiet"))
        assert result["causal"] and result["form"] == ("stream" if attention == "hsa" else "levels")
        example = result["examples"][0]
        assert example["block"] == 2 and len(example["tokens"]) == 100 and "label" not in example
        attention = example["layers"][0][0]["attention"]
        assert len(attention) == 50 and attention[0][1] is None and attention[49][0] is not None
        assert all(sum(value for value in row if value is not None) == pytest.approx(1, abs=1e-2) for row in attention)


def test_tables_and_wrong_input(home):
    strata("train", *TINY, "--folder", "run", "--steps", 2)
    table = strata("inspect", "run", "--samples", 4)
    assert "level weights" in table and "sum to the KL" in table and "written to run/inspect.json" in table
    assert "kurtosis / expected" in table and "with filters" in table and "a linear map of the keys" in table
    assert "expected a run's folder" in strata("inspect", code=2)
    assert "nowhere" in strata("inspect", "nowhere", code=4)
    assert "expected the name of a JSON file" in strata("inspect", "run", "--output", "page.html", code=2)


def test_subsumption():
    for case in json.loads(strata("inspect", "--subsumption", "--json")):
        assert max(case["one_level"], case["one_hot"], case["convolution"]) < 1e-5 and case["largest_stray"] == 0
        assert case["flat_permuted"] < 1e-13 < 1e-2 < case["hkt_permuted"]
        assert case["convolution_beyond"] == 0 and case["hkt_beyond"] > 1e-5
    assert "Neither contains HKT" in strata("inspect", "--subsumption")
