"""Measure the bandwidth that messages reach, and find what to expect from the baseline or from other links.

Messages are comparable if their kinds are equal or have the same bus bandwidth (all but gloo's
reduce_scatter), and if their sizes are within a factor of four. Groups are compared with those of the
baseline that span hosts like them: a loss between hosts is ZP408. Messages of unknown size are
compared with the baseline's by time and order, if both runs send equally many.

Without a baseline, a group is compared with the job's other groups of its size, kind and span (within a
host, or between hosts). Groups that are equally slow do not vouch for one another, so a group that is no
slower than these is also compared with the fastest link of the job, whatever its kind, after allowing for a
normal latency.

How much such a comparison proves depends on the links. Within a host, one group is as close as another, but
transfers that share a link slow each other down. A network is slower than NVLink, and the groups of a host
may share it, so between hosts the comparison proves nothing by itself.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Floats, Mask, Texts
from zprof.analysis.intervals import Int64s
from zprof.analysis.time.collective_rows import parse_group_ranks, select_kind
from zprof.model.collectives import BYTES_PER_ELEMENT, CollectiveKind, bus_factor
from zprof.model.findings import Confidence
from zprof.step.links import max_normal_latency_ns, measure_transfers

LARGE_RATIO = 0.25
#: Minimum share of the bandwidth that the baseline reached.
BASELINE_RATIO = 0.80
KINDS = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)
_UNKNOWN_SPAN = -1
_WITHIN_HOST = 0
_SPAN_CODES = {None: _UNKNOWN_SPAN, False: _WITHIN_HOST, True: 1}
_SIMILAR_FACTOR = 4


class ExpectedBandwidth(Struct, frozen=True, kw_only=True):
    """A bandwidth, its source, and the share of it below which a link is slow.

    The same messages on the same link agree within a few percent. Other groups or data sheet values
    may differ more. ``proof``: highest confidence that a shortfall gives; None if the link may be slower by
    design. ``latency_ns``: time that each message may take besides.
    """

    bytes_per_s: float
    of: str
    least_ratio: float = 0.50
    proof: Confidence | None = Confidence.HIGH
    latency_ns: float = 0.0
    is_fastest_link: bool = False


class GroupRate(Struct, frozen=True, kw_only=True):
    """The bandwidth that the large messages of one kind reach in one group of ``ranks`` ranks."""

    kind: CollectiveKind
    group: str
    ranks: int
    count: int
    bytes: float
    bytes_per_s: float

    def reached_ratio(self, expected: ExpectedBandwidth) -> float:
        """Return the time of a message at the expected bandwidth, relative to its measured time."""
        bus_bytes = self.bytes * bus_factor(self.kind, self.ranks)
        latency_ratio = expected.latency_ns * 1e-9 * self.bytes_per_s / bus_bytes
        return self.bytes_per_s / expected.bytes_per_s + latency_ratio


class ReachedBandwidth:
    """The bandwidth that the messages of a run reach; tables are built once, for hundreds of groups."""

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
        """Return ``bus_bandwidths`` of groups that may (``far``) or may not span hosts; of all if None."""
        each = self.by(kind)
        if far is None:
            return each
        other = [group for group, theirs in self._spans.items() if theirs not in (None, far)]
        return each.at(~each.texts("group").equals(*other))


def measure_group_rates(reached: ReachedBandwidth) -> list[GroupRate]:
    """Return one entry per kind and group. Messages from a quarter of the largest size count as large."""
    found = []
    for kind in KINDS:
        each = reached.by(kind)
        groups = each.group_by("group")
        for group, places in zip(each.texts("group").at(groups.first), groups.split(), strict=True):
            rows = each.at(places)
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
    """Return the bandwidth that the baseline reaches, None if it has no comparable messages."""
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
    """The groups of a run as columns, to compare each group with all others."""

    def __init__(self, rates: Sequence[GroupRate], run: ReachedBandwidth) -> None:
        self._run = run
        self._kind = np.array([KINDS.index(rate.kind) for rate in rates])
        self._group = Texts.of(rate.group for rate in rates).codes
        self._span = np.array([_SPAN_CODES[run.spans(rate.group)] for rate in rates])
        self._ranks = np.array([rate.ranks for rate in rates])
        self._bytes = np.array([rate.bytes for rate in rates])
        self._rate = np.array([rate.bytes_per_s for rate in rates])

    def list_expected(self, index: int, own_rate: GroupRate) -> Iterator[ExpectedBandwidth]:
        """List what the group at ``index`` may be expected to reach, the most conclusive reference first."""
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
            # on CPU ranks compute slows gloo down
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
    """Return the one rank that all slow groups and no fast group have, None if there is not exactly one."""
    if not slow or not fast:
        return None
    suspects = frozenset.intersection(*(parse_group_ranks(rate.group) for rate in slow))
    suspects -= frozenset().union(*(parse_group_ranks(rate.group) for rate in fast))
    return next(iter(suspects)) if len(suspects) == 1 else None


def count_ranks_by_host(analysis: RunAnalysis, group: str) -> dict[str, int] | None:
    """Return the number of a group's ranks on each host, None if ranks or hosts are unknown."""
    ranks = parse_group_ranks(group)
    if not ranks or not ranks <= set(analysis.hosts):
        return None
    return dict(Counter(analysis.hosts[rank] for rank in ranks))


