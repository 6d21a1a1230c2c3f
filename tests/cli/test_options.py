"""Every command reads config files and refuses what it does not know, or what is out of range, by name."""

import functools
import json

import pytest

from support import home, strata  # noqa: F401 (home is a fixture)

# Arguments that a command needs before its options are read, and an option with a value it must refuse.
COMMANDS = {
    ("data", "list"): ([], {"json": 3}, "expected true or false, got 3"),
    ("data", "make"): (["listops"], {"max_depth": 0}, "expected 1 to 100, got 0"),
    ("data", "get"): (["imdb"], {"again": "yes"}, "expected true or false, got yes"),
    ("data", "check"): (["listops"], {"valid_share": 1}, "expected 0 to 0.9, got 1"),
    ("train",): ([], {"batch": 0}, "expected 1 to 1048576, got 0"),
    ("compare",): ([], {"seeds": 1001}, "expected 1 to 1000, got 1001"),
    ("eval",): (["nowhere"], {"split": "tests"}, "did you mean test?"),
    ("predict",): (["nowhere"], {"top": 0}, "expected 1 to 256, got 0"),
    ("embed",): (["nowhere"], {"branching": 65}, "expected 2 to 64, got 65"),
    ("inject",): (["nowhere"], {"cut": 1.5}, "expected 0 to 1, got 1.5"),
    ("generate",): (["nowhere"], {"seed": -1}, "expected 0 to 9007199254740992, got -1"),
    ("inspect",): (["nowhere"], {"samples": 0}, "expected 1 to 1073741824, got 0"),
    ("report",): (["nowhere"], {"json": 3}, "expected true or false, got 3"),
    ("info",): ([], {"json": "no"}, "expected true or false, got no"),
    ("bench",): ([], {"threads": 4097}, "expected 0 to 4096, got 4097"),
}


@functools.cache
def help_of(*command):
    return strata(*command, "--help")


def subcommands(*command):
    """The commands that the help of a command lists."""
    lines = help_of(*command).partition("\nSubcommands:\n")[2].splitlines()
    names = []
    for line in lines:
        if not line.startswith("  "):
            break
        if line[2] != " ":
            names.append(line.split()[0])
    return names


@functools.cache
def all_commands():
    found = []
    for name in subcommands():
        below = subcommands(name)
        found += [(name, one) for one in below] if below else [(name,)]
    return found


def test_every_command_is_tested():
    assert set(all_commands()) - {("help",), ("completion",)} <= set(COMMANDS) and len(all_commands()) >= 14


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_configs(home, command):
    if command not in all_commands():
        pytest.skip("this build has no " + " ".join(command))
    arguments, wrong, message = COMMANDS[command]
    assert "--config FILE" in help_of(*command)
    (home / "unknown.json").write_text(json.dumps({"no_such_key": 1}))
    assert "unknown.json: line 1: no_such_key: unknown option" in strata(*command, *arguments, "--config", "unknown.json", code=2)
    (home / "wrong.json").write_text(json.dumps(wrong))
    key = next(iter(wrong))
    said = strata(*command, *arguments, "--config", "wrong.json", code=2)
    assert f"wrong.json: line 1: {key}: " in said and message in said, said


def test_a_config_sets_what_the_command_line_leaves_out(home):
    (home / "list.toml").write_text("json = true\n")
    assert isinstance(json.loads(strata("data", "list", "--config", "list.toml")), list)
    assert strata("data", "list", "--config", "list.toml", "--no-json").startswith("task")


def test_a_comparison_reads_its_folder_from_its_config(home):
    (home / "cmp.toml").write_text('folder = "somewhere"\nattentions = ["flat"]\nseeds = 1\nsteps = 1\ntrain_rows = 64\nvalid_rows = 8\ntest_rows = 8\n')
    strata("compare", "--config", "cmp.toml", "--quiet")
    assert (home / "somewhere/results.md").exists()
    assert "folder" not in json.load(open(home / "somewhere/compare.json"))["options"]


def test_bench_records_what_it_measured(home):
    printed = strata("bench", "hkt", "--rounds", "1", "--threads", "2", "--json", "figures.json")
    figures = json.load(open("figures.json"))
    record, roofline, bars = (figures.pop(key) for key in ("record", "roofline", "bars"))
    assert bars["hkt_cpu_fwd_l3_over_l1_t2048"] == "<= 1.20"
    assert figures and all(isinstance(value, float) for value in figures.values())
    assert record["command"] == "bench" and record["options"]["rounds"] == 1 and record["options"]["which"] == ["hkt"]
    assert roofline["device"] == "cpu"
    flat = roofline["kernels"]["hkt_cpu_l1_fwd_fraction_of_sgemm_t2048"]
    assert flat["flops"] == 4 * 8 * 2048 * 2048 * 64 and flat["bytes"] == 4 * 8 * 2048 * 64 * 4  # q, k, v and the output
    assert flat["share"] == pytest.approx(flat["floor_milliseconds"] / flat["milliseconds"])
    assert "floor, ms" in printed and (home / "figures.html").exists()
