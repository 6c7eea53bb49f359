"""ZP402 low_bus_bandwidth: large messages move at far less than the bandwidth they should have.

Bus bandwidth of one collective = bytes * bus factor / T, with T from the last start to the first end, so
waiting for a late rank does not count. Only large messages count, and none that are mostly latency. The
expected bandwidth is what the caller states, else what the baseline reached with messages of a comparable
kind and a similar size, else what other groups of the run reach. If no sizes were recorded, the messages of a
kind are compared with the same ones of the baseline by time. A rank that all slow groups have, and no other
group, has the slow link. Slow is less than half, against a baseline less than 80 % (docs/thresholds.md).

With q = seen / expected, a transfer t with an exposed part e shrinks to q t, and so does the queue that it
makes (counted in both). The saving lies between (1 - q) e and min(e, (1 - q) t). If the step can be replayed,
it is the gain of the replay with transfers of q t.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.time.collective_rows import group_by_texts
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Cause, Confidence, Evidence, Finding
from zprof.model.formatting import format_percent, format_rate
from zprof.model.gaps import Gap
from zprof.rules.rule import (
    Check,
    has_no_collectives,
    make_finding,
    mean_wall_ns,
    measure_queueing_ns,
    rate_severity,
    untested_gap,
)
from zprof.rules.transfer.bandwidth import (
    BASELINE_RATIO,
    ExpectedBandwidth,
    GroupRate,
    OtherGroups,
    ReachedBandwidth,
    compare_unsized,
    expect_from_baseline,
    find_slow_rank,
    measure_group_rates,
)
from zprof.rules.transfer.small_messages import LATENCY_RATIO
from zprof.rules.transfer.traffic import read_step_traffic

_MIN_STEP_RATIO = 0.03
_MIN_COUNT_FOR_HIGH_CONFIDENCE = 10
#: Messages smaller than the largest by more than this factor (a norm, a flag) say nothing about bandwidth.
_SMALLEST = 64
#: Columns that are read of a slow group.
_COLUMNS = ("rank", "transfer_ns", "exposed_transfer_ns", "start_ns", "wait_start_ns", "wait_end_ns")
_FIX = (
    "NCCL: run once with NCCL_DEBUG=INFO and see which network it took (NET/Socket is TCP)\n"
    "gloo: GLOO_SOCKET_IFNAME=<the fast interface>\n"
    "nodes apart by a slow link: shard within a node, replicate across (HSDP)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slow:
    """One kind of collective of a group below its expected bandwidth; times are per step and rank."""

    rate: GroupRate
    expected: ExpectedBandwidth
    transfer_ns: float
    exposed_ns: float

    @property
    def seen(self) -> float:
        """Bus bandwidth in bytes per second."""
        return self.rate.bytes_per_s

    @property
    def saving_ns(self) -> tuple[float, float]:
        """Saving per step: both bounds of the module's formula."""
        lost = 1 - self.seen / self.expected.bytes_per_s
        return (lost * self.exposed_ns, min(self.exposed_ns, lost * self.transfer_ns))


