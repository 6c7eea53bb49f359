"""The bars of the memory screen: parts that sum, which ranks are shown, what is said of what is unknown."""

from dataclasses import replace

from tests.support.full_memories import by_rule, full_memory
from tests.support.memories import MIB
from tests.support.tui_memory import NO_MEMORY, of_ranks, on_a_device, with_memory
from zprof.model.gaps import RANK_CUT_SHORT, Gap
from zprof.model.memory import Memory, RankSpread
from zprof.model.tenants import Tenant
from zprof.tui.figures import Figure
from zprof.tui.metric_help.registry import find_help
from zprof.tui.presenters.memory import (
    MAX_BARS,
    Stacks,
    build_stacks,
    explain_missing_memory,
    explain_missing_rank,
    sort_places,
)
from zprof.tui.session import LoadedRun, Selection


def made(loaded: LoadedRun, memory: Memory, rank: int = 0) -> Stacks:
    drawn = build_stacks(with_memory(loaded, memory), Selection(rank=rank))
    assert drawn is not None
    return drawn


def sizes(drawn: Stacks) -> dict[str, float | None]:
    return {line.key: line.cells[1].value for line in drawn.legend.lines if isinstance(line.cells[1], Figure)}


def words(cells: object) -> str:
    return " ".join(cell.text for cell in cells)  # type: ignore[attr-defined]


def test_parts_of_a_bar_sum_to_the_peak(alone: LoadedRun) -> None:
    drawn = build_stacks(alone, Selection(rank=1))
    assert drawn is not None
    assert drawn.subject == 1
    for entry in drawn.bars:
        assert sum(size for _, size in entry.parts) == entry.peak.value


def test_the_legend_is_of_the_selected_rank(alone: LoadedRun) -> None:
    memory = full_memory()
    assert sizes(made(alone, memory, 0))["temporary_buffers"] == 2 * MIB
    assert sizes(made(alone, memory, 1))["temporary_buffers"] == 2 * MIB + 1024
    assert len(made(alone, memory).legend.lines) == 7


def test_reserved_and_other_memory_stand_in_the_legend_when_known(alone: LoadedRun) -> None:
    drawn = made(alone, on_a_device())
    assert sizes(drawn)["reserved_unused"] == 24 * MIB
    assert sizes(drawn)["non_pytorch"] == 100 * MIB
    assert words(drawn.total).endswith("used by the process")
    assert "unknown (g)" in words(made(alone, full_memory()).total)


def test_bars_share_one_scale(alone: LoadedRun) -> None:
    on_device = made(alone, on_a_device())
    assert (on_device.whole.text, on_device.whole_is) == ("512.0 MiB", "what the device has")
    without = replace(on_a_device(), devices=())
    plain = made(alone, without)
    largest = max(
        rank.peak_bytes + (rank.reserved_unused_bytes or 0) + (rank.non_pytorch_bytes or 0)
        for rank in without.per_rank
    )
    assert plain.whole.value == largest
    assert made(alone, full_memory()).whole_is == "the largest"  # a hundredth of the device would not be seen


def test_of_many_ranks_the_largest_the_smallest_and_the_selected_are_shown() -> None:
    ranks = of_ranks(64).per_rank
    assert sort_places(ranks, 30)[:4] == [30, 62, 63, 61]
    assert sort_places(ranks, 62)[:3] == [62, 63, 61]
    assert sorted(sort_places(ranks, 5)) == list(range(64))


def test_a_page_holds_few_bars(alone: LoadedRun) -> None:
    drawn = made(alone, of_ranks(1024), 500)
    assert len(drawn.bars) == MAX_BARS
    assert len(drawn.order) == 1024


def test_guessed_sizes_are_marked_and_what_no_rule_can_tell_is_unknown(alone: LoadedRun) -> None:
    memory = by_rule(full_memory())
    rank = memory.per_rank[0]
    empty = dict(rank.tenants) | {Tenant.GRADIENTS: 0}
    drawn = made(alone, replace(memory, per_rank=(replace(rank, tenants=empty),)))
    lines = {line.key: line for line in drawn.legend.lines}
    assert lines["parameters"].cells[3].text == "~"
    assert lines["gradients"].cells[1].text == "unknown"
    assert "gradients" not in sizes(drawn)
    assert any("by rules on stacks" in words(note) for note in drawn.notes)


def test_a_bound_is_marked(alone: LoadedRun) -> None:
    rank = replace(full_memory().per_rank[0], upper_bound=True)
    drawn = made(alone, replace(full_memory(), per_rank=(rank,)))
    assert drawn.bars[0].bound == "≤ "
    assert words(drawn.total).startswith("sum ≤ ")


def test_a_rank_without_memory_says_so_and_the_largest_stands_in(alone: LoadedRun) -> None:
    gap = replace(NO_MEMORY, rank=7, reason="its file is cut short", remedy="record again")
    drawn = build_stacks(with_memory(alone, full_memory(), gap), Selection(rank=7))
    assert drawn is not None
    assert drawn.subject == 1
    assert words(drawn.notes[0]) == "rank 7: not measured: its file is cut short. record again"


def test_the_difference_between_ranks_is_said(alone: LoadedRun) -> None:
    assert any(
        "rank 1 holds 1.0 KiB more than rank 0" in words(note) for note in made(alone, full_memory()).notes
    )
    spread = RankSpread(largest_rank=0, smallest_rank=1, difference_bytes=0, tenant="", delta_bytes={})
    assert made(alone, replace(full_memory(), spread=spread)).notes == ()


def test_without_memory_there_are_no_bars_but_what_helps(alone: LoadedRun) -> None:
    bare = with_memory(alone, Memory(), NO_MEMORY)
    assert build_stacks(bare, Selection(rank=0)) is None
    said = " ".join(explain_missing_memory(bare.report))
    assert NO_MEMORY.reason in said
    assert NO_MEMORY.remedy in said
    assert "zprof record" in " ".join(explain_missing_memory(with_memory(alone, Memory()).report))


def test_the_difference_says_which_tenant_and_by_how_much(alone: LoadedRun) -> None:
    said = [words(note) for note in made(alone, full_memory()).notes]
    assert "rank 1 holds 1.0 KiB more than rank 0 · temporary buffers +1.0 KiB" in said
    leaf = "memory.spread.delta_bytes.temporary_buffers"
    assert find_help(leaf) is not None


def test_a_gap_about_something_else_is_no_reason_for_missing_memory(alone: LoadedRun) -> None:
    """Names of gaps that begin alike: memory before the first step, ranks of the files."""
    alike = ("memory before the first step", "ranks of the files", "rule memory not tested")
    gaps = [Gap(what=what, reason="another thing", remedy="") for what in alike]
    report = replace(with_memory(alone, Memory()).report, gaps=tuple(gaps))
    assert "another thing" not in " ".join(explain_missing_memory(report))
    assert "another thing" not in explain_missing_rank(report, 0)
    own = Gap(what=RANK_CUT_SHORT, reason="it was killed", remedy="", rank=0)
    assert "it was killed" in explain_missing_rank(replace(report, gaps=(*gaps, own)), 0)
