"""The diagnosis page: order, one screen, and what must never be left out."""

from msgspec.structs import replace

from tests.support.diagnosis_reports import (
    against_baseline,
    alone,
)
from zprof.model.report import Report
from zprof.reports.formats import render_page_text
from zprof.reports.pages.diagnosis import build_diagnosis_page


def render(report: Report) -> str:
    return render_page_text(build_diagnosis_page(report))


def test_what_no_finding_claims_is_never_hidden() -> None:
    small = replace(against_baseline(), unclaimed={"idle_ns": 40_000})
    assert "40.0 µs" in render(small)
    assert "WITHOUT A FINDING" in render(replace(against_baseline(), unclaimed={"idle_ns": 0}))
    assert "41.0 ms" in render(replace(alone(), findings=()))
