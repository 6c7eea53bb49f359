"""Measure the bandwidth that messages reach, and the expected bandwidth from the baseline.

Messages are comparable if their kinds are equal or have the same bus bandwidth (all but gloo's
reduce_scatter), and if their sizes are within a factor of four. Groups are compared with those of the
baseline that span hosts like them: a loss between hosts is sharding_spans_nodes. Messages of unknown size are
compared with the baseline's by time and order, if both runs send equally many.
"""

from collections import Counter
from collections.abc import Iterable

import numpy as np
import pandas as pd
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.time.collective_rows import Floats, Mask, factorize_texts, parse_group_ranks
from zprof.model.collectives import BYTES_PER_ELEMENT, CollectiveKind, bus_factor
from zprof.model.findings import Confidence
from zprof.rules.rule import select_kind
from zprof.rules.transfer.traffic import transfer_times

LARGE_RATIO = 0.25
#: Minimum share of the bandwidth that the baseline reached.
BASELINE_RATIO = 0.80
KINDS = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)


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
        self._tables: dict[CollectiveKind, pd.DataFrame] = {}

    def spans(self, group: str) -> bool | None:
        """Return True if a group lies on several hosts, None if unknown."""
        return self._spans[group] if group in self._spans else spans_hosts(self.analysis, group)

    def by(self, kind: CollectiveKind) -> pd.DataFrame:
        """Return the ``bus_bandwidths`` of a kind."""
        if kind not in self._tables:
            self._tables[kind] = bus_bandwidths(self.analysis, self.analysis.collectives, kind)
        return self._tables[kind]

    def as_far(self, kind: CollectiveKind, far: bool | None) -> pd.DataFrame:
        """Return ``bus_bandwidths`` of groups that may (``far``) or may not span hosts; of all if None."""
        each = self.by(kind)
        if far is None:
            return each
        other = [group for group, theirs in self._spans.items() if theirs not in (None, far)]
        return each[~each["group"].isin(other)]


def measure_group_rates(reached: ReachedBandwidth) -> list[GroupRate]:
    """Return one entry per kind and group. Messages from a quarter of the largest size count as large."""
    found = []
    for kind in KINDS:
        for group, rows in reached.by(kind).groupby("group"):
            large = rows[rows["bytes"] >= LARGE_RATIO * rows["bytes"].max()]
            found.append(
                GroupRate(
                    kind=kind,
                    group=str(group),
                    ranks=int(large["group_size"].iloc[0]),
                    count=len(large),
                    bytes=float(large["bytes"].median()),
                    bytes_per_s=float(large["bytes_per_s"].median()),
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
                bytes_per_s=float(found["bytes_per_s"].median()),
                of=f"the baseline's {kind.value}s",
                least_ratio=BASELINE_RATIO,
            )
    return None


def find_slow_rank(slow: list[GroupRate], fast: list[GroupRate]) -> int | None:
    """Return the one rank that all slow groups and no fast group have, None if there is not exactly one."""
    if not slow or not fast:
        return None
    suspects = frozenset.intersection(*(parse_group_ranks(rate.group) for rate in slow))
    suspects -= frozenset().union(*(parse_group_ranks(rate.group) for rate in fast))
    return next(iter(suspects)) if len(suspects) == 1 else None


_SIMILAR_FACTOR = 4
_KINDS = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)


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
    return {
        group: spans_hosts(analysis, group) for group in factorize_texts(analysis.collectives["group"])[1]
    }


def comparable_kinds(analysis: RunAnalysis, kind: CollectiveKind) -> tuple[CollectiveKind, ...]:
    """Return the kinds with the same bus bandwidth as ``kind`` on the same link, ``kind`` first.

    Gloo runs a reduce_scatter as an all_reduce, so its bus bandwidth is half of the others'.
    """
    others = [other for other in _KINDS if other is not kind]
    if "gloo" in analysis.run.backend or analysis.run.device == "cpu":
        apart = CollectiveKind.REDUCE_SCATTER
        others = [other for other in others if apart not in (other, kind)]
    return (kind, *others)


