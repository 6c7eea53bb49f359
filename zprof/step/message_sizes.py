"""Replay the measured step with different message sizes, with less latency, or with shards within a host.

A message of a ring over n ranks on H hosts of h ranks moves (n-1)/n of its bytes over each link. Within a
host it moves (h-1)/h at the host's rate. An all_reduce of a shard between hosts moves 2 (H-1)/H of bytes/h at
the current rate. If the h ranks of a host share one network link, their h rings share its rate.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns
from zprof.analysis.intervals import Int64s
from zprof.analysis.per_step import list_copy_names
from zprof.analysis.time.collective_rows import select_kind
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Finding
from zprof.step.added_messages import shard_within_hosts
from zprof.step.bandwidth import bandwidth_within_hosts, bus_bandwidths, count_ranks_by_host
from zprof.step.blocks import count_blocks
from zprof.step.edits import shorten_collectives
from zprof.step.links import Latencies, expected_latency_ns, max_normal_latency_ns, read_latencies
from zprof.step.merging import merge_units
from zprof.step.messages import RankMessages, read_messages
from zprof.step.splitting import split_units
from zprof.step.tasks import NONE, Graph, RankGraph, step_places
from zprof.step.traffic import find_sharding

#: A step with more gathers is not one unit; a model with fewer blocks has none to wrap.
_MAX_UNITS, _MIN_BLOCKS = 2, 3


@dataclass(slots=True)
class ResizedMessages:
    """Message sizes of a step, with edits that change them; each rank's messages are read once."""

    analysis: RunAnalysis
    graph: Graph
    latency: Latencies = field(init=False)
    copied: Collection[str] = field(init=False)
    _read: dict[int, RankMessages] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Read latencies, and the names of the kernels that copy."""
        self.latency = read_latencies(self.analysis)
        self.copied = list_copy_names(self.analysis)

    def read(self, rank: RankGraph) -> RankMessages:
        """Return the messages of a rank."""
        number = rank.tasks.rank
        if number not in self._read:
            rows = self.analysis.collectives
            self._read[number] = read_messages(rank, rows.texts("kind"), rows.texts("group"), self.copied)
        return self._read[number]

    @property
    def messages(self) -> RankMessages:
        """Messages of the first rank."""
        return self.read(self.graph.ranks[0])

    @property
    def has_blocks(self) -> bool:
        """True if the blocks of the model are visible in the step."""
        return bool((self.messages.blocks != NONE).any())

    @property
    def gathers_for_passes(self) -> bool:
        """True if most gathers serve a pass of their own step; gathers after the update do not."""
        rank, messages = self.graph.ranks[0], self.messages
        gathers = messages.gathers
        step = rank.tasks.step
        at, needed = messages.at[gathers], messages.needed[gathers]
        return bool(len(gathers) and (step[at] == step[needed]).mean() > 1 / 2)

    @property
    def has_parts(self) -> bool:
        """True if a block is gathered by several messages: several units, or pieces of one unit."""
        return self.messages.gathers_per_block > 1

    @property
    def is_one_unit(self) -> bool:
        """True if a step gathers the entire model before all of its blocks."""
        rank, messages = self.graph.ranks[0], self.messages
        if not self.gathers_for_passes or messages.units_per_block:
            return False
        steps = step_places(rank)
        units = np.unique(messages.needed[messages.gathers])
        blocks = len(np.unique(messages.blocks[messages.blocks != NONE])) / self.graph.steps
        if blocks < 2 * _MIN_BLOCKS:
            return False
        per_step = np.bincount(steps[units], minlength=self.graph.steps)
        return bool(np.median(per_step) <= _MAX_UNITS or self._gathers_once_a_pass(units))

    def _gathers_once_a_pass(self, units: Int64s) -> bool:
        """Return True if all blocks follow each gather before the next one, for any number of micro-batches.

        ``units``: the tasks that first need each gather.
        """
        rank, messages = self.graph.ranks[0], self.messages
        model = count_blocks(rank, self.copied)
        between = [
            len(np.unique(blocks[blocks != NONE])) for blocks in np.split(messages.blocks, units)[1:-1]
        ]
        return bool(model >= _MIN_BLOCKS and between and min(between) >= model)

    def latency_ns(self, row: int) -> float:
        """Return the latency of a row in ns, 0 if unknown."""
        return self.latency.get_for_row(row) or 0.0

    def merge(self) -> list[Graph]:
        """Return the step with one message per block instead of one per unit or piece of a unit."""
        merged = merge_units(self.graph, self.read, self.latency_ns, self.copied)
        return [merged] if merged is not None else []

    def split(self) -> list[Graph]:
        """Return the step with a message per block, gathered again for the backward, and kept until then."""
        found = (
            split_units(self.graph, self.read, self.latency_ns, self.copied, again=gathers_again)
            for gathers_again in (True, False)
        )
        return [graph for graph in found if graph is not None]

    def reduce_latency(self) -> list[Graph]:
        """Return the step with the maximum normal network latency, and with the latency within a host."""
        sizes = self.analysis.collectives.ints("group_size")
        over: tuple[dict[int, float], dict[int, float]] = ({}, {})
        for row, size in enumerate(sizes.tolist()):
            ranks = size if size > 0 else self.analysis.run.world_size  # an upper bound for unnamed groups
            latency = self.latency_ns(row)
            if ranks > 1 and latency > max_normal_latency_ns(ranks):
                over[0][row] = latency - max_normal_latency_ns(ranks)
                over[1][row] = latency - expected_latency_ns(ranks)[0]
        return [shorten_collectives(self.graph, each) for each in over if each]


def merge_small_units(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Return the steps with the fix of units_too_small."""
    sizes = ResizedMessages(analysis, graph)
    return sizes.merge() if graph.has_kernels and sizes.has_parts else []


