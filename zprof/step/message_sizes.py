"""Play the measured step with messages of other sizes, or with less latency.

Three causes share their signs (short exposed messages) but differ: units that are parts of blocks, one unit
for the entire model, and a link with high latency for any size. The first two follow from the order of
gathers and compute, the third from the latency.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.intervals import Int64s
from zprof.analysis.per_step import list_copy_names
from zprof.step.blocks import count_blocks
from zprof.step.edits import shorten_collectives
from zprof.step.links import Latencies, expected_latency_ns, max_normal_latency_ns, read_latencies
from zprof.step.merging import merge_units
from zprof.step.messages import RankMessages, read_messages
from zprof.step.splitting import split_units
from zprof.step.tasks import NONE, Graph, RankGraph, step_places

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

    @property
    def max_latency_ns(self) -> float:
        """The latency of a message in ns, between the ranks where it is longest; 0 if unknown."""
        return max(self.latency.by_ranks.values(), default=0.0)

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
