"""ZP402 low_bus_bandwidth: large messages reach far less than the expected bus bandwidth.

Bus bandwidth of one collective = bytes * bus factor / T, with T from the last start to the first end, so
waiting for a late rank does not count. Only large, bandwidth-bound messages are considered. The expected
bandwidth is the value given by the caller, else the one the baseline reached with messages of a comparable
kind and a similar size, else the one that other groups of the run reach, and at last the fastest link of the
run (``bandwidth``). If no sizes were recorded, the messages of a kind are compared by time with the
same messages of the baseline. A rank that belongs to every slow group and to no fast one has the slow link. A
group is slow below half the expected bandwidth, or below 80 % of the baseline's (docs/thresholds.md). Groups
between hosts that are slower than the fastest link may use another one by design: they are reported as a gap
with both figures. So are groups that are exposed and have no faster link to compare with.

With q = measured / expected, a transfer t with an exposed part e shrinks to q t, and so does the queueing it
causes (counted in both). The saving lies between (1 - q) e and min(e, (1 - q) t). If the step can be
replayed, it is the gain of the replay with transfers of q t.
"""

from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.per_step import has_no_collectives, mean_per_step, mean_wall_ns
from zprof.analysis.time.collective_rows import select_kind
from zprof.causes.fix import is_on_cpu
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.formatting import format_ns, format_percent, format_rate
from zprof.model.gaps import Gap
from zprof.rules.evidence import Fact, make_fact
from zprof.rules.rule import make_finding, rate_severity, untested_gap
from zprof.rules.transfer.group_places import GroupPlaces
from zprof.rules.transfer.slow_groups import (
    SlowGroup,
    list_evidence,
    measure_slow_groups,
    measure_times,
    reached_evidence,
    select_bandwidth_bound,
    sum_largest_savings,
)
from zprof.step.bandwidth import (
    BASELINE_RATIO,
    ExpectedBandwidth,
    GroupRate,
    LinkReferences,
    ReachedBandwidth,
    compare_unsized,
    expect_from_baseline,
    find_slow_rank,
    measure_group_rates,
)
from zprof.step.links import MAX_SHARED_RATIO, max_normal_latency_ns, measure_shared_ratio

_MIN_STEP_RATIO = 0.03
_MIN_COUNT_FOR_HIGH_CONFIDENCE = 10
#: Minimum share of the step exposed in groups that have no faster reference, for a gap.
_MIN_UNTESTED_RATIO = 0.10
_BACKEND_FIXES = {
    "nccl": "run once with NCCL_DEBUG=INFO and check which network it uses (NET/Socket is TCP)",
    "gloo": "GLOO_SOCKET_IFNAME=<the fast interface>",
}
_SLOW_NODES_FIX = "nodes connected by a slow link: shard within a node, replicate across nodes (HSDP)"


