"""Bars and tables of memory: parts sum to the peak, rows are leaves of their rank, unknown is said."""

from msgspec.structs import replace

from tests.support.full_memories import by_sizes, full_memory
from tests.support.memories import MIB
from tests.support.tui_memory import NO_MEMORY, of_ranks, on_a_device, with_memory
from zprof.model.gaps import Gap, GapKind
from zprof.model.memory import Memory
from zprof.model.quantities import Value
from zprof.model.tenants import Tenant
from zprof.tui.missing_memory import explain_missing_memory, explain_missing_rank
from zprof.tui.session import LoadedRun, Selection
from zprof.tui.table_view import get_text
from zprof.tui.widgets.stacked_bars import MAX_BARS, Stacks, build_stacks, sort_indices


def stacks(loaded: LoadedRun, memory: Memory, rank: int = 0) -> Stacks:
    drawn = build_stacks(with_memory(loaded, memory).report, Selection(rank=rank))
    return drawn


def sizes(drawn: Stacks) -> dict[str, float | None]:
    return {line.key: line.cells[1].number for line in drawn.legend if isinstance(line.cells[1], Value)}


def notes(drawn: Stacks) -> str:
    return " ".join(get_text(cell) for note in (drawn.total, *drawn.notes) for cell in note)


def test_parts_of_a_bar_sum_to_its_peak_and_the_legend_is_of_the_selected_rank(alone: LoadedRun) -> None:
    drawn = build_stacks(alone.report, Selection(rank=1))
    assert drawn.subject == 1
    assert all(sum(size for _, size in entry.parts) == entry.peak.number for entry in drawn.bars)
    assert sizes(stacks(alone, full_memory(), 0))["temporary_buffers"] == 2 * MIB
    assert sizes(stacks(alone, full_memory(), 1))["temporary_buffers"] == 2 * MIB + 1024


def test_bars_share_the_scale_of_the_device_or_of_the_largest(alone: LoadedRun) -> None:
    on_device = stacks(alone, on_a_device())
    assert on_device.whole.number == 512 * MIB
    assert (sizes(on_device)["reserved_unused"], sizes(on_device)["non_pytorch"]) == (24 * MIB, 100 * MIB)
    without = replace(on_a_device(), devices=())
    largest = max(
        rank.peak_bytes + (rank.reserved_unused_bytes or 0) + (rank.non_pytorch_bytes or 0)
        for rank in without.per_rank
    )
    assert stacks(alone, without).whole.number == largest
    assert stacks(alone, full_memory()).whole.number == max(
        rank.peak_bytes for rank in full_memory().per_rank
    )


def test_of_many_ranks_the_selected_the_largest_and_the_smallest_are_shown(alone: LoadedRun) -> None:
    ranks = of_ranks(64).per_rank
    assert sort_indices(ranks, 30)[:4] == [30, 62, 63, 61]
    assert sort_indices(ranks, 62)[:3] == [62, 63, 61]
    assert sorted(sort_indices(ranks, 5)) == list(range(64))
    drawn = stacks(alone, of_ranks(1024), 500)
    assert (len(drawn.bars), len(drawn.order)) == (MAX_BARS, 1024)


def test_guessed_sizes_and_bounds_are_marked_and_what_no_rule_can_tell_is_unknown(alone: LoadedRun) -> None:
    memory = by_sizes(full_memory())
    rank = memory.per_rank[0]
    empty = dict(rank.tenants) | {Tenant.GRADIENTS: 0}
    unknown = replace(rank, tenants=empty, unknown=(Tenant.GRADIENTS,))
    drawn = stacks(alone, replace(memory, per_rank=(unknown,)))
    lines = {line.key: line for line in drawn.legend}
    assert get_text(lines["parameters"].cells[1]).startswith("~")
    assert get_text(lines["gradients"].cells[1]) == "unknown"
    bound = replace(full_memory().per_rank[0], upper_bound=True)
    drawn = stacks(alone, replace(full_memory(), per_rank=(bound,)))
    assert drawn.bars[0].peak.text.startswith("≤ ")
    assert notes(drawn).count("≤ ") == 1


def test_a_rank_without_memory_says_why_and_the_largest_stands_in(alone: LoadedRun) -> None:
    gap = replace(NO_MEMORY, rank=7, reason="its file is cut short", remedy="record again")
    drawn = build_stacks(with_memory(alone, full_memory(), gap).report, Selection(rank=7))
    assert drawn.subject == 1
    assert gap.reason in notes(drawn)
    bare = with_memory(alone, Memory(), NO_MEMORY)
    assert build_stacks(bare.report, Selection(rank=0)) is None
    assert {NO_MEMORY.reason, NO_MEMORY.remedy} <= {
        part for line in explain_missing_memory(bare.report) for part in (line, line.partition(": ")[2])
    }


def test_a_gap_about_something_else_is_no_reason_for_missing_memory(alone: LoadedRun) -> None:
    others = (GapKind.MEMORY_PART, GapKind.FILE, GapKind.UNTESTED_RULE)
    gaps = tuple(Gap(kind=kind, what="memory", reason="another thing", remedy="") for kind in others)
    report = replace(with_memory(alone, Memory()).report, gaps=gaps)
    assert "another thing" not in " ".join(explain_missing_memory(report))
    assert "another thing" not in explain_missing_rank(report, 0)
    own = Gap(kind=GapKind.RANK_CUT_SHORT, what="rank cut short", reason="it was killed", remedy="", rank=0)
    assert "it was killed" in explain_missing_rank(replace(report, gaps=(*gaps, own)), 0)
