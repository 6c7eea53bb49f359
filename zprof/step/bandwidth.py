"""Measure the bandwidth of messages, the bandwidth to expect instead, and the loss in slow groups.

Messages are comparable if their kinds are equal or have the same bus bandwidth (all except gloo's
reduce_scatter), and if their sizes are within a factor of four. Groups are compared with baseline groups that
also span hosts, or also do not: a loss between hosts is ZP408. Messages of unknown size are compared with the
baseline's by time and order, if both runs send equally many.

Without a baseline, a group is compared with the job's other groups of its size, kind and span (within a host,
or between hosts). Equally slow groups prove nothing about each other, so a group that is no slower than these
is also compared with the job's fastest link, of any kind, after allowing for a normal latency.

What such a comparison proves depends on the links. Within a host, all groups are equally close, but transfers
that share a link slow each other down. A network is slower than NVLink, and a host's groups may share it, so
between hosts the comparison alone proves nothing.

With q = measured / expected, a transfer t with an exposed part e shrinks to q t, as does the queueing it
causes (counted in both). The saving lies between (1 - q) e and min(e, (1 - q) t).

Most group names do not show what they connect, so replicas are also recognized by their traffic: ranks of
different sharding groups that all_reduce the gradient shards left by the reduce_scatters.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import (
    Fact,
    RunAnalysis,
    Untested,
    count_ranks_by_host,
    make_fact,
    make_untested,
    mean_per_step,
    mean_wall_ns,
    measure_queueing_ns,
)
from zprof.analysis.columns import Columns, Floats, Mask, Texts
from zprof.analysis.intervals import Int64s
from zprof.analysis.time.decomposition import group_rows_by_text, parse_group_ranks, select_kind
from zprof.model.collectives import BYTES_PER_ELEMENT, CollectiveKind, bus_factor
from zprof.model.findings import Confidence, Finding
from zprof.model.group_roles import read_role
from zprof.model.mesh import GroupRole
from zprof.step.links import max_normal_latency_ns, measure_transfers
from zprof.step.message_sizes import LATENCY_RATIO
from zprof.step.traffic import read_step_traffic

LARGE_RATIO = 0.25
#: Minimum share of the baseline's bandwidth.
BASELINE_RATIO = 0.80
KINDS = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)
_UNKNOWN_SPAN = -1
_WITHIN_HOST = 0
_SPAN_CODES = {None: _UNKNOWN_SPAN, False: _WITHIN_HOST, True: 1}
_SIMILAR_FACTOR = 4
#: Messages smaller than the largest by more than this factor (a norm, a flag) carry no information about
#: bandwidth.
_MAX_SIZE_RATIO = 64
#: At 100 GB/s, such a message takes longer than a network's latency; shards over many ranks are this small.
_SURELY_LARGE_BYTES = 4 * 1024 * 1024
#: Minimum share of the step exposed in groups without a faster reference, to report them.
MIN_UNTESTED_RATIO = 0.10
_REPLICAS = "between the replicas"
_PLACES: Mapping[GroupRole, str] = {
    GroupRole.REPLICA: _REPLICAS,
    GroupRole.EXPERT: "of expert parallelism",
    GroupRole.TENSOR: "of tensor parallelism",
    GroupRole.PIPELINE: "of the pipeline",
    GroupRole.CONTEXT: "of context parallelism",
    GroupRole.SHARD: "of data parallelism",
}
#: Tolerance for comparing replica and shard bytes, because shards are padded.
_MAX_PADDING_RATIO = 0.1
#: Columns needed to find a slow group.
_COLUMNS = ("rank", "transfer_ns", "exposed_transfer_ns", "start_ns", "wait_start_ns", "wait_end_ns")


class ExpectedBandwidth(Struct, frozen=True, kw_only=True):
    """An expected bandwidth, its source, and the share below which a link is slow.

    The same messages on the same link agree within a few percent. Other groups or data sheet values may
    differ more. ``proof``: maximum confidence from a shortfall; None if the link may be slower by design.
    ``latency_ns``: additional time allowed per message.
    """

    bytes_per_s: float
    of: str
    least_ratio: float = 0.50
    proof: Confidence | None = Confidence.HIGH
    latency_ns: float = 0.0
    is_fastest_link: bool = False


class GroupRate(Struct, frozen=True, kw_only=True):
    """The bandwidth of large messages of one kind in one group of ``ranks`` ranks."""

    kind: CollectiveKind
    group: str
    ranks: int
    count: int
    bytes: float
    bytes_per_s: float

    def reached_ratio(self, expected: ExpectedBandwidth) -> float:
        """Return a message's time at the expected bandwidth, relative to its measured time."""
        bus_bytes = self.bytes * bus_factor(self.kind, self.ranks)
        latency_ratio = expected.latency_ns * 1e-9 * self.bytes_per_s / bus_bytes
        return self.bytes_per_s / expected.bytes_per_s + latency_ratio


