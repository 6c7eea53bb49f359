"""The step chart of the HTML report: its data are the overview's slices, its names are text."""

import json
import re
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.hostile_names import NAMES, poisoned
from tests.support.html_pages import Parsed
from tests.support.reports import straggler
from tests.support.step_overviews import MS, make_overview
from zprof.model.step_overview import SliceKind, StepOverview
from zprof.reports.formats import make_report_formats
from zprof.reports.html import render_html
from zprof.reports.pages.report import build_report_page

_DATA = re.compile(r'<script type="application/json" id="step-data">(.*?)</script>', re.DOTALL)


def render(overview: StepOverview | None) -> str:
    return render_html(build_report_page(straggler(), overview))


def read_data(page: str) -> Any:
    found = _DATA.search(page)
    assert found is not None
    return json.loads(found.group(1))


def unpack(lane: dict[str, Any]) -> list[tuple[int, int, int]]:
    """Kind, start and end of each slice, as the script reads them."""
    slices, end = [], 0
    numbers = iter(lane["slices"])
    for kind, gap, length, _ in zip(numbers, numbers, numbers, numbers, strict=True):
        start = end + gap
        end = start + length
        slices.append((kind, start, end))
    return slices


def test_the_data_are_the_slices_of_the_overview() -> None:
    data = read_data(render(make_overview()))
    assert data["length"] == 10 * MS
    assert [row["rank"] for row in data["rows"]] == [1, 0]
    waiting = unpack(data["rows"][1]["lanes"][1])
    assert waiting == [(SliceKind.WAIT, 4 * MS, 7 * MS), (SliceKind.TRANSFER, 7 * MS, 8 * MS)]
    assert [start for _, start, _ in unpack(data["rows"][0]["lanes"][0])] == [0, 8 * MS]
    kind, size, start, length, last = data["rows"][1]["messages"]
    assert (data["words"][kind], size, start, length, last) == ("all_gather", 1 << 20, 4 * MS, 4 * MS, 1)


def test_without_scripts_it_says_who_waits_for_whom() -> None:
    page = Parsed(render(make_overview()))
    assert page.problems == []
    items = [item.text for item in page.all("li")]
    assert any(
        all(part in item for part in ("rank 0", "rank 1", "all_gather", "3.0 ms", "1 more rank"))
        for item in items
    )
    shapes = [each for each in page.all("path") if each.attributes.get("class") == "step-wait"]
    assert len(shapes) == 1
    # 4 to 7 of 10 ms, in a drawing 1000 wide.
    assert re.match(r"M400 \d+h300v", shapes[0].attributes["d"])
    assert "and 1 more like it" in page.text


def test_a_lane_of_many_slices_is_drawn_to_its_end() -> None:
    overview = make_overview()
    row = overview.rows[1]
    starts = tuple(range(0, 10 * MS, 50_000))
    lane = replace(
        row.lanes[0],
        kinds=(0,) * len(starts),
        starts_ns=starts,
        lengths_ns=(25_000,) * len(starts),
        messages=(-1,) * len(starts),
    )
    overview = replace(overview, rows=(overview.rows[0], replace(row, lanes=(lane, row.lanes[1]))))
    page = Parsed(render(overview))
    paths = [
        each.attributes["d"] for each in page.all("path") if each.attributes.get("class") == "step-compute"
    ]
    longest = max(paths, key=len)
    assert re.fullmatch(r"(M\d+ \d+h\d+v\d+h-\d+z)+", longest)
    assert longest.count("M") == len(starts)


def test_who_is_late_has_the_first_row() -> None:
    names = [
        each.text
        for each in Parsed(render(make_overview())).all("text")
        if "row" in each.attributes.get("class", "")
    ]
    assert names[:4] == ["rank 1", "most waited for", "rank 0", "waits for rank 1"]


def test_a_report_without_a_timed_step_has_no_chart_and_no_script() -> None:
    page = render(None)
    assert _DATA.search(page) is None
    assert "step-figure" not in page


def test_only_html_asks_for_the_step() -> None:
    asked: list[int] = []
    formats = {entry.name: entry for entry in make_report_formats(lambda: asked.append(1))}
    for name in ("text", "json", "md", "junit", "sarif"):
        formats[name].render(straggler())
    assert asked == []
    formats["html"].render(straggler())
    assert asked == [1]


@pytest.mark.parametrize("name", NAMES, ids=[ascii(name)[:24] for name in NAMES])
def test_names_are_text_in_the_page_and_in_the_data(name: str) -> None:
    clean, hostile = Parsed(render(make_overview())), render(poisoned(make_overview(), name))
    parsed = Parsed(hostile)
    assert (parsed.problems, parsed.comments) == ([], [])
    assert [each.tag for each in parsed.elements if each.tag != "text"] == [
        each.tag for each in clean.elements if each.tag != "text"
    ]
    words = json.dumps(read_data(hostile), ensure_ascii=False)
    assert not {sign for sign in words if sign < " " or sign in "\x7f\u202e\u2028"}


def test_unknown_sizes_and_ranks_stay_unknown() -> None:
    overview = make_overview()
    row = overview.rows[1]
    message = replace(row.messages[0], bytes=None, last_rank=None)
    overview = replace(overview, rows=(overview.rows[0], replace(row, messages=(message,))), arrows=())
    data = read_data(render(overview))
    assert data["rows"][1]["messages"][1] == data["rows"][1]["messages"][4] == -1
