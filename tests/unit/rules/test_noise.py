"""Savings are as wide as the noise of the steps that they are taken from."""

from zprof.model.causes import Cause
from zprof.model.findings import Confidence, Finding, Severity
from zprof.rules.noise import widened
from zprof.rules.rule import finding

MS = 1_000_000


def saves(low: float, high: float) -> Finding:
    return finding(
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
    assert widened(saves(40, 80), 6 * MS).saving_ns == (34 * MS, 86 * MS)


def test_by_a_quarter_at_most() -> None:
    assert widened(saves(4, 8), 100 * MS).saving_ns == (3 * MS, 10 * MS)
    assert widened(saves(0, 0), 100 * MS).saving_ns == (0, 0)


def test_unknown_noise_widens_nothing() -> None:
    assert widened(saves(40, 80), None).saving_ns == (40 * MS, 80 * MS)