class ReachedBandwidth:
    """The bandwidth of a run's messages; tables are built once, for hundreds of groups."""

    def __init__(self, analysis: RunAnalysis) -> None:
        self.analysis = analysis
        self._spans = find_spanning_groups(analysis)
        self._tables: dict[CollectiveKind, Columns] = {}

    def spans(self, group: str) -> bool | None:
        """Return True if a group lies on several hosts, None if unknown."""
        return self._spans[group] if group in self._spans else spans_hosts(self.analysis, group)

    def by(self, kind: CollectiveKind) -> Columns:
        """Return the ``bus_bandwidths`` of a kind."""
        if kind not in self._tables:
            self._tables[kind] = bus_bandwidths(self.analysis, self.analysis.collectives, kind)
        return self._tables[kind]

    def as_far(self, kind: CollectiveKind, far: bool | None) -> Columns:
        """Return ``bus_bandwidths`` of groups that may span hosts (``far``) or may not, or of all groups if
        None.
        """
        each = self.by(kind)
        if far is None:
            return each
        other = [group for group, theirs in self._spans.items() if theirs not in (None, far)]
        return each.at(~each.texts("group").equals(*other))


def measure_group_rates(reached: ReachedBandwidth) -> list[GroupRate]:
    """Return one entry per kind and group; messages of at least a quarter of the largest size are large."""
    found = []
    for kind in KINDS:
        messages = reached.by(kind)
        groups = messages.group_by("group")
        for group, places in zip(messages.texts("group").at(groups.first), groups.split(), strict=True):
            rows = messages.at(places)
            large = rows.at(rows.ints("bytes") >= LARGE_RATIO * rows.ints("bytes").max())
            found.append(
                GroupRate(
                    kind=kind,
                    group=group,
                    ranks=int(large.ints("group_size")[0]),
                    count=len(large),
                    bytes=float(np.median(large.ints("bytes"))),
                    bytes_per_s=float(np.median(large.floats("bytes_per_s"))),
                )
            )
    return found


def expect_from_baseline(
    own_rate: GroupRate, run: ReachedBandwidth, baseline: ReachedBandwidth | None
) -> ExpectedBandwidth | None:
    """Return the baseline's bandwidth, None if it has no comparable messages."""
    if baseline is None:
        return None
    far = run.spans(own_rate.group)
    for kind in comparable_kinds(run.analysis, own_rate.kind):
        found = select_similar(baseline.as_far(kind, far), own_rate.bytes)
        if len(found):
            return ExpectedBandwidth(
                bytes_per_s=float(np.median(found.floats("bytes_per_s"))),
                of=f"the baseline's {kind.value}s",
                least_ratio=BASELINE_RATIO,
            )
    return None


class LinkReferences:
    """A run's groups as columns, to compare each group with all others."""

    def __init__(self, rates: Sequence[GroupRate], run: ReachedBandwidth) -> None:
        self._run = run
        self._kind = np.array([KINDS.index(rate.kind) for rate in rates])
        self._group = Texts.of(rate.group for rate in rates).codes
        self._span = np.array([_SPAN_CODES[run.spans(rate.group)] for rate in rates])
        self._ranks = np.array([rate.ranks for rate in rates])
        self._bytes = np.array([rate.bytes for rate in rates])
        self._rate = np.array([rate.bytes_per_s for rate in rates])

    def list_expected(self, index: int, own_rate: GroupRate) -> Iterator[ExpectedBandwidth]:
        """List expected bandwidths of the group at ``index``, most conclusive reference first."""
        kinds = [KINDS.index(kind) for kind in comparable_kinds(self._run.analysis, own_rate.kind)]
        others = (self._group != self._group[index]) & np.isin(self._kind, kinds)
        same_span = others & (self._span == self._span[index])
        # groups of the same size and kind, else of a comparable kind if spans are known
        alike = same_span & (self._ranks == self._ranks[index])
        alike &= is_similar(self._bytes, float(self._bytes[index]))
        same_kind = alike & (self._kind == self._kind[index])
        if same_kind.any() or self._span[index] == _UNKNOWN_SPAN:
            alike = same_kind
        if alike.any():
            yield ExpectedBandwidth(bytes_per_s=float(np.median(self._rate[alike])), of="other groups")
        span = int(self._span[index])
        latency_ns = max_normal_latency_ns(own_rate.ranks)
        if span != _UNKNOWN_SPAN and same_span.any():
            where = "within a host" if span == _WITHIN_HOST else "between hosts"
            # on CPU ranks, compute slows gloo down
            is_conclusive = span == _WITHIN_HOST and self._run.analysis.run.device != "cpu"
            yield ExpectedBandwidth(
                bytes_per_s=float(self._rate[same_span].max()),
                of=f"the fastest link of this job {where}",
                proof=Confidence.MEDIUM if is_conclusive else Confidence.LOW,
                latency_ns=latency_ns,
                is_fastest_link=True,
            )
        if others.any():
            yield ExpectedBandwidth(
                bytes_per_s=float(self._rate[others].max()),
                of="the fastest link of this job",
                proof=None if span not in (_UNKNOWN_SPAN, _WITHIN_HOST) else Confidence.LOW,
                latency_ns=latency_ns,
                is_fastest_link=True,
            )


