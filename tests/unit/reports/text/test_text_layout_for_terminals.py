"""The text page on a terminal: its width, its colours, and what is never cut or wrapped."""

import re

import pytest

from zprof.cli.terminal import console
from zprof.model.printable import display_width
from zprof.reports.text.colour import coloured
from zprof.reports.text.layout import code_or_text, heading, headings, page_columns, page_width, wrap

LONG = "word " * 60


@pytest.mark.parametrize(("columns", "width"), [(100, 100), (80, 80), (20, 60), (900, 120)])
def test_lines_have_the_width_of_the_terminal_within_reason(columns: int, width: int) -> None:
    with page_columns(columns):
        lines = wrap(LONG)
        title = heading("TITLE", "note")
    assert width - 5 <= max(map(display_width, lines)) <= width
    assert display_width(title) == width
    assert page_width() == 80


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_worth_of_a_finding_is_never_cut(columns: int) -> None:
    worth = "saves 37.4 ms to 123.7 ms, medium confidence"
    with page_columns(columns):
        lines = headings("  2 ZP413 needless_reshard_after_forward", worth)
    assert lines[-1].endswith(worth)
    assert all(display_width(line) <= columns for line in lines)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            "fully_shard(block, reshard_after_forward=False)   # or an int: reshard within a host only",
            ["# or an int: reshard within a host only", "fully_shard(block, reshard_after_forward=False)"],
        ),
        ("f(" + "a, " * 40 + ")", ["f(" + "a, " * 40 + ")"]),
        ('"a": {"b": [' + "1, " * 30 + "1]},", ['"a": {"b": [' + "1, " * 30 + "1]},"]),
        ("for block in model.layers:  # " + "x " * 40, None),
        ("short(a)   # why", ["short(a)   # why"]),
    ],
)
def test_code_is_not_wrapped_and_a_comment_stays_one(text: str, lines: list[str] | None) -> None:
    found = [line.strip() for line in code_or_text(text, first=" " * 14)]
    if lines is None:
        assert found[-1] == "for block in model.layers:"
        assert len(found) > 2
        assert all(line.startswith("# ") for line in found[:-1])
    else:
        assert found == [line.strip() for line in lines]


def test_words_are_wrapped() -> None:
    assert len(code_or_text(LONG, first="    fix ")) > 1


class Terminal:
    encoding, closed = "utf-8", False

    def __init__(self, terminal: bool) -> None:
        self._terminal, self.text = terminal, ""

    def isatty(self) -> bool:
        return self._terminal

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


PAGE = """\
✗ SLOWER

WHAT TO CHANGE   note
  1 ZP413 some_cause  saves 1 ms, medium confidence
    fix       a()
  b  ██▍
"""


@pytest.mark.parametrize(
    ("terminal", "environment", "in_colour"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_colour_is_for_terminals_that_want_it(
    terminal: bool, environment: dict[str, str], in_colour: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    stdout = Terminal(terminal)
    monkeypatch.setattr(console.sys, "stdout", stdout)
    console.page(PAGE)
    assert ("\x1b[" in stdout.text) is in_colour
    assert re.sub(r"\x1b\[\d+m", "", stdout.text) == PAGE


def test_each_line_ends_without_colour() -> None:
    for line in coloured(PAGE).split("\n"):
        assert "\x1b" not in line or line.rindex("\x1b[0m") == line.rindex("\x1b")
