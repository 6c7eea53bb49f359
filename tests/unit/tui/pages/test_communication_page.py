"""The tables of communication: what sums, what is a bound, what is unknown, and jobs of many groups."""

from dataclasses import replace
from statistics import fmean

import pytest

from tests.support.full_times import full_time
from zprof.model.gaps import Gap
from zprof.model.time import CollectiveTime, ExposedInCollectives, Time
from zprof.tui.figures import UNKNOWN, Figure
from zprof.tui.presenters.communication import build_collectives_table, find_split
from zprof.tui.presenters.communication_checks import build_checks_table
from zprof.tui.presenters.communication_parts import build_fits_table, build_sizes_table, build_units_table
from zprof.tui.session import LoadedRun
from zprof.tui.tables import MAX_ROWS, Cell, Line, Opens, Table, select_columns

NARROW, WIDE = 80, 200
KINDS, GROUPS = 8, 64


def cell(table: Table, line: Line, title: str) -> Cell:
    return line.cells[[column.title for column in table.columns].index(title)]


def value(table: Table, line: Line, title: str) -> float:
    found = cell(table, line, title)
    assert isinstance(found, Figure)
    assert found.value is not None
    return found.value


def with_time(loaded: LoadedRun, time: Time) -> LoadedRun:
    return replace(loaded, report=replace(loaded.report, time=time))


def with_collective(loaded: LoadedRun, **changes: object) -> LoadedRun:
    time = loaded.report.time
    first = replace(time.collectives[0], **changes)  # type: ignore[arg-type]
    return with_time(loaded, replace(time, collectives=(first, *time.collectives[1:])))


def many_groups(loaded: LoadedRun) -> LoadedRun:
    """Each of 8 kinds in each of 64 groups of 16 ranks."""
    first = loaded.report.time.collectives[0]
    entries = tuple(
        replace(first, kind=f"kind_{kind}", group=",".join(str(group + GROUPS * r) for r in range(16)))
        for kind in range(KINDS)
        for group in range(GROUPS)
    )
    return with_time(loaded, replace(loaded.report.time, collectives=entries))


def test_a_row_sums(loaded: LoadedRun) -> None:
    table = build_collectives_table(loaded)
    assert len(table.lines) == len(loaded.report.time.collectives)
    for line in table.lines:
        total = value(table, line, "total")
        assert total == pytest.approx(value(table, line, "hidden") + value(table, line, "exposed"))
        assert total == pytest.approx(value(table, line, "wait") + value(table, line, "transfer"), abs=2)
        parts = value(table, line, "exposed wait") + value(table, line, "exposed transfer")
        assert value(table, line, "exposed") == pytest.approx(parts, abs=2)


def test_a_name_opens_its_collective(loaded: LoadedRun) -> None:
    for place, line in enumerate(build_collectives_table(loaded).lines):
        assert (line.opens, line.target) == (Opens.COLLECTIVE, place)
        assert line.cells[0].text == loaded.report.time.collectives[place].kind


def test_missing_ranks_make_bounds(loaded: LoadedRun) -> None:
    found = with_collective(loaded, bound=True)
    table = build_collectives_table(found)
    first, second = table.lines[:2]
    assert cell(table, first, "wait").text.startswith("≥ ")
    assert cell(table, first, "transfer").text.startswith("≤ ")
    assert "≥" not in cell(table, first, "exposed").text
    assert "≥" not in cell(table, second, "wait").text
    split = find_split(found, 0)
    assert split is not None
    assert (split.wait.text[:2], split.transfer.text[:2]) == ("≥ ", "≤ ")
    units = build_units_table(found)
    bound = {line.cells[1].text: cell(units, line, "exp. transfer").text[0] for line in units.lines}
    assert bound[found.report.time.collectives[0].kind] == "≤"
    assert bound[found.report.time.collectives[1].kind] != "≤"