def low_bus_bandwidth(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if large messages are slower than the baseline's, or than those of other groups."""
    given = analysis.expected_bus_bytes_per_s
    user_expectation = ExpectedBandwidth(bytes_per_s=given, of="you") if given else None
    if has_no_collectives(analysis):
        return untested_gap(Cause.LOW_BUS_BANDWIDTH, "no collective was recorded", "record the time window")
    reached = ReachedBandwidth(analysis)
    rates = select_bandwidth_bound(reached) if analysis.run.world_size > 1 else []
    if not rates:
        is_unsized = not (analysis.collectives.ints("bytes") > 0).any()
        if baseline is not None and is_unsized:
            return _find_by_time(analysis, baseline)
        # A gap if much of the step is exposed in transfers whose bandwidth cannot be computed.
        exposed_ns = mean_per_step(analysis, float(analysis.collectives.ints("exposed_transfer_ns").sum()))
        is_worth_it = exposed_ns >= _MIN_UNTESTED_RATIO * mean_wall_ns(analysis)
        if analysis.run.world_size == 1 or not is_worth_it or measure_group_rates(reached):
            return None  # what was measured is mostly latency
        if is_unsized:
            return untested_gap(
                Cause.LOW_BUS_BANDWIDTH,
                "the recording does not say how many bytes the collectives move",
                "pass a baseline on the same link, or record with torch 2.2 or newer",
            )
        return untested_gap(
            Cause.LOW_BUS_BANDWIDTH,
            "no collective was matched on all of its ranks, so how long its bytes take is unknown",
            "record all ranks in the same steps",
        )
    comparison = _compare(rates, reached, baseline, user_expectation)
    min_saving = _MIN_STEP_RATIO * mean_wall_ns(analysis)
    slow = measure_slow_groups(analysis, comparison.low)
    proven = [group for group in slow if group.expected.proof is Confidence.HIGH]
    suspected = [group for group in slow if group.expected.proof in (Confidence.MEDIUM, Confidence.LOW)]
    unproven = [group for group in slow if group.expected.proof is None]
    if sum_largest_savings(proven)[1] >= min_saving:
        others = [*suspected, *unproven]
        return _build_finding(analysis, proven, comparison.fast, others)
    if sum_largest_savings(suspected)[1] >= min_saving:
        return _build_finding(analysis, suspected, comparison.fast, unproven)
    if sum_largest_savings(unproven)[1] >= min_saving:
        return _build_network_gap(analysis, max(unproven, key=lambda group: group.saving_ns[1]))
    return _find_untested(analysis, comparison)


class _LinkComparison(Struct, frozen=True, kw_only=True):
    """The groups of a run: ``low`` with what each falls short of, and ``fast``.

    ``unvouched``: groups that only groups as slow as themselves, or none, can be compared with.
    """

    low: list[tuple[GroupRate, ExpectedBandwidth]]
    fast: list[GroupRate]
    unvouched: list[GroupRate]


def _compare(
    rates: list[GroupRate],
    reached: ReachedBandwidth,
    baseline: RunAnalysis | None,
    user_expectation: ExpectedBandwidth | None,
) -> _LinkComparison:
    before = ReachedBandwidth(baseline) if baseline is not None and len(baseline.collectives) else None
    references = LinkReferences(rates, reached)
    low, fast, unvouched = [], [], []
    for place, rate in enumerate(rates):
        given = expect_from_baseline(rate, reached, before)
        if user_expectation is not None:  # measured with large messages, whose latency does not count
            given = replace(user_expectation, latency_ns=max_normal_latency_ns(rate.ranks))
        expected = [given] if given else list(references.list_expected(place, rate))
        missed = next((each for each in expected if (rate.reached_ratio(each) < each.least_ratio)), None)
        if missed is not None:
            low.append((rate, missed))
        elif expected:
            fast.append(rate)
        if missed is None and given is None:
            unvouched.append(rate)
    return _LinkComparison(low=low, fast=fast, unvouched=unvouched)


def _find_untested(analysis: RunAnalysis, comparison: _LinkComparison) -> Gap | None:
    """Return a gap if nothing can be compared, or if much of the step is exposed in groups that cannot be."""
    rates = comparison.unvouched
    if not rates:
        return None
    exposed = {kind: (0.0, rates[0]) for kind in dict.fromkeys(rate.kind for rate in rates)}
    for rate, (_, exposed_ns) in zip(rates, measure_times(analysis, rates), strict=True):
        exposed[rate.kind] = max(exposed[rate.kind], (exposed_ns, rate), key=lambda entry: entry[0])
    total_ns = sum(exposed_ns for exposed_ns, _ in exposed.values())
    has_reference = comparison.low or comparison.fast
    if has_reference and total_ns < _MIN_UNTESTED_RATIO * mean_wall_ns(analysis):
        return None
    worst = max(exposed.values(), key=lambda entry: entry[0])[1]
    others = ""
    if len({rate.group for rate in rates}) > 1:
        others = f", the fastest group of this job {format_rate(max(rate.bytes_per_s for rate in rates))}"
    return untested_gap(
        Cause.LOW_BUS_BANDWIDTH,
        f"the expected bandwidth is unknown: {_describe_messages(analysis, worst)} reach "
        f"{format_rate(worst.bytes_per_s)}{others}, and neither a baseline nor a faster group tells what the "
        "link should give",
        "pass a baseline on the same link, or --expected-busbw GB_PER_S",
    )


def _build_network_gap(analysis: RunAnalysis, worst: SlowGroup) -> Gap:
    """Return the gap of groups between hosts, which reach much less than the fastest link."""
    return untested_gap(
        Cause.LOW_BUS_BANDWIDTH,
        f"{_describe_messages(analysis, worst.rate)} cross hosts and reach "
        f"{format_rate(worst.rate.bytes_per_s)}, the fastest link of this job reaches "
        f"{format_rate(worst.expected.bytes_per_s)}, and what the network should give is unknown "
        f"({format_ns(worst.exposed_ns)} exposed {analysis.time.basis})",
        "measure the network between these hosts (nccl-tests) and pass --expected-busbw GB_PER_S, or a "
        "baseline on the same link",
    )


def _describe_messages(analysis: RunAnalysis, rate: GroupRate) -> str:
    places = GroupPlaces(analysis.collectives, analysis.run.world_size)
    return f"{rate.kind.value}s {places.describe(rate.group, rate.ranks)}"


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
        evidence += [
            reached_evidence(each.kind, each.reached_ratio),
            make_fact("{kind}_count", each.count, kind=each.kind),
            make_fact("{kind}_exposed_transfer_per_step", each.exposed_ns, kind=each.kind),
        ]
    return make_finding(
        analysis,
        Cause.LOW_BUS_BANDWIDTH,
        sentence=f"{worst.kind.value}s take {1 / worst.reached_ratio:.1f} times as long as in "
        "the baseline; their sizes were not recorded",
        evidence=evidence,
        saving_ns=(low, high),
        severity=rate_severity(high, mean_wall_ns(analysis)),
        confidence=Confidence.MEDIUM,
        fix=_choose_link_fix(analysis),
        disprove="measure the link by itself (nccl-tests, iperf3) between the same hosts: if it is as fast "
        "as before, messages are larger or wait for something else",
    )


def _build_finding(
    analysis: RunAnalysis, slow: list[SlowGroup], fast: list[GroupRate], others: list[SlowGroup]
) -> Finding:
    """Return the finding on the ``slow`` groups; its evidence mentions ``others``, if they are less sure."""
    worst = max(slow, key=lambda entry: entry.saving_ns[1])
    saving = sum_largest_savings(slow)
    rank = find_slow_rank([entry.rate for entry in slow], fast)
    return make_finding(
        analysis,
        Cause.LOW_BUS_BANDWIDTH,
        sentence=_describe_shortfall(analysis, worst, rank),
        evidence=[*list_evidence(slow, rank), *_mention_others(analysis, others)],
        saving_ns=saving,
        severity=rate_severity(saving[1], mean_wall_ns(analysis)),
        confidence=_rate_confidence(analysis, worst),
        fix=_choose_link_fix(analysis)
        if rank is None
        else f"check the link of rank {rank}: cable, port, PCIe width\n{_choose_link_fix(analysis)}",
        disprove="measure the link by itself (nccl-tests, iperf3) between the same hosts: if it is as slow "
        "there, the expected value was too high: state it with --expected-busbw GB_PER_S",
    )


def _choose_link_fix(analysis: RunAnalysis) -> str:
    """Return what applies to the run's backend, or the line of each backend if it is another.

    CPU ranks do not have NCCL.
    """
    known = _BACKEND_FIXES.get("gloo" if is_on_cpu(analysis) else analysis.run.backend)
    lines = [known] if known else [f"{name.upper()}: {line}" for name, line in _BACKEND_FIXES.items()]
    return "\n".join([*lines, _SLOW_NODES_FIX])


def _mention_others(analysis: RunAnalysis, others: list[SlowGroup]) -> list[Fact]:
    """Return the two figures of the group that loses most, if much of the step is exposed in it."""
    worst = max(others, key=lambda entry: entry.saving_ns[1], default=None)
    if worst is None or worst.exposed_ns < _MIN_UNTESTED_RATIO * mean_wall_ns(analysis):
        return []
    return [
        make_fact(
            "other_bus_bandwidth", worst.rate.bytes_per_s, messages=_describe_messages(analysis, worst.rate)
        ),
        make_fact("other_expected_bus_bandwidth", worst.expected.bytes_per_s, reference=worst.expected.of),
    ]


def _describe_shortfall(analysis: RunAnalysis, worst: SlowGroup, rank: int | None) -> str:
    expected, measured = worst.expected, format_rate(worst.rate.bytes_per_s)
    if expected.is_fastest_link:
        note = (
            ""
            if expected.proof is Confidence.MEDIUM
            else ": a fault, unless they use another link or share one"
        )
        return (
            f"{_describe_messages(analysis, worst.rate)} reach {measured} of bus bandwidth; {expected.of} "
            f"reaches {format_rate(expected.bytes_per_s)}{note}"
        )
    slow_rank_note = "" if rank is None else f": all slow groups contain rank {rank}, and no fast group does"
    return (
        f"{worst.rate.kind.value}s reach {measured} of bus bandwidth, but "
        f"{format_rate(expected.bytes_per_s)} is expected "
        f"({format_percent(worst.reached_ratio)}){slow_rank_note}"
    )


def _rate_confidence(analysis: RunAnalysis, worst: SlowGroup) -> Confidence:
    """Return at most what the reference proves: transfers that overlap share a link, which slows them."""
    proof = worst.expected.proof
    if proof is Confidence.HIGH:
        is_sure = worst.rate.count >= _MIN_COUNT_FOR_HIGH_CONFIDENCE
        return Confidence.HIGH if is_sure else Confidence.MEDIUM
    rows = select_kind(analysis.collectives, worst.rate.kind)
    own_rows = rows.at(rows.texts("group").equals(worst.rate.group))
    is_alone = measure_shared_ratio(analysis, own_rows) <= MAX_SHARED_RATIO
    return Confidence.MEDIUM if proof is Confidence.MEDIUM and is_alone else Confidence.LOW
