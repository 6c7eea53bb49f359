"""Groups of ranks and the hosts that they lie on; what messages between ranks of one host reach."""

from collections import Counter
from collections.abc import Iterable

import numpy as np
import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.time.transfer.instances import Floats, Mask
from zprof.analysis.time.transfer.members import group_ranks
from zprof.analysis.time.transfer.texts import codes_of
from zprof.model.collectives import CollectiveKind, bus_factor
from zprof.rules.rows import of_kind
from zprof.rules.transfer.messages.traffic import intrinsic

_SIMILAR = 4
_KINDS = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)


def ranks_by_host(analysis: RunAnalysis, group: str) -> dict[str, int] | None:
    """How many ranks of a group lie on each host; None where ranks or hosts are not known."""
    ranks = group_ranks(group)
    if not ranks or not ranks <= set(analysis.hosts):
        return None
    return dict(Counter(analysis.hosts[rank] for rank in ranks))


def spans(analysis: RunAnalysis, group: str) -> bool | None:
    """Whether a group lies on several hosts; None where that is not known."""
    hosts = ranks_by_host(analysis, group)
    return None if hosts is None else len(hosts) > 1


def spanning(analysis: RunAnalysis) -> dict[str, bool | None]:
    """``spans`` of each group that has collectives: there are few groups, and as many rows as ranks."""
    return {group: spans(analysis, group) for group in codes_of(analysis.collectives["group"])[1]}


def comparable(analysis: RunAnalysis, kind: CollectiveKind) -> tuple[CollectiveKind, ...]:
    """Kinds whose bus bandwidth is that of ``kind`` on the same link, itself first.

    Gloo reduce-scatters by an all_reduce, so that its bus bandwidth is half of the others'.
    """
    others = [other for other in _KINDS if other is not kind]
    if "gloo" in analysis.run.backend or analysis.run.device == "cpu":
        apart = CollectiveKind.REDUCE_SCATTER
        others = [other for other in others if apart not in (other, kind)]
    return (kind, *others)


def bus_bandwidths(analysis: RunAnalysis, rows: pd.DataFrame, kind: CollectiveKind) -> pd.DataFrame:
    """``bytes``, ``group``, ``bytes_per_s`` of matched collectives of a kind that the clocks resolve."""
    rows = of_kind(rows, kind)
    elapsed = intrinsic(analysis, rows)
    first = rows.drop_duplicates("instance").set_index("instance").reindex(elapsed.index)
    each = pd.DataFrame({"bytes": first["bytes"], "group": first["group"].astype(str), "elapsed": elapsed})
    factors = [bus_factor(kind, int(size)) for size in first["group_size"]]
    each = each.assign(bytes_per_s=each["bytes"] * factors / each["elapsed"] * 1e9)
    return each[each["bytes"] > 0]


def within_hosts(runs: Iterable[RunAnalysis], kind: CollectiveKind, size: float) -> float | None:
    """What groups within a host reach with messages of a similar size, in the first run that has some."""
    for analysis in runs:
        if analysis.collectives.empty:
            continue
        inside = {group for group, far in spanning(analysis).items() if far is False}
        rows = analysis.collectives[analysis.collectives["group"].astype(str).isin(inside)]
        for other in comparable(analysis, kind):
            found = similar(bus_bandwidths(analysis, rows, other), size)
            if len(found):
                return float(found["bytes_per_s"].median())
    return None


def similar(each: pd.DataFrame, size: float) -> pd.DataFrame:
    """Messages of a size within a factor of four."""
    return each[is_similar(each["bytes"].to_numpy(np.float64), size)]


def is_similar(sizes: Floats, size: float) -> Mask:
    """Which sizes are within a factor of four of ``size``."""
    found: Mask = (sizes >= size / _SIMILAR) & (sizes <= size * _SIMILAR)
    return found
