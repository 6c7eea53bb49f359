"""The diagnosis page: order, one screen, and what must never be left out."""

from msgspec.structs import replace

from tests.support.diagnosis_reports import (
    FULL,
    LATE,
    against_baseline,
    alone,
)
from zprof.model.report import Report
from zprof.reports.formats import render_page_text
from zprof.reports.pages.diagnosis import build_diagnosis_page


def render(report: Report) -> str:
    return render_page_text(build_diagnosis_page(report))


def test_a_finding_is_said_once_and_a_guess_has_no_fix() -> None:
    text = " ".join(render(against_baseline()).split())
    assert (text.count(LATE.sentence), text.count(FULL.sentence)) == (1, 1)
    assert "fix_of_straggler_rank" not in text
    assert text.index("ZP301") > text.index("ZP409") > text.index("fix_of_no_prefetch")


def test_what_hardly_costs_time_is_folded_and_counted() -> None:
    """LATE and FULL stay; of 1 % of the step and less, and of many guesses, only the number is said."""
    report = against_baseline()
    tiny = [replace(FULL, id=f"ZP90{number}", saving_ns=(1, 2)) for number in range(4)]
    text = render(replace(report, findings=(*report.findings, *tiny)))
    assert "ZP90" not in text
    assert "4 more findings" in text
    assert len(text.splitlines()) <= 45


def test_what_no_finding_claims_is_never_hidden() -> None:
    small = replace(against_baseline(), unclaimed={"idle_ns": 40_000})
    assert "40.0 µs" in render(small)
    assert "WITHOUT A FINDING" in render(replace(against_baseline(), unclaimed={"idle_ns": 0}))
    assert "41.0 ms" in render(replace(alone(), findings=()))
