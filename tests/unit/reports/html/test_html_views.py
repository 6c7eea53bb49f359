"""Values behind the page: a waterfall that sums, cells that keep the worst, points with the peak, caps."""

from dataclasses import replace
from itertools import pairwise

import pytest

from tests.support.html_pages import Parsed
from tests.support.many_ranks import spread_out
from tests.support.reports import SITUATIONS, memory_only, slower, straggler, trace
from zprof.model.report import Report
from zprof.model.units import format_ms
from zprof.reports.html.blocks import Bar, Bars, Heat, Table, Timeline
from zprof.reports.html.report import render
from zprof.reports.html.sections import heat as heat_map
from zprof.reports.html.sections.heat import Measured, binned, heat
from zprof.reports.html.sections.ledger import ledger
from zprof.reports.html.sections.memory import memory
from zprof.reports.html.sections.ranks import ranks
from zprof.reports.html.sections.timeline import MOST_POINTS, timeline
from zprof.reports.shown.presenter import LEDGER, mean_over_ranks

RANKS, STEPS, LATE = 1_024, 20, 777
MOST_BYTES = 8_000_000


def waterfall(report: Report) -> list[Bar]:
    table = ledger(report)[0]
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
        left, right = bar.begin, bar.begin + bar.width
        came = min((left, right), key=lambda edge: abs(edge - ends[-1]))
        assert came == pytest.approx(ends[-1], abs=0.03)
        ends.append(left + right - came)
    assert {round(whole.begin, 1), round(whole.begin + whole.width, 1)} == {
        round(whole.zero, 1),
        round(ends[-1], 1),
    }
    assert all(0 <= bar.begin <= bar.begin + bar.width <= 100.01 for bar in (*terms, whole))


@pytest.mark.parametrize("name", ["slower", "straggler", "trace"])
def test_the_ledger_shows_the_leaves(name: str) -> None:
    """The terms as they stand, their sum as the step that both runs have."""
    report = SITUATIONS[name]()
    table = ledger(report)[0]
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
    (bars,) = [block for block in memory(report) if isinstance(block, Bars)]
    for bar in bars.bars:
        for left, right in pairwise(bar.segments):
            assert left.begin + left.width == pytest.approx(right.begin, abs=0.01)
        assert bar.segments[0].begin == 0
        assert sum(part.width for part in bar.segments) <= 100.01
    largest = max(sum(part.width for part in (*bar.segments,)) for bar in bars.bars)
    assert max(largest, *(sum(part.width for part in bar.law) for bar in bars.bars)) == pytest.approx(
        100, abs=0.1
    )
    assert len({part.letter for part in bars.legend}) == len(bars.legend)


def test_a_cell_has_the_worst_of_what_shares_it() -> None:
    entries = [Measured(rank=rank, step=0, ns=1_000) for rank in range(1_000)]
    entries[501] = Measured(rank=501, step=0, ns=90_000_000)
    (found,) = heat("x", entries, ())
    assert isinstance(found, Heat)
    assert len(found.rows) == heat_map.MOST_ROWS
    hot = [row for row in found.rows if row.cells[0].level == heat_map.LEVELS - 1]
    assert [row.cells[0].text for row in hot] == ["90.0"]
    low, high = hot[0].name.removeprefix("rank ").split("-")
    assert int(low) <= 501 <= int(high)
    assert "1,000 ranks in 64 groups: a cell has the largest of its ranks" in found.notes
    assert "largest: rank 501 in step 0, 90.0 ms" in found.notes


def test_few_ranks_have_a_row_each_and_unknown_cells_say_so() -> None:
    entries = [Measured(rank=rank, step=step, ns=5) for rank in (0, 3) for step in (1, 2) if rank + step != 2]
    (found,) = heat("x", entries, ())
    assert isinstance(found, Heat)
    assert [row.name for row in found.rows] == ["rank 0", "rank 3"]
    assert found.rows[0].cells[1].text == "-"
    assert found.rows[0].cells[1].level == -1
    assert len(found.notes) == 1


def test_times_that_are_alike_have_like_colours() -> None:
    entries = [Measured(rank=rank, step=0, ns=18_100_000 + 1_000 * rank) for rank in range(64)]
    (found,) = heat("x", entries, ())
    assert isinstance(found, Heat)
    assert {row.cells[0].level for row in found.rows} == {0}


@pytest.mark.parametrize(("count", "most"), [(1, 64), (64, 64), (65, 64), (1_024, 64), (1_000, 24)])
def test_bins_hold_every_value_once(count: int, most: int) -> None:
    groups = binned(range(count), most)
    assert [value for group in groups for value in group] == list(range(count))
    assert len(groups) == min(count, most)
    assert max(map(len, groups)) - min(map(len, groups)) <= 1


@pytest.mark.parametrize("points", [4, 714, 715, 50_000])
def test_points_are_capped_and_the_peak_stays(points: int) -> None:
    (chart,) = timeline(spread_out(memory_and_time(), 2, 2, 1, points=points))
    assert isinstance(chart, Timeline)
    drawn = sum(len(series.values) for series in chart.data.series)
    known = points * len(chart.data.series)
    assert drawn <= MOST_POINTS
    assert drawn == known or known > MOST_POINTS
    heights = [sum(values) for values in zip(*(s.values for s in chart.data.series), strict=True)]
    assert max(heights) * (1 << 20) == pytest.approx(9_000_000 * len(chart.data.series), rel=0.001)
    assert f"{known:,}" in chart.caption
    assert f"{drawn:,}" in chart.caption
    assert len(chart.data.time_ms) == len(heights)


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
    assert "all of them: zprof report RUN -f json" in page.text


def test_a_job_of_one_rank_has_no_section_of_ranks() -> None:
    report = trace()
    assert ranks(report)
    assert not ranks(replace(report, run=replace(report.run, world_size=1)))