def low_bus_bandwidth(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if large messages are slower than the baseline's, or than those of other groups."""
    return _check(analysis, baseline, None)


def check_against(expected_bytes_per_s: float) -> Check:
    """Return the same check against a bus bandwidth that the caller expects of the link."""

    def check(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
        return _check(analysis, baseline, ExpectedBandwidth(bytes_per_s=expected_bytes_per_s, of="you"))

    return check


def _check(
    analysis: RunAnalysis, baseline: RunAnalysis | None, said: ExpectedBandwidth | None
) -> Finding | Gap | None:
    if has_no_collectives(analysis):
        return untested_gap(Cause.LOW_BUS_BANDWIDTH, "no collective was recorded", "record the time window")
    reached = ReachedBandwidth(analysis)
    rates = _select_bandwidth_bound(reached) if analysis.run.world_size > 1 else []
    if not rates:
        is_unsized = not (analysis.collectives["bytes"] > 0).any()
        return _find_by_time(analysis, baseline) if baseline is not None and is_unsized else None
    before = ReachedBandwidth(baseline) if baseline is not None and len(baseline.collectives) else None
    others = OtherGroups(rates, reached)
    wanted = [
        (rate, said or expect_from_baseline(rate, reached, before) or others.expected(place, rate))
        for place, rate in enumerate(rates)
    ]
    known = [(rate, expected) for rate, expected in wanted if expected]
    if not known:
        return untested_gap(
            Cause.LOW_BUS_BANDWIDTH,
            "no bandwidth to expect: no baseline and no other group with messages of a similar kind and size",
            "give a baseline on the same link, or say --expected-busbw GB_PER_S",
        )
    low = [(rate, expected) for rate, expected in known if _is_low(rate, expected)]
    slow = list(_measure_slow_groups(analysis, low))
    fast = [rate for rate, expected in known if not _is_low(rate, expected)]
    return (
        _finding(analysis, slow, fast)
        if _largest_saving(slow)[1] >= _MIN_STEP_RATIO * mean_wall_ns(analysis)
        else None
    )


def _find_by_time(analysis: RunAnalysis, baseline: RunAnalysis) -> Finding | None:
    """Return a finding if messages of unknown size take clearly longer than the same ones of the baseline."""
    seen = compare_unsized(analysis, baseline)
    slow = [each for each in seen if each.reached_ratio < BASELINE_RATIO]
    low = sum((1 - each.reached_ratio) * each.exposed_ns for each in slow)
    high = sum(min(each.exposed_ns, (1 - each.reached_ratio) * each.transfer_ns) for each in slow)
    if high < _MIN_STEP_RATIO * mean_wall_ns(analysis):
        return None
    worst = min(slow, key=lambda each: each.reached_ratio)
    evidence = []
    for each in slow:
        name = each.kind.value
        evidence += [
            _reached_evidence(each.kind, each.reached_ratio),
            Evidence(key=f"{name}_count", what=f"{name}s examined", value=each.count, unit="count"),
            Evidence(
                key=f"{name}_exposed_transfer_per_step",
                what=f"{name} exposed transfer per step",
                value=each.exposed_ns,
                unit="ns",
            ),
        ]
    return make_finding(
        Cause.LOW_BUS_BANDWIDTH,
        sentence=f"{worst.kind.value}s take {1 / worst.reached_ratio:.1f} times as long as the same ones of "
        "the baseline; how much they move was not recorded",
        evidence=evidence,
        saving_ns=(low, high),
        severity=rate_severity(high, mean_wall_ns(analysis)),
        confidence=Confidence.MEDIUM,
        fix=_FIX,
        disprove="measure the link by itself (nccl-tests, iperf3) between the same hosts: if it is as fast "
        "as before, more is sent, or each message waits for something else",
    )


def _is_low(rate: GroupRate, expected: ExpectedBandwidth) -> bool:
    return rate.bytes_per_s < expected.least_ratio * expected.bytes_per_s


def _select_bandwidth_bound(reached: ReachedBandwidth) -> list[GroupRate]:
    """Return the groups and kinds whose messages' time is that of their bytes, not of the link's latency."""
    traffic = read_step_traffic(reached.analysis)
    late = {
        messages.kind
        for messages in (traffic.both if traffic else ())
        if (messages.latency_ns or 0.0) > LATENCY_RATIO * messages.each_ns
    }
    rates = [rate for rate in measure_group_rates(reached) if rate.kind not in late]
    most = max((rate.bytes for rate in rates), default=0.0)
    return [rate for rate in rates if rate.bytes * _SMALLEST >= most]


def _measure_slow_groups(
    analysis: RunAnalysis, low: list[tuple[GroupRate, ExpectedBandwidth]]
) -> Iterator[_Slow]:
    wanted = {(rate.kind.value, rate.group) for rate, _ in low}
    tables = group_by_texts(analysis.collectives, ("kind", "group"), _COLUMNS) if wanted else ()
    of_rate = {names: rows for names, rows in tables if names in wanted}
    steps_of = analysis.steps["rank"].value_counts()
    for rate, expected in low:
        rows = of_rate[rate.kind.value, rate.group]
        steps = max(1, int(steps_of.reindex(rows["rank"].unique()).sum()))
        yield _Slow(
            rate=rate,
            expected=expected,
            transfer_ns=float((rows["transfer_ns"] + measure_queueing_ns(rows)).sum()) / steps,
            exposed_ns=float((rows["exposed_transfer_ns"] + measure_queueing_ns(rows)).sum()) / steps,
        )


def _largest_saving(slow: list[_Slow]) -> tuple[float, float]:
    """Return the saving of the groups that lose most, one per kind: groups of other ranks run in parallel."""
    kinds: dict[CollectiveKind, tuple[float, float]] = {}
    for entry in slow:
        kinds[entry.rate.kind] = max(
            kinds.get(entry.rate.kind, (0.0, 0.0)), entry.saving_ns, key=lambda s: s[1]
        )
    return (sum(low for low, _ in kinds.values()), sum(high for _, high in kinds.values()))


def _finding(analysis: RunAnalysis, slow: list[_Slow], fast: list[GroupRate]) -> Finding:
    worst = max(slow, key=lambda entry: entry.saving_ns[1])
    saving = _largest_saving(slow)
    rank = find_slow_rank([entry.rate for entry in slow], fast)
    whose = "" if rank is None else f": all slow groups have rank {rank}, and no other has"
    return make_finding(
        Cause.LOW_BUS_BANDWIDTH,
        sentence=f"{worst.rate.kind.value}s move {format_rate(worst.seen)} of bus bandwidth where "
        f"{format_rate(worst.expected.bytes_per_s)} is expected "
        f"({format_percent(worst.seen / worst.expected.bytes_per_s)}){whose}",
        evidence=[fact for entry in slow for fact in _facts(entry, rank)],
        saving_ns=saving,
        severity=rate_severity(saving[1], mean_wall_ns(analysis)),
        confidence=Confidence.HIGH
        if worst.rate.count >= _MIN_COUNT_FOR_HIGH_CONFIDENCE
        else Confidence.MEDIUM,
        fix=_FIX if rank is None else f"look at the link of rank {rank}: cable, port, PCIe width\n{_FIX}",
        disprove="measure the link by itself (nccl-tests, iperf3) between the same hosts: if it is as slow "
        "there, the expectation was wrong",
    )


def read_reached_ratios(finding: Finding) -> dict[CollectiveKind, float]:
    """Return the share of the expected bandwidth that each slow kind of collective reaches."""
    seen = {entry.key: float(entry.value) for entry in finding.evidence}
    return {kind: seen[_reached_key(kind)] for kind in CollectiveKind if _reached_key(kind) in seen}


def _reached_key(kind: CollectiveKind) -> str:
    return f"{kind.value}_reached_ratio"


def _reached_evidence(kind: CollectiveKind, reached_ratio: float) -> Evidence:
    return Evidence(
        key=_reached_key(kind),
        what=f"{kind.value}, of the expected bus bandwidth",
        value=reached_ratio,
        unit="ratio",
    )


def _facts(entry: _Slow, rank: int | None) -> list[Evidence]:
    kind, expected = entry.rate.kind.value, entry.expected
    reached = entry.seen / expected.bytes_per_s
    return [
        Evidence(
            key=f"{kind}_bus_bandwidth",
            what=f"{kind} bus bandwidth, median of large",
            value=entry.seen,
            unit="bytes_per_s",
            rank=rank,
        ),
        Evidence(
            key=f"{kind}_expected_bus_bandwidth",
            what=f"as of {expected.of}",
            value=expected.bytes_per_s,
            unit="bytes_per_s",
        ),
        _reached_evidence(entry.rate.kind, reached),
        Evidence(key=f"{kind}_count", what=f"large {kind}s examined", value=entry.rate.count, unit="count"),
        Evidence(
            key=f"{kind}_exposed_transfer_per_step",
            what=f"{kind} exposed transfer and queue per step",
            value=entry.exposed_ns,
            unit="ns",
        ),
    ]
