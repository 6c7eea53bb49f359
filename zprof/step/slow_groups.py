"""Compare the bandwidth of each group with what it should reach, and measure what slow groups lose.

With q = measured / expected, a transfer t with an exposed part e shrinks to q t, and so does the queueing it
causes (counted in both). The saving lies between (1 - q) e and min(e, (1 - q) t).

Most groups have no name that says what they connect, so replicas are also recognized by their traffic: ranks
of different sharding groups that all_reduce what the reduce_scatters left of the gradients.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Floats
from zprof.analysis.group_roles import GroupRole, find_role
from zprof.analysis.per_step import mean_per_step, mean_wall_ns, measure_queueing_ns
from zprof.analysis.signal import Fact, Untested, make_fact
from zprof.analysis.time.collective_rows import group_rows_by_text, parse_group_ranks, select_kind
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Finding
from zprof.model.formatting import format_ns, format_rate
from zprof.step.bandwidth import (
    ExpectedBandwidth,
    GroupRate,
    LinkReferences,
    ReachedBandwidth,
    expect_from_baseline,
    measure_group_rates,
)
from zprof.step.links import max_normal_latency_ns
from zprof.step.small_messages import LATENCY_RATIO
from zprof.step.traffic import read_step_traffic

#: Messages smaller than the largest by more than this factor (a norm, a flag) carry no information about
#: bandwidth.
_MAX_SIZE_RATIO = 64
#: At 100 GB/s such a message takes longer than a network's latency: the shards of many ranks are that small.
_SURELY_LARGE_BYTES = 4 * 1024 * 1024
#: Minimum share of the step exposed in groups that have no faster reference, to say so.
MIN_UNTESTED_RATIO = 0.10
_REPLICAS = "between the replicas"
_PLACES: Mapping[GroupRole, str] = {
    GroupRole.REPLICA: _REPLICAS,
    GroupRole.EXPERT: "of expert parallelism",
    GroupRole.TENSOR: "of tensor parallelism",
    GroupRole.PIPELINE: "of the pipeline",
    GroupRole.CONTEXT: "of context parallelism",
    GroupRole.DATA: "of data parallelism",
}
#: Shards are padded, so that the bytes of replicas are not exactly those of the shards.
_MAX_PADDING_RATIO = 0.1
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
        """Lower and upper bound of the saving per step, by the formula of the module."""
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


class LinkComparison(Struct, frozen=True, kw_only=True):
    """The groups of a run: ``low`` with what each falls short of, and ``fast``.

    ``unvouched``: groups that only groups as slow as themselves, or none, can be compared with.
    """

    low: list[tuple[GroupRate, ExpectedBandwidth]]
    fast: list[GroupRate]
    unvouched: list[GroupRate]


def compare_links(
    rates: list[GroupRate], reached: ReachedBandwidth, baseline: RunAnalysis | None
) -> LinkComparison:
    """Compare groups with what the user expects, else the baseline, else the run's other groups."""
    expected_bytes_per_s = reached.analysis.expected_bus_bytes_per_s
    before = ReachedBandwidth(baseline) if baseline is not None and len(baseline.collectives) else None
    references = LinkReferences(rates, reached)
    low, fast, unvouched = [], [], []
    for place, rate in enumerate(rates):
        given = expect_from_baseline(rate, reached, before)
        if expected_bytes_per_s:  # measured with large messages, whose latency does not count
            latency_ns = max_normal_latency_ns(rate.ranks)
            given = ExpectedBandwidth(bytes_per_s=expected_bytes_per_s, of="you", latency_ns=latency_ns)
        expected = [given] if given else list(references.list_expected(place, rate))
        missed = next((each for each in expected if (rate.reached_ratio(each) < each.least_ratio)), None)
        if missed is not None:
            low.append((rate, missed))
        elif expected:
            fast.append(rate)
        if missed is None and given is None:
            unvouched.append(rate)
    return LinkComparison(low=low, fast=fast, unvouched=unvouched)


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


def list_slow_facts(slow: Sequence[SlowGroup], rank: int | None) -> list[Fact]:
    """List the facts of each kind, of the group that loses most; other groups of the kind are counted."""
    found: list[Fact] = []
    for kind in dict.fromkeys(entry.rate.kind for entry in slow):
        groups = [entry for entry in slow if entry.rate.kind is kind]
        worst = max(groups, key=lambda entry: entry.saving_ns[1])
        found += _list_kind_facts(worst, len(groups), rank)
    return found


def _list_kind_facts(worst: SlowGroup, groups: int, rank: int | None) -> list[Fact]:
    kind, expected = worst.rate.kind, worst.expected
    return [
        make_fact("{kind}_bus_bandwidth", worst.rate.bytes_per_s, rank=rank, kind=kind),
        make_fact("{kind}_expected_bus_bandwidth", expected.bytes_per_s, kind=kind, reference=expected.of),
        make_reached_fact(kind, worst.reached_ratio),
        make_fact("{kind}_slow_groups", groups, kind=kind),
        make_fact("{kind}_count", worst.rate.count, kind=kind, size="large "),
        make_fact("{kind}_exposed_transfer_per_step", worst.exposed_ns, kind=kind, queue=" and queue"),
    ]


