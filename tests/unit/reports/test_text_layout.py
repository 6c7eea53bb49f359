"""Lines, tables and colours of the terminal: its width, nothing lost, code never wrapped."""

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zprof.base.formatting import display_width
from zprof.cli import console
from zprof.model.findings import read_index
from zprof.reports import finding_pages
from zprof.reports.layout import (
    format_fix_line,
    get_page_width,
    page_columns,
    render_heading,
    render_markdown_text,
    wrap,
)
from zprof.reports.page import GAPS, Card, Code, Item, ItemList, Note, Page, VerdictBlock, make_section
from zprof.reports.table import (
    Bar,
    Column,
    Kind,
    Row,
    Table,
    make_name_column,
    make_number_columns,
    make_text_column,
)
from zprof.reports.text import render_table, render_text


@given(st.text(alphabet="ab 層…1%", max_size=400), st.integers(0, 30))
def test_wrapped_text_fits_and_loses_nothing(text: str, indent: int) -> None:
    lines = wrap(text, first=" " * indent)
    assert all(display_width(line) <= 80 for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_a_number_stays_with_its_unit() -> None:
    assert wrap("x" * 74 + " 12.5 ms and 100.0 %", first="")[1].startswith("12.5 ms")


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
        ('"a": {"b": 5e7, "c": ' + "1" * 60 + ",", ['"a": {"b": 5e7, "c": ' + "1" * 60 + ","]),
        ('"b": {"c": ' + "1" * 60 + "}}", ['"b": {"c": ' + "1" * 60 + "}}"]),
        (
            "torchrun --nproc-per-node 8 " + "-x " * 30 + "train.py",
            ["torchrun --nproc-per-node 8 " + "-x " * 30 + "train.py"],
        ),
        ("export A_B=1 C=2 python " + "x" * 70, ["export A_B=1 C=2 python " + "x" * 70]),
        ("save one: zprof baseline save " + "x" * 70, ["save one:", "zprof baseline save " + "x" * 70]),
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


def page(name: str = "a name") -> Page:
    """A page with all that has a colour; the name is one that came from a file."""
    findings = [
        Card(
            title=f"{number} ZP413 some_cause",
            note="saves 1 ms, medium confidence",
            tone=severity,
            text=name,
            parts=(("fix", Code(lines=("a()",))),),
        )
        for number, severity in enumerate(("high", "medium", "low"))
    ]
    rows = tuple(
        Row(cells=(f"{mark} gate", name, Bar(segments=(("time-sum", 0, 1),), share=0.5))) for mark in "✗✓"
    )
    gates = Table(title="gates", columns=(make_text_column("gate"), make_text_column("of"), BAR), rows=rows)
    names = Table(title="names", columns=(make_name_column("name"),), rows=(Row(cells=(name,)),))
    gap = Item(text=name, label="x" * 20)
    return Page(
        kind="",
        subject=name,
        head=(
            VerdictBlock(tone="slower", mark="✗", text=f"SLOWER {name}"),
            Note(text=name, label="MODELLED"),
        ),
        sections=(
            *make_section("changes", "What to change", "", *findings),
            *make_section("gates", "Gates", "", gates, names),
            *make_section(GAPS, "Not measured", "", ItemList(items=(gap,))),
        ),
        made_by="",
        data_command="",
    )


BAR = Column(title="", kind=Kind.BAR)
STYLE = re.compile(r"\x1b\[([\d;]+)m([^\x1b]*)\x1b\[0m")


@pytest.mark.parametrize(
    ("is_terminal", "environment", "is_coloured"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
        (False, {"FORCE_COLOR": "1"}, True),
        (False, {"FORCE_COLOR": "0"}, False),
        (True, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_colour_is_for_terminals_that_want_it(
    is_terminal: bool, environment: dict[str, str], is_coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"TERM": "xterm"} | environment).items():
        monkeypatch.setenv(name, value)
    stdout = Terminal(is_terminal)
    monkeypatch.setattr(console.sys, "stdout", stdout)
    console.print_page(page())
    assert ("\x1b[" in stdout.getvalue()) is is_coloured
    assert STYLE.sub(r"\2", stdout.getvalue()) == render_text(page())


def test_status_severity_confidence_gaps_and_bars_have_their_colour() -> None:
    styles = {text.strip(): codes for codes, text in STYLE.findall(render_text(page(), coloured=True))}
    red, green, yellow = "31", "32", "33"
    assert styles["✗ SLOWER"] == f"1;{red}"
    assert styles["0 ZP413 some_cause"] == f"1;{red}"
    assert styles["1 ZP413 some_cause"] == f"1;{yellow}"
    assert styles["2 ZP413 some_cause"] == "1"
    assert styles["medium confidence"] == yellow
    assert (styles["✗"], styles["✓"]) == (red, green)
    assert styles["NOT MEASURED"] == f"1;{yellow}"
    assert styles["█" * 12] == "36"


@pytest.mark.parametrize(
    "name",
    ["✗ SLOWER", "! x", "high confidence", "1 ZP301 straggler_rank", "\x1b[31mred\x1b[0m", "fix       y"],
)
def test_a_name_from_a_file_gets_no_colour(name: str) -> None:
    """Whatever it looks like: the styles are those of a page with a harmless name."""
    coloured, harmless = (render_text(page(text), coloured=True) for text in (name, "a name"))
    assert STYLE.findall(coloured) == STYLE.findall(harmless)
    assert STYLE.sub(r"\2", coloured) == render_text(page(name))


@pytest.mark.parametrize("identifier", [entry.id for entry in read_index()])
def test_code_of_an_explained_finding_is_printed_whole(identifier: str) -> None:
    markdown = finding_pages.read_page(identifier)
    printed = {line.strip() for line in render_markdown_text(markdown).splitlines()}
    fences = re.findall(r"^```\w*\n(.*?)^```", markdown, re.MULTILINE | re.DOTALL)
    lines = {line.strip() for fence in fences for line in fence.splitlines()}
    assert lines - {""} <= printed
