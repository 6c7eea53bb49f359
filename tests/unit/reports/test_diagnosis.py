"""The diagnosis: golden files, 80 columns, two screens, what must never be left out.

``ZPROF_UPDATE_GOLDEN=1 pytest tests/unit/reports`` writes the golden files anew: read the difference.
"""

import unicodedata
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.analyses import MS
from tests.support.diagnosis_reports import DIAGNOSES, FULL, GAPS, LATE, against_baseline, alone, larger_batch
from tests.support.memories import HOSTILE
from zprof.model.findings import Confidence
from zprof.model.formatting import display_width
from zprof.model.gaps import Gap
from zprof.model.report import Difference, Report
from zprof.reports.formats import page_text
from zprof.reports.page import Table
from zprof.reports.presenters.diagnosis import diagnosis_page


def render(report: Report) -> str:
    return page_text(diagnosis_page(report))


def hostile() -> Report:
    name = HOSTILE + "層" * 60 + "x" * 200
    report = larger_batch()
    assert report.comparison is not None
    finding = replace(LATE, id=name, sentence=name, fix=f"{name}\n  {name}", evidence=(
        replace(LATE.evidence[0], what=name, unit=name),))  # fmt: skip
    return replace(
        report,
        run=replace(report.run, name=name, modelled=(name,), engine=name),
        comparison=replace(
            report.comparison, baseline=name, differences=(Difference(what=name, a=name, b=name),)
        ),
        verdict=replace(report.verdict, sentence=name),
        findings=(finding, replace(finding, confidence=Confidence.LOW)),
        gaps=(Gap(what=name, reason=name, remedy=name, rank=1),),
        unclaimed={name: 5 * MS},
    )


@pytest.mark.parametrize("make", [*DIAGNOSES.values(), hostile], ids=lambda make: make.__name__)
def test_fits_80_columns_and_steers_no_terminal(make: Callable[[], Report]) -> None:
    for line in render(make()).removesuffix("\n").split("\n"):
        assert display_width(line) <= 80, line
        assert not [c for c in line if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"}], line


def test_is_no_longer_than_two_screens() -> None:
    assert len(render(against_baseline()).splitlines()) <= 60


def test_order_is_answer_ledger_changes_rest_unknown() -> None:
    text = render(against_baseline())
    parts = ["✗ SLOWER", "run       ", "WHERE THE TIME GOES", "WHAT TO CHANGE", "UNEXPLAINED", "NOT TESTED"]
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


def test_the_terms_sum_and_the_largest_comes_first() -> None:
    table = diagnosis_page(against_baseline()).sections[0].blocks[0]
    assert isinstance(table, Table)
    *terms, total = [[float(str(cell)) for cell in row.cells[1:4]] for row in table.rows]
    for column in range(3):
        assert sum(row[column] for row in terms) == pytest.approx(total[column], abs=0.1 * len(terms))
    changes = [abs(row[2]) for row in terms]
    assert changes == sorted(changes, reverse=True)


def test_the_verdicts_sentence_is_not_said_twice() -> None:
    text = " ".join(render(against_baseline()).split())
    assert text.count(LATE.sentence) == 1
    assert text.count(FULL.sentence) == 1


def test_a_guess_has_no_fix_and_comes_last() -> None:
    text = render(against_baseline())
    assert "fix_of_straggler_rank" not in text
    assert text.index("perhaps ZP301") > text.index("fix_of_fp32_reduce")


def test_a_long_fix_is_cut_the_first_one_later() -> None:
    fix = "\n".join(f"line{number:02}" for number in range(20))
    report = replace(against_baseline(), findings=(replace(LATE, fix=fix), replace(FULL, fix=fix)))
    text = render(report)
    assert text.count("line12") == 1
    assert "line13" not in text
    assert text.count("line04") == 2
    assert text.count("…\n") == 2


def test_what_no_finding_claims_is_never_hidden() -> None:
    small = replace(against_baseline(), unclaimed={"idle_ns": 40_000})
    assert "40.0 µs of 431.4 ms per step" in render(small)
    nothing = replace(against_baseline(), unclaimed={"idle_ns": 0})
    assert "Nothing of 431.4 ms per step" in render(nothing)
    everything = render(replace(alone(), findings=()))
    assert "none of the causes that were tested was found" in everything
    assert "41.0 ms of" in everything


def test_gaps_of_ranks_are_one_line_and_many_are_counted() -> None:
    text = render(against_baseline())
    assert "NOT TESTED, NOT MEASURED (2)" in text
    assert "low_bus_bandwidth, sharding_spans_nodes: no bandwidth to expect" in text
    assert "reserved memory (ranks 0, 1)" in text
    long = replace(GAPS[0], reason="word " * 15 + "wordwordword " * 20)
    cut = render(replace(against_baseline(), gaps=(long,))).splitlines()[-2:]
    assert cut[0].startswith("  - low_bus")
    assert cut[1].endswith("…")
    assert "……" not in cut[1]
    many = tuple(replace(GAPS[0], reason=f"reason {number}") for number in range(20))
    assert "8 of 20 gaps" in render(replace(against_baseline(), gaps=many))


def test_four_findings_are_cut_to_three_and_a_line() -> None:
    sure = tuple(replace(FULL, sentence=f"sentence {number}") for number in range(5))
    text = render(replace(against_baseline(), findings=sure))
    assert text.count("zprof explain ZP409") == 3
    assert text.count("also ZP409") == 2


def test_equal_work_is_a_table_of_its_own() -> None:
    text = render(larger_batch())
    assert "AT EQUAL WORK" in text
    assert "32768, was 8192" not in text, "the table says it"
    assert "NOT THE SAME JOB  backend nccl, was gloo" in text
    assert "AT EQUAL WORK" not in render(against_baseline())
    assert "8192 tokens per step in both" in render(against_baseline())