def read_reached_ratios(finding: Finding) -> dict[CollectiveKind, float]:
    """Return the share of the expected bandwidth that each slow kind of collective reaches."""
    values = {entry.key: float(entry.value) for entry in finding.evidence}
    keys = {kind: f"{kind}_reached_ratio" for kind in CollectiveKind}
    return {kind: values[key] for kind, key in keys.items() if key in values}


def make_reached_fact(kind: CollectiveKind, reached_ratio: float) -> Fact:
    """Build the fact that ``read_reached_ratios`` reads."""
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


def find_unknown_sizes(reached: ReachedBandwidth) -> Untested | None:
    """Return why no bandwidth is known if much of the step is exposed in transfers."""
    analysis = reached.analysis
    exposed_ns = mean_per_step(analysis, float(analysis.collectives.ints("exposed_transfer_ns").sum()))
    if exposed_ns < MIN_UNTESTED_RATIO * mean_wall_ns(analysis) or measure_group_rates(reached):
        return None  # what was measured is mostly latency
    if not (analysis.collectives.ints("bytes") > 0).any():
        return Untested(
            reason="the recording does not say how many bytes the collectives move",
            remedy="pass a baseline on the same link, or record with torch 2.2 or newer",
        )
    return Untested(
        reason="no collective was matched on all of its ranks, so how long its bytes take is unknown",
        remedy="record all ranks in the same steps",
    )


def find_unvouched_links(analysis: RunAnalysis, comparison: LinkComparison) -> Untested | None:
    """Return why links are unknown if none can be compared, or if much is exposed in those that cannot."""
    rates = comparison.unvouched
    if not rates:
        return None
    exposed = {kind: (0.0, rates[0]) for kind in dict.fromkeys(rate.kind for rate in rates)}
    for rate, (_, exposed_ns) in zip(rates, measure_times(analysis, rates), strict=True):
        exposed[rate.kind] = max(exposed[rate.kind], (exposed_ns, rate), key=lambda entry: entry[0])
    total_ns = sum(exposed_ns for exposed_ns, _ in exposed.values())
    has_reference = comparison.low or comparison.fast
    if has_reference and total_ns < MIN_UNTESTED_RATIO * mean_wall_ns(analysis):
        return None
    worst = max(exposed.values(), key=lambda entry: entry[0])[1]
    others = ""
    if len({rate.group for rate in rates}) > 1:
        others = f", the fastest group of this job {format_rate(max(rate.bytes_per_s for rate in rates))}"
    return Untested(
        reason=f"the expected bandwidth is unknown: {describe_messages(analysis, worst)} reach "
        f"{format_rate(worst.bytes_per_s)}{others}, and neither a baseline nor a faster group tells what the "
        "link should give",
        remedy="pass a baseline on the same link, or --expected-busbw GB_PER_S",
    )


def state_unknown_network(analysis: RunAnalysis, worst: SlowGroup) -> Untested:
    """State that groups between hosts reach much less than the fastest link, which may be by design."""
    return Untested(
        reason=f"{describe_messages(analysis, worst.rate)} cross hosts and reach "
        f"{format_rate(worst.rate.bytes_per_s)}, the fastest link of this job reaches "
        f"{format_rate(worst.expected.bytes_per_s)}, and what the network should give is unknown "
        f"({format_ns(worst.exposed_ns)} exposed {analysis.time.basis})",
        remedy="measure the network between these hosts (nccl-tests) and pass --expected-busbw GB_PER_S, "
        "or a baseline on the same link",
    )


def describe_messages(analysis: RunAnalysis, rate: GroupRate) -> str:
    """Return the kind of a group's messages and what they connect: "all_reduces between the replicas"."""
    return f"{rate.kind.value}s {describe_group(analysis, rate.group, rate.ranks)}"


def describe_group(analysis: RunAnalysis, group: str, size: int) -> str:
    """Return words that follow the kind of a collective: "between the replicas"."""
    role = find_role(group.partition("#")[2])
    if role is not None:
        return _PLACES[role]
    if _connects_replicas(analysis.collectives, group):
        return _REPLICAS
    return "of all ranks" if size in (0, analysis.run.world_size) else f"in groups of {size} ranks"


def _connects_replicas(collectives: Columns, group: str) -> bool:
    """Return True if each rank has its own sharding group and reduces its shard of the gradients."""
    ranks = parse_group_ranks(group)
    rows = collectives.at(np.isin(collectives.ints("rank"), sorted(ranks)))
    scatters = select_kind(rows, CollectiveKind.REDUCE_SCATTER)
    reduces = select_kind(rows.at(rows.texts("group").equals(group)), CollectiveKind.ALL_REDUCE)
    if not ranks or not len(scatters) or not len(reduces):
        return False
    groups = scatters.texts("group").list_distinct()
    if any(len(ranks & parse_group_ranks(name)) != 1 for name in groups):
        return False
    shard_bytes = _sum_by_rank(scatters, scatters.ints("bytes") / scatters.ints("group_size"))
    reduced_bytes = _sum_by_rank(reduces, reduces.floats("bytes"))
    return all(
        shard_bytes.get(rank, 0.0) > 0 and abs(reduced / shard_bytes[rank] - 1) <= _MAX_PADDING_RATIO
        for rank, reduced in reduced_bytes.items()
    )


def _sum_by_rank(rows: Columns, values: Floats) -> dict[int, float]:
    ranks = rows.group_by("rank")
    return dict(zip(rows.ints("rank")[ranks.first].tolist(), ranks.sum(values).tolist(), strict=True))