def test_bytes_that_a_trace_does_not_say_are_unknown(loaded: LoadedRun) -> None:
    kind = loaded.report.time.collectives[0].kind
    found = with_collective(loaded, bytes=0)
    table = build_collectives_table(found)
    assert cell(table, table.lines[0], "bytes").text == UNKNOWN
    assert kind not in {line.cells[0].text for line in build_sizes_table(found).lines}
    table = build_collectives_table(with_collective(loaded, bytes=0, kind="barrier"))
    assert cell(table, table.lines[0], "bytes").text == "0 B"


def test_one_group_is_said_once(loaded: LoadedRun) -> None:
    table = build_collectives_table(loaded)
    assert table.title == "collectives, group 0,1, float32"
    assert "group" not in {column.title for column in table.columns}


def test_many_groups_have_a_column_and_room(loaded: LoadedRun) -> None:
    table = build_collectives_table(many_groups(loaded))
    assert len(table.lines) == KINDS * GROUPS > MAX_ROWS
    titles = [table.columns[place].title for place in select_columns(table, NARROW)]
    assert titles == ["collective", "group", "n", "hidden", "exposed", "wait", "transfer"]
    widest = [
        max(len(titles[at]), *(len(line.cells[place].text) for line in table.lines)) + 2
        for at, place in enumerate(select_columns(table, NARROW))
    ]
    assert sum(widest) <= NARROW - 2
    assert {"bytes", "bus", "algorithm"} < {table.columns[at].title for at in select_columns(table, WIDE)}


def test_each_group_is_told_from_the_others(loaded: LoadedRun) -> None:
    table = build_collectives_table(many_groups(loaded))
    assert len({(line.cells[0].text, line.cells[1].text) for line in table.lines}) == KINDS * GROUPS


def test_units_with_most_exposed_time_come_first(loaded: LoadedRun) -> None:
    table = build_units_table(loaded)
    exposed = [value(table, line, "exp. wait") + value(table, line, "exp. transfer") for line in table.lines]
    assert exposed == sorted(exposed, reverse=True)
    assert len(exposed) == len(loaded.report.time.units)


def test_sizes_are_drawn_to_scale(loaded: LoadedRun) -> None:
    table = build_sizes_table(loaded)
    counts = [value(table, line, "n") for line in table.lines]
    squares = [len(cell(table, line, "").text) for line in table.lines]
    assert max(squares) == 8
    assert squares == [max(1, round(8 * count / max(counts))) for count in counts]


def test_less_room_leaves_columns_out(loaded: LoadedRun) -> None:
    for make in (build_sizes_table, build_units_table, build_fits_table):
        table = make(loaded)
        assert set(select_columns(table, 58)) < set(select_columns(table, 200))
        assert all(len(line.cells) == len(table.columns) for line in table.lines)


def test_a_fit_says_latency_and_how_far_it_is_off(loaded: LoadedRun) -> None:
    made = with_time(loaded, full_time(loaded.report.time))
    table = build_fits_table(made)
    line = table.lines[0]
    assert [cell(table, line, title).text for title in ("latency", "bus", "share", "off by")] == [
        "24.0 µs",
        "180.0 GB/s",
        "12.0 %",
        "3.4 %",
    ]


def checks(loaded: LoadedRun) -> dict[str, tuple[str, ...]]:
    return {line.key: tuple(one.text for one in line.cells) for line in build_checks_table(loaded).lines}


def test_kinds_sum_to_the_ledger(loaded: LoadedRun) -> None:
    ranks = loaded.report.time.per_rank
    table = build_checks_table(loaded)
    for line in table.lines[1:3]:
        leaf = line.cells[0].text.replace(" ", "_") + "_ns"
        assert value(table, line, "is") == pytest.approx(fmean(getattr(rank, leaf) for rank in ranks))
        assert value(table, line, "seen") == pytest.approx(value(table, line, "is"), rel=1e-3)
    assert checks(loaded)["exposed wait"][-1] == "sum of all kinds"


