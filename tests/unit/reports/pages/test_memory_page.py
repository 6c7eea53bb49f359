"""Pages of memory: numbers are leaves, rows sum to the peak, and what no rule can tell is unknown."""

import re
from collections.abc import Callable
from itertools import pairwise

import pytest
from msgspec.structs import replace

from tests.support.full_memories import by_sizes, full_memory
from tests.support.memories import MIB, memory_of
from tests.support.reports import memory_only, slower, snapshot
from tests.support.tui_memory import on_a_device, with_memory
from zprof.model.cursor import follow, read
from zprof.model.endings import OutOfMemory
from zprof.model.memory import Allocation, FormulaCheck, GroupChange, RankSpread
from zprof.model.quantities import Value
from zprof.model.report import Report
from zprof.model.tenants import Tenant
from zprof.reports.page import Bars, Note, Section
from zprof.reports.pages.memory import (
    build_history_sections,
    build_memory_detail_section,
    build_memory_section,
)
from zprof.reports.pages.memory_allocations import (
    build_allocation_table,
    describe_allocation,
    find_user_frame,
)
from zprof.reports.pages.memory_changes import build_rank_spread_section
from zprof.reports.pages.memory_device import build_device_section, build_out_of_memory_section
from zprof.reports.pages.memory_formulas import build_formula_table, describe_formula_check, describe_states
from zprof.reports.pages.tenants import peak_bytes, select_largest_ranks
from zprof.reports.table import Mark, Opens, Table, format_cell
from zprof.tui.screens.memory import build_tables
from zprof.tui.session import LoadedRun
from zprof.tui.table_view import get_mark, get_text

GIB = 1 << 30


def list_tables(*sections: Section) -> list[Table]:
    return [block for section in sections for block in section.blocks if isinstance(block, Table)]


@pytest.mark.parametrize("make", [memory_only, slower, snapshot])
def test_each_number_is_what_its_leaves_yield(make: Callable[[], Report]) -> None:
    report = make()
    tables = list_tables(
        *build_memory_section(report),
        *build_history_sections(report),
        *build_memory_detail_section(report, detail=False),
        *build_device_section(report, detail=False),
    )
    known = [value for table in tables for value in table.list_values() if value.number is not None]
    assert known
    for value in known:
        places = [follow(report, leaf) for leaf in value.leaves]
        assert places
        assert read(*places, how=value.how).number == value.number, value


@pytest.mark.parametrize("rank", [0, 1])
def test_numbers_of_a_rank_are_leaves_of_that_rank(alone: LoadedRun, rank: int) -> None:
    for loaded in (alone, with_memory(alone, on_a_device())):
        for line in [line for table in build_tables(loaded.report, rank).values() for line in table.rows]:
            leaves = [
                leaf for cell in line.cells if isinstance(cell, Value) for leaf in map(str, cell.leaves)
            ]
            places = [re.fullmatch(r"memory\.(\w+)\[(\d+)\]\..+", leaf) for leaf in leaves]
            found = [(place[1], int(place[2])) for place in places if place]
            assert len(found) == len(leaves)
            assert {getattr(loaded.report.memory, name)[at].rank for name, at in found} <= {rank}
            if line.opens in (Opens.ALLOCATION, Opens.FORMULA):
                assert {at for _, at in found} == {line.target}


def test_a_stacked_bar_has_no_holes_and_the_largest_fills_the_width() -> None:
    (bars,) = [block for block in build_memory_section(slower())[0].blocks if isinstance(block, Bars)]
    for bar in bars.bars:
        assert bar.segments[0].start == 0
        for left, right in pairwise(bar.segments):
            assert left.start + left.width == pytest.approx(right.start, abs=0.01)
    widths = [
        sum(part.width for part in parts) for bar in bars.bars for parts in (bar.segments, bar.reference)
    ]
    assert max(widths) == pytest.approx(100, abs=0.1)


def test_ranks_with_the_largest_peaks_are_shown_in_order() -> None:
    ranks = memory_of(3, ranks=6).per_rank
    assert select_largest_ranks(ranks, 2) == (4, 5)
    assert select_largest_ranks(ranks, 8) == tuple(range(6))
    assert peak_bytes(ranks) == ranks[5].peak_bytes


@pytest.mark.parametrize(
    ("rests", "shown"), [((0, 0, 0), "exact to the byte"), ((8, 8, 8), "+24 B"), ((8, 8, -16), "32 B")]
)
def test_too_much_of_one_state_does_not_hide_too_little_of_another(
    rests: tuple[int, ...], shown: str
) -> None:
    checks = [check for check in memory_of(2).formulas if check.rank == 0]
    off = [
        replace(check, unexplained_bytes=rest, cause="") for check, rest in zip(checks, rests, strict=True)
    ]
    assert shown in describe_states(off, 4)[0]


def test_the_rank_furthest_off_comes_first_however_many_there_are() -> None:
    states = [check for check in memory_of(2).formulas if check.rank == 0]
    checks = [
        replace(check, rank=at, unexplained_bytes=MIB * (at == 30), cause="")
        for at in range(32)
        for check in states
    ]
    first, *_, left = describe_states(checks, 4)
    assert ("rank 30" in first, "4 of 32" in left) == (True, True)


def test_what_the_formula_does_not_explain_is_doubtful(alone: LoadedRun) -> None:
    check = FormulaCheck(
        rank=0, tenant=Tenant.GRADIENTS, formula_bytes=4 * MIB, law_bytes=4 * MIB, measured_bytes=9 * MIB,
        padding_bytes=MIB, scalar_bytes=0, unexplained_bytes=4 * MIB, cause="a full copy",
    )  # fmt: skip
    loaded = with_memory(alone, replace(full_memory(), formulas=(check,), laws=(check,)))
    (row,) = build_formula_table(loaded.report, 0).rows
    assert get_mark(row.cells[-1]) is Mark.DOUBTFUL
    assert check.cause in describe_formula_check(loaded.report, 0, loaded.run.manifest.training)[1]


