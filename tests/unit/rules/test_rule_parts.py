"""What rules share: severities on their thresholds, gaps in one line, and rows."""

from dataclasses import replace

import pytest

from tests.support.analyses import Scenario, analysis_of
from zprof.model.findings import Cause, Severity
from zprof.rules.rule import group_gaps, has_no_collectives, list_untested, rate_severity, untested_gap


@pytest.mark.parametrize(
    ("saving", "severity"),
    [
        (10, Severity.HIGH),
        (9.9, Severity.MEDIUM),
        (5, Severity.MEDIUM),
        (4.9, Severity.LOW),
        (0, Severity.LOW),
    ],
)
def test_severity_is_a_tenth_or_a_twentieth(saving: float, severity: Severity) -> None:
    assert rate_severity(saving, 100) is severity


def test_one_rule_is_no_rules() -> None:
    one = untested_gap(Cause.NO_PREFETCH, "why", "what")
    two = untested_gap(Cause.FP32_REDUCE, "why", "what")
    assert [gap.what for gap in group_gaps([one])] == ["rule no_prefetch not tested"]
    assert [gap.what for gap in group_gaps([one, two])] == ["rules no_prefetch, fp32_reduce not tested"]
    assert list_untested([Cause.NO_PREFETCH, Cause.DATA_LOADER], [one]) == [Cause.NO_PREFETCH]


def test_a_rank_alone_has_no_collectives_to_record() -> None:
    alone, two = analysis_of(Scenario(ranks=1)), analysis_of(Scenario(ranks=2))
    assert not has_no_collectives(alone)
    assert not has_no_collectives(two)
    assert has_no_collectives(replace(two, collectives=two.collectives.iloc[:0]))
