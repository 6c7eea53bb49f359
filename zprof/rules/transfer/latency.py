"""Estimate the latency of a run's collectives, and define the normal range.

The normal range follows NCCL's ring model (src/graph/tuning.cc): 8.4 us, plus for each hop 3.4 us over
NVLink or 14 us over a network. A latency is abnormal if it exceeds the network value by 50 us: the margin
covers slower transports (sockets) and busy hosts.
"""

from collections.abc import Mapping, Set

import numpy as np
import pandas as pd
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.intervals import Intervals, covered, intervals
from zprof.analysis.time.collective_rows import Floats, factorize_texts
from zprof.analysis.time.transfer.link_fits import fit_line
from zprof.rules.transfer.traffic import transfer_times

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
    """Latency per rank group; ``group_by_row`` maps rows of the collectives table to their ranks."""

    by_ranks: Mapping[str, float]
    group_by_row: Mapping[int, str]

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
    places_by_name = {str(name): places for name, places in ranks.groupby(ranks).indices.items()}
    for name, places in sorted(places_by_name.items(), key=lambda item: item[0]):
        group_rows = rows.iloc[places]
        read = (
            _latency_from_fits(analysis, name, group_rows),
            _latency_from_gathers_and_scatters(analysis, group_rows),
            _latency_from_tiny_messages(analysis, group_rows),
        )
        known = [each for each in read if each is not None]
        if known:
            found[name] = min(known)  # no message is quicker than the latency
    if not found and not (rows["bytes"] > 0).any():
        scalar = _latency_from_scalars(analysis, rows)
        found = {name: scalar for name in set(ranks)} if scalar is not None else {}
    found |= _latency_from_larger_groups(set(ranks) - set(found), found)
    return Latencies(by_ranks=found, group_by_row=dict(zip(rows.index.tolist(), ranks.tolist(), strict=True)))


def _read_group_ranks(analysis: RunAnalysis) -> "pd.Series[str]":
    """Return the ranks of the group of each collective."""
    codes, groups = factorize_texts(analysis.collectives["group"])
    names = np.array([_group_ranks(group) for group in groups], dtype=object)
    return pd.Series(names[codes], index=analysis.collectives.index, dtype=object)


def _group_ranks(group: str) -> str:
    return group.split("#", 1)[0]


def _latency_from_fits(analysis: RunAnalysis, ranks: str, rows: pd.DataFrame) -> float | None:
    """Return the smallest latency from fits that resolve it (a fit over large messages alone does not)."""
    found = []
    for fit in analysis.time.fits:
        if _group_ranks(fit.group) != ranks or fit.messages < _FIT_MESSAGES:
            continue
        group_rows = rows[rows["kind"].astype(str) == fit.kind]
        shared = measure_shared_ratio(analysis, group_rows)
        if shared > MAX_SHARED_RATIO:
            continue
        times = transfer_times(analysis, group_rows)
        residual_ns = (fit.residual_ratio + shared) * float(times.median()) if len(times) else 0.0
        if (
            fit.residual_ratio <= _FIT_RESIDUAL_RATIO
            and fit.latency_ns > _MIN_LATENCY_TO_RESIDUAL * residual_ns
        ):
            found.append(min(float(fit.latency_ns), float(times.min()) if len(times) else float("inf")))
    return min(found) if found else None


def _latency_from_gathers_and_scatters(analysis: RunAnalysis, rows: pd.DataFrame) -> float | None:
    """Return the common latency of gathers and reduce_scatters: in both, each rank sends equally many bytes.

    Gradients may have different types than parameters, so the two kinds cover a wider range of sizes. One
    kind alone must confirm that both are equally fast.
    """
    group_rows = rows[rows["kind"].astype(str).isin(_RING_KINDS) & (rows["bytes"] > 0)]
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
        _fit_intercept(*_sized_times(analysis, group_rows[group_rows["kind"].astype(str) == kind]))
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


def _sized_times(analysis: RunAnalysis, rows: pd.DataFrame) -> tuple[Floats, Floats]:
    times = transfer_times(analysis, rows)
    sizes = rows.groupby("instance")["bytes"].first().loc[times.index]
    return np.asarray(sizes, dtype=np.float64), np.asarray(times, dtype=np.float64)


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


def measure_shared_ratio(analysis: RunAnalysis, rows: pd.DataFrame) -> float:
    """Return the share of transfer time in ``rows`` that overlaps with transfers of other rank groups."""
    overlapping = total = 0
    ranks = analysis.compute_once(_read_group_ranks)
    columns = ["rank", "end_ns", "transfer_ns"]
    all_rows = analysis.collectives[columns]
    others = all_rows[all_rows["rank"].isin(rows["rank"].unique()) & ~ranks.isin(set(ranks.loc[rows.index]))]
    places = others.groupby("rank").indices
    for rank, group_rows in rows[columns].groupby("rank"):
        other_transfers = _transfer_intervals(others.iloc[places.get(rank, [])])
        overlapping += int(covered(other_transfers, *_transfer_intervals(group_rows).T).sum())
        total += int(group_rows["transfer_ns"].sum())
    return overlapping / total if total else 0.0


def _transfer_intervals(rows: pd.DataFrame) -> Intervals:
    return intervals(rows["end_ns"] - rows["transfer_ns"], rows["end_ns"])


def _latency_from_tiny_messages(analysis: RunAnalysis, rows: pd.DataFrame) -> float | None:
    sized = rows[rows["bytes"] > 0]
    tiny = sized[sized["bytes"] <= _TINY_RATIO * sized["bytes"].median()]
    times = transfer_times(analysis, tiny)
    return float(times.median()) if len(times) else None


def _latency_from_scalars(analysis: RunAnalysis, rows: pd.DataFrame) -> float | None:
    is_reduced = rows["kind"].astype(str) == "all_reduce"
    steps = max(1, len(analysis.steps))
    rest = transfer_times(analysis, rows[~is_reduced])
    times = transfer_times(analysis, rows[is_reduced])
    if not len(times) or is_reduced.sum() > _SCALARS_PER_STEP * steps:
        return None
    if (~is_reduced).sum() < _MANY_MESSAGES * steps or times.median() > rest.quantile(_FASTEST_QUANTILE):
        return None
    return float(times.median())
