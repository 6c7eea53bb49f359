"""Fit a link's latency and bandwidth to intrinsic times:  T = latency + bytes / bandwidth.

The fit is robust: the median T of each message size represents its messages; the slope is the median of the
slopes between sizes (Theil-Sen), weighted by their distance; the latency is the median of the residuals with
weight 1 / T. Neither is negative. One size gives no fit, nor do sizes within a factor of two.
"""

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from zprof.analysis.columns import Columns, Floats, Groups
from zprof.analysis.time.collective_rows import group_rows_by_text
from zprof.analysis.time.transfer.collective_times import BANDWIDTH_COLUMNS, select_resolved
from zprof.model.collectives import CollectiveKind, bus_factor
from zprof.model.time import LinkFit

_MIN_SPREAD = 2.0
#: More sizes are thinned out, because slopes are computed over all pairs.
_MAX_SIZES = 256


class FittedLine(Struct, frozen=True, kw_only=True):
    """T in ns over bytes; ``ns_per_byte`` is 0 if T does not grow with the size."""

    latency_ns: float
    ns_per_byte: float

    def at(self, sizes: Floats) -> Floats:
        """Return T for messages of these sizes."""
        return self.latency_ns + self.ns_per_byte * sizes


def fit_links(collectives: Columns) -> tuple[LinkFit, ...]:
    """Return one entry per kind and group with enough data, sorted by kind and group."""
    return tuple(sorted(_iterate_fits(collectives), key=lambda fit: (fit.kind, fit.group)))


def _iterate_fits(collectives: Columns) -> Iterator[LinkFit]:
    for (kind, group), group_rows in group_rows_by_text(
        collectives, ("kind", "group"), (*BANDWIDTH_COLUMNS, "instance")
    ):
        good = select_resolved(group_rows)
        rows = good.at((good.ints("bytes") > 0) & (good.ints("instance") >= 0))
        rows = rows.at(np.sort(Groups(rows.ints("instance")).first))
        sizes, times = rows.floats("bytes"), rows.floats("intrinsic_ns")
        line = fit_line(sizes, times)
        if line is not None:
            factor = bus_factor(CollectiveKind(kind), int(rows.ints("group_size")[0]))
            yield _make_link_fit(kind, group, line, sizes, times, factor)


def _make_link_fit(
    kind: str, group: str, line: FittedLine, sizes: Floats, times: Floats, factor: float
) -> LinkFit:
    bandwidth = 1e9 / line.ns_per_byte if line.ns_per_byte > 0 else None
    return LinkFit(
        kind=kind,
        group=group,
        messages=len(sizes),
        sizes=len(np.unique(sizes)),
        latency_ns=round(line.latency_ns),
        algbw_bytes_per_s=bandwidth,
        busbw_bytes_per_s=bandwidth * factor if bandwidth is not None and factor > 0 else None,
        latency_share_ratio=float(min(1.0, line.latency_ns * len(times) / times.sum())),
        residual_ratio=float(np.median(np.abs(times - line.at(sizes)) / times)),
    )


def fit_line(sizes: Floats, times: Floats, min_spread: float = _MIN_SPREAD) -> FittedLine | None:
    """Return the line through positive sizes and times; None if the sizes are too few or too similar.

    ``min_spread``: minimum ratio of the largest to the smallest size.
    """
    distinct_sizes = np.unique(sizes)
    if len(distinct_sizes) < 2 or distinct_sizes[-1] < min_spread * distinct_sizes[0]:
        return None
    typical = Groups(sizes).median(times)
    selected = np.unique(
        np.linspace(0, len(distinct_sizes) - 1, min(len(distinct_sizes), _MAX_SIZES)).astype(np.int64)
    )
    return _fit_robust_line(distinct_sizes[selected].astype(np.float64), typical[selected])


def _fit_robust_line(sizes: Floats, times: Floats) -> FittedLine:
    low, high = np.triu_indices(len(sizes), 1)
    distance = sizes[high] - sizes[low]
    slope = _weighted_median((times[high] - times[low]) / distance, distance)
    if slope <= 0:
        return FittedLine(latency_ns=float(np.median(times)), ns_per_byte=0.0)
    latency = _weighted_median(times - slope * sizes, 1.0 / times)
    if latency < 0:
        return FittedLine(latency_ns=0.0, ns_per_byte=float(np.median(times / sizes)))
    return FittedLine(latency_ns=latency, ns_per_byte=slope)


def _weighted_median(values: Floats, weights: Floats) -> float:
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, total[-1] / 2)])
