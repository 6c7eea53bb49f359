"""Tables apart from drawing: sorted, narrowed, what a cell opens, and bars."""

import pytest

from zprof.model.quantities import Path, Unit, Value
from zprof.reports.table import Bar, Column, Kind, Opens, Row, Table
from zprof.tui.table_view import filter_lines, find_number, select_columns, sort_lines
from zprof.tui.theme import Look, Pen
from zprof.tui.widgets.text import render_bar


def line(name: str, value: float | None) -> Row:
    return Row(key=name, cells=(name, Value(number=value, unit=Unit.COUNT, leaves=(Path(("a",)),))))


TABLE = Table(
    name="t",
    title="t",
    columns=(
        Column(title="name", kind=Kind.TEXT),
        Column(
            title="count",
        ),
        Column(title="wide", kind=Kind.TEXT, from_width=100),
    ),
    rows=(line("Beta", 2), line("alpha", None), line("gamma", 10)),
)


@pytest.mark.parametrize(
    ("column", "reverse", "order"),
    [
        (1, True, ["gamma", "Beta", "alpha"]),
        (1, False, ["Beta", "gamma", "alpha"]),
        (0, False, ["alpha", "Beta", "gamma"]),
    ],
)
def test_numbers_sort_by_value_and_unknown_ones_last(column: int, reverse: bool, order: list[str]) -> None:
    assert [one.key for one in sort_lines(TABLE, TABLE.rows, column, reverse=reverse)] == order


@pytest.mark.parametrize(("text", "count"), [("ALPH", 1), ("unknown", 1), ("", 3)])
def test_a_search_finds_what_any_cell_says(text: str, count: int) -> None:
    found = filter_lines(TABLE, text)
    assert len(found) == count
    assert count == 3 or found[0].key == "alpha"


def test_a_column_is_shown_from_its_width_on() -> None:
    assert select_columns(TABLE, 99) == [0, 1]
    assert select_columns(TABLE, 100) == [0, 1, 2]


def test_a_name_opens_the_first_number_of_its_row_unless_the_row_leads_elsewhere() -> None:
    word = "exposed transfer"
    first, second = (Value(number=value, unit=Unit.NS, leaves=(Path(("a",)),)) for value in (1, 2))
    row = Row(key="a", cells=(word, first, second))
    assert find_number(row, word) is first
    assert find_number(row, second) is second
    assert find_number(Row(key="a", cells=(word,)), word) is None
    leading = Row(key="a", cells=(word, first), opens=Opens.RANK, target=1)
    assert find_number(leading, word) is None
    assert find_number(leading, first) is first


@pytest.mark.parametrize(
    ("segments", "text"),
    [
        ((("time-compute", 0.0, 1.0),), "██████████"),
        ((("time-compute", 0.5, 0.501),), "     █"),
        ((("time-compute", 1.0, 1.0),), "         █"),
        ((("time-compute", 0.0, 0.6), ("time-idle", 0.6, 1.0)), "██████····"),
        (
            (("time-compute", 0.0, 0.34), ("time-idle", 0.34, 0.35), ("time-exposed-wait", 0.35, 1.0)),
            "███·▒▒▒▒▒▒",
        ),
        ((), ""),
    ],
)
def test_segments_of_a_bar_stand_at_their_places(
    segments: tuple[tuple[str, float, float], ...], text: str
) -> None:
    pen = Pen(look=Look.MONO, ascii_only=False, focused=False)
    assert render_bar(Bar(segments=segments), 10, pen).plain == text
