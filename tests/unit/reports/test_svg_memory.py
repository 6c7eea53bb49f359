"""The memory timeline as a picture: every tenant to scale, the peak where it is, nothing hostile."""

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from tests.support.full_memories import full_memory
from tests.support.memories import HOSTILE
from tests.support.reports import memory_only, nothing_timed
from zprof.model.errors import MissingData
from zprof.model.formatting import format_bytes
from zprof.model.report import Report
from zprof.reports.presenters.memory_figures import ORDER, stack_areas
from zprof.reports.svg_memory import render

SVG = "{http://www.w3.org/2000/svg}"


def areas_of(report: Report) -> list[tuple[float, float]]:
    """(lowest, highest) y of each area, in the order in which they are drawn."""
    polygons = ET.fromstring(render(report)).iter(f"{SVG}polygon")
    rims = [[float(pair.split(",")[1]) for pair in p.attrib["points"].split()] for p in polygons]
    return [(min(rim), max(rim)) for rim in rims]


def test_areas_have_the_height_of_their_bytes() -> None:
    report = memory_only()
    tenants = report.memory.timelines[0].tenants
    areas = areas_of(report)
    assert len(areas) == len(ORDER)
    stacked = stack_areas(report.memory)
    assert stacked is not None
    scale = (areas[0][1] - areas[0][0]) / max(tenants["parameters"])
    total = sum(max(tenants[name]) for name in ORDER)
    assert areas[0][1] - areas[-1][0] == pytest.approx(total * scale, rel=0.01)
    assert stacked.peak_bytes == sum(values[1] for values in tenants.values())


def test_each_area_stands_on_the_one_below() -> None:
    stacked = stack_areas(full_memory())
    assert stacked is not None
    for (_, _, upper), (_, lower, _) in zip(stacked.bands, stacked.bands[1:], strict=False):
        assert upper == lower


def test_the_timeline_with_the_highest_point_is_drawn() -> None:
    memory = full_memory()
    small = replace(memory.timelines[0], rank=7, tenants={"parameters": (1, 1, 1, 1)})
    report = replace(memory_only(), memory=replace(memory, timelines=(small, memory.timelines[0])))
    assert "rank 1" in render(report)
    assert "rank 7" not in render(report)


def test_legend_and_peak_say_the_bytes_of_the_leaves() -> None:
    report = memory_only()
    timeline = report.memory.timelines[0]
    texts = [node.text for node in ET.fromstring(render(report)).iter(f"{SVG}text")]
    for values in timeline.tenants.values():
        assert format_bytes(values[1]) in texts
    assert f"peak {format_bytes(sum(values[1] for values in timeline.tenants.values()))}" in texts
    assert "step 3" in texts
    assert "backward" in texts


def test_names_from_a_run_are_text() -> None:
    report = memory_only()
    timeline = replace(
        report.memory.timelines[0], device=HOSTILE + "<script>", phases=((0, "<b>" + HOSTILE),)
    )
    hostile = replace(
        report,
        run=replace(report.run, name="</title><script>alert(1)</script>"),
        memory=replace(report.memory, timelines=(timeline,)),
    )
    picture = render(hostile)
    assert "<script" not in picture
    assert "\x1b" not in picture
    assert not [node.tag for node in ET.fromstring(picture).iter() if node.tag.endswith(("script", "b"))]


def test_without_a_timeline_there_is_no_picture() -> None:
    with pytest.raises(MissingData, match="no memory timeline"):
        render(nothing_timed())


def test_a_timeline_without_phases_is_drawn() -> None:
    """A snapshot knows no forward and no steps."""
    report = memory_only()
    timeline = replace(report.memory.timelines[0], phases=(), steps=())
    picture = render(replace(report, memory=replace(report.memory, timelines=(timeline,))))
    assert len(list(ET.fromstring(picture).iter(f"{SVG}polygon"))) == len(ORDER)
    assert "backward" not in picture
