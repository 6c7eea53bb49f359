"""Estimate the latency of a run's collectives, and state what is ordinary.

Ordinary is what NCCL's model of a ring assumes (src/graph/tuning.cc): 8.4 us, and for each hop 3.4 us over
NVLink or 14 us over a network. Latency is out of the ordinary from 50 us above that of a network: the margin
covers slower transports (sockets) and busy hosts.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.intervals import Intervals, covered, intervals
from zprof.analysis.time.collective_rows import Floats
from zprof.analysis.time.transfer.link_fits import fit_line
from zprof.rules.transfer.traffic import transfer_times

_BASE_NS, _NVLINK_HOP_NS, _NETWORK_HOP_NS = 8_400.0, 3_400.0, 14_000.0
_SLACK_NS = 50_000.0
#: A fit is ignored if it has few messages, or if its latency is as small as what it misses.
_FIT_MESSAGES, _FIT_TIMES = 8, 3.0
_FIT_RESIDUAL_RATIO = 0.2
#: Maximum share of the messages' time with messages of other groups beside them, which lengthen them.
_SHARED_RATIO = 0.1
#: A message of this share of the others' size is all latency.
_TINY_RATIO = 1 / 64
#: Each rank sends as much in both: its data goes around the ring once.
_RINGS = ("all_gather", "reduce_scatter")
#: Converts the median distance from the mean to a standard deviation; how many of those an estimate may be
#: off.
_DEVIATION_OF_MEDIAN, _ERRORS = 1.48, 2.0
#: If sizes are not recorded, up to this many all_reduces per step are scalars if quicker than this quantile
#: of the rest.
_SCALARS_PER_STEP, _QUICKEST_SHARE, _MANY_MESSAGES = 2.0, 0.05, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Latencies by ranks of a group; ``of_rows``: the ranks of each row of the analysis' collectives."""

    by_ranks: Mapping[str, float]
    of_rows: Mapping[int, str]

    def of_row(self, row: int) -> float | None:
        """Return the latency of a row's group, or of the only known group for a stream; None if unknown."""
        known = self.by_ranks.get(self.of_rows[row])
        if known is None and len(self.by_ranks) == 1 and self.of_rows[row].startswith("stream"):
            return next(iter(self.by_ranks.values()))
        return known


def ordinary_ns(ranks: int) -> tuple[float, float]:
    """Return the latency of a ring within a host, and over a network, in ns."""
    hops = max(1, ranks - 1)
    return _BASE_NS + hops * _NVLINK_HOP_NS, _BASE_NS + hops * _NETWORK_HOP_NS


def max_ordinary_ns(ranks: int) -> float:
    """Return the longest latency of a ring of so many ranks that is still ordinary, in ns."""
    return _SLACK_NS + ordinary_ns(ranks)[1]


def read_latencies(analysis: RunAnalysis) -> Latencies:
    """Return the latency of each group, from fits over sizes and from messages that are almost empty."""
    rows = analysis.collectives
    ranks = rows["group"].astype(str).map(_group_ranks)
    found: dict[str, float] = {}
    for name in sorted(set(ranks)):
        mine = rows[ranks == name]
        read = (
            _latency_from_fits(analysis, name, mine),
            _latency_from_gathers_and_scatters(analysis, mine),
            _latency_from_tiny_messages(analysis, mine),
        )
        known = [each for each in read if each is not None]
        if known:
            found[name] = min(known)  # no message is quicker than the latency
    if not found and not (rows["bytes"] > 0).any():
        scalar = _latency_from_scalars(analysis, rows)
        found = {name: scalar for name in set(ranks)} if scalar is not None else {}
    found |= _latency_from_larger_groups(set(ranks) - set(found), found)
    return Latencies(by_ranks=found, of_rows=dict(zip(rows.index.tolist(), ranks.tolist(), strict=True)))


def _group_ranks(group: str) -> str:
    return group.split("#", 1)[0]


def _latency_from_fits(analysis: RunAnalysis, ranks: str, rows: pd.DataFrame) -> float | None:
    """Return the smallest latency of the fits that show it; fits over large messages alone do not."""
    found = []
    for fit in analysis.time.fits:
        if _group_ranks(fit.group) != ranks or fit.messages < _FIT_MESSAGES:
            continue
        mine = rows[rows["kind"].astype(str) == fit.kind]
        shared = _shared_ratio(analysis, mine)
        if shared > _SHARED_RATIO:
            continue
        times = transfer_times(analysis, mine)
        missed = (fit.residual_ratio + shared) * float(times.median()) if len(times) else 0.0
        if fit.residual_ratio <= _FIT_RESIDUAL_RATIO and fit.latency_ns > _FIT_TIMES * missed:
            found.append(min(float(fit.latency_ns), float(times.min()) if len(times) else float("inf")))
    return min(found) if found else None


