"""Estimate the interval of a difference of means from single steps, and compare it with a threshold."""

import numpy as np
import numpy.typing as npt

Samples = npt.NDArray[np.float64]
#: The lowest and the highest difference that noise explains.
Interval = tuple[float, float]
_RESAMPLES = 10_000
_SEED = 0


def compute_bootstrap_interval(a: Samples, b: Samples) -> tuple[int, int]:
    """Return the 95 % interval of mean(b) - mean(a) in nanoseconds; neither may be empty."""
    low, high = compute_difference_interval(a, b, 0.95)
    return (round(low), round(high))


def compute_difference_interval(a: Samples, b: Samples, confidence: float) -> Interval:
    """Return the interval of mean(b) - mean(a) for a ``confidence`` in (0, 1); neither may be empty.

    A single sample has no variation.
    """
    generator = np.random.default_rng(_SEED)
    difference = _resample_means(b, generator) - _resample_means(a, generator)
    tail_percent = 50 * (1 - confidence)
    low, high = np.percentile(difference, [tail_percent, 100 - tail_percent])
    return (float(low), float(high))


def _resample_means(sample: Samples, generator: np.random.Generator) -> Samples:
    count = len(sample)
    means = sample[generator.integers(0, count, size=(_RESAMPLES, count))].mean(axis=1)
    correction = np.sqrt(count / (count - 1)) if count > 1 else 1.0
    return np.asarray(sample.mean() + (means - sample.mean()) * correction)


def compute_range(a: Samples, b: Samples) -> Interval:
    """Return the differences b - a of all pairs of steps, widened by how far the steps of each lie apart.

    For 2 to 4 steps, too few for an interval. Of two equal normal distributions the range lies on one side of
    0 with a probability of 2 x 3.3 % for two steps each, 2 x 0.1 % for three, 2 x 0.005 % for four
    (simulated).
    """
    widening = float(np.ptp(a) + np.ptp(b))
    return float(b.min() - a.max()) - widening, float(b.max() - a.min()) + widening


def ratio_samples(parts: Samples, wholes: Samples) -> Samples:
    """Return one sample per step, with mean sum(parts) / sum(wholes) and the variation of that ratio.

    Linearized: a step shifts the ratio of sums by (part - ratio * whole) / mean(whole).
    """
    ratio = parts.sum() / wholes.sum()
    return np.asarray(ratio + (parts - ratio * wholes) / wholes.mean(), dtype=np.float64)


def find_side(interval: Interval, threshold: float = 0.0) -> int:
    """Return 1 if the entire interval is above the threshold, -1 if it is below, else 0."""
    low, high = interval
    return (low > threshold) - (high < threshold)