def find_slow_rank(slow: list[GroupRate], fast: list[GroupRate]) -> int | None:
    """Return the only rank in all slow groups and in no fast group, None if there is not exactly one."""
    if not slow or not fast:
        return None
    suspects = frozenset.intersection(*(parse_group_ranks(rate.group) for rate in slow))
    suspects -= frozenset().union(*(parse_group_ranks(rate.group) for rate in fast))
    return next(iter(suspects)) if len(suspects) == 1 else None


def spans_hosts(analysis: RunAnalysis, group: str) -> bool | None:
    """Return True if a group lies on several hosts, None if unknown."""
    hosts = count_ranks_by_host(analysis, group)
    return None if hosts is None else len(hosts) > 1


def find_spanning_groups(analysis: RunAnalysis) -> dict[str, bool | None]:
    """Return ``spans_hosts`` of each group with collectives, computed once per group."""
    groups = analysis.collectives.texts("group").list_distinct()
    return {group: spans_hosts(analysis, group) for group in groups}


def comparable_kinds(analysis: RunAnalysis, kind: CollectiveKind) -> tuple[CollectiveKind, ...]:
    """Return the kinds that have the same bus bandwidth as ``kind`` on the same link, ``kind`` first.

    Gloo runs a reduce_scatter as an all_reduce, so its bus bandwidth is half that of the other kinds.
    """
    others = [other for other in KINDS if other is not kind]
    if "gloo" in analysis.run.backend or analysis.run.device == "cpu":
        apart = CollectiveKind.REDUCE_SCATTER
        others = [other for other in others if apart not in (other, kind)]
    return (kind, *others)


def bus_bandwidths(analysis: RunAnalysis, rows: Columns, kind: CollectiveKind) -> Columns:
    """Return size, group, number of ranks and bandwidth of each matched collective of a kind."""
    messages = measure_transfers(analysis, select_kind(rows, kind))
    sizes, size = np.unique(messages.ints("group_size"), return_inverse=True)
    factors = np.array([bus_factor(kind, size) for size in sizes.tolist()], dtype=np.float64)[size.ravel()]
    bytes_per_s = messages.ints("bytes") * factors / messages.floats("elapsed_ns") * 1e9
    messages = messages.with_columns(bytes_per_s=bytes_per_s)
    # The bandwidth is 0 if the group's size is unknown.
    return messages.at((messages.ints("bytes") > 0) & (bytes_per_s > 0))


def bandwidth_within_hosts(runs: Iterable[RunAnalysis], kind: CollectiveKind, size: float) -> float | None:
    """Return the bandwidth within a host for messages of similar size, from the first run with such
    messages.
    """
    for analysis in runs:
        if not len(analysis.collectives):
            continue
        inside = {group for group, far in find_spanning_groups(analysis).items() if far is False}
        rows = analysis.collectives.at(analysis.collectives.texts("group").equals(*inside))
        for other in comparable_kinds(analysis, kind):
            found = select_similar(bus_bandwidths(analysis, rows, other), size)
            if len(found):
                return float(np.median(found.floats("bytes_per_s")))
    return None


def select_similar(each: Columns, size: float) -> Columns:
    """Return the messages whose size is within a factor of four."""
    return each.at(is_similar(each.floats("bytes"), size))


