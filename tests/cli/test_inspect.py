"""strata inspect on models trained for the purpose."""
import json

import pytest

from test_strata import TINY, home, strata  # noqa: F401 (home is a fixture)


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
        assert [step["levels"] for step in head["decay"]] == [1, 2, 3]
        assert all(step["worst"] <= 1 and step["kl"] <= step["bound"] + 1e-12 for step in head["decay"])
        assert head["decay"][0]["kl"] > 0 and head["decay"][2]["kl"] == pytest.approx(0, abs=1e-12)
        fine = head["gaussianity"]["scores"][0]
        assert fine["tested"] > 0 and fine["kurtosis"] <= fine["ceiling"]
    # Short expressions leave too few coarse rows; that is said, and the rest is computed.
    assert "too few" in heads[0]["gaussianity"]["scores"][2]["problem"]


def test_psd_by_construction(home):
    for head in layers(home, "--attention", "hkt", "--psd"):
        assert head["psd"]["sufficient_condition"]
        assert head["psd"]["scores"]["negative_mass"] < 1e-9


def test_flat_attention_is_its_own_reference(home):
    for head in layers(home, "--attention", "flat"):
        assert head["error"]["kl"] == pytest.approx(0, abs=1e-12) and head["weights"] == [1.0]


def test_hsa(home):
    for head in layers(home, "--attention", "hsa"):
        assert sum(head["mass_by_depth"]) == pytest.approx(1)
        assert head["kl_gap"] > 0 and 0 < head["cost"] < 1
        assert all(other["kl_gap"] > 0 for other in head["alternatives"])


def test_a_star_has_no_gap(home):
    for head in layers(home, "--attention", "hsa", "--tree", "star", "--sibling-positions", "none"):
        assert head["kl_gap"] == pytest.approx(0, abs=1e-9) and head["cost"] == 1


def test_tables_and_wrong_input(home):
    strata("train", *TINY, "--folder", "run", "--steps", 2)
    table = strata("inspect", "run", "--samples", 4)
    assert "level weights" in table and "sum to the KL" in table and "written to run/inspect.json" in table
    assert "expected a run's folder" in strata("inspect", code=2)
    assert "nowhere" in strata("inspect", "nowhere", code=4)


def test_subsumption():
    for case in json.loads(strata("inspect", "--subsumption", "--json")):
        assert max(case["one_level"], case["one_hot"], case["convolution"]) < 1e-5 and case["largest_stray"] == 0
