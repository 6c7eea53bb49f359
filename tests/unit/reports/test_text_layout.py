"""Lines, tables and colours of the terminal: its width, nothing lost, code never wrapped."""

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zprof.cli import console
from zprof.model.formatting import display_width
from zprof.reports.layout import (
    format_fix_line,
    get_page_width,
    page_columns,
    render_bar,
    render_heading,
    wrap,
)
from zprof.reports.page import Column, Row, Table, make_name_column, make_number_columns, make_text_column
from zprof.reports.terminal import coloured
from zprof.reports.text_table import render_table


@given(st.text(alphabet="ab 層…1%", max_size=400), st.integers(0, 30))
def test_wrapped_text_fits_and_loses_nothing(text: str, indent: int) -> None:
    lines = wrap(text, first=" " * indent)
    assert all(display_width(line) <= 80 for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_a_number_stays_with_its_unit() -> None:
    assert wrap("x" * 74 + " 12.5 ms and 100.0 %", first="")[1].startswith("12.5 ms")


@pytest.mark.parametrize(
    ("share", "shown"), [(0, ""), (1, "████"), (0.5, "██"), (0.6, "██▍"), (1e-6, "▏"), (2, "████"), (-1, "")]
)
def test_a_bar_has_the_length_of_its_share(share: float, shown: str) -> None:
    assert render_bar(share, 4) == shown


@pytest.mark.parametrize(("columns", "width"), [(100, 100), (20, 60), (900, 120)])
def test_lines_have_the_width_of_the_terminal_within_limits(columns: int, width: int) -> None:
    note = "saves 37.4 ms to 123.7 ms, medium confidence"
    with page_columns(columns):
        lines = wrap("word " * 60)
        title = render_heading("TITLE", "note")
        long = render_heading("  2 ZP413 needless_reshard_after_forward", note)
    assert width - 5 <= max(map(display_width, lines)) <= width
    assert display_width(title[0]) == width
    assert long[-1].endswith(note)
    assert max(map(display_width, long)) <= width
    assert get_page_width() == 80


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            "fully_shard(block, reshard_after_forward=False)   # or an int: reshard within a host only",
            ["# or an int: reshard within a host only", "fully_shard(block, reshard_after_forward=False)"],
        ),
        ("f(" + "a, " * 40 + ")", ["f(" + "a, " * 40 + ")"]),
        ('"a": {"b": [' + "1, " * 30 + "1]},", ['"a": {"b": [' + "1, " * 30 + "1]},"]),
        ("short(a)   # why", ["short(a)   # why"]),
        ("f(a, g(" + "b, " * 30, ["f(a, g(" + "b, " * 30]),
    ],
)
def test_code_is_not_wrapped_and_a_comment_stays_one(text: str, lines: list[str]) -> None:
    assert [line.strip() for line in format_fix_line(text, first=" " * 14)] == [
        line.strip() for line in lines
    ]
    assert len(format_fix_line("word " * 60, first="    fix ")) > 1


def table(*rows: tuple[str, ...], columns: tuple[Column, ...] = (), transposed: bool = False) -> Table:
    columns = columns or (make_name_column("name"), *make_number_columns("ms"))
    return Table(
        title="t", columns=columns, rows=tuple(Row(cells=row) for row in rows), transposed=transposed
    )


NAMES, FIGURES, WORDS = (
    st.text(alphabet, min_size=least, max_size=most)
    for alphabet, least, most in (("ab層 ", 1, 120), ("1.", 0, 9), ("cd ", 0, 90))
)


@given(st.lists(st.tuples(NAMES, FIGURES, WORDS), min_size=1, max_size=5))
def test_any_table_fits_and_loses_nothing(rows: list[tuple[str, str, str]]) -> None:
    columns = (
        make_name_column("name"),
        *make_number_columns("a number of something"),
        make_text_column("words"),
    )
    lines = render_table(table(*rows, columns=columns))
    assert all(display_width(line) <= 80 for line in lines)
    shown = "".join("".join(lines).split())
    for sign in "ab層1.":
        assert shown.count(sign) >= sum("".join(row).count(sign) for row in rows)


def test_a_table_that_is_too_wide_is_drawn_in_two() -> None:
    columns = (make_name_column("name"), *make_number_columns(*(f"column_number_{at}" for at in range(9))))
    lines = render_table(table(("row", *(f"{at}.{'5' * 12}" for at in range(9))), columns=columns))
    assert all(display_width(line) <= 80 for line in lines)
    assert sum(line.startswith("  row") for line in lines) >= 2
    assert all(f"{at}.555555555555" in " ".join(lines) for at in range(9))


class Terminal(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


PAGE = """\
✗ SLOWER

WHAT TO CHANGE   note
  1 ZP413 some_cause  saves 1 ms, medium confidence
    fix       a()
  b  ██▍
"""


@pytest.mark.parametrize(
    ("is_terminal", "environment", "is_coloured"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_colour_is_for_terminals_that_want_it(
    is_terminal: bool, environment: dict[str, str], is_coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in ({"TERM": "xterm"} | environment).items():
        monkeypatch.setenv(name, value)
    stdout = Terminal(is_terminal)
    monkeypatch.setattr(console.sys, "stdout", stdout)
    console.print_page(PAGE)
    assert ("\x1b[" in stdout.getvalue()) is is_coloured
    assert re.sub(r"\x1b\[\d+m", "", stdout.getvalue()) == PAGE


def test_each_line_ends_without_colour() -> None:
    lines = coloured(PAGE).split("\n")
    assert all("\x1b" not in line or line.rindex("\x1b[0m") == line.rindex("\x1b") for line in lines)
    assert sum("\x1b" in line for line in lines) == 5
