"""Drawings as blocks: a waterfall that sums, cells that keep the worst, points with the peak, caps."""

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.support import plans
from tests.support.html_pages import Parsed
from tests.support.many_ranks import spread_out
from tests.support.reports import SITUATIONS, memory_only, slower, straggler, trace
from zprof.model.formatting import format_ms
from zprof.model.report import Report
from zprof.reports.formats import by_name
from zprof.reports.page import AreaChart, Bar, Bars, Table
from zprof.reports.presenters import heat
from zprof.reports.presenters.heat import Measured, binned, heat_map
from zprof.reports.presenters.ledger import ledger_section
from zprof.reports.presenters.memory import memory_section
from zprof.reports.presenters.plan_memory import plan_bars
from zprof.reports.presenters.plan_sensitivity import sensitivity_charts, sensitivity_tables
from zprof.reports.presenters.ranks import rank_section
from zprof.reports.presenters.time_figures import LEDGER, mean_over_ranks
from zprof.reports.presenters.timeline import MAX_POINTS, timeline_section

render = by_name("html").render
RANKS, STEPS, LATE = 1_024, 20, 777
MOST_BYTES = 8_000_000


def waterfall(report: Report) -> list[Bar]:
    table = ledger_section(report)[0].blocks[0]
    assert isinstance(table, Table)
    bars = [row.cells[-1] for row in table.rows]
    assert all(isinstance(bar, Bar) for bar in bars)
    return bars  # type: ignore[return-value]


@pytest.mark.parametrize("name", ["slower", "straggler", "trace", "rank_missing"])
def test_each_bar_begins_where_the_last_ended(name: str) -> None:
    """Up or down: neighbours share an end, the first begins at zero, the sum ends where the last one did."""
    *terms, whole = waterfall(SITUATIONS[name]())
    ends = [terms[0].zero]
    for bar in terms:
        left, right = bar.start, bar.end
        came = min((left, right), key=lambda edge: abs(edge - ends[-1]))
        assert came == pytest.approx(ends[-1], abs=0.001)
        ends.append(left + right - came)
    assert {round(whole.start, 3), round(whole.end, 3)} == {round(whole.zero, 3), round(ends[-1], 3)}
    assert all(0 <= bar.start <= bar.end <= 1 for bar in (*terms, whole))


@pytest.mark.parametrize("name", ["slower", "straggler", "trace"])
def test_the_ledger_shows_the_leaves(name: str) -> None:
    """The terms as they stand, their sum as the step that both runs have."""
    report = SITUATIONS[name]()
    table = ledger_section(report)[0].blocks[0]
    assert isinstance(table, Table)
    comparison = report.comparison
    for (term, title), row in zip(LEDGER, table.rows, strict=False):
        assert row.cells[0] == title
        now = format_ms(mean_over_ranks(report.time.per_rank, term))
        assert str(row.cells[2 if comparison else 1]).removeprefix("≤ ").removeprefix("≥ ") == now
        if comparison:
            assert float(str(row.cells[3])) == pytest.approx(comparison.ledger_delta[term] / 1e6, abs=0.051)
    total = table.rows[-1].cells
    if comparison and comparison.step_time:
        change = sum(comparison.ledger_delta.values())
        sides = (comparison.step_time.a_ns, comparison.step_time.b_ns)
        assert total[1:4] == (*map(format_ms, sides), f"{change / 1e6:+.1f}")
    else:
        assert total[1] == format_ms(mean_over_ranks(report.time.per_rank, "wall_ns"))


def test_a_stacked_bar_has_no_holes_and_sums_to_its_peak() -> None:
    report = slower()
    (bars,) = [block for block in memory_section(report)[0].blocks if isinstance(block, Bars)]
    for bar in bars.bars:
        for left, right in pairwise(bar.segments):
            assert left.start + left.width == pytest.approx(right.start, abs=0.01)
        assert bar.segments[0].start == 0
        assert sum(part.width for part in bar.segments) <= 100.01
    largest = max(sum(part.width for part in (*bar.segments,)) for bar in bars.bars)
    assert max(largest, *(sum(part.width for part in bar.reference) for bar in bars.bars)) == pytest.approx(
        100, abs=0.1
    )
    assert len({part.letter for part in bars.legend}) == len(bars.legend)


def test_a_cell_has_the_worst_of_what_shares_it() -> None:
    entries = [Measured(rank=rank, step=0, ns=1_000) for rank in range(1_000)]
    entries[501] = Measured(rank=501, step=0, ns=90_000_000)
    found = heat_map("x", entries)
    assert found is not None
    assert len(found.rows) == heat.MAX_ROWS
    hot = [(name, cells) for name, cells in found.rows if cells[0].level == heat.LEVELS - 1]
    assert [cells[0].text for _, cells in hot] == ["90.0"]
    low, high = hot[0][0].removeprefix("rank ").split("-")
    assert int(low) <= 501 <= int(high)
    assert "1,000 ranks in 64 groups: a cell has the largest of its ranks." in found.notes
    assert "Largest: rank 501 in step 0, 90.0 ms." in found.notes


