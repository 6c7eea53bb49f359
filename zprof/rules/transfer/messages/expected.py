"""What bandwidth a group's messages should have: as said, as the baseline's, or as other groups' of the run.

Messages compare where their kind is the same, else where kinds share a bus bandwidth (all but gloo's
reduce_scatter), and where their size is similar, within a factor of four.  Groups compare where both, or
neither, span hosts: what is lost between them is sharding_spans_nodes.
"""

from dataclasses import dataclass

import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.time.transfer.members import group_ranks
from zprof.model.collectives import CollectiveKind
from zprof.rules.transfer.messages.hosts import bus_bandwidths, comparable, similar, spans

LARGE_RATIO = 0.25
KINDS = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """A bandwidth, and of what it is that of."""

    bytes_per_s: float
    of: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRate:
    """What the large messages of one kind reach in one group."""

    kind: CollectiveKind
    group: str
    count: int
    bytes: float
    bytes_per_s: float


def group_rates(analysis: RunAnalysis) -> list[GroupRate]:
    """One entry a kind and group; large is from a quarter of the largest of both on."""
    found = []
    for kind in KINDS:
        each = bus_bandwidths(analysis, analysis.collectives, kind)
        for group, rows in each.groupby("group"):
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


def of_baseline(mine: GroupRate, analysis: RunAnalysis, baseline: RunAnalysis | None) -> Expected | None:
    """What the baseline reaches; None where it has nothing like it."""
    if baseline is None or baseline.collectives.empty:
        return None
    rows = _as_far(baseline, spans(analysis, mine.group))
    for kind in comparable(analysis, mine.kind):
        found = similar(bus_bandwidths(baseline, rows, kind), mine.bytes)
        if len(found):
            return Expected(
                bytes_per_s=float(found["bytes_per_s"].median()), of=f"the baseline's {kind.value}s"
            )
    return None


def _as_far(baseline: RunAnalysis, far: bool | None) -> pd.DataFrame:
    """Its collectives, without groups known to lie within a host where ours does not, and the reverse."""
    groups = baseline.collectives["group"].astype(str)
    other = {group for group in groups.unique() if spans(baseline, group) not in (None, far)}
    return baseline.collectives[~groups.isin(other)] if far is not None else baseline.collectives


def of_other_groups(mine: GroupRate, rates: list[GroupRate], analysis: RunAnalysis) -> Expected | None:
    """The median of the other groups of the run; None where there are none like it."""
    kinds, far = comparable(analysis, mine.kind), spans(analysis, mine.group)
    like = pd.DataFrame(
        [
            {"kind": other.kind, "bytes": other.bytes, "bytes_per_s": other.bytes_per_s}
            for other in rates
            if other.group != mine.group and other.kind in kinds and spans(analysis, other.group) == far
        ],
        columns=["kind", "bytes", "bytes_per_s"],
    )
    like = similar(like, mine.bytes)
    same = like[like["kind"] == mine.kind]
    like = same if len(same) else like
    if not len(like):
        return None
    return Expected(bytes_per_s=float(like["bytes_per_s"].median()), of="other groups")


def slow_rank(slow: list[GroupRate], fast: list[GroupRate]) -> int | None:
    """The one rank that all slow groups have and no fast one; None where that is nobody, or several."""
    if not slow or not fast:
        return None
    suspects = frozenset.intersection(*(group_ranks(rate.group) for rate in slow))
    suspects -= frozenset().union(*(group_ranks(rate.group) for rate in fast))
    return next(iter(suspects)) if len(suspects) == 1 else None
