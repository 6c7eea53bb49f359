"""The worst instances of a collective: all of its own, most exposed first, with who came last and why."""

import pytest

from tests.support.tui_memory import with_analysis
from zprof.analysis.columns import Columns, OptionalInts, make_column
from zprof.analysis.tables import select_rows
from zprof.model.quantities import Value
from zprof.reports.table import Table
from zprof.tui.opening import build_instance_table
from zprof.tui.session import LoadedRun
from zprof.tui.table_view import get_text

MS = 1_000_000


def column(table: Table, title: str) -> list[str]:
    place = [each.title for each in table.columns].index(title)
    return [get_text(line.cells[place]) for line in table.rows]


def with_rows(loaded: LoadedRun, **changes: object) -> LoadedRun:
    rows = loaded.analysis.collectives
    columns = {
        name: OptionalInts.of([value] * len(rows))
        if isinstance(rows[name], OptionalInts)
        else make_column([value] * len(rows))
        for name, value in changes.items()
    }
    return with_analysis(loaded, collectives=rows.with_columns(**columns))


def test_rows_are_those_of_the_leaf(loaded: LoadedRun) -> None:
    for entry in loaded.report.time.collectives:
        rows = select_rows(loaded.analysis, entry)
        assert set(rows.texts("kind")) == {entry.kind}
        steps = sum(rank.steps for rank in loaded.report.time.per_rank)
        assert len(rows) / steps == entry.count
        exposed = rows.ints("exposed_wait_ns").sum() + rows.ints("exposed_transfer_ns").sum()
        assert exposed / steps == pytest.approx(entry.exposed_ns, abs=1)


def test_the_most_exposed_come_first_and_start_within_their_step(loaded: LoadedRun) -> None:
    table = build_instance_table(loaded.analysis, loaded.report.time.collectives[0])
    place = [each.title for each in table.columns].index("exposed")
    values = [cell.number or 0.0 for line in table.rows if isinstance(cell := line.cells[place], Value)]
    assert len(values) == 90
    assert values == sorted(values, reverse=True)
    longest = max(step.wall_ns for step in loaded.report.time.steps) / MS
    assert all(0 <= float(text) <= longest for text in column(table, "start"))
    assert all(not figure.leaves for figure in table.list_values()), "single rows are no leaves of the report"


def test_at_most_two_hundred_are_listed(loaded: LoadedRun) -> None:
    rows = Columns.concat([loaded.analysis.collectives] * 4)
    table = build_instance_table(
        with_analysis(loaded, collectives=rows).analysis, loaded.report.time.collectives[0]
    )
    assert len(table.rows) == 200
    assert "360" in table.note


@pytest.mark.parametrize(
    ("changes", "title", "shown"),
    [
        ({"last_rank": 1}, "last", "1"),
        ({"last_rank": 1, "origin_rank": 0}, "delay from", "0"),
        ({"last_rank": -1, "matched": True}, "last", "tied"),
        ({"last_rank": -1, "matched": False, "bound": True}, "last", "unknown"),
        ({"first_of_window": True, "late_reason": "host"}, "why late", "profiler start"),
        ({"late_reason": "previous_collective", "last_rank": 1}, "why late", "previous collective"),
        ({"late_reason": "memcpy"}, "why late", "copies"),
        ({"late_reason": "unknown"}, "why late", ""),
        ({"launch_start_ns": None}, "launch delay", "unknown"),
        ({"bytes": 0}, "bytes", "unknown"),
        ({"unit": None}, "unit", ""),
    ],
)
def test_who_came_last_and_why_is_told_or_unknown(
    loaded: LoadedRun, changes: dict[str, object], title: str, shown: str
) -> None:
    changed = with_rows(loaded, **({"first_of_window": False} | changes))
    table = build_instance_table(changed.analysis, loaded.report.time.collectives[0])
    assert set(column(table, title)) == {shown}
    if changes.get("bound"):
        assert all(text.startswith("≥ ") for text in column(table, "wait"))
