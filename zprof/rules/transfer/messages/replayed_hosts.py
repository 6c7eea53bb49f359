"""The measured step with shards within a host: what its messages take there, and between hosts.

A message of a ring over n ranks on H hosts of h moves (n-1)/n of its bytes over each link, within a host
(h-1)/h at the rate of that.  An all_reduce of a shard between hosts moves 2 (H-1)/H of bytes/h at the present
rate; if the h ranks of a host have one way out of it, their h rings share that.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.time.transfer.members import group_ranks
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Finding
from zprof.replay.graph import Graph
from zprof.replay.replicating import shard_within_hosts
from zprof.rules.rows import of_kind
from zprof.rules.transfer.messages.hosts import bus_bandwidths, ranks_by_host, within_hosts
from zprof.rules.transfer.messages.latency import latencies

_SHARDS = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
#: Within a host without NVLink (a PCIe 4.0 x16 slot), and with that of A100s and H100s (nccl-tests).
_PCIE_BYTES_PER_S, _NVLINK_BYTES_PER_S = 20e9, (230e9, 360e9)
#: Links that are not at least so much slower than those within a host are not what to fix.
_LOW_RATIO = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Spanning:
    """The group that shards over hosts: how many, with how many ranks each, and the rates.

    ``within``: what messages within a host reach, at least and at most; ``measured`` if that was recorded.
    """

    rows: pd.DataFrame
    hosts: int
    per_host: int
    seen: float
    within: tuple[float, float]
    measured: bool


def spanning_shards(analysis: RunAnalysis) -> Spanning | None:
    """Return the group that shards over hosts by a slow link; None without one, or if hosts are unknown."""
    rows = analysis.collectives
    rows = rows[rows["kind"].astype(str).isin([kind.value for kind in _SHARDS])]
    rows = rows[(rows["group_size"] > 1) & (rows["bytes"] > 0)]
    if rows.empty:
        return None
    moved = rows.groupby(rows["group"].astype(str))["bytes"].sum()
    size = len(group_ranks(str(moved.idxmax())))
    groups = [str(group) for group in moved.index if size and len(group_ranks(str(group))) == size]
    counted = [ranks_by_host(analysis, group) for group in groups]
    layouts = {(len(each), count) for each in counted if each for count in each.values()}
    if len(layouts) != 1 or any(each is None for each in counted):
        return None
    hosts, per_host = next(iter(layouts))
    if hosts < 2 or per_host < 2:
        return None
    mine = rows[rows["group"].astype(str).isin(groups)]
    rates = pd.concat([bus_bandwidths(analysis, mine, kind) for kind in _SHARDS])
    if rates.empty:
        return None
    seen = float(rates["bytes_per_s"].median())
    inside = within_hosts((analysis,), CollectiveKind.ALL_GATHER, float(mine["bytes"].median()))
    slow = _PCIE_BYTES_PER_S if seen < _LOW_RATIO * _PCIE_BYTES_PER_S else _NVLINK_BYTES_PER_S[0]
    within = (inside, inside) if inside else (slow, _NVLINK_BYTES_PER_S[1])
    if seen >= _LOW_RATIO * within[0]:
        return None
    return Spanning(
        rows=mine, hosts=hosts, per_host=per_host, seen=seen, within=within, measured=inside is not None
    )


def within_host_graphs(analysis: RunAnalysis, graph: Graph, found: Spanning) -> list[Graph]:
    """Return the step with shards within hosts, whose ranks share the way out or have one each."""
    return [
        _within(analysis, graph, found, found.within[0], float(found.per_host)),
        _within(analysis, graph, found, found.within[1], 1.0),
    ]


def _within(analysis: RunAnalysis, graph: Graph, found: Spanning, rate: float, sharing: float) -> Graph:
    size = found.hosts * found.per_host
    known = latencies(analysis)
    part = (found.per_host - 1) / found.per_host / ((size - 1) / size)
    replica = 2 * (found.hosts - 1) / found.hosts / found.per_host * sharing / ((size - 1) / size)
    reduces = set(of_kind(found.rows, CollectiveKind.REDUCE_SCATTER).index.tolist())
    ratio, after = {}, {}
    for row, transfer in zip(found.rows.index.tolist(), found.rows["transfer_ns"].tolist(), strict=True):
        ratio[row] = min(1.0, part * found.seen / rate)
        if row in reduces:
            latency = min(known.of_row(row) or 0.0, transfer)
            after[row] = latency + (transfer - latency) * replica
    return shard_within_hosts(graph, ratio, after, _peers(analysis))


def _peers(analysis: RunAnalysis) -> dict[int, int]:
    """The place of each rank within its host: ranks of one place hold the same shard."""
    places: dict[str, int] = {}
    found = {}
    for rank in sorted(analysis.hosts):
        host = analysis.hosts[rank]
        found[rank] = places.get(host, 0)
        places[host] = found[rank] + 1
    return found


def shard_in_host(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Edit for sharding_spans_nodes."""
    found = spanning_shards(analysis)
    return within_host_graphs(analysis, graph, found) if found else []
