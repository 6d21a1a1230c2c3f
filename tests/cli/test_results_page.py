"""docs/RESULTS.md says what the raw results say, and the links of the docs lead somewhere."""
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/RESULTS.md").read_text()
RAW = {f.stem: json.loads(f.read_text()) for f in (ROOT / "docs/results").glob("*.json")}
COMPARISONS = [raw for raw in RAW.values() if isinstance(raw, dict) and "pairs" in raw]
TABLES = ["hkt-table-listops", "hkt-table-imdb", "hkt-table-cifar10", "hsa-table-imdb-words", "hsa-table-imdb-frozen"]
DECIDED = {"L = 3, shared projections, depthwise filters": "", "L = 2": "levels=2", "L = 4": "levels=4",
           "projections per level": "projections=per-level", "dense filters (the tables above)": "filters=dense"}


def cells(line):
    return [cell.strip().replace("**", "") for cell in line.strip().strip("|").split("|")]


def shown_as(shown, value):
    """Whether `shown` is `value`, rounded to the digits that are shown."""
    digits = len(shown.partition(".")[2])
    return abs(float(shown.replace(",", "")) - value) <= 0.5001 * 10**-digits


def corrected(raw, pair):
    """p after Holm's correction for all pairs."""
    smaller = sorted(one["p"] for one in raw["pairs"] if one["p"] <= pair["p"])
    return min(1, max((len(raw["pairs"]) - place) * p for place, p in enumerate(smaller)))


@pytest.mark.parametrize("name", TABLES)
def test_each_row_of_a_table_is_the_raw_result(name):
    section = PAGE.partition(f"configs/{name}.toml")[2].partition("\n## ")[0]
    rows = [cells(line) for line in section.splitlines() if line.startswith("|")][2:]
    raw = RAW[name]
    assert len(rows) == len(raw["attentions"])
    flat = raw["attentions"][0]
    for row, attention in zip(rows, raw["attentions"]):
        _, accuracy, over_flat, p, holm, parameters, scores, step = row
        mean, deviation = accuracy.split(" ± ")
        assert shown_as(mean, attention["mean"]) and shown_as(deviation, attention["standard_deviation"]), row
        assert shown_as(parameters, attention["parameters"]) and shown_as(scores, attention["score_ratio"]), row
        assert shown_as(step, attention["time_ratio"]), row
        if attention is flat:
            continue
        pair = next(x for x in raw["pairs"] if (x["from"], x["to"]) == (flat["name"], attention["name"]))
        assert shown_as(over_flat, pair["difference"]) and shown_as(p, pair["p"]), row
        assert shown_as(holm, corrected(raw, pair)), row
        assert corrected(raw, pair) == pytest.approx(pair.get("p_holm", corrected(raw, pair)))


@pytest.mark.parametrize("column, task", enumerate(["listops", "imdb", "cifar10"], start=1))
def test_what_decides_a_default_is_the_raw_result(column, task):
    section = PAGE.partition("### What decides a default")[2].partition("\n### ")[0]
    shown = {row[0]: row[column] for row in map(cells, re.findall(r"^\|.*$", section, re.M))}
    for label, option in DECIDED.items():
        raw = RAW[f"hkt-table-{task}" if option == "filters=dense" else f"variants-{task}"]
        hkt, other = (next(a for a in raw["attentions"] if re.fullmatch(f"hkt{x}(:learning_rate=.*)?", a["name"]))
                      for x in ("", f":{option}" if option else ""))
        mean, deviation, p = re.fullmatch(r"([\d.]+) ± ([\d.]+)(?: \(p = ([\d.]+), Holm [\d.]+\))?", shown[label]).groups()
        assert shown_as(mean, other["mean"]) and shown_as(deviation, other["standard_deviation"]), label
        if option:
            assert shown_as(p, next(x["p"] for x in raw["pairs"] if {x["from"], x["to"]} == {hkt["name"], other["name"]})), label


def test_every_mean_and_every_p_is_in_some_raw_result():
    means = re.findall(r"([\d.]+)\*{0,2} ± ([\d.]+)", PAGE)
    assert len(means) > 30
    for mean, deviation in means:
        assert any(shown_as(mean, a["mean"]) and shown_as(deviation, a["standard_deviation"])
                   for raw in COMPARISONS for a in raw["attentions"] if a["standard_deviation"] is not None), mean
    values = re.findall(r"p = (0\.\d+)", PAGE)
    assert len(values) > 20
    for p in values:
        assert any(shown_as(p, pair["p"]) for raw in COMPARISONS for pair in raw["pairs"] if pair["p"] is not None), p


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("docs/**/*.md")), ids=lambda p: p.name)
def test_links_and_configs_are_there(page):
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        assert target.startswith("http") or (page.parent / target).exists(), target
    for config in re.findall(r"configs/[\w-]+\.toml", text):
        assert (ROOT / config).exists(), config
