"""The outlook of a run in the faces of its report: the same figures in all, nothing where nobody asked."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support import plans
from tests.support.markdown_reading import visible
from tests.support.reports import slower
from zprof.model.planning.whatif import Outlook
from zprof.model.report import Report
from zprof.model.units import format_bytes, format_ms
from zprof.reports.html.report import render as html
from zprof.reports.markdown.report import render as markdown
from zprof.reports.text.report import render as text


def _html(report: Report) -> str:
    without = re.sub(r"<(script|style)\b.*?</\1>", " ", html(report), flags=re.DOTALL)
    return re.sub(r"<[^>]+>", " ", without)


FACES: dict[str, Callable[[Report], str]] = {
    "text": text,
    "md": lambda report: visible(markdown(report)),
    "html": _html,
}
each_face = pytest.mark.parametrize("face", FACES)


def said(face: str, outlook: Outlook | None) -> str:
    return " ".join(FACES[face](replace(slower(), outlook=outlook)).split())


@each_face
def test_every_change_is_shown_with_its_step_its_range_and_its_peak(face: str) -> None:
    shown = said(face, plans.outlook())
    for prediction in plans.outlook().predictions:
        assert prediction.words in shown
        figures = {entry.name: entry for entry in (*prediction.step, *prediction.memory)}
        for name, show in (("wall_ns", format_ms), ("peak_bytes", format_bytes)):
            if name in figures:
                entry = figures[name]
                assert entry.predicted is not None
                assert f"~{show(entry.predicted)}" in shown
        if "wall_ns" in figures:
            low, high = figures["wall_ns"].low, figures["wall_ns"].high
            assert low is not None
            assert high is not None
            assert f"~{format_ms(low)} to ~{format_ms(high)}" in shown


@each_face
def test_the_error_on_the_run_itself_and_what_is_not_predicted_are_said(face: str) -> None:
    shown = said(face, plans.outlook())
    assert "off by -0.8 %" in shown
    assert "the step over 8 ranks" in shown
    assert "compute of other ranks is not known" in shown


@each_face
def test_without_an_outlook_nothing_is_said(face: str) -> None:
    assert "~" not in said(face, None).replace("~0", "")
    assert "what if" not in said(face, None).lower()


@each_face
def test_an_outlook_without_predictions_says_why(face: str) -> None:
    empty = Outlook(gaps=plans.outlook().gaps)
    shown = said(face, empty)
    assert "Nothing could be predicted" in shown
    assert "compute of other ranks is not known" in shown


def test_md_and_html_have_every_term_and_every_assumption() -> None:
    for face in ("md", "html"):
        shown = said(face, plans.outlook()).replace("`", "")
        for prediction in plans.outlook().predictions:
            for entry in prediction.step:
                assert entry.predicted is not None
                assert f"~{format_ms(entry.predicted)}" in shown
        for key, assumption in plans.outlook().assumptions.items():
            assert key in shown
            assert assumption.formula in shown
