"""The blocks of docs/PYTORCH.md are one program, and it prints what stands below them."""

import contextlib
import io
import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "PYTORCH.md"


def blocks(page):
    """(language, text, line) of every fenced block."""
    text = page.read_text()
    for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S):
        yield found[1], found[2], text[: found.start()].count("\n") + 1


def test_the_page_prints_what_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # it writes a file
    names, printed, compared = {}, "", 0
    for language, text, line in blocks(PAGE):
        if language == "python":
            assert printed == "", f"line {line}: the block before this one prints, and nothing stands below it: {printed}"
            written = io.StringIO()
            with contextlib.redirect_stdout(written):
                exec(compile("\n" * line + text, str(PAGE), "exec"), names)  # noqa: S102
            printed = written.getvalue()
        elif language == "":
            assert printed == text, f"line {line}"
            printed, compared = "", compared + 1
    assert printed == "" and compared >= 8