def bus_bandwidths(analysis: RunAnalysis, rows: pd.DataFrame, kind: CollectiveKind) -> pd.DataFrame:
    """Return size, group, its number of ranks and bandwidth of each matched collective of a kind."""
    rows = select_kind(rows, kind)
    elapsed = transfer_times(analysis, rows)
    columns = ["instance", "bytes", "group_size", "group"]
    first = rows[columns].drop_duplicates("instance").set_index("instance").reindex(elapsed.index)
    each = first[["bytes", "group_size"]].assign(group=first["group"].astype(str), elapsed=elapsed)
    factor_of_size = {size: bus_factor(kind, int(size)) for size in first["group_size"].unique().tolist()}
    factors = [factor_of_size[size] for size in first["group_size"].tolist()]
    each = each.assign(bytes_per_s=each["bytes"] * factors / each["elapsed"] * 1e9)
    return each[(each["bytes"] > 0) & (each["bytes_per_s"] > 0)]  # 0: the size of the group is unknown


def bandwidth_within_hosts(runs: Iterable[RunAnalysis], kind: CollectiveKind, size: float) -> float | None:
    """Return the bandwidth within a host for messages of similar size, from the first run that has any."""
    for analysis in runs:
        if analysis.collectives.empty:
            continue
        inside = {group for group, far in find_spanning_groups(analysis).items() if far is False}
        rows = analysis.collectives[analysis.collectives["group"].astype(str).isin(inside)]
        for other in comparable_kinds(analysis, kind):
            found = select_similar(bus_bandwidths(analysis, rows, other), size)
            if len(found):
                return float(found["bytes_per_s"].median())
    return None


def select_similar(each: pd.DataFrame, size: float) -> pd.DataFrame:
    """Return the messages of a size within a factor of four."""
    return each[is_similar(each["bytes"].to_numpy(np.float64), size)]


def is_similar(sizes: Floats, size: float) -> Mask:
    """Return a mask of the sizes within a factor of four of ``size``."""
    found: Mask = (sizes >= size / _SIMILAR_FACTOR) & (sizes <= size * _SIMILAR_FACTOR)
    return found


_STEP_KEYS = ["rank", "step"]


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
            steps = max(1, len(rows[_STEP_KEYS].drop_duplicates()))
            found.append(
                UnsizedMessages(
                    kind=kind,
                    count=len(rows),
                    reached_ratio=min(1.0, _grow_types(rows, before) * float(then_ns.sum() / now_ns.sum())),
                    transfer_ns=float(rows["transfer_ns"].sum()) / steps,
                    exposed_ns=float(rows["exposed_transfer_ns"].sum()) / steps,
                )
            )
    return found


def _grow_types(rows: pd.DataFrame, before: pd.DataFrame) -> float:
    """Return how many times as many bytes an element has as in the baseline; 1 if it is unknown or fewer."""
    now, then = (each["dtype"].map(BYTES_PER_ELEMENT).astype(float).mean() for each in (rows, before))
    return max(1.0, now / then) if now > 0 and then > 0 else 1.0


def _quickest_ns(rows: pd.DataFrame) -> "pd.Series[int]":
    """Return the shortest time of each message of a step: the time on a rank that did not wait.

    Messages are known by their place in the step, so a rank's step that lacks one is left out.
    """
    if len(rows):
        messages = rows.groupby(_STEP_KEYS)["rank"].transform("size")
        usual = rows.groupby(_STEP_KEYS).size().mode().max()
        rows = rows[messages == usual]
    launched = rows["launch_start_ns"].fillna(rows["start_ns"])
    index = rows.assign(launched=launched).sort_values("launched").groupby(_STEP_KEYS).cumcount()
    return (rows["end_ns"] - rows["start_ns"]).groupby(index.reindex(rows.index)).min()
