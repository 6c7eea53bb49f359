"""Plans and predictions: the same figures in every output, what is unknown, how sure an answer is."""

import json
import re
from collections.abc import Callable

import pytest
from msgspec.structs import replace

import zprof
from tests.support import plans, report_pages
from tests.support.report_pages import RENDERERS
from tests.support.tui_leaves import assert_leaves
from zprof.model.json_format import to_json
from zprof.model.plan import Change, Outlook, Plan, PredictedFigure, Prediction
from zprof.model.quantities import Unit, Value
from zprof.model.report import WhatIf
from zprof.reports.page import LineChart
from zprof.reports.pages.plan import build_plan_page
from zprof.reports.pages.plan_tables import format_count
from zprof.reports.pages.whatif import build_whatif_page, describe_outlook, make_saving
from zprof.reports.table import Table

MS, MIB = 1_000_000, 1 << 20
#: Of all figures only these are no leaf: they are computed from the batch and the step.
RATE = "tokens per second and device"
each_output = pytest.mark.parametrize("output", RENDERERS)


def shown(output: str, document: Plan | WhatIf) -> str:
    make = build_plan_page if isinstance(document, Plan) else build_whatif_page
    return report_pages.shown(output, make(document, everything=True))  # type: ignore[operator]


@each_output
def test_a_search_without_schemes_has_its_front(output: str) -> None:
    plan = replace(plans.searched(), rows=())
    assert plan.search is not None
    said = shown(output, plan)
    assert said.count("zprof plan --preset 7.5b") == min(6, len(plan.search.front))
    empty = replace(plan.search, front=(), best=None)
    assert "zprof plan --preset 7.5b" not in shown(output, replace(plan, search=empty))


@each_output
def test_what_is_not_known_is_a_dash_and_a_partial_sum_a_bound(output: str) -> None:
    said = shown(output, plans.bare())
    assert re.search(r"activations( \|)? -( \|)? -", said)
    assert "--layers" in said.replace("`", "")
    assert "≥ 120" in said
    plan = plans.full()
    row = plan.rows[0]
    terms = (*row.terms, replace(row.terms[3], sub="more", bytes=None))
    half = replace(plan, rows=(replace(row, terms=terms, peak_bytes=None), *plan.rows[1:]))
    assert "≥ 2.1" in shown(output, half)


@pytest.mark.parametrize(
    "make",
    [
        plans.full,
        plans.bare,
        plans.searched,
        plans.too_large,
        lambda: zprof.plan(layers=8, hidden=1024, heads=8, dp=4, mp=2, pp=2, micro_batch=2, sequence=512),
    ],
    ids=["full", "bare", "searched", "too_large", "planned"],
)
def test_every_number_of_a_plan_is_a_leaf_of_its_json(make: Callable[[], Plan]) -> None:
    plan = make()
    tables = [
        block
        for section in build_plan_page(plan).sections
        for block in section.blocks
        if isinstance(block, Table)
    ]
    numbers = [number for table in tables for number in table.list_values()]
    assert_leaves(json.loads(to_json(plan)), [number for number in numbers if number.leaves])
    derived = [row for table in tables for row in table.rows if row.cells[0] == RATE]
    without = [number for number in numbers if number.number and not number.leaves]
    assert without == [number for row in derived for number in row.cells[1:]]
    assert len(numbers) > 50


def figure(name: str, measured: int, predicted: int, low: int, high: int) -> PredictedFigure:
    return PredictedFigure(
        name=name, measured=measured, modelled=measured, predicted=predicted, low=low, high=high,
        error_ratio=0.0, assumption="",
    )  # fmt: skip


def prediction(words: str, step_ms: int, saving_ms: tuple[int, int], peak_mib: int) -> Prediction:
    """Of a step of 380 ms and a peak of 301 MiB."""
    low, high = (saving * MS for saving in saving_ms)
    step = figure("wall_ns", 380 * MS, step_ms * MS, 380 * MS - high, 380 * MS - low)
    peak = figure("peak_bytes", 301 * MIB, peak_mib * MIB, peak_mib * MIB, peak_mib * MIB)
    return Prediction(change=Change(), words=words, step=(step,), memory=(peak,), saving_ns=(low, high))


def answer(*found: Prediction) -> str:
    return describe_outlook(Outlook(predictions=found))[0]


def test_a_change_wins_only_if_its_whole_range_is_shorter() -> None:
    wide = prediction("aaa", 300, (-36, 184), 100)
    assert answer(wide, prediction("bbb", 310, (-5, 150), 100)).startswith("None of 2")
    assert "bbb:" in answer(wide, prediction("bbb", 370, (2, 18), 100))
    answers = {answer(prediction("aaa", *said, 9)).split(":")[0] for said in (
        (370, (-10, 30)), (400, (-30, -10)), (300, (70, 90)))}  # fmt: skip
    assert len(answers) == 3, "unsure, longer and shorter read differently"
    assert "aaa" in answers


def test_a_count_that_rounds_to_a_thousand_has_the_next_unit() -> None:
    assert [format_count(count) for count in (999.9e6, 999, None)] == ["1.0B", "999", "-"]


def test_nothing_has_no_sign_and_no_range() -> None:
    changes = [Value(ratio, Unit.RATIO, signed=True) for ratio in (0.0231, -0.0231, -0.0004)]
    assert [change.text for change in changes] == ["+2.3 %", "-2.3 %", "0.0 %"]
    savings = ((-20_000, 20_000), (-20_000, 120_000), (-120_000, -60_000))
    assert [make_saving(saving).text for saving in savings] == ["~0.0", "~0.0..0.1", "~-0.1"]


def test_the_chart_has_the_front_the_schemes_and_the_memory_of_the_device() -> None:
    plan = plans.searched()
    assert plan.search is not None
    (section,) = (one for one in build_plan_page(plan).sections if one.anchor == "search")
    (chart,) = (block for block in section.blocks if isinstance(block, LineChart))
    front, *schemes = chart.lines
    assert [point.label for point in front.points].count("best") == 1
    peaks = [each.peak_bytes for each in plan.search.front]
    rates = [each.tokens_per_s for each in plan.search.front]
    assert [point.x for point in front.points] == sorted((point.x for point in front.points), reverse=True)
    assert [front.points[rates.index(max(rates))].y] == [min(point.y for point in front.points)]
    assert chart.limit is not None
    assert plan.job.hardware is not None
    for point, peak in zip(front.points, peaks, strict=True):
        assert (point.x <= chart.limit.at) == (peak <= plan.job.hardware.memory_bytes)
    assert not any(scheme.segments for scheme in schemes)
    assert all(scheme.is_muted == scheme.name.endswith("does not fit") for scheme in schemes)


def test_a_scheme_without_a_known_speed_is_not_drawn() -> None:
    plan = plans.searched()
    rows = tuple(replace(row, step=None, tokens_per_s=None) for row in plan.rows)
    blocks = [
        block for section in build_plan_page(replace(plan, rows=rows)).sections for block in section.blocks
    ]
    (chart,) = (block for block in blocks if isinstance(block, LineChart))
    assert len(rows) > 0
    assert len(chart.lines) == 1
