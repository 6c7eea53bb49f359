"""Tables of communication: what sums, what is a bound, what is unknown, and jobs of many groups."""

from statistics import fmean

import pytest
from msgspec.structs import replace

from tests.support.many_steps import with_time
from tests.support.unsplit_ranks import make_unsplit
from zprof.model.gaps import Gap, GapKind
from zprof.model.quantities import UNKNOWN, Value
from zprof.model.time import ExposedInCollectives
from zprof.reports.pages.collectives import (
    build_check_table,
    build_collective_table,
    build_fit_table,
    build_message_table,
    build_unit_table,
)
from zprof.reports.table import MAX_LINES, LazyRows, Opens, Row, Table
from zprof.tui.screens.communication import find_split
from zprof.tui.session import LoadedRun
from zprof.tui.table_view import get_text


def text(table: Table, line: Row, title: str) -> str:
    return get_text(line.cells[[column.title for column in table.columns].index(title)])


def value(table: Table, line: Row, title: str) -> float:
    found = line.cells[[column.title for column in table.columns].index(title)]
    assert isinstance(found, Value)
    return found.number


def with_first_collective(loaded: LoadedRun, **changes: object) -> LoadedRun:
    first, *others = loaded.report.time.collectives
    return with_time(loaded, collectives=(replace(first, **changes), *others))


def check_texts(loaded: LoadedRun) -> dict[str, tuple[str, ...]]:
    return {
        line.key: tuple(get_text(one) for one in line.cells) for line in build_check_table(loaded.report).rows
    }


def test_each_row_sums_and_opens_its_collective(loaded: LoadedRun) -> None:
    table = build_collective_table(loaded.report)
    assert len(table.rows) == len(loaded.report.time.collectives)
    for place, line in enumerate(table.rows):
        assert (line.opens, line.target) == (Opens.COLLECTIVE, place)
        assert get_text(line.cells[0]) == loaded.report.time.collectives[place].kind
        total = value(table, line, "total")
        assert total == pytest.approx(value(table, line, "hidden") + value(table, line, "exposed"))
        assert total == pytest.approx(value(table, line, "wait") + value(table, line, "transfer"), abs=2)
        parts = value(table, line, "exposed wait") + value(table, line, "exposed transfer")
        assert value(table, line, "exposed") == pytest.approx(parts, abs=2)


def test_with_ranks_missing_waits_and_transfers_are_bounds(loaded: LoadedRun) -> None:
    found = with_first_collective(loaded, bound=True)
    table = build_collective_table(found.report)
    first, second = table.rows[:2]
    assert text(table, first, "wait").startswith("≥ ")
    assert text(table, first, "transfer").startswith("≤ ")
    assert not text(table, first, "exposed").startswith("≥")
    assert not text(table, second, "wait").startswith("≥")
    split = find_split(found.report, 0)
    _, _, wait, transfer = split
    assert (wait.text[:2], transfer.text[:2]) == ("≥ ", "≤ ")
    kinds = [entry.kind for entry in found.report.time.collectives]
    entries = [replace(entry, bound=entry.kind == kinds[0]) for entry in found.report.time.units]
    units = build_unit_table(with_time(found, units=tuple(entries)).report)
    for line in units.rows:
        is_bound = text(units, line, "exposed transfer").startswith("≤")
        assert is_bound == (get_text(line.cells[1]) == kinds[0])


def test_bytes_that_a_trace_does_not_have_are_unknown_but_those_of_a_barrier_are_zero(
    loaded: LoadedRun,
) -> None:
    for kind, shown in (("all_gather", UNKNOWN), ("barrier", "0 B")):
        found = with_first_collective(loaded, bytes=0, kind=kind)
        table = build_collective_table(found.report)
        assert text(table, table.rows[0], "bytes") == shown
        assert kind not in {get_text(line.cells[0]) for line in build_message_table(found.report).rows}


def test_of_thousands_of_rows_those_are_made_that_are_drawn(loaded: LoadedRun) -> None:
    first, unit = loaded.report.time.collectives[0], loaded.report.time.units[0]
    found = with_time(
        loaded,
        collectives=tuple(replace(first, kind=f"kind_{at}") for at in range(2500)),
        units=tuple(replace(unit, unit=f"blocks.{at}") for at in range(2500)),
    )
    for make in (build_collective_table, build_unit_table):
        lines = make(found.report).rows
        assert isinstance(lines, LazyRows)
        assert len(lines) == MAX_LINES
        assert lines.built_count < MAX_LINES


def test_units_with_most_exposed_time_come_first_each_with_its_own_leaves(loaded: LoadedRun) -> None:
    units = loaded.report.time.units[::-1]
    table = build_unit_table(with_time(loaded, units=units).report)
    exposed = [
        value(table, line, "exposed wait") + value(table, line, "exposed transfer") for line in table.rows
    ]
    assert exposed == sorted(exposed, reverse=True)
    assert len(exposed) == len(units)
    for line in table.rows:
        entry = units[int(line.key.removeprefix("time.units[").removesuffix("]"))]
        assert get_text(line.cells[0]) == entry.unit
        assert value(table, line, "exposed transfer") == pytest.approx(entry.exposed_transfer_ns, abs=1)


def test_exposed_time_of_all_kinds_is_that_of_the_ledger(loaded: LoadedRun) -> None:
    table, ranks = build_check_table(loaded.report), loaded.report.time.per_rank
    for line in table.rows[1:3]:
        term = get_text(line.cells[0]).replace(" ", "_") + "_ns"
        assert value(table, line, "expected") == pytest.approx(fmean(getattr(rank, term) for rank in ranks))
        assert value(table, line, "measured") == pytest.approx(value(table, line, "expected"), rel=1e-3)
    found = loaded.report.time.exposed_in_collectives
    double = ExposedInCollectives(wait_ns=found.wait_ns, transfer_ns=found.transfer_ns * 2)
    plain, off = check_texts(loaded), check_texts(with_time(loaded, exposed_in_collectives=double))
    assert off["exposed transfer"][-1] != plain["exposed transfer"][-1], "a sum that differs says why"
    assert off["exposed wait"] == plain["exposed wait"]
    sums = replace(found, bound=True)
    bounds = check_texts(with_time(loaded, per_rank=make_unsplit(ranks), exposed_in_collectives=sums))
    assert bounds["exposed transfer"][1].startswith("≤ ")
    assert bounds["exposed wait"][3].startswith("≥ ")


def test_a_volume_without_a_formula_opens_its_gap(loaded: LoadedRun) -> None:
    gap = Gap(kind=GapKind.VOLUME, what="volume", reason="not known: the sharding stage", remedy="name it")
    found = replace(loaded, report=replace(loaded.report, volume=None, gaps=(gap,)))
    cells = check_texts(found)["bytes per step"]
    assert (cells[1], cells[-1]) == (UNKNOWN, gap.reason)
    assert build_check_table(found.report).rows[0].opens is Opens.GAP


def test_without_collectives_nothing_is_made_up(loaded: LoadedRun) -> None:
    bare = with_time(
        loaded, collectives=(), units=(), messages=(), fits=(), exposed_in_collectives=None, alignment=None
    )
    assert build_collective_table(bare.report).note
    assert find_split(bare.report, 0) is None
    for make in (build_message_table, build_unit_table, build_fit_table):
        assert not make(bare.report).rows
    assert check_texts(bare)["exposed wait"][1] == UNKNOWN
    assert not any(cell[:1].isdigit() for cell in check_texts(bare)["clocks"])
