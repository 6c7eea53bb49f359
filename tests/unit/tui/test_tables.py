"""Tables of pages: sorted, narrowed, and never steering a terminal."""

from zprof.tui.figures import Figure, Unit
from zprof.tui.tables import Column, Line, Table, TextCell, filter_lines, select_columns, sort_lines


def line(name: str, value: float | None) -> Line:
    return Line(key=name, cells=(TextCell(name), Figure(value=value, unit=Unit.COUNT, leaves=("a",))))


TABLE = Table(
    name="t",
    title="t",
    columns=(Column(title="name"), Column(title="count", numeric=True), Column(title="wide", from_width=100)),
    lines=(line("Beta", 2), line("alpha", None), line("gamma", 10)),
)


def keys(lines: list[Line]) -> list[str]:
    return [one.key for one in lines]


def test_numbers_sort_by_value_and_unknown_ones_last() -> None:
    assert keys(sort_lines(TABLE, TABLE.lines, 1, reverse=True)) == ["gamma", "Beta", "alpha"]
    assert keys(sort_lines(TABLE, TABLE.lines, 1, reverse=False)) == ["Beta", "gamma", "alpha"]


def test_texts_sort_by_letters() -> None:
    assert keys(sort_lines(TABLE, TABLE.lines, 0, reverse=False)) == ["alpha", "Beta", "gamma"]


def test_lines_with_a_text() -> None:
    assert keys(list(filter_lines(TABLE, "ALPH"))) == ["alpha"]
    assert keys(list(filter_lines(TABLE, "unknown"))) == ["alpha"]
    assert len(filter_lines(TABLE, "")) == 3


def test_a_column_needs_its_room() -> None:
    assert select_columns(TABLE, 99) == [0, 1]
    assert select_columns(TABLE, 100) == [0, 1, 2]


def test_names_from_a_run_do_not_steer() -> None:
    assert TextCell("a\x1b[2J[bold]b\nc").text == "a\\x1b[2J[bold]b\\x0ac"


def test_figures_are_found() -> None:
    assert [figure.value for figure in TABLE.figures()] == [2, None, 10]
