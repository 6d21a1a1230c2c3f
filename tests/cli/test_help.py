"""Help and completion: every command and option is found, in every shell."""
import re
import shutil
import subprocess

import pytest

from support import STRATA, strata

COMMANDS = ["train", "compare", "data make", "eval", "completion", "help"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_that_of_the_option(command):
    assert strata("help", *command.split()) == strata(*command.split(), "--help")


def test_help_alone_and_of_what_is_not_there():
    assert strata("help") == strata("--help") == strata()
    assert "trian: unknown command (did you mean train?); the commands are data, train" in strata("help", "trian", code=2)
    assert "more: unknown command; train has no commands of its own" in strata("help", "train", "more", code=2)


def complete_bash(*words):
    """What bash would offer for the last of these words."""
    line = " ".join(f"'{word}'" for word in words)
    script = f"""{strata("completion", "bash")}
compopt() {{ echo "compopt $*"; }}
COMP_WORDS=(strata {line}); COMP_CWORD={len(words)}
_strata; printf '%s\\n' "${{COMPREPLY[@]}}" """
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.split("\n")[:-1]


def test_bash():
    assert complete_bash("tr") == ["train"]
    assert set(complete_bash("data", "")) >= {"list", "make", "get", "check", "--help"}
    assert set(complete_bash("data", "get", "")) >= {"imdb", "cifar10", "--url"}
    assert complete_bash("train", "--attention", "h") == ["hkt", "hsa"]
    assert complete_bash("train", "--epo") == ["--epochs"]
    assert complete_bash("train", "--epochs", "") == [""]  # a number: nothing to offer, and no file names
    assert complete_bash("train", "--config", "x")[0] == "compopt -o default"
    assert complete_bash("help", "comp") == ["compare", "completion"]
    assert complete_bash("data", "make", "listops", "--max-d") == ["--max-depth"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_are_valid_and_name_every_option(shell, tmp_path):
    script = strata("completion", shell)
    for command in COMMANDS:
        for flag in re.findall(r"--[a-z][a-z-]+", strata("help", *command.split()).split("Examples:")[0]):
            name = flag[2:] if shell == "fish" else flag
            assert re.search(rf"\b{name}\b" if shell == "fish" else re.escape(name), script), f"{command}: {flag}"
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed: its script is not run")
    file = tmp_path / "script"
    file.write_text(script)
    subprocess.run([shell, "-n", file], check=True)


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish(tmp_path):
    def complete(line):
        command = f"{STRATA} completion fish | source; complete -C '{line}'"
        done = subprocess.run(["fish", "--no-config", "-c", command], capture_output=True, text=True, check=True, cwd=tmp_path)
        assert done.stderr == ""
        return [one.split("\t")[0] for one in done.stdout.splitlines()]
    (tmp_path / "my.toml").touch()
    assert complete("strata tr") == ["train"]
    assert complete("strata train --attention h") == ["hkt", "hsa"]
    assert complete("strata data g") == ["get"]
    assert complete("strata data get i") == ["imdb"]
    assert complete("strata data make --max-d") == ["--max-depth"]
    assert complete("strata train --epochs ") == []
    assert complete("strata train --config m") == ["my.toml"]


def zsh_offers(words):
    """What the function of zsh offers, with its helpers replaced by ones that print."""
    line = " ".join(f"'{word}'" for word in words)
    script = f"""compdef() {{ :; }}; _files() {{ print FILES; }}; _message() {{ :; }}
compadd() {{ shift; print -l -- "$@"; }}; _describe() {{ local all=${{@[-1]}}; print -l -- "${{(@P)all%%:*}}"; }}
{strata("completion", "zsh")}
words=(strata {line}); CURRENT={len(words) + 1}; PREFIX='{words[-1]}'; _strata"""
    return subprocess.run(["zsh", "-f", "-c", script], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh():
    assert {"train", "compare", "help"} <= set(zsh_offers([""]))
    assert zsh_offers(["train", "--attention", ""]) == ["flat", "hkt", "hsa", "strata"]
    assert zsh_offers(["data", ""]) == ["list", "make", "get", "check"]
    assert zsh_offers(["data", "get", ""]) == ["imdb", "cifar10"]
    assert "--max-depth" in zsh_offers(["data", "make", "--"]) and "--epochs" not in zsh_offers(["data", "make", "--"])
    assert zsh_offers(["train", "--config", ""]) == ["FILES"] and zsh_offers(["train", "--epochs", ""]) == []


def test_an_unknown_shell():
    assert "completion: expected bash, zsh or fish, got tcsh" in strata("completion", "tcsh", code=2)