def is_similar(sizes: Floats, size: float) -> Mask:
    """Return a mask of the sizes within a factor of four of ``size``."""
    return (sizes >= size / _SIMILAR_FACTOR) & (sizes <= size * _SIMILAR_FACTOR)


class UnsizedMessages(Struct, frozen=True, kw_only=True):
    """Messages of one kind; times are per step, ``reached_ratio`` is baseline time / time in this run.

    Elements with more bytes than in the baseline may take proportionally longer.
    """

    kind: CollectiveKind
    count: int
    reached_ratio: float
    transfer_ns: float
    exposed_ns: float


def compare_unsized(analysis: RunAnalysis, baseline: RunAnalysis) -> list[UnsizedMessages]:
    """Compare each kind's time with the baseline's, except kinds with different message counts."""
    found = []
    for kind in KINDS:
        rows, before = select_kind(analysis.collectives, kind), select_kind(baseline.collectives, kind)
        now_ns, then_ns = _quickest_ns(rows), _quickest_ns(before)
        if len(now_ns) and len(now_ns) == len(then_ns) and now_ns.sum() > 0:
            steps = max(1, len(rows.group_by("rank", "step")))
            now, then = (_mean_element_bytes(each.texts("dtype")) for each in (rows, before))
            grown = max(1.0, now / then) if now and then else 1.0
            found.append(
                UnsizedMessages(
                    kind=kind,
                    count=len(rows),
                    reached_ratio=min(1.0, grown * float(then_ns.sum() / now_ns.sum())),
                    transfer_ns=float(rows.ints("transfer_ns").sum()) / steps,
                    exposed_ns=float(rows.ints("exposed_transfer_ns").sum()) / steps,
                )
            )
    return found


def _mean_element_bytes(types: Texts) -> float:
    """Return the mean element size over messages of known type; 0 without any."""
    sizes = np.array([*(BYTES_PER_ELEMENT.get(word, 0) for word in types.words), 0])[types.codes]
    return float(sizes[sizes > 0].mean()) if (sizes > 0).any() else 0.0


def _quickest_ns(rows: Columns) -> Int64s:
    """Return each message's shortest time in a step, from a rank that did not wait.

    Messages are identified by their position in the step, so a rank's step that lacks a message is left out.
    """
    if not len(rows):
        return np.zeros(0, dtype=np.int64)
    steps = rows.group_by("rank", "step")
    counts, times = np.unique(steps.sizes, return_counts=True)
    usual = int(counts[times == times.max()].max())
    launched = np.where(rows.known("launch_start_ns"), rows.ints("launch_start_ns"), rows.ints("start_ns"))
    order = np.lexsort((launched, steps.codes))
    order = order[(steps.sizes == usual)[steps.codes[order]]]
    elapsed_ns = rows.ints("end_ns") - rows.ints("start_ns")
    return elapsed_ns[order].reshape(-1, usual).min(axis=0)


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
        """Lower and upper bound of the saving per step, by the module's formula."""
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


def compare_links(
    rates: list[GroupRate], reached: ReachedBandwidth, baseline: RunAnalysis | None
) -> tuple[list[tuple[GroupRate, ExpectedBandwidth]], list[GroupRate], list[GroupRate]]:
    """Compare groups with the user's expectation, else the baseline, else the run's other groups.

    Returns the slow groups with the expectation each misses, the fast groups, and the groups that can be
    compared only with equally slow groups or with none.
    """
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
    return low, fast, unvouched


def measure_slow_groups(
    analysis: RunAnalysis, groups: Sequence[tuple[GroupRate, ExpectedBandwidth]]
) -> list[SlowGroup]:
    """Return the loss of each group."""
    times = measure_times(analysis, [rate for rate, _ in groups])
    return [
        SlowGroup(rate=rate, expected=expected, transfer_ns=transfer_ns, exposed_ns=exposed_ns)
        for (rate, expected), (transfer_ns, exposed_ns) in zip(groups, times, strict=True)
    ]


def measure_times(analysis: RunAnalysis, rates: Sequence[GroupRate]) -> list[tuple[float, float]]:
    """Return each group's transfer and exposed transfer in ns per step and rank, including queueing."""
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
    """Sum each kind's largest saving: groups on different ranks run in parallel."""
    kinds: dict[CollectiveKind, tuple[float, float]] = {}
    for entry in slow:
        kinds[entry.rate.kind] = max(
            kinds.get(entry.rate.kind, (0.0, 0.0)), entry.saving_ns, key=lambda s: s[1]
        )
    return (sum(low for low, _ in kinds.values()), sum(high for _, high in kinds.values()))


