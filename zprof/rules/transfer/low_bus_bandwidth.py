"""ZP402 low_bus_bandwidth: large messages reach far less than the expected bus bandwidth.

Bus bandwidth of one collective = bytes * bus factor / T, with T from the last start to the first end, so
waiting for a late rank does not count. Only large, bandwidth-bound messages are considered. The expected
bandwidth is the value given by the caller, else the one the baseline reached with messages of a comparable
kind and a similar size, else the one other groups of the run reach. If no sizes were recorded, the messages
of a kind are compared by time with the same messages of the baseline. A rank that belongs to every slow group
and to no fast one has the slow link. A group is slow below half the expected bandwidth, or below 80 % of the
baseline's (docs/thresholds.md).

With q = measured / expected, a transfer t with an exposed part e shrinks to q t, and so does the queueing it
causes (counted in both). The saving lies between (1 - q) e and min(e, (1 - q) t). If the step can be
replayed, it is the gain of the replay with transfers of q t.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.time.collective_rows import group_rows_by_text
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
#: Messages smaller than the largest by more than this factor (a norm, a flag) carry no information about
#: bandwidth.
_MAX_SIZE_RATIO = 64
#: Columns needed for a slow group.
_COLUMNS = ("rank", "transfer_ns", "exposed_transfer_ns", "start_ns", "wait_start_ns", "wait_end_ns")
_FIX = (
    "NCCL: run once with NCCL_DEBUG=INFO and check which network it uses (NET/Socket is TCP)\n"
    "gloo: GLOO_SOCKET_IFNAME=<the fast interface>\n"
    "nodes connected by a slow link: shard within a node, replicate across nodes (HSDP)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SlowGroup:
    """One kind of collective of a group below its expected bandwidth; times are per step and rank."""

    rate: GroupRate
    expected: ExpectedBandwidth
    transfer_ns: float
    exposed_ns: float

    @property
    def measured_bytes_per_s(self) -> float:
        """Bus bandwidth in bytes per second."""
        return self.rate.bytes_per_s

    @property
    def saving_ns(self) -> tuple[float, float]:
        """Lower and upper bound of the saving per step (formula in the module docstring)."""
        shortfall_ratio = 1 - self.measured_bytes_per_s / self.expected.bytes_per_s
        return (shortfall_ratio * self.exposed_ns, min(self.exposed_ns, shortfall_ratio * self.transfer_ns))


def low_bus_bandwidth(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if large messages are slower than the baseline's, or than those of other groups."""
    return _check(analysis, baseline, None)


def check_against(expected_bytes_per_s: float) -> Check:
    """Return a check that compares with a given bus bandwidth."""

    def check(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
        return _check(analysis, baseline, ExpectedBandwidth(bytes_per_s=expected_bytes_per_s, of="you"))

    return check


def _check(
    analysis: RunAnalysis, baseline: RunAnalysis | None, user_expectation: ExpectedBandwidth | None
) -> Finding | Gap | None:
    if has_no_collectives(analysis):
        return untested_gap(Cause.LOW_BUS_BANDWIDTH, "no collective was recorded", "record the time window")
    reached = ReachedBandwidth(analysis)
    rates = _select_bandwidth_bound(reached) if analysis.run.world_size > 1 else []
    if not rates:
        is_unsized = not (analysis.collectives["bytes"] > 0).any()
        return _find_by_time(analysis, baseline) if baseline is not None and is_unsized else None
    baseline_reached = (
        ReachedBandwidth(baseline) if baseline is not None and len(baseline.collectives) else None
    )
    others = OtherGroups(rates, reached)
    expectations = [
        (
            rate,
            user_expectation
            or expect_from_baseline(rate, reached, baseline_reached)
            or others.expected(place, rate),
        )
        for place, rate in enumerate(rates)
    ]
    known = [(rate, expected) for rate, expected in expectations if expected]
    if not known:
        return untested_gap(
            Cause.LOW_BUS_BANDWIDTH,
            "the expected bandwidth is unknown: no baseline, and no other group has messages of similar "
            "kind and size",
            "pass a baseline on the same link, or --expected-busbw GB_PER_S",
        )
    low = [(rate, expected) for rate, expected in known if _is_low(rate, expected)]
    slow = list(_measure_slow_groups(analysis, low))
    fast = [rate for rate, expected in known if not _is_low(rate, expected)]
    return (
        _build_finding(analysis, slow, fast)
        if _largest_saving(slow)[1] >= _MIN_STEP_RATIO * mean_wall_ns(analysis)
        else None
    )


def _find_by_time(analysis: RunAnalysis, baseline: RunAnalysis) -> Finding | None:
    """Return a finding if messages of unknown size take clearly longer than in the baseline."""
    comparisons = compare_unsized(analysis, baseline)
    slow = [each for each in comparisons if each.reached_ratio < BASELINE_RATIO]
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
        sentence=f"{worst.kind.value}s take {1 / worst.reached_ratio:.1f} times as long as in "
        "the baseline; their sizes were not recorded",
        evidence=evidence,
        saving_ns=(low, high),
        severity=rate_severity(high, mean_wall_ns(analysis)),
        confidence=Confidence.MEDIUM,
        fix=_FIX,
        disprove="measure the link by itself (nccl-tests, iperf3) between the same hosts: if it is as fast "
        "as before, messages are larger or wait for something else",
    )


