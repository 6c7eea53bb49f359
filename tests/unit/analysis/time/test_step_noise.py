"""The noise of steps, against its closed form."""

from math import sqrt

import pandas as pd
import pytest

from zprof.analysis.time.ledger import estimate_step_noise

MS = 1_000_000


def steps(*milliseconds: float, slower_rank: float = 0) -> pd.DataFrame:
    """Steps of two ranks that took so long, the second rank so much longer."""
    rows = [
        (rank, step, (wall + rank * slower_rank) * MS)
        for step, wall in enumerate(milliseconds)
        for rank in range(2)
    ]
    return pd.DataFrame(rows, columns=["rank", "step", "wall_ns"])


def test_the_interval_of_two_means() -> None:
    """Steps of 96, 100 and 104 ms deviate by 4: two means of three such steps, by 1.96 * 4 * sqrt(2 / 3)."""
    assert estimate_step_noise(steps(96, 100, 104)) == pytest.approx(1.96 * 4 * sqrt(2 / 3) * MS, abs=1)


def test_more_steps_are_surer() -> None:
    few, many = estimate_step_noise(steps(96, 100, 104)), estimate_step_noise(steps(*(96, 100, 104) * 4))
    assert few
    assert many
    assert many < 0.6 * few


def test_what_ranks_differ_by_is_no_noise_of_steps() -> None:
    assert estimate_step_noise(steps(100, 100, 100, slower_rank=50)) == 0


def test_two_steps_tell_no_noise() -> None:
    assert estimate_step_noise(steps(50, 150)) is None
    assert estimate_step_noise(steps(50, 100, 150)) is not None
    assert estimate_step_noise(steps()) is None
