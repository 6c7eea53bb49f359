"""Drawings as blocks and pictures: to scale, the worst cell and the peak are kept, points are capped."""

import xml.etree.ElementTree as ElementTree

import pytest
from msgspec.structs import replace

from tests.support.full_memories import full_memory
from tests.support.html_pages import Parsed
from tests.support.many_ranks import spread_out
from tests.support.reports import memory_only, nothing_timed, straggler
from zprof.base.errors import MissingData
from zprof.base.formatting import format_bytes
from zprof.model.report import Report
from zprof.reports.formats import by_name
from zprof.reports.page import AreaChart
from zprof.reports.pages import ranks
from zprof.reports.pages.memory_timeline import MAX_POINTS, build_timeline_section
from zprof.reports.pages.ranks import Measured, heat_map, split_evenly
from zprof.reports.pages.tenants import ORDER
from zprof.reports.svg_memory import render

SVG = "{http://www.w3.org/2000/svg}"


def test_a_cell_has_the_worst_of_what_shares_it() -> None:
    entries = [Measured(rank=rank, step=0, ns=80_000 * rank) for rank in range(1_000)]
    entries[501] = Measured(rank=501, step=0, ns=90_000_000)
    found = heat_map("x", entries)
    assert found is not None
    assert len(found.rows) == ranks.MAX_HEAT_ROWS
    ((name, cells),) = [row for row in found.rows if row[1][0].text == "90.0"]
    assert cells[0].level == ranks.LEVELS - 1
    low, high = name.removeprefix("rank ").split("-")
    assert int(low) <= 501 <= int(high)
    assert any("rank 501" in note for note in found.notes)


def test_times_that_are_alike_have_like_colours() -> None:
    found = heat_map("x", [Measured(rank=rank, step=0, ns=18_100_000 + 1_000 * rank) for rank in range(64)])
    assert found is not None
    assert {cells[0].level for _, cells in found.rows} == {0}


@pytest.mark.parametrize(("count", "most"), [(1, 64), (64, 64), (65, 64), (1_000, 24)])
def test_bins_hold_every_value_once(count: int, most: int) -> None:
    groups = split_evenly(range(count), most)
    assert [value for group in groups for value in group] == list(range(count))
    assert len(groups) == min(count, most)
    assert max(map(len, groups)) - min(map(len, groups)) <= 1


def timed_and_measured() -> Report:
    return replace(straggler(), memory=memory_only().memory)


@pytest.mark.parametrize("points", [4, 714, 715, 50_000])
def test_points_are_capped_and_the_peak_stays(points: int) -> None:
    (chart,) = build_timeline_section(spread_out(timed_and_measured(), 2, 2, 1, points=points))[0].blocks
    assert isinstance(chart, AreaChart)
    drawn, known = sum(len(series.values) for series in chart.series), points * len(chart.series)
    assert drawn == known or drawn <= MAX_POINTS < known
    heights = [sum(values) for values in zip(*(series.values for series in chart.series), strict=True)]
    assert max(heights) * (1 << 20) == pytest.approx(9_000_000 * len(chart.series), rel=0.001)
    assert len(chart.time_ms) == len(heights)


@pytest.mark.parametrize("place", [0, 69, 70, 49_999])
def test_the_highest_point_is_drawn_wherever_it_is(place: int) -> None:
    values = [1 << 20] * 50_000
    values[place] *= 3
    timeline = replace(
        memory_only().memory.timelines[0],
        time_ns=tuple(range(len(values))),
        tenants={"parameters": tuple(values)},
        phases=(),
        steps=(),
    )
    memory = replace(memory_only().memory, timelines=(timeline,))
    (chart,) = build_timeline_section(replace(memory_only(), memory=memory))[0].blocks
    assert isinstance(chart, AreaChart)
    assert max(chart.series[0].values) == pytest.approx(3)
    assert max(chart.time_ms) <= 0.05


def test_many_ranks_make_no_large_page() -> None:
    text = by_name("html").render(spread_out(timed_and_measured(), 1_024, 20, 777, points=50_000))
    assert len(text.encode()) < 8_000_000
    page = Parsed(text)
    assert not page.problems
    assert len(page.all("tr")) < 2_000
    assert "rank 777 in step 19, 1000.0 ms" in page.text


def test_areas_of_the_picture_have_the_height_of_their_bytes() -> None:
    report = memory_only()
    tenants = report.memory.timelines[0].tenants
    root = ElementTree.fromstring(render(report))
    rims = [
        [float(pair.split(",")[1]) for pair in polygon.attrib["points"].split()]
        for polygon in root.iter(f"{SVG}polygon")
    ]
    assert len(rims) == len(ORDER)
    scale = (max(rims[0]) - min(rims[0])) / max(tenants["parameters"])
    assert max(rims[0]) - min(rims[-1]) == pytest.approx(
        scale * sum(max(tenants[name]) for name in ORDER), rel=0.01
    )
    texts = [node.text for node in root.iter(f"{SVG}text")]
    for values in tenants.values():
        assert format_bytes(values[1]) in texts
    assert f"peak {format_bytes(sum(values[1] for values in tenants.values()))}" in texts


def test_the_timeline_with_the_highest_point_is_drawn() -> None:
    memory = full_memory()
    small = replace(memory.timelines[0], rank=7, tenants={"parameters": (1, 1, 1, 1)})
    picture = render(replace(memory_only(), memory=replace(memory, timelines=(small, memory.timelines[0]))))
    assert ("rank 1" in picture, "rank 7" in picture) == (True, False)
    with pytest.raises(MissingData):
        render(nothing_timed())
