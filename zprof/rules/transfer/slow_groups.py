"""Measure what groups lose that fall short of a bandwidth, and state it as evidence of a finding.

Which bandwidth a group falls short of is decided in ``low_bus_bandwidth``.
"""

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.per_step import measure_queueing_ns
from zprof.analysis.time.collective_rows import group_rows_by_text, select_kind
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Finding
from zprof.rules.evidence import Fact, make_fact
from zprof.rules.transfer.small_messages import LATENCY_RATIO
from zprof.step.bandwidth import (
    ExpectedBandwidth,
    GroupRate,
    ReachedBandwidth,
    measure_group_rates,
)
from zprof.step.traffic import read_step_traffic

#: Messages smaller than the largest by more than this factor (a norm, a flag) carry no information about
#: bandwidth.
_MAX_SIZE_RATIO = 64
#: At 100 GB/s such a message takes longer than a network's latency: the shards of many ranks are that small.
_SURELY_LARGE_BYTES = 4 * 1024 * 1024
#: Columns needed for a slow group.
_COLUMNS = ("rank", "transfer_ns", "exposed_transfer_ns", "start_ns", "wait_start_ns", "wait_end_ns")


class SlowGroup(Struct, frozen=True, kw_only=True):
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
    ranks, counts = np.unique(analysis.steps.ints("rank"), return_counts=True)
    found = []
    for rate in rates:
        rows = rows_by_kind_and_group[rate.kind.value, rate.group]
        steps = max(1, int(counts[np.isin(ranks, rows.ints("rank"))].sum()))
        queueing_ns = measure_queueing_ns(rows)
        transfer_ns = float((rows.ints("transfer_ns") + queueing_ns).sum()) / steps
        found.append((transfer_ns, float((rows.ints("exposed_transfer_ns") + queueing_ns).sum()) / steps))
    return found


def sum_largest_savings(slow: list[SlowGroup]) -> tuple[float, float]:
    """Sum the largest saving of each kind: groups on different ranks run in parallel."""
    kinds: dict[CollectiveKind, tuple[float, float]] = {}
    for entry in slow:
        kinds[entry.rate.kind] = max(
            kinds.get(entry.rate.kind, (0.0, 0.0)), entry.saving_ns, key=lambda s: s[1]
        )
    return (sum(low for low, _ in kinds.values()), sum(high for _, high in kinds.values()))


def list_evidence(slow: Sequence[SlowGroup], rank: int | None) -> list[Fact]:
    """List the facts of each kind, of the group that loses most; other groups of the kind are counted."""
    found: list[Fact] = []
    for kind in dict.fromkeys(entry.rate.kind for entry in slow):
        groups = [entry for entry in slow if entry.rate.kind is kind]
        worst = max(groups, key=lambda entry: entry.saving_ns[1])
        found += _list_kind_evidence(worst, len(groups), rank)
    return found


def _list_kind_evidence(worst: SlowGroup, groups: int, rank: int | None) -> list[Fact]:
    kind, expected = worst.rate.kind, worst.expected
    return [
        make_fact("{kind}_bus_bandwidth", worst.rate.bytes_per_s, rank=rank, kind=kind),
        make_fact("{kind}_expected_bus_bandwidth", expected.bytes_per_s, kind=kind, reference=expected.of),
        reached_evidence(kind, worst.reached_ratio),
        make_fact("{kind}_slow_groups", groups, kind=kind),
        make_fact("{kind}_count/large", worst.rate.count, kind=kind),
        make_fact("{kind}_exposed_transfer_per_step/queued", worst.exposed_ns, kind=kind),
    ]


def read_reached_ratios(finding: Finding) -> dict[CollectiveKind, float]:
    """Return the share of the expected bandwidth that each slow kind of collective reaches."""
    values = {entry.key: float(entry.value) for entry in finding.evidence}
    keys = {kind: f"{kind}_reached_ratio" for kind in CollectiveKind}
    return {kind: values[key] for kind, key in keys.items() if key in values}


def reached_evidence(kind: CollectiveKind, reached_ratio: float) -> Fact:
    """Build the evidence that ``read_reached_ratios`` reads."""
    return make_fact("{kind}_reached_ratio", reached_ratio, kind=kind)


def select_slow_rows(analysis: RunAnalysis, finding: Finding) -> dict[int, float]:
    """Return the share of the expected bandwidth that a finding states, by row of the slow collectives.

    These are the groups of the kind that are closer to the slow figure than to the expected one.
    """
    facts = {entry.key: float(entry.value) for entry in finding.evidence}
    rates = select_bandwidth_bound(ReachedBandwidth(analysis))
    found: dict[int, float] = {}
    for kind, ratio in read_reached_ratios(finding).items():
        rows = select_kind(analysis.collectives, kind)
        measured, expected = facts.get(f"{kind}_bus_bandwidth"), facts.get(f"{kind}_expected_bus_bandwidth")
        if measured is not None and expected is not None:
            slow = {
                rate.group
                for rate in rates
                if rate.kind is kind and rate.bytes_per_s < math.sqrt(measured * expected)
            }
            rows = rows.at(rows.texts("group").equals(*slow))
        found.update(dict.fromkeys(rows.row.tolist(), ratio))
    return found