def _latency_from_gathers_and_scatters(analysis: RunAnalysis, rows: pd.DataFrame) -> float | None:
    """Return the latency of gathers and reduce_scatters together: each rank sends equally many bytes in both.

    Gradients may have other types than parameters, so sizes of both kinds are further apart. The sizes of one
    of the kinds must confirm that both are equally fast.
    """
    mine = rows[rows["kind"].astype(str).isin(_RINGS) & (rows["bytes"] > 0)]
    if len(mine) < _FIT_MESSAGES:
        return None
    shared = _shared_ratio(analysis, mine)
    sizes, times = _sized_times(analysis, mine)
    both = _fit_intercept(sizes, times)
    if both is None or shared > _SHARED_RATIO:
        return None
    missed = both.missed_ns + shared * float(np.median(times))
    if missed > _FIT_RESIDUAL_RATIO * np.median(times) or both.ns <= _FIT_TIMES * max(missed, both.error_ns):
        return None
    of_kinds = [
        _fit_intercept(*_sized_times(analysis, mine[mine["kind"].astype(str) == kind])) for kind in _RINGS
    ]
    most = [each.most_ns for each in of_kinds if each is not None and both.ns > _FIT_TIMES * each.error_ns]
    return min(both.ns, float(times.min()), *most) if most else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Intercept:
    """The time of a message without bytes, its standard error, and the median residual of the line."""

    ns: float
    error_ns: float
    missed_ns: float

    @property
    def most_ns(self) -> float:
        return self.ns + _ERRORS * self.error_ns


def _fit_intercept(sizes: Floats, times: Floats) -> _Intercept | None:
    """Extend the line through sizes and times to 0; the error grows if sizes are close to each other."""
    line = fit_line(sizes, times, least_spread=1.0)
    if line is None:
        return None
    missed = float(np.median(np.abs(times - line.at(sizes))))
    distance = float(sizes.mean() / sizes.std())
    error = _DEVIATION_OF_MEDIAN * missed * float(np.sqrt((1 + distance**2) / len(sizes)))
    return _Intercept(ns=line.latency_ns, error_ns=error, missed_ns=missed)


def _sized_times(analysis: RunAnalysis, rows: pd.DataFrame) -> tuple[Floats, Floats]:
    times = transfer_times(analysis, rows)
    sizes = rows.groupby("instance")["bytes"].first().loc[times.index]
    return np.asarray(sizes, dtype=np.float64), np.asarray(times, dtype=np.float64)


def _latency_from_larger_groups(unknown: Set[str], known: Mapping[str, float]) -> dict[str, float]:
    """Return the latency, hop by hop, of groups all of whose ranks are in a larger group with a known one."""
    found = {}
    members = {name: frozenset(name.split(",")) for name in (*unknown, *known) if "," in name}
    for name in sorted(unknown & members.keys()):
        hops = len(members[name]) - 1
        within = [
            _BASE_NS + max(0.0, known[other] - _BASE_NS) * hops / (len(members[other]) - 1)
            for other in known.keys() & members.keys()
            if members[name] < members[other]
        ]
        if within:
            found[name] = min(within)
    return found


def _shared_ratio(analysis: RunAnalysis, rows: pd.DataFrame) -> float:
    """Return the share of the transfers of ``rows`` that run beside those of groups of other ranks."""
    beside = whole = 0
    ranks = analysis.collectives["group"].astype(str).map(_group_ranks)
    others = analysis.collectives[~ranks.isin(set(ranks.loc[rows.index]))]
    for rank, mine in rows.groupby("rank"):
        theirs = _transfer_intervals(others[others["rank"] == rank])
        beside += int(covered(theirs, *_transfer_intervals(mine).T).sum())
        whole += int(mine["transfer_ns"].sum())
    return beside / whole if whole else 0.0


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
    if (~is_reduced).sum() < _MANY_MESSAGES * steps or times.median() > rest.quantile(_QUICKEST_SHARE):
        return None
    return float(times.median())
