"""Lines, tables and colours of the terminal: its width, nothing cut, code never wrapped."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zprof.cli import console
from zprof.model.formatting import display_width
from zprof.reports.layout import bar, code_or_text, heading, page_columns, page_width, wrap
from zprof.reports.page import Column, Kind, Row, Table, make_table, name_column, numbers, text_column
from zprof.reports.terminal import coloured
from zprof.reports.text_table import table_lines

LONG = "word " * 60


@given(st.text(alphabet="ab 層…1%", max_size=400), st.integers(0, 30))
def test_wrapped_text_fits_and_loses_nothing(text: str, indent: int) -> None:
    lines = wrap(text, first=" " * indent)
    assert all(display_width(line) <= 80 for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_a_number_stays_with_its_unit() -> None:
    lines = wrap("x" * 74 + " 12.5 ms and 100.0 %", first="")
    assert lines[1].startswith("12.5 ms")


@pytest.mark.parametrize(
    ("share", "shown"), [(0, ""), (1, "████"), (0.5, "██"), (0.6, "██▍"), (1e-6, "▏"), (2, "████"), (-1, "")]
)
def test_bar(share: float, shown: str) -> None:
    assert bar(share, 4) == shown


@pytest.mark.parametrize(("columns", "width"), [(100, 100), (80, 80), (20, 60), (900, 120)])
def test_lines_have_the_width_of_the_terminal_within_reason(columns: int, width: int) -> None:
    with page_columns(columns):
        lines = wrap(LONG)
        title = heading("TITLE", "note")
    assert width - 5 <= max(map(display_width, lines)) <= width
    assert display_width(title[0]) == width
    assert page_width() == 80


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_note_of_a_heading_is_never_cut(columns: int) -> None:
    note = "saves 37.4 ms to 123.7 ms, medium confidence"
    with page_columns(columns):
        lines = heading("  2 ZP413 needless_reshard_after_forward", note)
    assert lines[-1].endswith(note)
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
        ("short(a)   # why", ["short(a)   # why"]),
        ("f(a, g(" + "b, " * 30, ["f(a, g(" + "b, " * 30]),
        ("c=" + "d." * 40 + "e))", ["c=" + "d." * 40 + "e))"]),
    ],
)
def test_code_is_not_wrapped_and_a_comment_stays_one(text: str, lines: list[str]) -> None:
    assert [line.strip() for line in code_or_text(text, first=" " * 14)] == [line.strip() for line in lines]
    assert len(code_or_text(LONG, first="    fix ")) > 1


def table(*rows: tuple[str, ...], columns: tuple[Column, ...] = (), **options: object) -> Table:
    columns = columns or (name_column("name"), *numbers("ms"))
    return Table(title="t", columns=columns, rows=tuple(Row(cells=row) for row in rows), **options)  # type: ignore[arg-type]


def test_columns_stand_under_each_other() -> None:
    assert table_lines(table(("a", "1.5"), ("層", "10.0"))) == [
        "T",
        "  name    ms",
        "  a      1.5",
        "  層    10.0",
    ]


@given(
    st.lists(
        st.tuples(
            st.text(alphabet="ab層 ", min_size=1, max_size=120),
            st.text("1.", max_size=9),
            st.text(alphabet="cd ", max_size=90),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_any_table_fits_and_loses_nothing(rows: list[tuple[str, str, str]]) -> None:
    columns = (name_column("name"), *numbers("a number of something"), text_column("words"))
    lines = table_lines(table(*rows, columns=columns))
    assert all(display_width(line) <= 80 for line in lines)
    shown = "".join("".join(lines).split())
    for sign in "ab層1.":
        assert shown.count(sign) >= sum("".join(row).count(sign) for row in rows)


def test_a_table_that_is_too_wide_is_drawn_in_two() -> None:
    columns = (name_column("name"), *numbers(*(f"column_number_{at}" for at in range(9))))
    lines = table_lines(table(("row", *(f"{at}.{'5' * 12}" for at in range(9))), columns=columns))
    assert all(display_width(line) <= 80 for line in lines)
    assert sum(line.startswith("  row") for line in lines) >= 2
    assert all(f"{at}.555555555555" in " ".join(lines) for at in range(9))


def test_only_the_most_important_rows_are_shown_in_their_order() -> None:
    rows = [(f"rank {at}", str(at)) for at in range(20)]
    made = make_table(
        "T", (text_column("rank"), *numbers("ms")), rows, max_text_rows=3, order=(7, 1, 12), what="ranks"
    )
    assert made is not None
    *_, first, second, third, left = table_lines(made)
    assert [line.split()[1] for line in (first, second, third)] == ["1", "7", "12"]
    assert left.strip() == "3 of 20 ranks; all: -f json"


def test_a_value_that_rows_share_is_lifted() -> None:
    columns = (name_column("kind"), name_column("group", lifted=True), *numbers("ms"))
    shared = table_lines(table(("a", "0-7", "1"), ("b", "0-7", "2"), columns=columns))
    assert shared[0].endswith("group 0-7")
    apart = table_lines(table(("a", "0-7", "1"), ("b", "8", "2"), columns=columns))
    assert [line.strip() for line in apart[2:]] == ["group 0-7", "a      1", "group 8", "b      2"]


def test_rows_are_drawn_sideways_and_empty_columns_are_left_out() -> None:
    columns = (
        text_column("rank"),
        *numbers("peak", "nothing"),
        Column(title="when", kind=Kind.TEXT, wide=True),
    )
    lines = table_lines(
        table(("rank 0", "1", "", "x"), ("rank 1", "2", "", "y"), columns=columns, sideways=True)
    )
    assert [line.split() for line in lines[1:]] == [["rank", "0", "rank", "1"], ["peak", "1", "2"]]


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


def test_each_line_ends_without_colour_and_each_mark_has_one() -> None:
    lines = coloured(PAGE).split("\n")
    assert all("\x1b" not in line or line.rindex("\x1b[0m") == line.rindex("\x1b") for line in lines)
    assert sum("\x1b" in line for line in lines) == 5
