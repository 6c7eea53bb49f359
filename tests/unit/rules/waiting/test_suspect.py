"""Chance that equal ranks look like a late one."""

import numpy as np
import pytest

from tests.support.analyses import MS, Scenario, analysis_of
from zprof.rules.waiting.own_time import OwnTime
from zprof.rules.waiting.suspect import Suspect, suspect_of


def suspect(late_steps: int, steps: int) -> Suspect:
    """Of two ranks, of which the second is 100 ms longer in so many steps, and the first in all others."""
    own = np.full((steps, 2), 100.0 * MS)
    own[:late_steps, 1] += 100 * MS
    own[late_steps:, 0] += 100 * MS
    longer, none = own - own[:, ::-1], np.zeros_like(own)
    table = OwnTime(ranks=(0, 1), own=own, longer=longer, compute=longer, copies=none, idle=none)
    return suspect_of(analysis_of(Scenario(steps=3)), table)


def test_chance_of_a_few_steps_is_the_binomial_tail() -> None:
    assert suspect(8, 10).chance == pytest.approx(2 * (45 + 10 + 1) / 2**10)


def test_thousands_of_steps_have_a_chance_too() -> None:
    assert suspect(2001, 4000).chance == pytest.approx(1.0, abs=0.05)
    assert suspect(2600, 4000).chance < 1e-50
