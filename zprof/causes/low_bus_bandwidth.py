"""ZP402: large messages reach far less than the expected bus bandwidth.

Bus bandwidth of one collective = bytes * bus factor / T, with T from the last start to the first end, so
waiting for a late rank does not count. Only large, bandwidth-bound messages are considered. The expected
bandwidth is the value given by the caller, else the bandwidth that the baseline reached with messages of a
comparable kind and similar size, else that of the run's other groups, and finally the fastest link of the run
(:mod:`zprof.step.bandwidth`). If no sizes were recorded, the messages of a kind are compared by time with the
same messages of the baseline. A rank that belongs to every slow group and to no fast one has the slow link. A
group is slow below half the expected bandwidth, or below 80 % of the baseline's (docs/thresholds.md). Groups
between hosts that are slower than the fastest link may use a different link by design: they are reported as a
gap with both figures. The same applies to exposed groups without a faster link to compare with.

The cost is computed in :mod:`zprof.step.bandwidth`; if the step can be played, the cost is the gain of the
step with transfers that take measured / expected of their time.
"""

from collections.abc import Sequence

from zprof.analysis.analysis import RunAnalysis, Untested, find_missing_collectives, make_fact, mean_wall_ns
from zprof.analysis.time.decomposition import select_kind
from zprof.causes.cause import Cause, Proof, Sign, Signal
from zprof.causes.fix import Fix, is_on_cpu
from zprof.model.findings import Confidence, Finding
from zprof.model.quantities import Unit
from zprof.step import edits
from zprof.step.bandwidth import (
    BASELINE_RATIO,
    MIN_UNTESTED_RATIO,
    GroupRate,
    ReachedBandwidth,
    SlowGroup,
    compare_links,
    compare_unsized,
    describe_messages,
    find_slow_rank,
    find_unknown_sizes,
    find_unvouched_links,
    list_slow_facts,
    measure_slow_groups,
    select_bandwidth_bound,
    select_slow_rows,
    state_unknown_network,
    sum_largest_savings,
)
from zprof.step.links import MAX_SHARED_RATIO, measure_shared_ratio
from zprof.step.tasks import Graph

_MIN_STEP_RATIO = 0.03
_MIN_COUNT_FOR_HIGH_CONFIDENCE = 10

_BACKENDS = {
    "nccl": "run once with NCCL_DEBUG=INFO and check which network it uses (NET/Socket is TCP)",
    "gloo": "GLOO_SOCKET_IFNAME=<the fast interface>",
}
_BELOW_FASTEST = (
    "{messages} reach {measured:rate} of bus bandwidth; {reference} reaches {expected:rate}{unless}"
)
_UNLESS = ": a fault, unless they use another link or share one"
_SLOW_RANK = ": all slow groups contain rank {}, and no fast group does"
_LINK_OF_RANK = "check the link of rank {}: cable, port, PCIe width\n"

