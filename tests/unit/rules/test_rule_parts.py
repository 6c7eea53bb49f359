"""What rules share: severities on their thresholds, gaps in one line, and rows."""

from dataclasses import replace

import pytest

from tests.support.analyses import Scenario, analysis_of
from zprof.model.causes import Cause
from zprof.model.findings import Severity
from zprof.rules.rows import has_no_collectives
from zprof.rules.rule import grouped, not_tested, severity_of, untested


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
    assert severity_of(saving, 100) is severity


def test_one_rule_is_no_rules() -> None:
    one = not_tested(Cause.NO_PREFETCH, "why", "what")
    two = not_tested(Cause.FP32_REDUCE, "why", "what")
    assert [gap.what for gap in grouped([one])] == ["rule no_prefetch not tested"]
    assert [gap.what for gap in grouped([one, two])] == ["rules no_prefetch, fp32_reduce not tested"]
    assert untested([Cause.NO_PREFETCH, Cause.DATA_LOADER], [one]) == [Cause.NO_PREFETCH]


def test_a_rank_alone_has_no_collectives_to_record() -> None:
    alone, two = analysis_of(Scenario(ranks=1)), analysis_of(Scenario(ranks=2))
    assert not has_no_collectives(alone)
    assert not has_no_collectives(two)
    assert has_no_collectives(replace(two, collectives=two.collectives.iloc[:0]))
