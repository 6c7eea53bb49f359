"""Savings are as wide as the noise of the steps that they are taken from."""

from dataclasses import replace
from math import sqrt

import pytest

from tests.support.analyses import MS, Scenario, analysis_of
from zprof.analysis.analysis import RunAnalysis
from zprof.model.causes import Cause
from zprof.model.findings import Confidence, Finding, Severity
from zprof.rules.noise import of_difference_ns, widened
from zprof.rules.rule import finding


def walls(*milliseconds: float, ranks: int = 2) -> RunAnalysis:
    """A run whose steps took so long on every rank."""
    analysis = analysis_of(Scenario(ranks=ranks, steps=len(milliseconds)))
    taken = analysis.steps["step"].map(dict(enumerate(int(wall * MS) for wall in milliseconds)))
    return replace(analysis, steps=analysis.steps.assign(wall_ns=taken))


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


def test_the_interval_of_two_means() -> None:
    """Steps of 96, 100 and 104 ms deviate by 4: two means of three such steps, by 1.96 * 4 * sqrt(2 / 3)."""
    assert of_difference_ns(walls(96, 100, 104)) == pytest.approx(1.96 * 4 * sqrt(2 / 3) * MS)


def test_more_steps_are_surer() -> None:
    few, many = walls(96, 100, 104), walls(*(96, 100, 104) * 4)
    assert of_difference_ns(many) < 0.6 * of_difference_ns(few)


def test_what_ranks_differ_by_is_no_noise_of_steps() -> None:
    analysis = walls(100, 100, 100)
    slower = analysis.steps["wall_ns"] + analysis.steps["rank"] * 50 * MS
    assert of_difference_ns(replace(analysis, steps=analysis.steps.assign(wall_ns=slower))) == 0


def test_two_steps_tell_no_noise() -> None:
    assert of_difference_ns(walls(50, 150)) == 0
    assert of_difference_ns(walls(50, 100, 150)) > 0


def test_both_ends_are_widened() -> None:
    noise = of_difference_ns(walls(96, 100, 104))
    low, high = widened(saves(40, 80), walls(96, 100, 104)).saving_ns
    assert low == pytest.approx(40 * MS - noise, abs=1)
    assert high == pytest.approx(80 * MS + noise, abs=1)


def test_by_a_quarter_at_most() -> None:
    assert widened(saves(4, 8), walls(50, 100, 150)).saving_ns == (3 * MS, 10 * MS)
    assert widened(saves(0, 0), walls(50, 100, 150)).saving_ns == (0, 0)