def spans_hosts(analysis: RunAnalysis, group: str) -> bool | None:
    """Return True if a group lies on several hosts, None if unknown."""
    hosts = count_ranks_by_host(analysis, group)
    return None if hosts is None else len(hosts) > 1


def find_spanning_groups(analysis: RunAnalysis) -> dict[str, bool | None]:
    """Return ``spans_hosts`` of each group that has collectives, computed once per group and not per row."""
    groups = analysis.collectives.texts("group").list_distinct()
    return {group: spans_hosts(analysis, group) for group in groups}


def comparable_kinds(analysis: RunAnalysis, kind: CollectiveKind) -> tuple[CollectiveKind, ...]:
    """Return the kinds with the same bus bandwidth as ``kind`` on the same link, ``kind`` first.

    Gloo runs a reduce_scatter as an all_reduce, so its bus bandwidth is half of the others'.
    """
    others = [other for other in KINDS if other is not kind]
    if "gloo" in analysis.run.backend or analysis.run.device == "cpu":
        apart = CollectiveKind.REDUCE_SCATTER
        others = [other for other in others if apart not in (other, kind)]
    return (kind, *others)


def bus_bandwidths(analysis: RunAnalysis, rows: Columns, kind: CollectiveKind) -> Columns:
    """Return size, group, its number of ranks and bandwidth of each matched collective of a kind."""
    each = measure_transfers(analysis, select_kind(rows, kind))
    sizes, size = np.unique(each.ints("group_size"), return_inverse=True)
    factors = np.array([bus_factor(kind, size) for size in sizes.tolist()], dtype=np.float64)[size.ravel()]
    bytes_per_s = each.ints("bytes") * factors / each.floats("elapsed_ns") * 1e9
    each = each.with_columns(bytes_per_s=bytes_per_s)
    return each.at((each.ints("bytes") > 0) & (bytes_per_s > 0))  # 0: the size of the group is unknown


def bandwidth_within_hosts(runs: Iterable[RunAnalysis], kind: CollectiveKind, size: float) -> float | None:
    """Return the bandwidth within a host for messages of similar size, from the first run that has any."""
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
    """Return the messages of a size within a factor of four."""
    return each.at(is_similar(each.floats("bytes"), size))


def is_similar(sizes: Floats, size: float) -> Mask:
    """Return a mask of the sizes within a factor of four of ``size``."""
    found: Mask = (sizes >= size / _SIMILAR_FACTOR) & (sizes <= size * _SIMILAR_FACTOR)
    return found


class UnsizedMessages(Struct, frozen=True, kw_only=True):
    """Messages of one kind; times are per step, ``reached_ratio`` is baseline time / time in this run.

    Elements that have more bytes than in the baseline may take as many times as long.
    """

    kind: CollectiveKind
    count: int
    reached_ratio: float
    transfer_ns: float
    exposed_ns: float


def compare_unsized(analysis: RunAnalysis, baseline: RunAnalysis) -> list[UnsizedMessages]:
    """Compare each kind's time with the baseline's, without kinds whose number of messages differs."""
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
    """Return the mean over the messages of known type; 0 if there is none."""
    sizes = np.array([*(BYTES_PER_ELEMENT.get(word, 0) for word in types.words), 0])[types.codes]
    return float(sizes[sizes > 0].mean()) if (sizes > 0).any() else 0.0


def _quickest_ns(rows: Columns) -> Int64s:
    """Return the shortest time of each message of a step: the time on a rank that did not wait.

    Messages are known by their place in the step, so a rank's step that lacks one is left out.
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
    quickest: Int64s = elapsed_ns[order].reshape(-1, usual).min(axis=0)
    return quickest
