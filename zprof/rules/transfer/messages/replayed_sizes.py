"""The measured step with messages of other sizes: merged to blocks, split to blocks, with less latency."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.intervals import Int64s
from zprof.model.findings import Finding
from zprof.replay.blocks import count_blocks
from zprof.replay.edits import shorten_collectives
from zprof.replay.graph import Graph, RankGraph, step_places
from zprof.replay.merging import merge_units
from zprof.replay.messages import Messages, read_messages
from zprof.replay.splitting import split_units
from zprof.replay.tasks import NONE
from zprof.rules.copies import copy_names
from zprof.rules.transfer.messages.latency import Latencies, latencies, most_ordinary_ns, ordinary_ns

#: A step with more gathers than that is not one unit, and a model with fewer blocks has none to wrap.
_MAX_UNITS, _MIN_BLOCKS = 2, 3


@dataclass(slots=True)
class Sizes:
    """What the sizes of a step's messages are judged by; each rank's messages are read once."""

    analysis: RunAnalysis
    graph: Graph
    latency: Latencies = field(init=False)
    copied: Collection[str] = field(init=False)
    _read: dict[int, Messages] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Read latencies, and the names of the kernels that copy."""
        self.latency = latencies(self.analysis)
        self.copied = copy_names(self.analysis)

    def read(self, rank: RankGraph) -> Messages:
        """Return the messages of a rank."""
        number = rank.tasks.rank
        if number not in self._read:
            rows = self.analysis.collectives
            index = rows.index.tolist()
            kinds = dict(zip(index, rows["kind"].astype(str).tolist(), strict=True))
            groups = dict(zip(index, rows["group"].astype(str).tolist(), strict=True))
            self._read[number] = read_messages(rank, kinds, groups, self.copied)
        return self._read[number]

    @property
    def messages(self) -> Messages:
        """The messages of the first rank."""
        return self.read(self.graph.ranks[0])

    @property
    def has_blocks(self) -> bool:
        """Whether the step shows the blocks of the model."""
        return bool((self.messages.blocks != NONE).any())

    @property
    def gathers_for_passes(self) -> bool:
        """Whether gathers serve a pass of their own step; those behind the update do not."""
        rank, messages = self.graph.ranks[0], self.messages
        gathers = messages.gathers
        step = rank.tasks.step
        at, needed = messages.at[gathers], messages.needed[gathers]
        return bool(len(gathers) and (step[at] == step[needed]).mean() > 1 / 2)

    @property
    def is_one_unit(self) -> bool:
        """Whether a step gathers the model as a whole, before all of its blocks."""
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
        """Whether all blocks follow each gather before the next one, however many micro-batches a step has.

        ``units``: what needs each gather first.
        """
        rank, messages = self.graph.ranks[0], self.messages
        model = count_blocks(rank, self.copied)
        between = [
            len(np.unique(blocks[blocks != NONE])) for blocks in np.split(messages.blocks, units)[1:-1]
        ]
        return bool(model >= _MIN_BLOCKS and between and min(between) >= model)

    def latency_ns(self, row: int) -> float:
        """Return the latency of a row, 0 where it is not known."""
        return self.latency.of_row(row) or 0.0

    def merged(self) -> list[Graph]:
        """Return the step with one message for a block in place of those of its units."""
        merged = merge_units(self.graph, self.read, self.latency_ns, self.copied)
        return [merged] if merged is not None else []

    def split(self) -> list[Graph]:
        """Return the step with a message for each block, gathered again for the backward, and kept."""
        found = (
            split_units(self.graph, self.read, self.latency_ns, self.copied, again=again)
            for again in (True, False)
        )
        return [graph for graph in found if graph is not None]

    def quick(self) -> list[Graph]:
        """Return the step on a network that is just ordinary, and on a host's link."""
        sizes = self.analysis.collectives["group_size"].astype(int)
        over: tuple[dict[int, float], dict[int, float]] = ({}, {})
        for row, size in zip(sizes.index.tolist(), sizes.tolist(), strict=True):
            ranks = size if size > 0 else self.analysis.run.world_size  # of groups that nobody names, at most
            latency = self.latency_ns(row)
            if ranks > 1 and latency > most_ordinary_ns(ranks):
                over[0][row] = latency - most_ordinary_ns(ranks)
                over[1][row] = latency - ordinary_ns(ranks)[0]
        return [shorten_collectives(self.graph, each) for each in over if each]


def merge_small_units(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Edit for units_too_small."""
    sizes = Sizes(analysis, graph)
    return sizes.merged() if sizes.messages.units_per_block > 1 else []


def split_single_unit(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Edit for single_unit."""
    sizes = Sizes(analysis, graph)
    return sizes.split() if sizes.is_one_unit else []


def take_latency_off(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Edit for latency_bound_collectives."""
    sizes = Sizes(analysis, graph)
    return sizes.quick() if sizes.has_blocks else []
