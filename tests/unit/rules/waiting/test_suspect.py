"""Chance that equal ranks look like a late one."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.analyses import MS, Scenario, analysis_of
from tests.support.exact import with_clocks
from zprof.analysis.analysis import RunAnalysis
from zprof.rules.waiting.late_ranks import Suspect, find_suspect, noise_floor_of_delay_ns
from zprof.rules.waiting.own_time import OwnTime


def suspect(late_steps: int, steps: int) -> Suspect:
    """Of two ranks, of which the second is 100 ms longer in so many steps, and the first in all others."""
    own = np.full((steps, 2), 100.0 * MS)
    own[:late_steps, 1] += 100 * MS
    own[late_steps:, 0] += 100 * MS
    longer, none = own - own[:, ::-1], np.zeros_like(own)
    table = OwnTime(ranks=(0, 1), own=own, longer=longer, compute=longer, copies=none, idle=none)
    return find_suspect(analysis_of(Scenario(steps=3)), table)


def test_chance_of_a_few_steps_is_the_binomial_tail() -> None:
    assert suspect(8, 10).chance == pytest.approx(2 * (45 + 10 + 1) / 2**10)


def test_thousands_of_steps_have_a_chance_too() -> None:
    assert suspect(2001, 4000).chance == pytest.approx(1.0, abs=0.05)
    assert suspect(2600, 4000).chance < 1e-50


def longest(*longer_ms: float, steps: int = 8) -> Suspect:
    """Of ranks that are busy so much longer than 60 ms in each step."""
    own = np.tile(60.0 * MS + np.array(longer_ms) * MS, (steps, 1))
    longer, none = own - np.median(own, axis=1, keepdims=True), np.zeros_like(own)
    ranks = tuple(range(len(longer_ms)))
    table = OwnTime(ranks=ranks, own=own, longer=longer, compute=longer, copies=none, idle=none)
    return find_suspect(with_clocks(analysis_of(Scenario(ranks=len(ranks), steps=3, noise_ms=0.0))), table)


@pytest.mark.parametrize(
    ("second_ms", "named"), [(9, (0,)), (9.9, (0,)), (10, (0, 1)), (11, (0, 1)), (13, (0, 1))]
)
def test_who_has_half_of_the_delay_is_late_with_it(second_ms: float, named: tuple[int, ...]) -> None:
    assert longest(20, second_ms, 0, 0, 0, 0).named == named


@pytest.mark.parametrize(("late", "named"), [(2, (0, 1)), (3, (0, 1, 2)), (4, (0,))])
def test_more_than_half_of_the_ranks_are_not_late(late: int, named: tuple[int, ...]) -> None:
    """The median of the others is theirs then."""
    assert longest(21, *[20] * (late - 1), *[0] * (6 - late)).named == named


def test_the_floor_is_three_noises_ten_doubts_of_clocks_and_four_turns_of_a_scheduler() -> None:
    still = analysis_of(Scenario(ranks=2, steps=9, noise_ms=0.0))
    still = replace(still, steps=still.steps.assign(compute_ns=60 * MS))
    assert noise_floor_of_delay_ns(with_clocks(still)) == 0
    assert noise_floor_of_delay_ns(with_clocks(still, noise_floor_ns=2 * MS)) == 6 * MS
    assert noise_floor_of_delay_ns(with_clocks(still, uncertainty_ns=2 * MS)) == 20 * MS

    def turning(off_ns: int) -> RunAnalysis:
        return replace(still, steps=still.steps.assign(compute_ns=60 * MS + still.steps["step"] % 3 * off_ns))

    assert noise_floor_of_delay_ns(with_clocks(turning(MS // 2))) == 2 * MS
    assert noise_floor_of_delay_ns(with_clocks(turning(3 * MS))) == 4 * MS


def test_on_the_floor_nobody_is_late() -> None:
    analysis = with_clocks(analysis_of(Scenario(ranks=2, steps=3, noise_ms=0.0)), uncertainty_ns=2 * MS)
    own = np.tile(np.array([60.0, 80.0]) * MS, (4, 1))
    longer, none = own - own[:, ::-1], np.zeros_like(own)
    table = OwnTime(ranks=(0, 1), own=own, longer=longer, compute=longer, copies=none, idle=none)
    on_device = replace(analysis, run=replace(analysis.run, device="cuda"))
    assert find_suspect(on_device, table).last_ratio == 0
    finer = with_clocks(on_device, uncertainty_ns=2 * MS - 1)
    assert find_suspect(finer, table).last_ratio == 1


def test_a_step_in_which_it_ties_with_another_breaks_the_order() -> None:
    own = np.array([[60.0, 80.0]] * 7 + [[60.0, 60.0]]) * MS
    longer, none = own - own[:, ::-1], np.zeros_like(own)
    table = OwnTime(ranks=(0, 1), own=own, longer=longer, compute=longer, copies=none, idle=none)
    analysis = with_clocks(analysis_of(Scenario(steps=3, noise_ms=0.0)))
    assert find_suspect(analysis, table).chance == pytest.approx(2 * 9 / 2**8)
