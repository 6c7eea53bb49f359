"""Estimate the latency of a run's collectives, and define the normal range.

The normal range follows NCCL's ring model (src/graph/tuning.cc): 8.4 us, plus for each hop 3.4 us over
NVLink or 14 us over a network. A latency is abnormal if it exceeds the network value by 50 us: the margin
covers slower transports (sockets) and busy hosts.
"""

from collections.abc import Mapping, Set

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Floats, Groups, Texts
from zprof.analysis.intervals import Intervals, covered, intervals
from zprof.analysis.time.transfer.link_fits import fit_line
from zprof.rules.transfer.traffic import measure_transfers

_BASE_NS, _NVLINK_HOP_NS, _NETWORK_HOP_NS = 8_400.0, 3_400.0, 14_000.0
_SLACK_NS = 50_000.0
#: A fit is ignored if it has few messages, or if its latency is not clearly above its residual.
_FIT_MESSAGES, _MIN_LATENCY_TO_RESIDUAL = 8, 3.0
_FIT_RESIDUAL_RATIO = 0.2
#: Maximum share of transfer time that overlaps with other groups' messages, which slow each other down.
MAX_SHARED_RATIO = 0.1
#: Messages below this fraction of the median size are pure latency.
_TINY_RATIO = 1 / 64
#: In both, each rank sends the same amount: one pass around the ring.
_RING_KINDS = ("all_gather", "reduce_scatter")
#: Converts the median distance from the mean to a standard deviation; how many of those an estimate may be
#: off.
_DEVIATION_OF_MEDIAN, _MAX_STANDARD_ERRORS = 1.48, 2.0
#: Without recorded sizes, all_reduces count as scalars if there are at most this many per step and they are
#: faster than this quantile of the rest.
_SCALARS_PER_STEP, _FASTEST_QUANTILE, _MANY_MESSAGES = 2.0, 0.05, 8


class Latencies(Struct, frozen=True, kw_only=True):
    """Latency per rank group; ``group_by_row`` has the ranks of each row of the collectives."""

    by_ranks: Mapping[str, float]
    group_by_row: Texts

    def get_for_row(self, row: int) -> float | None:
        """Return the latency of a row's group, or of the only known group for a stream; None if unknown."""
        known = self.by_ranks.get(self.group_by_row[row])
        if known is None and len(self.by_ranks) == 1 and self.group_by_row[row].startswith("stream"):
            return next(iter(self.by_ranks.values()))
        return known


def expected_latency_ns(ranks: int) -> tuple[float, float]:
    """Return the latency of a ring within a host, and over a network, in ns."""
    hops = max(1, ranks - 1)
    return _BASE_NS + hops * _NVLINK_HOP_NS, _BASE_NS + hops * _NETWORK_HOP_NS


def max_normal_latency_ns(ranks: int) -> float:
    """Return the maximum latency of a ring of ``ranks`` ranks that is still considered normal, in ns."""
    return _SLACK_NS + expected_latency_ns(ranks)[1]


def read_latencies(analysis: RunAnalysis) -> Latencies:
    """Return the latency of each group, from fits over sizes and from messages that are almost empty.

    They are read once per analysis.
    """
    return analysis.compute_once(_read_latencies)


def _read_latencies(analysis: RunAnalysis) -> Latencies:
    rows = analysis.collectives
    ranks = analysis.compute_once(_read_group_ranks)
    found: dict[str, float] = {}
    groups = Groups(ranks)
    for name, places in zip(ranks.at(groups.first), groups.split(), strict=True):
        group_rows = rows.at(places)
        read = (
            _latency_from_fits(analysis, name, group_rows),
            _latency_from_gathers_and_scatters(analysis, group_rows),
            _latency_from_tiny_messages(analysis, group_rows),
        )
        known = [each for each in read if each is not None]
        if known:
            found[name] = min(known)  # no message is quicker than the latency
    if not found and not (rows.ints("bytes") > 0).any():
        scalar = _latency_from_scalars(analysis, rows)
        found = dict.fromkeys(ranks.list_distinct(), scalar) if scalar is not None else {}
    found |= _latency_from_larger_groups(set(ranks.list_distinct()) - set(found), found)
    return Latencies(by_ranks=found, group_by_row=ranks)


def _read_group_ranks(analysis: RunAnalysis) -> Texts:
    """Return the ranks of the group of each collective."""
    return analysis.collectives.texts("group").map(_group_ranks)


def _group_ranks(group: str) -> str:
    return group.split("#", 1)[0]


def _latency_from_fits(analysis: RunAnalysis, ranks: str, rows: Columns) -> float | None:
    """Return the smallest latency from fits that resolve it (a fit over large messages alone does not)."""
    found = []
    for fit in analysis.time.fits:
        if _group_ranks(fit.group) != ranks or fit.messages < _FIT_MESSAGES:
            continue
        group_rows = rows.at(rows.texts("kind").equals(fit.kind))
        shared = measure_shared_ratio(analysis, group_rows)
        if shared > MAX_SHARED_RATIO:
            continue
        times = measure_transfers(analysis, group_rows).floats("elapsed_ns")
        residual_ns = (fit.residual_ratio + shared) * float(np.median(times)) if len(times) else 0.0
        if (
            fit.residual_ratio <= _FIT_RESIDUAL_RATIO
            and fit.latency_ns > _MIN_LATENCY_TO_RESIDUAL * residual_ns
        ):
            found.append(min(float(fit.latency_ns), float(times.min()) if len(times) else float("inf")))
    return min(found) if found else None


