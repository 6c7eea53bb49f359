"""Plans and predictions: the same figures in every output, what is unknown, the answer in sentences."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.support import plans, report_pages
from tests.support.html_pages import Parsed
from tests.support.report_pages import RENDERERS
from tests.support.reports import slower
from zprof.model.formatting import display_width, format_bytes, format_ms, format_percent
from zprof.model.plan import Plan, Scheme
from zprof.model.report import WhatIf
from zprof.model.whatif import Change, Outlook, Prediction
from zprof.reports.formats import PLANS, WHATIFS, by_name, page_html, page_text
from zprof.reports.page import Page
from zprof.reports.presenters.plan import plan_page
from zprof.reports.presenters.plan_words import SCHEMES, count_words, scaled, size_scale, time_scale
from zprof.reports.presenters.predictions import saving_words, summary_table
from zprof.reports.presenters.report import report_page
from zprof.reports.presenters.whatif import outlook_answers, whatif_page

PLANS_BY_HAND = {"bare": plans.bare, "full": plans.full}
each_plan = pytest.mark.parametrize("name", PLANS_BY_HAND)
each_face = pytest.mark.parametrize("face", RENDERERS)


def page_of(document: Plan | WhatIf) -> Page:
    if isinstance(document, Plan):
        return plan_page(document, everything=True)
    return whatif_page(document, everything=True)


def shown(face: str, document: Plan | WhatIf) -> str:
    return report_pages.shown(face, page_of(document))


def text(plan: Plan) -> str:
    return page_text(plan_page(plan))


@each_plan
def test_text_fits_80_columns(name: str) -> None:
    plan = PLANS_BY_HAND[name]()
    assert max(map(display_width, text(large(plan)).splitlines())) <= 80


def large(plan: Plan) -> Plan:
    """With the longest figures there can be."""
    rows = tuple(
        replace(
            row,
            terms=tuple(replace(term, bytes=(term.bytes or 1) * 7919) for term in row.terms),
            state_bytes=row.state_bytes * 7919,
            least_bytes=row.least_bytes * 7919,
            peak_bytes=None,
            fits=None,
            largest_parameters=999_500_000_000,
        )
        for row in plan.rows
    )
    return replace(plan, rows=rows)


@each_face
def test_every_face_shows_every_figure_of_a_plan(face: str) -> None:
    plan = marked(plans.full())
    wanted = list(figures(plan))
    assert len(wanted) > 150
    assert not missing(shown(face, plan), wanted)


@each_face
def test_every_face_shows_every_figure_of_a_prediction(face: str) -> None:
    found = plans.whatif()
    if face == "txt":  # it has two changes at most term by term
        kept = found.outlook.predictions[:2]
        found = replace(found, outlook=replace(found.outlook, predictions=kept))
    wanted = [figure for prediction in found.outlook.predictions for figure in predicted(prediction)]
    assert len(wanted) > 40
    assert not missing(shown(face, found), wanted)


def marked(plan: Plan) -> Plan:
    """No two sizes are written alike, nor are two times."""
    sizes = iter(range(101_000_000_000, 400_000_000_000, 1_000_000_000))
    times = iter(range(501_000_000, 900_000_000, 1_000_000))  # no size has such digits
    rows = tuple(
        replace(
            row,
            terms=tuple(replace(term, bytes=next(sizes)) for term in row.terms),
            state_bytes=next(sizes),
            peak_bytes=next(sizes),
            step=replace(
                row.step,
                **{leaf: next(times) for leaf in ("compute_ns", "exposed_transfer_ns", "idle_ns",
                                                  "collective_ns", "overlapped_ns", "wall_ns")},
            )
            if row.step
            else None,
            links=tuple(replace(link, bytes=next(sizes), ring_bytes=next(sizes)) for link in row.links),
        )
        for row in plan.rows
    )  # fmt: skip
    return replace(plan, rows=rows)


def figures(plan: Plan) -> Iterator[str]:
    """As the tables write them, each in the unit of its table."""
    sizes = size_scale([row.least_bytes for row in plan.rows])
    for row in plan.rows:
        yield from (scaled(term.bytes, sizes) for term in row.terms)
        yield from (scaled(row.state_bytes, sizes), scaled(row.peak_bytes, sizes))
        yield count_words(row.largest_parameters)
        yield from (scaled(size, sizes) for link in row.links for size in (link.bytes, link.ring_bytes))
        assert row.step is not None
        for leaf in ("compute_ns", "exposed_transfer_ns", "idle_ns", "wall_ns", "collective_ns"):
            yield scaled(getattr(row.step, leaf), time_scale([row.step.wall_ns]))
        yield format_percent(row.step.efficiency_ratio)
    assert plan.sensitivity is not None
    found = plan.sensitivity
    for series in (found.bandwidth, found.latency, found.tokens, found.world):
        times = time_scale([point.wall_ns for point in series])
        for point in series:
            yield from (scaled(time, times) for time in (point.wall_ns, point.compute_ns, point.exposed_ns))
            yield format_percent(point.efficiency_ratio)
    yield from (f"{row.forward_tokens:,.0f}" for row in found.break_even)
    yield from (f"x{row.whole_ratio:.2f}" for row in found.speed_up)


def predicted(prediction: Any) -> Iterator[str]:
    for entry in (*prediction.step, *prediction.memory):
        show = format_ms if entry.name.endswith("_ns") else format_bytes
        if entry.predicted is None:
            continue
        yield from (show(entry.measured), show(entry.modelled))
        yield from (f"~{show(value)}" for value in (entry.predicted, entry.low, entry.high))


def missing(document: str, wanted: list[str]) -> list[str]:
    return [
        figure for figure in wanted if not re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d.]*\d)", document)
    ]


def test_a_figure_is_not_found_within_another() -> None:
    assert missing("131.4 31.45", ["31.4"]) == ["31.4"]
    assert missing("31.4.", ["31.4"]) == []


@each_face
def test_what_is_not_known_is_a_dash_and_its_gap_is_said(face: str) -> None:
    said = shown(face, plans.bare())
    assert re.search(r"activations( \|)? -( \|)? -", said)
    for word in ("no batch and no layers were said", "--micro-batch"):
        assert word in said.replace("`", "")
    assert "≥120" in said
    assert "None" not in said


@each_face
def test_a_sum_of_known_and_unknown_is_at_least_what_is_known(face: str) -> None:
    plan = plans.full()
    row = plan.rows[0]
    terms = (*row.terms, replace(row.terms[3], sub="more", bytes=None))
    half = replace(plan, rows=(replace(row, terms=terms, peak_bytes=None), *plan.rows[1:]))
    assert "≥9.5" in shown(face, half)


@each_face
def test_every_assumption_is_named_with_its_figures_and_its_source(face: str) -> None:
    plan = plans.full()
    said = shown(face, plan).replace("`", "")
    for key, assumption in plan.assumptions.items():
        assert key in said
        assert assumption.formula in said.replace("\\_", "_")
        assert assumption.source in said
        assert assumption.deviation in said
    assert "activations: saved (DP, ZeRO-1" in said


@each_face
def test_predicted_figures_are_marked_and_measured_ones_are_not(face: str) -> None:
    said = shown(face, plans.whatif())
    assert "~310.0 ms" in said
    assert not re.search(r"(?<![~\d])310\.0", said)
    assert "380.0" in said
    assert "~380.0" not in said
    assert "-0.8 %" in said, "the model's error on the run that it was fitted to"


@pytest.mark.parametrize("scheme", Scheme)
def test_one_scheme_alone_has_no_other_columns(scheme: Scheme) -> None:
    plan = plans.full()
    alone = replace(plan, rows=tuple(row for row in plan.rows if row.scheme is scheme))
    head = text(alone).split("MEMORY OF A DEVICE")[1].splitlines()[1]
    assert head.split() == [SCHEMES[scheme]]


def test_json_is_the_plan_as_it_is() -> None:
    tree = json.loads(by_name("json", PLANS).render(plans.full()))
    assert tree["schema"] == "zprof.plan/1"
    assert tree["rows"][3]["state_bytes"] == 1_875_000_000
    assert json.loads(by_name("json", WHATIFS).render(plans.whatif()))["schema"] == "zprof.whatif/1"


def test_html_is_whole_without_scripts_and_has_its_charts() -> None:
    page = Parsed(page_html(plan_page(plans.full())))
    assert not page.problems
    assert not page.all("script")
    charts = [e for e in page.all("svg") if e.attributes.get("class") == "lines"]
    assert len(charts) == 4
    assert all(chart.attributes["aria-label"] for chart in charts)
    ids = [e.attributes["id"] for e in page.elements if "id" in e.attributes]
    assert len(ids) == len(set(ids))
    assert {link.attributes["href"][1:] for link in page.all("a")} <= set(ids)
    assert "zprof report" not in page.text


MS, MIB = 1_000_000, 1 << 20


def prediction(words: str, step_ms: float, saving_ms: tuple[float, float], peak_mib: int) -> Prediction:
    """Of a step of 380 ms and a peak of 301 MiB."""
    usual = plans.outlook().predictions[0]
    low, high = (round(saving * MS) for saving in saving_ms)
    changed = {
        "wall_ns": {"predicted": round(step_ms * MS), "low": 380 * MS - high, "high": 380 * MS - low},
        "peak_bytes": {"predicted": peak_mib * MIB},
    }
    return Prediction(
        change=Change(),
        words=words,
        step=tuple(replace(row, **changed.get(row.name, {})) for row in usual.step),  # type: ignore[arg-type]
        memory=tuple(replace(row, **changed.get(row.name, {})) for row in usual.memory),  # type: ignore[arg-type]
        saving_ns=(low, high),
    )


def answer(*found: Prediction) -> str:
    return outlook_answers(Outlook(predictions=found))[0]


def test_no_winner_is_named_where_no_range_is_shorter_throughout() -> None:
    unsure = answer(prediction("a", 300, (-36, 184), 100), prediction("b", 310, (-5, 150), 100))
    assert unsure.startswith("None of 2 changes")
    sure = answer(prediction("a", 300, (-36, 184), 100), prediction("b", 370, (2, 18), 100))
    assert "whole range: b:" in sure


def test_a_higher_peak_stands_beside_the_shortest_step() -> None:
    assert "~402.0 MiB" in answer(prediction("a", 300, (70, 90), 402), prediction("b", 340, (30, 50), 100))
    assert "higher peak" not in answer(prediction("a", 300, (70, 90), 301))


@pytest.mark.parametrize(
    ("step_ms", "saving_ms", "begin"),
    [
        (370, (-10, 30), "Not certain to be shorter"),
        (400, (-30, -10), "Longer over its whole range"),
        (300, (70, 90), "a"),
    ],
)
def test_one_change_says_how_sure_it_is(step_ms: float, saving_ms: tuple[float, float], begin: str) -> None:
    assert answer(prediction("a", step_ms, saving_ms, 9)).split(":")[0] == begin


def test_nothing_saved_has_no_sign_and_no_range() -> None:
    assert saving_words((-20_000, 20_000)) == "~0.0"
    assert saving_words((-20_000, 120_000)) == "~0.0 to ~0.1"
    assert saving_words((-120_000, -60_000)) == "~-0.1"


def test_sizes_stand_in_no_column_of_milliseconds() -> None:
    (table,) = summary_table(plans.outlook())
    for place, column in enumerate(table.columns[1:], start=1):
        sizes = any(re.search("[KMGT]i?B", str(row.cells[place])) for row in table.rows)
        assert sizes == (column.unit == "bytes")


@each_face
def test_the_outlook_of_a_report_shows_every_change(face: str) -> None:
    outlook = plans.outlook()
    said = report_pages.shown(face, report_page(replace(slower(), outlook=outlook)))
    for found in outlook.predictions:
        assert found.words in said
        for entry in (*found.step, *found.memory):
            is_shown = face != "txt" or entry.name in ("wall_ns", "peak_bytes")
            if is_shown and entry.predicted is not None:
                show = format_ms if entry.name.endswith("_ns") else format_bytes
                assert f"~{show(entry.predicted)}" in said
    empty = report_page(replace(slower(), outlook=Outlook(gaps=outlook.gaps)))
    assert "compute of other ranks is not known" in report_pages.shown(face, empty)
    without = report_pages.shown(face, report_page(replace(slower(), outlook=None)))
    assert "what if" not in without.lower()