def test_an_allocation_opens_its_stack_and_a_guessed_tenant_is_marked(alone: LoadedRun) -> None:
    loaded = with_memory(alone, full_memory())
    (line,) = build_allocation_table(loaded.report, 1).rows
    assert (line.opens, line.target) == (Opens.ALLOCATION, 1)
    frames = loaded.report.memory.top[1].stack
    rows = describe_allocation(loaded.report, 1)[1].splitlines()
    assert [row.strip() for row in rows[-len(frames) :]] == list(frames)
    guessed = build_allocation_table(with_memory(alone, by_sizes(full_memory())).report, 1)
    assert get_text(guessed.rows[0].cells[2]) == "~activations"


def test_the_telling_frame_is_the_innermost_of_the_program() -> None:
    torch, own = "/venv/lib/python3.11/site-packages/torch/nn/linear.py:1 forward", "/a/b/m.py:2 f"
    for stack, frame in (
        ((torch, own), "a/b/m.py:2 f"),
        ((torch,), "torch/nn/linear.py:1 forward"),
        ((), ""),
    ):
        entry = Allocation(rank=0, bytes=1, tenant="activations", sub="", module="", stack=stack)
        assert find_user_frame(entry) == frame


FAILURE = OutOfMemory(
    rank=3, device="cuda:1", time_ns=5, requested_bytes=2 * GIB, driver_bytes=3 * GIB,
    device_free_bytes=None, live_bytes=7 * GIB, allocated_bytes=8 * GIB, awaiting_free_bytes=0,
    reserved_bytes=9 * GIB, split_bytes=GIB, free_segments_bytes=0, private_pools_bytes=0,
    largest_free_bytes=GIB // 2, tenants={Tenant.ACTIVATIONS: 6 * GIB, Tenant.PARAMETERS: GIB},
    inferred_tenants=(Tenant.PARAMETERS,), unknown_tenants=(Tenant.GRADIENTS,), untagged_bytes=GIB,
    would_fit_defragmented=False, short_bytes=GIB, stack=("/home/me/model.py:7 attention",),
)  # fmt: skip


def with_failures(*failures: OutOfMemory) -> tuple[Section, ...]:
    report = snapshot()
    return build_out_of_memory_section(replace(report, memory=replace(report.memory, out_of_memory=failures)))


def test_terms_of_a_failed_allocation_are_rows_if_they_are_known() -> None:
    assert with_failures() == ()
    (table,) = list_tables(*with_failures(FAILURE))
    rows = {str(row.cells[0]): format_cell(row.cells[1]) for row in table.rows}
    assert (rows["activations"], rows["parameters"], rows["gradients"]) == ("6.0 GiB", "~1.0 GiB", "-")
    assert (rows["requested"], rows["= reserved by the allocator"]) == ("2.0 GiB", "9.0 GiB")
    assert not {"free on the device", "outside the allocator"} & set(rows)
    (table,) = list_tables(*with_failures(*(replace(FAILURE, rank=rank) for rank in range(9))))
    assert (len(table.columns), "rank 8" in table.columns[-1].title) == (5, True), "the last of many"


def with_peaks(*peaks_mib: int, grown: int = 3) -> Report:
    """Ranks with these peaks; the largest holds more in ``grown`` places."""
    report = snapshot()
    ranks = tuple(
        replace(report.memory.per_rank[0], rank=number, peak_bytes=peak * MIB)
        for number, peak in enumerate(peaks_mib)
    )
    largest, smallest = max(peaks_mib), min(peaks_mib)
    growth = (largest - smallest) * MIB // grown
    sizes = [(smallest * MIB, smallest * MIB), *[(0, growth)] * grown]
    groups = tuple(
        GroupChange(
            tenant="activations", sub="saved", where=f"/home/me/model.py:{line} forward", operator="",
            a_bytes=a, b_bytes=b, a_blocks=int(a > 0), b_blocks=1,
        )
        for line, (a, b) in enumerate(sizes)
    )  # fmt: skip
    spread = RankSpread(
        largest_rank=peaks_mib.index(largest), smallest_rank=peaks_mib.index(smallest),
        difference_bytes=grown * growth, tenant="activations", delta_bytes={"activations": grown * growth},
        groups=groups,
    )  # fmt: skip
    return replace(report, memory=replace(report.memory, per_rank=ranks, spread=spread))


def test_ranks_are_compared_from_a_few_percent_on_and_rows_sum_to_both_peaks() -> None:
    assert build_rank_spread_section(with_peaks(100, 102)) == ()
    (table,) = list_tables(*build_rank_spread_section(with_peaks(100, 160, 100, grown=6), short=True))
    *rows, rest, total = [[format_cell(cell) for cell in row.cells] for row in table.rows]
    assert rest[1:] == ["100.0 MiB", "120.0 MiB", "+20.0 MiB"]
    assert total[1:] == ["100.0 MiB", "160.0 MiB", "+60.0 MiB"]
    assert all(row[1:] == ["0 B", "10.0 MiB", "+10.0 MiB"] for row in rows)


def test_only_ranks_unlike_the_others_are_named() -> None:
    (section,) = build_rank_spread_section(with_peaks(100, 160, 101, 40, 99, 100))
    (note,) = [block.text for block in section.blocks if isinstance(block, Note)]
    _, _, outliers = note.partition("(")[2].partition("(")
    assert "above: rank 1, below: rank 3" in outliers
