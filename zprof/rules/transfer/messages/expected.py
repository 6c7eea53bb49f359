"""What bandwidth a group's messages should have: as said, as the baseline's, or as other groups' of the run.

Messages compare where their kind is the same, else where kinds share a bus bandwidth (all but gloo's
reduce_scatter), and where their size is similar, within a factor of four.  Groups compare where both, or
neither, span hosts: what is lost between them is sharding_spans_nodes.  Where nobody knows what they span,
groups of a run compare in the same kind only: other kinds are sent along other dimensions of the mesh.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.time.transfer.members import group_ranks
from zprof.model.collectives import CollectiveKind
from zprof.rules.transfer.messages.hosts import (
    bus_bandwidths,
    comparable,
    is_similar,
    similar,
    spanning,
    spans,
)

LARGE_RATIO = 0.25
#: Of what the baseline reached.
BASELINE_RATIO = 0.80
_FAR = {None: -1, False: 0, True: 1}
KINDS = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """A bandwidth, of what it is that of, and below which share of it a link is slow.

    The same messages on the same link come within a few percent; those of another group, or of a data sheet,
    need not.
    """

    bytes_per_s: float
    of: str
    least_ratio: float = 0.50


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRate:
    """What the large messages of one kind reach in one group."""

    kind: CollectiveKind
    group: str
    count: int
    bytes: float
    bytes_per_s: float


class Reached:
    """What the messages of a run reach; each table is made once, for there may be hundreds of groups."""

    def __init__(self, analysis: RunAnalysis) -> None:
        self.analysis = analysis
        self._spans = spanning(analysis)
        self._tables: dict[CollectiveKind, pd.DataFrame] = {}

    def spans(self, group: str) -> bool | None:
        """Whether a group lies on several hosts; None where that is not known."""
        return self._spans[group] if group in self._spans else spans(self.analysis, group)

    def by(self, kind: CollectiveKind) -> pd.DataFrame:
        """``bus_bandwidths`` of a kind."""
        if kind not in self._tables:
            self._tables[kind] = bus_bandwidths(self.analysis, self.analysis.collectives, kind)
        return self._tables[kind]

    def as_far(self, kind: CollectiveKind, far: bool | None) -> pd.DataFrame:
        """The same without groups known to lie within a host where ``far``, and the reverse."""
        each = self.by(kind)
        if far is None:
            return each
        other = [group for group, theirs in self._spans.items() if theirs not in (None, far)]
        return each[~each["group"].isin(other)]


def group_rates(reached: Reached) -> list[GroupRate]:
    """One entry a kind and group; large is from a quarter of the largest of both on."""
    found = []
    for kind in KINDS:
        for group, rows in reached.by(kind).groupby("group"):
            large = rows[rows["bytes"] >= LARGE_RATIO * rows["bytes"].max()]
            found.append(
                GroupRate(
                    kind=kind,
                    group=str(group),
                    count=len(large),
                    bytes=float(large["bytes"].median()),
                    bytes_per_s=float(large["bytes_per_s"].median()),
                )
            )
    return found


def of_baseline(mine: GroupRate, run: Reached, baseline: Reached | None) -> Expected | None:
    """What the baseline reaches; None where it has nothing like it."""
    if baseline is None:
        return None
    far = run.spans(mine.group)
    for kind in comparable(run.analysis, mine.kind):
        found = similar(baseline.as_far(kind, far), mine.bytes)
        if len(found):
            return Expected(
                bytes_per_s=float(found["bytes_per_s"].median()),
                of=f"the baseline's {kind.value}s",
                least_ratio=BASELINE_RATIO,
            )
    return None


class OtherGroups:
    """The groups of a run as columns: each is held against all others."""

    def __init__(self, rates: Sequence[GroupRate], run: Reached) -> None:
        self._run = run
        self._kind = np.array([KINDS.index(rate.kind) for rate in rates])
        self._group = pd.factorize(np.array([rate.group for rate in rates], dtype=object))[0]
        self._far = np.array([_FAR[run.spans(rate.group)] for rate in rates])
        self._bytes = np.array([rate.bytes for rate in rates])
        self._rate = np.array([rate.bytes_per_s for rate in rates])

    def expected(self, place: int, mine: GroupRate) -> Expected | None:
        """The median of those that are like the one at ``place``; None where there are none."""
        same = self._kind == self._kind[place]
        kinds = [KINDS.index(kind) for kind in comparable(self._run.analysis, mine.kind)]
        like = (self._group != self._group[place]) & (self._far == self._far[place])
        like &= is_similar(self._bytes, mine.bytes) & np.isin(self._kind, kinds)
        like = like & same if (like & same).any() or self._far[place] == _FAR[None] else like
        if not like.any():
            return None
        return Expected(bytes_per_s=float(np.median(self._rate[like])), of="other groups")


def slow_rank(slow: list[GroupRate], fast: list[GroupRate]) -> int | None:
    """The one rank that all slow groups have and no fast one; None where that is nobody, or several."""
    if not slow or not fast:
        return None
    suspects = frozenset.intersection(*(group_ranks(rate.group) for rate in slow))
    suspects -= frozenset().union(*(group_ranks(rate.group) for rate in fast))
    return next(iter(suspects)) if len(suspects) == 1 else None