def test_a_sum_that_differs_says_why(loaded: LoadedRun) -> None:
    found = loaded.report.time.exposed_in_collectives
    assert found is not None
    off = ExposedInCollectives(wait_ns=found.wait_ns, transfer_ns=found.transfer_ns * 2)
    said = checks(with_time(loaded, replace(loaded.report.time, exposed_in_collectives=off)))
    assert "across the ends of the window" in said["exposed transfer"][-1]
    assert "across" not in said["exposed wait"][-1]


def test_bytes_are_held_against_the_law(loaded: LoadedRun) -> None:
    assert checks(loaded)["bytes a step"][1:5] == ("8.5 MiB", "law", "9.3 MiB", "91.9 %")


def test_an_unknown_law_says_what_is_missing(loaded: LoadedRun) -> None:
    gap = Gap(what="volume", reason="not known: the sharding stage", remedy="say it")
    found = replace(loaded, report=replace(loaded.report, volume=None, gaps=(gap,)))
    said = checks(found)["bytes a step"]
    assert said[1] == UNKNOWN
    assert said[-1] == "not known: the sharding stage"
    line = build_checks_table(found).lines[0]
    assert line.opens is Opens.GAP
    assert build_checks_table(loaded).lines[0].opens is Opens.NOTHING


def test_clocks_that_were_not_aligned(loaded: LoadedRun) -> None:
    found = with_time(loaded, replace(loaded.report.time, alignment=None))
    assert checks(found)["clocks"][1] == "not aligned"
    assert checks(loaded)["clocks, within"][1:5] == ("122.5 µs", "matched", "70", "")
    lost = replace(loaded.report.time.alignment, unmatched=3)  # type: ignore[type-var]
    said = checks(with_time(loaded, replace(loaded.report.time, alignment=lost)))["clocks, within"]
    assert said[4] == "3"
    assert said[5].startswith("unmatched; ")


def test_without_collectives_it_says_why(loaded: LoadedRun) -> None:
    none: tuple[CollectiveTime, ...] = ()
    bare = replace(
        loaded.report.time,
        collectives=none,
        units=(),
        messages=(),
        fits=(),
        exposed_in_collectives=None,
        alignment=None,
    )
    found = with_time(loaded, bare)
    assert build_collectives_table(found).note == "none ran in these steps"
    assert find_split(found, 0) is None
    assert [len(make(found).lines) for make in (build_sizes_table, build_units_table, build_fits_table)] == [
        0,
        0,
        0,
    ]
    assert checks(found)["exposed wait"][1] == UNKNOWN
    assert checks(found)["exposed wait"][-1] == "no collective was seen"


def test_types_are_told_apart_where_kind_and_group_are_not_enough(loaded: LoadedRun) -> None:
    first, second = loaded.report.time.collectives
    alike = replace(loaded.report.time, collectives=(first, replace(first, dtype="int64"), second))
    table = build_collectives_table(with_time(loaded, alike))
    assert [line.cells[0].text for line in table.lines] == [
        f"{first.kind} float32",
        f"{first.kind} int64",
        second.kind,
    ]
    assert table.title == "collectives, group 0,1"
    split = find_split(with_time(loaded, alike), 1)
    assert split is not None
    assert split.name == f"{first.kind} int64 0,1"


def test_sums_of_what_could_not_be_split_are_bounds(loaded: LoadedRun) -> None:
    ranks = tuple(replace(rank, unsplit_ns=rank.exposed_transfer_ns) for rank in loaded.report.time.per_rank)
    said = checks(with_time(loaded, replace(loaded.report.time, per_rank=ranks)))
    assert said["exposed transfer"][1].startswith("≤ ")
    assert said["exposed wait"][3].startswith("≥ ")
    assert "≤" not in checks(loaded)["exposed transfer"][1]


def test_one_rank_of_several_has_nothing_to_align_with(loaded: LoadedRun) -> None:
    one = replace(loaded.report, run=replace(loaded.report.run, ranks_loaded=(0,)))
    found = replace(loaded, report=replace(one, time=replace(one.time, alignment=None)))
    assert checks(found)["clocks"][-1] == "only one rank is loaded"