def _is_low(rate: GroupRate, expected: ExpectedBandwidth) -> bool:
    return rate.bytes_per_s < expected.least_ratio * expected.bytes_per_s


def _select_bandwidth_bound(reached: ReachedBandwidth) -> list[GroupRate]:
    """Return the groups and kinds that are bandwidth-bound rather than latency-bound."""
    traffic = read_step_traffic(reached.analysis)
    latency_bound_kinds = {
        messages.kind
        for messages in (traffic.both if traffic else ())
        if (messages.latency_ns or 0.0) > LATENCY_RATIO * messages.each_ns
    }
    rates = [rate for rate in measure_group_rates(reached) if rate.kind not in latency_bound_kinds]
    largest = max((rate.bytes for rate in rates), default=0.0)
    return [rate for rate in rates if rate.bytes * _MAX_SIZE_RATIO >= largest]


def _measure_slow_groups(
    analysis: RunAnalysis, low: list[tuple[GroupRate, ExpectedBandwidth]]
) -> Iterator[_SlowGroup]:
    keys = {(rate.kind.value, rate.group) for rate, _ in low}
    tables = group_rows_by_text(analysis.collectives, ("kind", "group"), _COLUMNS) if keys else ()
    rows_by_kind_and_group = {names: rows for names, rows in tables if names in keys}
    steps_by_rank = analysis.steps["rank"].value_counts()
    for rate, expected in low:
        rows = rows_by_kind_and_group[rate.kind.value, rate.group]
        steps = max(1, int(steps_by_rank.reindex(rows["rank"].unique()).sum()))
        yield _SlowGroup(
            rate=rate,
            expected=expected,
            transfer_ns=float((rows["transfer_ns"] + measure_queueing_ns(rows)).sum()) / steps,
            exposed_ns=float((rows["exposed_transfer_ns"] + measure_queueing_ns(rows)).sum()) / steps,
        )


def _largest_saving(slow: list[_SlowGroup]) -> tuple[float, float]:
    """Sum the largest saving of each kind: groups on different ranks run in parallel."""
    kinds: dict[CollectiveKind, tuple[float, float]] = {}
    for entry in slow:
        kinds[entry.rate.kind] = max(
            kinds.get(entry.rate.kind, (0.0, 0.0)), entry.saving_ns, key=lambda s: s[1]
        )
    return (sum(low for low, _ in kinds.values()), sum(high for _, high in kinds.values()))


def _build_finding(analysis: RunAnalysis, slow: list[_SlowGroup], fast: list[GroupRate]) -> Finding:
    worst = max(slow, key=lambda entry: entry.saving_ns[1])
    saving = _largest_saving(slow)
    rank = find_slow_rank([entry.rate for entry in slow], fast)
    slow_rank_note = "" if rank is None else f": all slow groups contain rank {rank}, and no fast group does"
    return make_finding(
        Cause.LOW_BUS_BANDWIDTH,
        sentence=f"{worst.rate.kind.value}s reach {format_rate(worst.measured_bytes_per_s)} of bus "
        f"bandwidth, but {format_rate(worst.expected.bytes_per_s)} is expected "
        f"({format_percent(worst.measured_bytes_per_s / worst.expected.bytes_per_s)}){slow_rank_note}",
        evidence=[fact for entry in slow for fact in _list_evidence(entry, rank)],
        saving_ns=saving,
        severity=rate_severity(saving[1], mean_wall_ns(analysis)),
        confidence=Confidence.HIGH
        if worst.rate.count >= _MIN_COUNT_FOR_HIGH_CONFIDENCE
        else Confidence.MEDIUM,
        fix=_FIX if rank is None else f"check the link of rank {rank}: cable, port, PCIe width\n{_FIX}",
        disprove="measure the link by itself (nccl-tests, iperf3) between the same hosts: if it is as slow "
        "there, the expected value was too high",
    )


def read_reached_ratios(finding: Finding) -> dict[CollectiveKind, float]:
    """Return the share of the expected bandwidth that each slow kind of collective reaches."""
    values = {entry.key: float(entry.value) for entry in finding.evidence}
    return {kind: values[_reached_key(kind)] for kind in CollectiveKind if _reached_key(kind) in values}


def _reached_key(kind: CollectiveKind) -> str:
    return f"{kind.value}_reached_ratio"


def _reached_evidence(kind: CollectiveKind, reached_ratio: float) -> Evidence:
    return Evidence(
        key=_reached_key(kind),
        what=f"{kind.value} bus bandwidth relative to the expected one",
        value=reached_ratio,
        unit="ratio",
    )


def _list_evidence(entry: _SlowGroup, rank: int | None) -> list[Evidence]:
    kind, expected = entry.rate.kind.value, entry.expected
    reached = entry.measured_bytes_per_s / expected.bytes_per_s
    return [
        Evidence(
            key=f"{kind}_bus_bandwidth",
            what=f"{kind} bus bandwidth, median of large messages",
            value=entry.measured_bytes_per_s,
            unit="bytes_per_s",
            rank=rank,
        ),
        Evidence(
            key=f"{kind}_expected_bus_bandwidth",
            what=f"expected, from {expected.of}",
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