def split_single_unit(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Return the steps with the fix of single_unit."""
    sizes = ResizedMessages(analysis, graph)
    return sizes.split() if graph.has_kernels and sizes.is_one_unit else []


def remove_excess_latency(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Return the steps with the fix of latency_bound_collectives."""
    sizes = ResizedMessages(analysis, graph)
    return sizes.reduce_latency() if sizes.has_blocks or not graph.has_kernels else []


_SHARDS = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
#: Within a host without NVLink (a PCIe 4.0 x16 slot), and with NVLink of A100s and H100s (nccl-tests).
_PCIE_BYTES_PER_S, _NVLINK_BYTES_PER_S = 20e9, (230e9, 360e9)
#: A link must be slower than this share of the bandwidth within a host to be worth a fix.
_LOW_RATIO = 0.5


class SpanningShards(Struct, frozen=True, kw_only=True):
    """A group that shards over hosts: number of hosts, ranks per host, and rates in bytes per second.

    ``within``: lower and upper bound of the rate within a host; ``measured`` if that was recorded.
    """

    rows: Columns
    hosts: int
    per_host: int
    seen: float
    within: tuple[float, float]
    measured: bool


def find_spanning_shards(analysis: RunAnalysis) -> SpanningShards | None:
    """Return the group that shards over hosts on a slow link, None without one or if hosts are unknown."""
    sharding = find_sharding(analysis)
    places = np.sort(np.concatenate((sharding.gathers.row, sharding.reductions.row)))
    own_rows = select_kind(analysis.collectives.at(places), *_SHARDS)
    counted = [count_ranks_by_host(analysis, group) for group in own_rows.texts("group").list_distinct()]
    layouts = {(len(each), count) for each in counted if each for count in each.values()}
    if len(layouts) != 1 or any(each is None for each in counted):
        return None
    hosts, per_host = next(iter(layouts))
    if hosts < 2 or per_host < 2:
        return None
    rates = [bus_bandwidths(analysis, own_rows, kind).floats("bytes_per_s") for kind in _SHARDS]
    if not any(len(each) for each in rates):
        return None
    seen = float(np.median(np.concatenate(rates)))
    inside = bandwidth_within_hosts(
        (analysis,), CollectiveKind.ALL_GATHER, float(np.median(own_rows.ints("bytes")))
    )
    slow = _PCIE_BYTES_PER_S if seen < _LOW_RATIO * _PCIE_BYTES_PER_S else _NVLINK_BYTES_PER_S[0]
    within = (inside, inside) if inside else (slow, _NVLINK_BYTES_PER_S[1])
    if seen >= _LOW_RATIO * within[0]:
        return None
    return SpanningShards(
        rows=own_rows, hosts=hosts, per_host=per_host, seen=seen, within=within, measured=inside is not None
    )


def shard_within_host(analysis: RunAnalysis, graph: Graph, found: SpanningShards) -> list[Graph]:
    """Return the step with shards within hosts, whose ranks share a network link or have one each."""
    return [
        _shard_at_rate(analysis, graph, found, found.within[0], float(found.per_host)),
        _shard_at_rate(analysis, graph, found, found.within[1], 1.0),
    ]


def _shard_at_rate(
    analysis: RunAnalysis, graph: Graph, found: SpanningShards, rate: float, sharing: float
) -> Graph:
    size = found.hosts * found.per_host
    known = read_latencies(analysis)
    part = (found.per_host - 1) / found.per_host / ((size - 1) / size)
    replica = 2 * (found.hosts - 1) / found.hosts / found.per_host * sharing / ((size - 1) / size)
    reduces = set(select_kind(found.rows, CollectiveKind.REDUCE_SCATTER).row.tolist())
    ratio, after = {}, {}
    transfer_ns = found.rows.ints("transfer_ns").tolist()
    for row, transfer in zip(found.rows.row.tolist(), transfer_ns, strict=True):
        ratio[row] = min(1.0, part * found.seen / rate)
        if row in reduces:
            latency = min(known.get_for_row(row) or 0.0, transfer)
            after[row] = latency + (transfer - latency) * replica
    return shard_within_hosts(graph, ratio, after, _place_within_host(analysis))


def _place_within_host(analysis: RunAnalysis) -> dict[int, int]:
    """Return the index of each rank within its host; ranks with equal index hold the same shard."""
    counts: dict[str, int] = {}
    found = {}
    for rank in sorted(analysis.hosts):
        host = analysis.hosts[rank]
        found[rank] = counts.get(host, 0)
        counts[host] = found[rank] + 1
    return found


def fix_spanning_shards(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Return the steps with the fix of sharding_spans_nodes."""
    found = find_spanning_shards(analysis)
    return shard_within_host(analysis, graph, found) if found else []
