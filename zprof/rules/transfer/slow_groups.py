"""Measure what groups lose that fall short of a bandwidth, and state it as evidence of a finding.

Which bandwidth a group falls short of is decided in ``low_bus_bandwidth``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.time.collective_rows import group_rows_by_text
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Evidence, Finding
from zprof.rules.rule import measure_queueing_ns, select_kind
from zprof.rules.transfer.bandwidth import (
    ExpectedBandwidth,
    GroupRate,
    ReachedBandwidth,
    measure_group_rates,
)
from zprof.rules.transfer.small_messages import LATENCY_RATIO
from zprof.rules.transfer.traffic import read_step_traffic

#: Messages smaller than the largest by more than this factor (a norm, a flag) carry no information about
#: bandwidth.
_MAX_SIZE_RATIO = 64
#: At 100 GB/s such a message takes longer than a network's latency: the shards of many ranks are that small.
_SURELY_LARGE_BYTES = 4 * 1024 * 1024
#: Columns needed for a slow group.
_COLUMNS = ("rank", "transfer_ns", "exposed_transfer_ns", "start_ns", "wait_start_ns", "wait_end_ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowGroup:
    """One kind of collective of a group below its expected bandwidth; times are per step and rank."""

    rate: GroupRate
    expected: ExpectedBandwidth
    transfer_ns: float
    exposed_ns: float

    @property
    def reached_ratio(self) -> float:
        """Return measured / expected."""
        return self.rate.reached_ratio(self.expected)

    @property
    def saving_ns(self) -> tuple[float, float]:
        """Lower and upper bound of the saving per step (formula in the module docstring)."""
        shortfall_ratio = 1 - self.reached_ratio
        return (shortfall_ratio * self.exposed_ns, min(self.exposed_ns, shortfall_ratio * self.transfer_ns))


def select_bandwidth_bound(reached: ReachedBandwidth) -> list[GroupRate]:
    """Return the groups and kinds that are bandwidth-bound rather than latency-bound."""
    traffic = read_step_traffic(reached.analysis)
    latency_bound_kinds = {
        messages.kind
        for messages in (traffic.both if traffic else ())
        if (messages.latency_ns or 0.0) > LATENCY_RATIO * messages.each_ns
    }
    rates = [rate for rate in measure_group_rates(reached) if rate.kind not in latency_bound_kinds]
    largest = max((rate.bytes for rate in rates), default=0.0)
    return [
        rate for rate in rates if rate.bytes * _MAX_SIZE_RATIO >= largest or rate.bytes >= _SURELY_LARGE_BYTES
    ]


def measure_slow_groups(
    analysis: RunAnalysis, groups: Sequence[tuple[GroupRate, ExpectedBandwidth]]
) -> list[SlowGroup]:
    """Return what each of the groups loses."""
    times = measure_times(analysis, [rate for rate, _ in groups])
    return [
        SlowGroup(rate=rate, expected=expected, transfer_ns=transfer_ns, exposed_ns=exposed_ns)
        for (rate, expected), (transfer_ns, exposed_ns) in zip(groups, times, strict=True)
    ]


def measure_times(analysis: RunAnalysis, rates: Sequence[GroupRate]) -> list[tuple[float, float]]:
    """Return transfer and exposed transfer of each group in ns per step and rank, with their queues."""
    keys = {(rate.kind.value, rate.group) for rate in rates}
    tables = group_rows_by_text(analysis.collectives, ("kind", "group"), _COLUMNS) if keys else ()
    rows_by_kind_and_group = {names: rows for names, rows in tables if names in keys}
    steps_by_rank = analysis.steps["rank"].value_counts()
    found = []
    for rate in rates:
        rows = rows_by_kind_and_group[rate.kind.value, rate.group]
        steps = max(1, int(steps_by_rank.reindex(rows["rank"].unique()).sum()))
        queueing_ns = measure_queueing_ns(rows)
        transfer_ns = float((rows["transfer_ns"] + queueing_ns).sum()) / steps
        found.append((transfer_ns, float((rows["exposed_transfer_ns"] + queueing_ns).sum()) / steps))
    return found


def sum_largest_savings(slow: list[SlowGroup]) -> tuple[float, float]:
    """Sum the largest saving of each kind: groups on different ranks run in parallel."""
    kinds: dict[CollectiveKind, tuple[float, float]] = {}
    for entry in slow:
        kinds[entry.rate.kind] = max(
            kinds.get(entry.rate.kind, (0.0, 0.0)), entry.saving_ns, key=lambda s: s[1]
        )
    return (sum(low for low, _ in kinds.values()), sum(high for _, high in kinds.values()))


def _measured_key(kind: CollectiveKind) -> str:
    return f"{kind.value}_bus_bandwidth"


def _expected_key(kind: CollectiveKind) -> str:
    return f"{kind.value}_expected_bus_bandwidth"


def list_evidence(slow: Sequence[SlowGroup], rank: int | None) -> list[Evidence]:
    """List the facts of each kind, of the group that loses most; other groups of the kind are counted."""
    found: list[Evidence] = []
    for kind in dict.fromkeys(entry.rate.kind for entry in slow):
        groups = [entry for entry in slow if entry.rate.kind is kind]
        worst = max(groups, key=lambda entry: entry.saving_ns[1])
        found += _list_kind_evidence(worst, len(groups), rank)
    return found


def _list_kind_evidence(worst: SlowGroup, groups: int, rank: int | None) -> list[Evidence]:
    kind, expected = worst.rate.kind, worst.expected
    name = kind.value
    return [
        Evidence(
            key=_measured_key(kind),
            what=f"{name} bus bandwidth, median of large messages",
            value=worst.rate.bytes_per_s,
            unit="bytes_per_s",
            rank=rank,
        ),
        Evidence(
            key=_expected_key(kind),
            what=f"expected, from {expected.of}",
            value=expected.bytes_per_s,
            unit="bytes_per_s",
        ),
        reached_evidence(kind, worst.reached_ratio),
        Evidence(
            key=f"{name}_slow_groups",
            what=f"groups whose {name}s are slow",
            value=groups,
            unit="count",
        ),
        Evidence(key=f"{name}_count", what=f"large {name}s examined", value=worst.rate.count, unit="count"),
        Evidence(
            key=f"{name}_exposed_transfer_per_step",
            what=f"{name} exposed transfer and queue per step",
            value=worst.exposed_ns,
            unit="ns",
        ),
    ]


def read_reached_ratios(finding: Finding) -> dict[CollectiveKind, float]:
    """Return the share of the expected bandwidth that each slow kind of collective reaches."""
    values = {entry.key: float(entry.value) for entry in finding.evidence}
    return {kind: values[_reached_key(kind)] for kind in CollectiveKind if _reached_key(kind) in values}


def _reached_key(kind: CollectiveKind) -> str:
    return f"{kind.value}_reached_ratio"


def reached_evidence(kind: CollectiveKind, reached_ratio: float) -> Evidence:
    """Build the evidence that ``read_reached_ratios`` reads."""
    return Evidence(
        key=_reached_key(kind),
        what=f"{kind.value} bus bandwidth relative to the expected one",
        value=reached_ratio,
        unit="ratio",
    )


def select_slow_rows(analysis: RunAnalysis, finding: Finding) -> dict[int, float]:
    """Return the share of the expected bandwidth that a finding states, by row of the slow collectives.

    These are the groups of the kind that are closer to the slow figure than to the expected one.
    """
    facts = {entry.key: float(entry.value) for entry in finding.evidence}
    rates = select_bandwidth_bound(ReachedBandwidth(analysis))
    found: dict[int, float] = {}
    for kind, ratio in read_reached_ratios(finding).items():
        rows = select_kind(analysis.collectives, kind)
        measured, expected = facts.get(_measured_key(kind)), facts.get(_expected_key(kind))
        if measured is not None and expected is not None:
            slow = {
                rate.group
                for rate in rates
                if rate.kind is kind and rate.bytes_per_s < math.sqrt(measured * expected)
            }
            rows = rows[rows["group"].astype(str).isin(slow)]
        found.update(dict.fromkeys(rows.index.tolist(), ratio))
    return found
