"""The worst instances of a collective: all of its own, in order, with who came last and why."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from zprof.tui.figures import Figure
from zprof.tui.presenters.collective_instances import build_instances_table, select_rows
from zprof.tui.session import LoadedRun
from zprof.tui.tables import Table

MS = 1_000_000


def column(table: Table, title: str) -> list[str]:
    place = [each.title for each in table.columns].index(title)
    return [line.cells[place].text for line in table.lines]


def with_rows(loaded: LoadedRun, **changes: object) -> LoadedRun:
    rows = loaded.analysis.collectives.assign(**changes)
    return replace(loaded, analysis=replace(loaded.analysis, collectives=rows))


def test_they_are_those_of_the_leaf(loaded: LoadedRun) -> None:
    for entry in loaded.report.time.collectives:
        rows = select_rows(loaded.analysis, entry)
        assert set(rows["kind"]) == {entry.kind}
        steps = sum(rank.steps for rank in loaded.report.time.per_rank)
        assert len(rows) / steps == entry.count
        exposed = rows["exposed_wait_ns"].sum() + rows["exposed_transfer_ns"].sum()
        assert exposed / steps == pytest.approx(entry.exposed_ns, abs=1)


def test_the_most_exposed_come_first(loaded: LoadedRun) -> None:
    table = build_instances_table(loaded, 0)
    place = [each.title for each in table.columns].index("exposed")
    cells = [line.cells[place] for line in table.lines]
    values = [cell.value or 0.0 for cell in cells if isinstance(cell, Figure)]
    assert values == sorted(values, reverse=True)
    assert table.note == "90 of 90, most exposed first; all matched; ? why late"


def test_at_most_two_hundred(loaded: LoadedRun) -> None:
    rows = pd.concat([loaded.analysis.collectives] * 4, ignore_index=True)
    table = build_instances_table(replace(loaded, analysis=replace(loaded.analysis, collectives=rows)), 0)
    assert len(table.lines) == 200
    assert table.note.startswith("200 of 360")


def test_numbers_of_single_rows_name_no_leaf(loaded: LoadedRun) -> None:
    assert all(not figure.leaves for figure in build_instances_table(loaded, 0).figures())


def test_a_start_counts_from_the_begin_of_its_step(loaded: LoadedRun) -> None:
    table = build_instances_table(loaded, 0)
    longest = max(step.wall_ns for step in loaded.report.time.steps) / MS
    assert all(0 <= float(text) <= longest for text in column(table, "at"))


def test_who_came_last_and_why(loaded: LoadedRun) -> None:
    every = np.ones(len(loaded.analysis.collectives), dtype=bool)
    late = with_rows(
        loaded, last_rank=1, late_reason="previous_collective", origin_rank=0, first_of_window=~every
    )
    table = build_instances_table(late, 0)
    assert {(*row,) for row in zip(column(table, "last"), column(table, "why late"), strict=True)} == {
        ("1", "collective before")
    }
    assert set(column(table, "began on")) == {"0"}


def test_nobody_came_last(loaded: LoadedRun) -> None:
    every = np.ones(len(loaded.analysis.collectives), dtype=bool)
    tied = build_instances_table(with_rows(loaded, last_rank=-1, matched=every), 0)
    alone = build_instances_table(with_rows(loaded, last_rank=-1, matched=~every, bound=every), 0)
    assert set(column(tied, "last")) == {"tied"}
    assert set(column(alone, "last")) == {"unknown"}
    assert alone.note.endswith("; 0 matched; ? why late")
    assert all(text.startswith("≥ ") for text in column(alone, "wait"))


def test_the_start_of_the_profiler_is_no_ones_fault(loaded: LoadedRun) -> None:
    every = np.ones(len(loaded.analysis.collectives), dtype=bool)
    table = build_instances_table(with_rows(loaded, first_of_window=every, late_reason="host"), 0)
    assert set(column(table, "why late")) == {"profiler start"}


def test_what_is_not_known_is_left_blank(loaded: LoadedRun) -> None:
    """That it is unknown says nothing in each of a hundred rows: the help says what a blank is."""
    every = np.ones(len(loaded.analysis.collectives), dtype=bool)
    table = build_instances_table(with_rows(loaded, first_of_window=~every, late_reason="unknown"), 0)
    assert set(column(table, "why late")) == {""}
    for word in ("why late:", "blank:", "tied:", "unknown:", "host (", "collective before ("):
        assert word in table.help, word
    copied = build_instances_table(with_rows(loaded, first_of_window=~every, late_reason="memcpy"), 0)
    assert set(column(copied, "why late")) == {"copies"}


def test_what_a_trace_does_not_say_is_unknown(loaded: LoadedRun) -> None:
    empty = pd.array([pd.NA] * len(loaded.analysis.collectives), dtype="Int64")
    table = build_instances_table(with_rows(loaded, launch_start_ns=empty, unit=None, bytes=0), 0)
    assert set(column(table, "launch delay")) == {"unknown"}
    assert set(column(table, "bytes")) == {"unknown"}
    assert set(column(table, "unit")) == {""}