def list_slow_facts(slow: Sequence[SlowGroup], rank: int | None) -> list[Fact]:
    """List facts per kind about the group that loses most; the kind's other groups are counted."""
    found: list[Fact] = []
    for kind in dict.fromkeys(entry.rate.kind for entry in slow):
        groups = [entry for entry in slow if entry.rate.kind is kind]
        worst = max(groups, key=lambda entry: entry.saving_ns[1])
        expected = worst.expected
        found += [
            make_fact("{kind}_bus_bandwidth", worst.rate.bytes_per_s, rank=rank, kind=kind),
            make_fact(
                "{kind}_expected_bus_bandwidth", expected.bytes_per_s, kind=kind, reference=expected.of
            ),
            make_fact("{kind}_reached_ratio", worst.reached_ratio, kind=kind),
            make_fact("{kind}_slow_groups", len(groups), kind=kind),
            make_fact("{kind}_count", worst.rate.count, kind=kind, size="large "),
            make_fact("{kind}_exposed_transfer_per_step", worst.exposed_ns, kind=kind, queue=" and queue"),
        ]
    return found


def read_reached_ratios(finding: Finding) -> dict[CollectiveKind, float]:
    """Return each slow collective kind's share of the expected bandwidth."""
    values = {entry.key: float(entry.value) for entry in finding.evidence}
    keys = {kind: f"{kind}_reached_ratio" for kind in CollectiveKind}
    return {kind: values[key] for kind, key in keys.items() if key in values}


def select_slow_rows(analysis: RunAnalysis, finding: Finding) -> dict[int, float]:
    """Return the share of the expected bandwidth stated by a finding, by row of the slow collectives.

    The rows belong to the kind's groups that are closer to the slow than to the expected bandwidth.
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
        return make_untested("sizes_unknown")
    return make_untested("no_collective_matched")


def find_unvouched_links(
    analysis: RunAnalysis, rates: Sequence[GroupRate], *, has_reference: bool
) -> Untested | None:
    """Return why links are unknown if none can be compared, or if much is exposed in links without a
    reference.
    """
    if not rates:
        return None
    exposed = {kind: (0.0, rates[0]) for kind in dict.fromkeys(rate.kind for rate in rates)}
    for rate, (_, exposed_ns) in zip(rates, measure_times(analysis, rates), strict=True):
        exposed[rate.kind] = max(exposed[rate.kind], (exposed_ns, rate), key=lambda entry: entry[0])
    total_ns = sum(exposed_ns for exposed_ns, _ in exposed.values())
    if has_reference and total_ns < MIN_UNTESTED_RATIO * mean_wall_ns(analysis):
        return None
    worst = max(exposed.values(), key=lambda entry: entry[0])[1]
    has_others = len({rate.group for rate in rates}) > 1
    return make_untested(
        "bandwidth_of_groups_unknown" if has_others else "bandwidth_unknown",
        messages=describe_messages(analysis, worst),
        reached=worst.bytes_per_s,
        fastest=max(rate.bytes_per_s for rate in rates),
    )


def state_unknown_network(analysis: RunAnalysis, worst: SlowGroup) -> Untested:
    """State that groups between hosts reach much less than the fastest link, which may be by design."""
    return make_untested(
        "network_unknown",
        messages=describe_messages(analysis, worst.rate),
        reached=worst.rate.bytes_per_s,
        fastest=worst.expected.bytes_per_s,
        exposed=worst.exposed_ns,
        basis=analysis.time.basis,
    )


def describe_messages(analysis: RunAnalysis, rate: GroupRate) -> str:
    """Return the kind of a group's messages and what they connect: "all_reduces between the replicas"."""
    return f"{rate.kind.value}s {describe_group(analysis, rate.group, rate.ranks)}"


def describe_group(analysis: RunAnalysis, group: str, size: int) -> str:
    """Describe a group as words that follow the collective kind: "between the replicas"."""
    role = read_role(group.partition("#")[2])
    if role is not None and role in _PLACES:
        return _PLACES[role]
    if _connects_replicas(analysis.collectives, group):
        return _REPLICAS
    return "of all ranks" if size in (0, analysis.run.world_size) else f"in groups of {size} ranks"


def _connects_replicas(collectives: Columns, group: str) -> bool:
    """Return True if each rank has a different sharding group and reduces its gradient shard."""
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