def test_few_ranks_have_a_row_each_and_unknown_cells_say_so() -> None:
    entries = [Measured(rank=rank, step=step, ns=5) for rank in (0, 3) for step in (1, 2) if rank + step != 2]
    found = heat_map("x", entries)
    assert found is not None
    assert [name for name, _ in found.rows] == ["rank 0", "rank 3"]
    assert found.rows[0][1][1].text == "-"
    assert found.rows[0][1][1].level == -1
    assert len(found.notes) == 1


def test_times_that_are_alike_have_like_colours() -> None:
    entries = [Measured(rank=rank, step=0, ns=18_100_000 + 1_000 * rank) for rank in range(64)]
    found = heat_map("x", entries)
    assert found is not None
    assert {cells[0].level for _, cells in found.rows} == {0}


@pytest.mark.parametrize(("count", "most"), [(1, 64), (64, 64), (65, 64), (1_024, 64), (1_000, 24)])
def test_bins_hold_every_value_once(count: int, most: int) -> None:
    groups = binned(range(count), most)
    assert [value for group in groups for value in group] == list(range(count))
    assert len(groups) == min(count, most)
    assert max(map(len, groups)) - min(map(len, groups)) <= 1


@pytest.mark.parametrize("points", [4, 714, 715, 50_000])
def test_points_are_capped_and_the_peak_stays(points: int) -> None:
    (chart,) = timeline_section(spread_out(memory_and_time(), 2, 2, 1, points=points))[0].blocks
    assert isinstance(chart, AreaChart)
    drawn = sum(len(series.values) for series in chart.series)
    known = points * len(chart.series)
    assert drawn <= MAX_POINTS
    assert drawn == known or known > MAX_POINTS
    heights = [sum(values) for values in zip(*(s.values for s in chart.series), strict=True)]
    assert max(heights) * (1 << 20) == pytest.approx(9_000_000 * len(chart.series), rel=0.001)
    assert f"{known:,}" in chart.caption
    assert f"{drawn:,}" in chart.caption
    assert len(chart.time_ms) == len(heights)


def memory_and_time() -> Report:
    return replace(straggler(), memory=memory_only().memory)


def test_many_ranks_make_no_large_page() -> None:
    report = spread_out(memory_and_time(), RANKS, STEPS, LATE, points=50_000)
    text = render(report)
    assert len(text.encode()) < MOST_BYTES
    page = Parsed(text)
    assert not page.problems
    assert len(page.all("tr")) < 2_000
    assert f"rank {LATE} in step {STEPS - 1}, 1000.0 ms" in page.text
    for said in ("of 1,024 ranks", "of 20,480 steps of ranks", "of 3,072 rows"):
        assert said in page.text
    assert "all: zprof report RUN -f json" in page.text


def test_a_job_of_one_rank_has_no_section_of_ranks() -> None:
    report = trace()
    assert rank_section(report)
    assert not rank_section(replace(report, run=replace(report.run, world_size=1)))


def test_a_series_with_two_batches_has_two_lines_and_logarithmic_axes_are_even() -> None:
    found = plans.sensitivity()
    bandwidth, latency, tokens, world = sensitivity_charts(found)
    assert [line.name for line in bandwidth.lines] == ["512 tokens", "4,096 tokens"]
    assert [len(other.lines) for other in (latency, tokens, world)] == [1, 1, 1]
    assert [point.x for point in tokens.lines[0].points] == pytest.approx([6, 35.33, 64.67, 94], abs=0.01)
    assert [point.x for point in bandwidth.lines[0].points] == pytest.approx([6, 50, 94])
    assert [point.y for point in bandwidth.lines[0].points] == pytest.approx([54.4, 34.6, 14.8])
    assert [mark.at for mark in bandwidth.heights] == pytest.approx([94, 72, 50, 28, 6])
    turned = replace(found, tokens=tuple(reversed(found.tokens)))
    assert sensitivity_charts(turned)[2] == tokens, "points are in the order of the axis"
    assert len(sensitivity_charts(replace(found, latency=found.latency[:1]))) == 3, "one point is no line"


def test_marks_that_have_no_room_are_left_out() -> None:
    found = plans.sensitivity()
    near = tuple(replace(found.tokens[0], tokens=1000 + at) for at in range(50))
    (*_, crowded, _) = sensitivity_charts(replace(found, tokens=near))
    assert 2 <= len(crowded.marks) <= 11
    assert len(crowded.lines[0].points) == 50


def test_tables_of_bandwidths_say_whose_bandwidth_it_is() -> None:
    tables = sensitivity_tables(plans.sensitivity())
    named = [table.title for table in tables if any("data-parallel group" in note for note in table.notes)]
    assert named == ["Break-even", "Bandwidth between nodes"]


def test_bars_of_a_plan_stack_the_tenants_and_the_widest_is_the_largest() -> None:
    plan = plans.full()
    drawn = plan_bars(plan)
    most = max(row.least_bytes for row in plan.rows)
    for bar, row in zip(drawn.bars, plan.rows, strict=True):
        ends = [segment.start + segment.width for segment in bar.segments]
        assert [segment.start for segment in bar.segments] == pytest.approx([0, *ends[:-1]], abs=0.02)
        assert ends[-1] == pytest.approx(100 * row.least_bytes / most, abs=0.02)
    assert len(drawn.legend) == 5, "nobody holds communication buffers here"
    assert not drawn.notes
    assert plan_bars(plans.bare()).notes
