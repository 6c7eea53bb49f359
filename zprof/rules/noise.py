"""A saving is no surer than the step that it is taken from: its range is as wide as the steps' own noise.

Who applies a fix records again, and compares two means of n steps each.  With s the standard deviation of the
steps (each the mean over its ranks), 95 % of the differences of two such means of the same job lie within

    1.96 * sqrt(2) * s / sqrt(n)

By so much a range is widened at each end, and by a quarter of that end at most: a noisy run must not turn a
note into a large saving.  With fewer than three steps the noise is not known, and nothing is widened.
"""

from dataclasses import replace
from math import sqrt

from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Finding

_LEAST_STEPS = 3
_MOST_RATIO = 0.25


def widened(finding: Finding, analysis: RunAnalysis) -> Finding:
    """The finding with the noise of the run in its saving."""
    low, high = finding.saving_ns
    noise = of_difference_ns(analysis)
    low = int(low - min(noise, _MOST_RATIO * low))
    return replace(finding, saving_ns=(low, int(high + min(noise, _MOST_RATIO * high))))


def of_difference_ns(analysis: RunAnalysis) -> float:
    """How far the means of two recordings of this job may lie apart by chance; 0 where steps are too few."""
    steps = analysis.steps
    if not len(steps):
        return 0.0
    walls = steps.groupby("step")["wall_ns"].mean()
    if len(walls) < _LEAST_STEPS:
        return 0.0
    return 1.96 * sqrt(2 / len(walls)) * float(walls.std())
