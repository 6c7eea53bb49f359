"""How far the steps of a run vary: what two recordings of the same job may differ by and mean nothing.

With s the standard deviation of the steps (each the mean over its ranks) and two recordings of n steps each,
95 % of the differences of their means lie within

    1.96 * sqrt(2) * s / sqrt(n)
"""

from math import sqrt

import pandas as pd

_LEAST_STEPS = 3


def step_noise_ns(steps: pd.DataFrame) -> int | None:
    """That half width, of a table with a row a rank and step; None for fewer than three steps."""
    walls = steps.groupby("step")["wall_ns"].mean()
    if len(walls) < _LEAST_STEPS:
        return None
    return round(1.96 * sqrt(2 / len(walls)) * float(walls.std()))