def _latency_from_gathers_and_scatters(analysis: RunAnalysis, rows: Columns) -> float | None:
    """Return the common latency of gathers and reduce_scatters: in both, each rank sends equally many bytes.

    Gradients may have different types than parameters, so the two kinds cover a wider range of sizes. One
    kind alone must confirm that both are equally fast.
    """
    group_rows = rows.at(rows.texts("kind").equals(*_RING_KINDS) & (rows.ints("bytes") > 0))
    if len(group_rows) < _FIT_MESSAGES:
        return None
    shared = measure_shared_ratio(analysis, group_rows)
    sizes, times = _sized_times(analysis, group_rows)
    both = _fit_intercept(sizes, times)
    if both is None or shared > MAX_SHARED_RATIO:
        return None
    residual_ns = both.residual_ns + shared * float(np.median(times))
    if residual_ns > _FIT_RESIDUAL_RATIO * np.median(times) or both.ns <= _MIN_LATENCY_TO_RESIDUAL * max(
        residual_ns, both.error_ns
    ):
        return None
    by_kind = [
        _fit_intercept(*_sized_times(analysis, group_rows.at(group_rows.texts("kind").equals(kind))))
        for kind in _RING_KINDS
    ]
    upper_bounds = [
        each.upper_bound_ns
        for each in by_kind
        if each is not None and both.ns > _MIN_LATENCY_TO_RESIDUAL * each.error_ns
    ]
    return min(both.ns, float(times.min()), *upper_bounds) if upper_bounds else None


class _Intercept(Struct, frozen=True, kw_only=True):
    """Extrapolated time of a zero-byte message, its standard error, and the median residual of the fit."""

    ns: float
    error_ns: float
    residual_ns: float

    @property
    def upper_bound_ns(self) -> float:
        return self.ns + _MAX_STANDARD_ERRORS * self.error_ns


def _fit_intercept(sizes: Floats, times: Floats) -> _Intercept | None:
    """Extrapolate the fit to size 0; the error grows if the sizes are similar."""
    line = fit_line(sizes, times, min_spread=1.0)
    if line is None:
        return None
    residual_ns = float(np.median(np.abs(times - line.at(sizes))))
    distance = float(sizes.mean() / sizes.std())
    error = _DEVIATION_OF_MEDIAN * residual_ns * float(np.sqrt((1 + distance**2) / len(sizes)))
    return _Intercept(ns=line.latency_ns, error_ns=error, residual_ns=residual_ns)


def _sized_times(analysis: RunAnalysis, rows: Columns) -> tuple[Floats, Floats]:
    transfers = measure_transfers(analysis, rows)
    return transfers.floats("bytes"), transfers.floats("elapsed_ns")


def _latency_from_larger_groups(unknown: Set[str], known: Mapping[str, float]) -> dict[str, float]:
    """Scale the latency of a larger group, per hop, to groups whose ranks it contains."""
    found = {}
    members = {name: frozenset(name.split(",")) for name in (*unknown, *known) if "," in name}
    for name in sorted(unknown & members.keys()):
        hops = len(members[name]) - 1
        estimates = [
            _BASE_NS + max(0.0, known[other] - _BASE_NS) * hops / (len(members[other]) - 1)
            for other in known.keys() & members.keys()
            if members[name] < members[other]
        ]
        if estimates:
            found[name] = min(estimates)
    return found


def measure_shared_ratio(analysis: RunAnalysis, rows: Columns) -> float:
    """Return the share of transfer time in ``rows`` that overlaps with transfers of other rank groups."""
    overlapping = total = 0
    ranks = analysis.compute_once(_read_group_ranks)
    all_rows, rows = (table.pick(("rank", "end_ns", "transfer_ns")) for table in (analysis.collectives, rows))
    is_other = ~ranks.equals(*ranks.at(rows.row).list_distinct())
    others = all_rows.at(np.isin(all_rows.ints("rank"), np.unique(rows.ints("rank"))) & is_other)
    by_rank, own = others.group_by("rank"), rows.group_by("rank")
    places = dict(zip(others.ints("rank")[by_rank.first].tolist(), by_rank.split(), strict=True))
    for rank, mine in zip(rows.ints("rank")[own.first].tolist(), own.split(), strict=True):
        other_transfers = _transfer_intervals(others.at(places.get(rank, np.zeros(0, dtype=np.int64))))
        group_rows = rows.at(mine)
        overlapping += int(covered(other_transfers, *_transfer_intervals(group_rows).T).sum())
        total += int(group_rows.ints("transfer_ns").sum())
    return overlapping / total if total else 0.0


def _transfer_intervals(rows: Columns) -> Intervals:
    return intervals(rows.ints("end_ns") - rows.ints("transfer_ns"), rows.ints("end_ns"))


def _latency_from_tiny_messages(analysis: RunAnalysis, rows: Columns) -> float | None:
    sized = rows.at(rows.ints("bytes") > 0)
    if not len(sized):
        return None
    tiny = sized.at(sized.ints("bytes") <= _TINY_RATIO * np.median(sized.ints("bytes")))
    times = measure_transfers(analysis, tiny).floats("elapsed_ns")
    return float(np.median(times)) if len(times) else None


def _latency_from_scalars(analysis: RunAnalysis, rows: Columns) -> float | None:
    is_reduced = rows.texts("kind").equals("all_reduce")
    steps = max(1, len(analysis.steps))
    rest, times = (
        measure_transfers(analysis, rows.at(chosen)).floats("elapsed_ns")
        for chosen in (~is_reduced, is_reduced)
    )
    if not len(times) or is_reduced.sum() > _SCALARS_PER_STEP * steps:
        return None
    if (~is_reduced).sum() < _MANY_MESSAGES * steps:
        return None
    if len(rest) and np.median(times) > np.quantile(rest, _FASTEST_QUANTILE):
        return None
    return float(np.median(times))
