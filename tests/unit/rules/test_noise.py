"""Savings are as wide as the noise of the steps that they are taken from."""

from zprof.model.findings import Cause, Confidence, Finding, Severity
from zprof.rules.rule import make_finding
from zprof.rules.saving_range import widen_by_noise

MS = 1_000_000


def saves(low: float, high: float) -> Finding:
    return make_finding(
        Cause.NO_PREFETCH,
        sentence="s",
        evidence=(),
        saving_ns=(low * MS, high * MS),
        severity=Severity.LOW,
        confidence=Confidence.LOW,
        fix="f",
        disprove="d",
    )


def test_both_ends_are_widened() -> None:
    assert widen_by_noise(saves(40, 80), 6 * MS).saving_ns == (34 * MS, 86 * MS)


def test_by_a_quarter_at_most() -> None:
    assert widen_by_noise(saves(4, 8), 100 * MS).saving_ns == (3 * MS, 10 * MS)
    assert widen_by_noise(saves(0, 0), 100 * MS).saving_ns == (0, 0)


def test_unknown_noise_widens_nothing() -> None:
    assert widen_by_noise(saves(40, 80), None).saving_ns == (40 * MS, 80 * MS)