CAUSE = Cause(
    id="ZP402",
    name="low_bus_bandwidth",
    meaning="Large messages move at far less than the bandwidth they should have.",
    terms=("exposed_transfer_ns", "idle_ns"),
    sign=Sign.SLOW_MESSAGES,
    produces=(Sign.GATHERS_OF_BACKWARD, Sign.FIRST_GATHER),
    proof=Proof.SPEEDS,
    sentence="{kind}s reach {measured:rate} of bus bandwidth, but {expected:rate} is expected "
    "({reached:percent}){slow_rank}",
    evidence={
        "{kind}_bus_bandwidth": ("{kind} bus bandwidth, median of large messages", Unit.BYTES_PER_S),
        "{kind}_expected_bus_bandwidth": ("expected, from {reference}", Unit.BYTES_PER_S),
        "{kind}_reached_ratio": ("{kind} bus bandwidth relative to the expected one", Unit.RATIO),
        "{kind}_slow_groups": ("groups whose {kind}s are slow", Unit.COUNT),
        "{kind}_count": ("{size}{kind}s examined", Unit.COUNT),
        "{kind}_exposed_transfer_per_step": ("{kind} exposed transfer{queue} {per_step}", Unit.NS),
        "other_bus_bandwidth": ("bus bandwidth of {messages}, which may be as it should", Unit.BYTES_PER_S),
        "other_expected_bus_bandwidth": ("{reference}", Unit.BYTES_PER_S),
    },
    fix=Fix(
        forms={},
        general="$rank$backend\n"
        "nodes connected by a slow link: shard within a node, replicate across nodes (HSDP)",
    ),
    disprove="measure the link by itself (nccl-tests, iperf3) between the same hosts: if it is as slow "
    "there, the expected value was too high: state it with --expected-busbw GB_PER_S",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if large messages are slower than the baseline's, or than those of other groups."""
    missing = find_missing_collectives(analysis)
    if missing or analysis.run.world_size == 1:
        return missing
    reached = ReachedBandwidth(analysis)
    rates = select_bandwidth_bound(reached)
    if not rates:
        is_unsized = not (analysis.collectives.ints("bytes") > 0).any()
        if baseline is not None and is_unsized:
            return _find_by_time(analysis, baseline)
        return find_unknown_sizes(reached)
    low, fast, unvouched = compare_links(rates, reached, baseline)
    min_ns = _MIN_STEP_RATIO * mean_wall_ns(analysis)
    slow = measure_slow_groups(analysis, low)
    proven = [group for group in slow if group.expected.proof is Confidence.HIGH]
    suspected = [group for group in slow if group.expected.proof in (Confidence.MEDIUM, Confidence.LOW)]
    unproven = [group for group in slow if group.expected.proof is None]
    if sum_largest_savings(proven)[1] >= min_ns:
        return _make_signal(analysis, proven, fast, [*suspected, *unproven])
    if sum_largest_savings(suspected)[1] >= min_ns:
        return _make_signal(analysis, suspected, fast, unproven)
    if sum_largest_savings(unproven)[1] >= min_ns:
        return state_unknown_network(analysis, max(unproven, key=lambda group: group.saving_ns[1]))
    return find_unvouched_links(analysis, unvouched, has_reference=bool(low or fast))


def _find_by_time(analysis: RunAnalysis, baseline: RunAnalysis) -> Signal | None:
    """Return a signal if messages of unknown size take clearly longer than in the baseline."""
    slow = [each for each in compare_unsized(analysis, baseline) if each.reached_ratio < BASELINE_RATIO]
    low_ns = sum((1 - each.reached_ratio) * each.exposed_ns for each in slow)
    high_ns = sum(min(each.exposed_ns, (1 - each.reached_ratio) * each.transfer_ns) for each in slow)
    if high_ns < _MIN_STEP_RATIO * mean_wall_ns(analysis):
        return None
    worst = min(slow, key=lambda each: each.reached_ratio)
    facts = []
    for each in slow:
        facts += [
            make_fact("{kind}_reached_ratio", each.reached_ratio, kind=each.kind),
            make_fact("{kind}_count", each.count, kind=each.kind, size=""),
            make_fact("{kind}_exposed_transfer_per_step", each.exposed_ns, kind=each.kind, queue=""),
        ]
    return Signal(
        confidence=Confidence.MEDIUM,
        sentence="{kind}s take {times:.1f} times as long as in the baseline; their sizes were not recorded",
        words={"kind": worst.kind.value, "times": 1 / worst.reached_ratio},
        facts=facts,
        saving_ns=(low_ns, high_ns),
        numbers={"rank": "", "backend": _choose_backend(analysis)},
        disprove="measure the link by itself (nccl-tests, iperf3) between the same hosts: if it is as fast "
        "as before, messages are larger or wait for something else",
    )


def _make_signal(
    analysis: RunAnalysis, slow: list[SlowGroup], fast: list[GroupRate], others: list[SlowGroup]
) -> Signal:
    """Return the signal of the ``slow`` groups; its facts mention ``others`` that are less certain."""
    worst = max(slow, key=lambda group: group.saving_ns[1])
    rank = find_slow_rank([group.rate for group in slow], fast)
    facts = list_slow_facts(slow, rank)
    other = max(others, key=lambda group: group.saving_ns[1], default=None)
    if other is not None and other.exposed_ns >= MIN_UNTESTED_RATIO * mean_wall_ns(analysis):
        messages, usual = describe_messages(analysis, other.rate), other.expected
        facts += [
            make_fact("other_bus_bandwidth", other.rate.bytes_per_s, messages=messages),
            make_fact("other_expected_bus_bandwidth", usual.bytes_per_s, reference=usual.of),
        ]
    expected = worst.expected
    return Signal(
        confidence=_rate_confidence(analysis, worst),
        sentence=_BELOW_FASTEST if expected.is_fastest_link else "",
        words={
            "kind": worst.rate.kind.value,
            "messages": describe_messages(analysis, worst.rate),
            "measured": worst.rate.bytes_per_s,
            "expected": expected.bytes_per_s,
            "reference": expected.of,
            "reached": worst.reached_ratio,
            "slow_rank": "" if rank is None else _SLOW_RANK.format(rank),
            "unless": "" if expected.proof is Confidence.MEDIUM else _UNLESS,
        },
        facts=facts,
        saving_ns=sum_largest_savings(slow),
        numbers={
            "rank": "" if rank is None else _LINK_OF_RANK.format(rank),
            "backend": _choose_backend(analysis),
        },
    )


def _choose_backend(analysis: RunAnalysis) -> str:
    """Return the advice for the run's backend, or for each if it is another one; CPU ranks have gloo."""
    known = _BACKENDS.get("gloo" if is_on_cpu(analysis) else analysis.run.backend)
    return known or "\n".join(f"{name.upper()}: {line}" for name, line in _BACKENDS.items())


def _rate_confidence(analysis: RunAnalysis, worst: SlowGroup) -> Confidence:
    """Return at most the reference's confidence: overlapping transfers share a link, which slows them."""
    proof = worst.expected.proof
    if proof is Confidence.HIGH:
        is_sure = worst.rate.count >= _MIN_COUNT_FOR_HIGH_CONFIDENCE
        return Confidence.HIGH if is_sure else Confidence.MEDIUM
    rows = select_kind(analysis.collectives, worst.rate.kind)
    own_rows = rows.at(rows.texts("group").equals(worst.rate.group))
    is_alone = measure_shared_ratio(analysis, own_rows) <= MAX_SHARED_RATIO
    return Confidence.MEDIUM if proof is Confidence.MEDIUM and is_alone else Confidence.LOW


@CAUSE.edit
def speed_up_link(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Return the step in which slow messages move as fast as expected."""
    ratios = select_slow_rows(analysis, finding)
    return [edits.scale_transfers(graph, ratios)] if ratios else []


@CAUSE.doubt
def is_reference_uncertain(analysis: RunAnalysis) -> bool:
    """Return True: low confidence is about the expected bandwidth, which no step shows."""
    return True
