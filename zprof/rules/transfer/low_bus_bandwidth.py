"""ZP402 low_bus_bandwidth: large messages move at less than half of the bandwidth they should have.

Bus bandwidth of one collective = bytes * bus factor / T with T from the last start to the first end:
waiting for a late rank is not in it.  Only large messages count (small ones are bound by latency).
Expected is what the caller says, else what the baseline reached with the same kind of collective at a
similar size.  With q = seen / expected, the transfer t of which e is exposed shrinks to q t, and so
does the queue that it makes (counted in both): the saving lies between (1 - q) e and min(e, (1 - q) t).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.causes import Cause
from zprof.model.collectives import CollectiveKind, bus_factor
from zprof.model.findings import Confidence, Evidence, Finding
from zprof.model.gaps import Gap
from zprof.model.units import format_percent, format_rate
from zprof.rules.rows import (
    INSTANCE,
    clock_uncertainty_ns,
    has_no_collectives,
    mean_per_step,
    of_kind,
    queued_ns,
    steady,
    wall_ns,
)
from zprof.rules.rule import Check, finding, not_tested, severity_of

_LOW_RATIO = 0.50
_WORTH_RATIO = 0.03
#: A message is large from this share of the kind's largest on, and similar within this factor.
_LARGE_RATIO = 0.25
_SIMILAR = 4
_SURE_COUNT = 10
_KINDS = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slow:
    """One kind of collective below its expected bandwidth; times per step."""

    kind: CollectiveKind
    count: int
    seen: float
    expected: float
    transfer_ns: float
    exposed_ns: float

    @property
    def saving_ns(self) -> tuple[float, float]:
        """Per step: both bounds of the module's formula."""
        lost = 1 - self.seen / self.expected
        return (lost * self.exposed_ns, min(self.exposed_ns, lost * self.transfer_ns))


def low_bus_bandwidth(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Finding where large messages are slower than the baseline's of the same kind."""
    return _check(analysis, baseline, None)


def against(expected_bytes_per_s: float) -> Check:
    """The same check against a bus bandwidth that the caller expects of the link."""

    def check(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
        return _check(analysis, baseline, expected_bytes_per_s)

    return check


def _check(
    analysis: RunAnalysis, baseline: RunAnalysis | None, expected: float | None
) -> Finding | Gap | None:
    if has_no_collectives(analysis):
        return not_tested(Cause.LOW_BUS_BANDWIDTH, "no collective was recorded", "record the time window")
    if analysis.run.world_size == 1 or not len(steady(analysis)):
        return None
    compared = list(_compared(analysis, baseline, expected))
    if not compared:
        return not_tested(
            Cause.LOW_BUS_BANDWIDTH,
            "no bandwidth to expect: no baseline with collectives of the same kind and a similar size",
            "give a baseline of the same engine and stage, or say --expected-busbw GB_PER_S",
        )
    slow = [entry for entry in compared if entry.seen < _LOW_RATIO * entry.expected]
    saving = sum(entry.saving_ns[1] for entry in slow)
    return _finding(analysis, slow) if slow and saving >= _WORTH_RATIO * wall_ns(analysis) else None


def _compared(analysis: RunAnalysis, baseline: RunAnalysis | None, expected: float | None) -> Iterator[_Slow]:
    for kind in _KINDS:
        mine = _bandwidths(analysis, kind)
        large = mine[mine["bytes"] >= _LARGE_RATIO * mine["bytes"].max()]
        if large.empty:
            continue
        wanted = expected or _reached(baseline, kind, float(large["bytes"].median()))
        if wanted:
            rows = of_kind(steady(analysis), kind)
            yield _Slow(
                kind=kind,
                count=len(large),
                seen=float(large["bytes_per_s"].median()),
                expected=wanted,
                transfer_ns=mean_per_step(analysis, (rows["transfer_ns"] + queued_ns(rows)).sum()),
                exposed_ns=mean_per_step(analysis, (rows["exposed_transfer_ns"] + queued_ns(rows)).sum()),
            )


def _reached(baseline: RunAnalysis | None, kind: CollectiveKind, size: float) -> float | None:
    """What the baseline reached with this kind at a similar size; None where it has nothing similar."""
    if baseline is None or baseline.collectives.empty:
        return None
    theirs = _bandwidths(baseline, kind)
    similar = theirs[theirs["bytes"].between(size / _SIMILAR, size * _SIMILAR)]
    return float(similar["bytes_per_s"].median()) if len(similar) else None


def _bandwidths(analysis: RunAnalysis, kind: CollectiveKind) -> pd.DataFrame:
    """Bytes and bus bandwidth of each matched collective whose time the clocks can resolve."""
    rows = of_kind(steady(analysis), kind)
    rows = rows[rows["matched"].astype(bool)]
    each = rows.groupby(INSTANCE).agg(
        start=("start_ns", "max"), end=("end_ns", "min"), bytes=("bytes", "max"), size=("group_size", "max")
    )
    each = each.assign(elapsed=each["end"] - each["start"])
    each = each[(each["elapsed"] > max(1, 2 * clock_uncertainty_ns(analysis))) & (each["bytes"] > 0)]
    factors = np.array([bus_factor(kind, int(size)) for size in each["size"]])
    return each.assign(bytes_per_s=each["bytes"] * factors / each["elapsed"] * 1e9)


def _finding(analysis: RunAnalysis, slow: list[_Slow]) -> Finding:
    worst = max(slow, key=lambda entry: entry.saving_ns[1])
    saving = (sum(entry.saving_ns[0] for entry in slow), sum(entry.saving_ns[1] for entry in slow))
    return finding(
        Cause.LOW_BUS_BANDWIDTH,
        sentence=f"{worst.kind.value}s move {format_rate(worst.seen)} of bus bandwidth where "
        f"{format_rate(worst.expected)} is expected ({format_percent(worst.seen / worst.expected)})",
        evidence=[fact for entry in slow for fact in _facts(entry)],
        saving_ns=saving,
        severity=severity_of(saving[1], wall_ns(analysis)),
        confidence=Confidence.HIGH if worst.count >= _SURE_COUNT else Confidence.MEDIUM,
        fix="NCCL: run once with NCCL_DEBUG=INFO and see which network it took (NET/Socket is TCP)\n"
        "gloo: GLOO_SOCKET_IFNAME=<the fast interface>\n"
        "nodes apart by a slow link: shard within a node, replicate across (HSDP)",
        disprove="measure the link by itself (nccl-tests, iperf3) between the same hosts: if it is as slow "
        "there, the expectation was wrong",
    )


def _facts(entry: _Slow) -> list[Evidence]:
    kind = entry.kind.value
    return [
        Evidence(what=f"{kind} bus bandwidth, median of large", value=entry.seen, unit="bytes_per_s"),
        Evidence(what=f"{kind} bus bandwidth expected", value=entry.expected, unit="bytes_per_s"),
        Evidence(what=f"large {kind}s looked at", value=entry.count, unit="count"),
        Evidence(what=f"{kind} exposed transfer and queue, a step", value=entry.exposed_ns, unit="ns"),
    ]
