"""Find messages that are mostly latency, and play the step with other message sizes or less latency.

    share = count * latency / sum of times > 50 %      and their exposed time > 3 % of the step

The cause is either small units or high latency; larger messages fix both. Units are the cause if their names
show more than three per block (``layers.3.attn.wq`` is in ``layers.3``), or if the link's latency is normal.
Otherwise the latency is the cause. Up to 200 us is normal: ten times the time of a one-element all_reduce
between eight GPUs of a host in a public trace (18.6 us), which allows for rings over several hosts.

Three causes look alike but are played differently: units that are parts of blocks, one unit for the entire
model, and a link with high latency at any size. The first two follow from the order of gathers and compute,
the third from the latency.

Merging sends a block's gathers (its units and their pieces) as one message, and its reductions as another. A
unit outside blocks keeps its own message, but its pieces are merged. Merging saves the latency of all
messages but one, and the host time to launch them. The bytes do not change, and tasks that waited for one of
the messages wait for the merged message. The grouping is determined on one rank and applied to all, by the
index of each message among the collectives of the rank.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.analysis import (
    Fact,
    RunAnalysis,
    Untested,
    find_missing_collectives,
    has_no_collectives,
    list_copy_names,
    make_fact,
    make_untested,
    mark_state_rows,
    mean_wall_ns,
)
from zprof.analysis.intervals import Int64s
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Confidence
from zprof.step.edits import reorder_tasks, shorten_collectives
from zprof.step.links import (
    Latencies,
    expected_latency_ns,
    max_normal_latency_ns,
    measure_transfers,
    read_latencies,
)
from zprof.step.one_rank import SIZE_MULTIPLES, StepModel, is_guess, model_step, sizes_that_help
from zprof.step.structure import PartnerCopies, RankMessages, count_blocks, main_stream_of_rank, read_messages
from zprof.step.tasks import NONE, Floats, Graph, RankGraph, step_places
from zprof.step.traffic import Messages, StepTraffic, read_step_traffic

#: A step with more gathers is not one unit; a model with fewer blocks has none to wrap.
_MAX_UNITS, _MIN_BLOCKS = 2, 3
_GATHER = CollectiveKind.ALL_GATHER.value
_REDUCES = frozenset({CollectiveKind.REDUCE_SCATTER.value, CollectiveKind.ALL_REDUCE.value})
#: Reductions belong to units if a pass has at least this many reductions per unit.
_SAME_COUNT_RATIO = 0.8
LATENCY_RATIO = 0.50
WORTH_RATIO = 0.03
UNITS_PER_BLOCK = 3
ORDINARY_LATENCY_NS = 200_000
#: If the model misses more than this share of the exposed time, its confidence is low.
MISSED_RATIO = 0.5
SURE_COUNT = 10
#: Every message takes at least the latency: if one in ten takes less than half of it, the estimate is noise.
QUICK_SHARE, QUICKER_RATIO = 0.1, 0.5
#: Fewer units than this are worse than small units.
MIN_UNITS = 4
#: Messages so large that latency is not half of their time on any link (64 MiB).
SURELY_LARGE_BYTES = 64 * 1024 * 1024


@dataclass(slots=True)
class ResizedMessages:
    """A step's message sizes, and edits that change them; each rank's messages are read once."""

    analysis: RunAnalysis
    graph: Graph
    latency: Latencies = field(init=False)
    copied: Collection[str] = field(init=False)
    _read: dict[int, RankMessages] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Read latencies, and the names of copy kernels."""
        self.latency = read_latencies(self.analysis)
        self.copied = list_copy_names(self.analysis)

    def read(self, rank: RankGraph) -> RankMessages:
        """Return the messages of a rank."""
        number = rank.tasks.rank
        if number not in self._read:
            rows = self.analysis.collectives
            states = mark_state_rows(self.analysis, rows)
            self._read[number] = read_messages(
                rank, rows.texts("kind"), rows.texts("group"), states, self.copied
            )
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
        """True if most gathers serve a pass in their own step, unlike gathers after the update."""
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
        """A message's latency in ns, maximum over rank groups; 0 if unknown."""
        return max(self.latency.by_ranks.values(), default=0.0)

    def latency_ns(self, row: int) -> float:
        """Return the latency of a row in ns, 0 if unknown."""
        return self.latency.get_for_row(row) or 0.0

    def merge(self) -> list[Graph]:
        """Return the step with one message per block instead of one per unit or piece of a unit."""
        merged = merge_units(self.graph, self.read, self.latency_ns, self.copied)
        return [merged] if merged is not None else []

    def split(self) -> list[Graph]:
        """Return the step with a message per block, with blocks gathered again for the backward pass and
        kept.
        """
        from zprof.step.added_messages import split_units  # only one unit for the entire model is split

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


class _Merge(Struct, frozen=True, kw_only=True):
    """Collectives to merge, by index on the rank; the merged message is launched at ``place``."""

    members: tuple[int, ...]
    place: int
    last: bool


def merge_units(
    graph: Graph,
    read: Callable[[RankGraph], RankMessages],
    latency_ns: Callable[[int], float],
    copies: Collection[str],
) -> Graph | None:
    """Merge the gathers of each block pass into one, and its reductions into one.

    Args:
        graph: The measured step.
        read: Returns the messages of a rank.
        latency_ns: Returns the latency of a row of the analysis' collectives.
        copies: Names of kernels that only copy into and out of communication buffers.

    Returns:
        The changed graph, None if the ranks do not issue the same collectives.
    """
    each = [read(rank) for rank in graph.ranks]
    if len({messages.kind for messages in each}) > 1:
        return None
    merges = _plan_merges(each[0])
    return _apply_merges(graph, each, merges, latency_ns, copies)


def _plan_merges(messages: RankMessages) -> list[_Merge]:
    merges = []
    # then a block's several gathers are pieces, or for recomputation and backward pass, which stay
    has_one_unit = messages.units_per_block <= 1
    found: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    for place, (kind, group, block, unit) in enumerate(
        zip(messages.kind, messages.group, messages.block.tolist(), messages.unit.tolist(), strict=True)
    ):
        outside = -2 - (unit if kind == _GATHER or has_one_unit else place)
        found[(kind, group, outside if block == NONE or has_one_unit else block)].append(place)
    units = messages.units_per_block
    gathers = [members for (kind, _, _), members in found.items() if kind == _GATHER]
    # a unit's other gathers are its pieces
    first = messages.gathers[np.unique(messages.unit[messages.gathers], return_index=True)[1]]
    for number, members in enumerate(gathers):
        ahead = max(0, int(messages.ahead[members[0]]))
        place = members[0]
        if ahead and number >= ahead:
            launched = int(messages.unit[gathers[number - ahead][0]]) + ahead
            place = min(place, int(first[min(launched, len(first) - 1)]))
        if len(members) > 1 or place < members[0]:  # a head is also prefetched by one block
            merges.append(_Merge(members=tuple(members), place=place, last=False))
    for (kind, _, block), members in found.items():
        mine = kind in _REDUCES and block >= 0 and len(members) >= max(2.0, _SAME_COUNT_RATIO * units)
        if mine:
            merges.append(_Merge(members=tuple(members), place=members[-1], last=True))
    return merges


def _apply_merges(
    graph: Graph,
    each: Sequence[RankMessages],
    merges: Sequence[_Merge],
    latency_ns: Callable[[int], float],
    copies: Collection[str],
) -> Graph:
    transfer, members = graph.transfer_ns.copy(), graph.members.copy()
    ranks = []
    done: set[int] = set()
    for rank, messages in zip(graph.ranks, each, strict=True):
        work, place = rank.work_ns.copy(), np.arange(len(rank.tasks), dtype=np.float64)
        partners = PartnerCopies(rank, messages.at[messages.gathers], copies)
        kept: dict[int, int] = {}
        for merge in merges:
            tasks = [int(messages.at[member]) for member in merge.members]
            keeps = tasks[-1] if merge.last else tasks[0]
            saved = sum(latency_ns(int(rank.tasks.row[task])) for task in tasks if task != keeps)
            work[keeps] = max(rank.work_ns[tasks].max(), rank.work_ns[tasks].sum() - saved)
            into, numbers = int(rank.collective[keeps]), rank.collective[tasks]
            if into not in done:
                done.add(into)
                times = graph.transfer_ns[numbers]
                transfer[into] = max(float(times.max()), float(times.sum()) - saved)
            for task in tasks:
                if task != keeps:
                    kept[task] = keeps
                    members[rank.collective[task]] -= 1
            for partner in (partners.before, partners.behind):
                copied = list(dict.fromkeys(copy for task in tasks if (copy := partner(task)) is not None))
                unit = messages.unit[merge.members[-1 if merge.last else 0]]
                pieces = [
                    task
                    for task, member in zip(tasks, merge.members, strict=True)
                    if messages.unit[member] == unit
                ]
                kept_copy = next((copy for task in pieces if (copy := partner(task)) is not None), None)
                if kept_copy is None:
                    continue
                work[kept_copy] = rank.work_ns[copied].sum()
                kept.update((copy, kept_copy) for copy in copied if copy != kept_copy)
            target = float(messages.at[merge.place])
            if not merge.last and target < keeps:
                place[keeps] = target - 0.4
                copied_in = partners.before(keeps)
                if copied_in is not None:
                    place[copied_in] = target - 0.5
        paced = replace(rank, work_ns=work)
        paced = _move_gather_waits(_move_reduction_waits(paced, messages, merges, partners), messages, merges)
        removed = [
            member
            for merge in merges
            if not merge.last
            for member in merge.members[1:]
            if messages.unit[member] != messages.unit[merge.members[0]]
        ]
        ranks.append(_drop_tasks(_drop_hooks(paced, messages, removed), kept, place))
    return replace(graph, ranks=tuple(ranks), transfer_ns=transfer, members=members)


def _move_gather_waits(rank: RankGraph, messages: RankMessages, merges: Sequence[_Merge]) -> RankGraph:
    """Make gathers wait for the compute n blocks earlier instead of n units earlier.

    Engines bound the memory of gathered parameters with such waits.
    """
    gathers = messages.gathers
    needed = messages.needed[gathers]
    units = messages.unit[gathers]
    group = _number_merged(len(gathers), {int(at): number for number, at in enumerate(gathers)}, merges)
    first = np.searchsorted(group, np.arange(group.max(initial=0) + 1))

    def moved(number: int, other: int) -> int:
        unit = int(np.searchsorted(needed, other, side="right")) - 1
        back = int(units[number] - units[max(0, unit)])
        if other == NONE or rank.collective[other] != NONE or back < 2 or unit < 0:
            return other
        target = int(group[number]) - back
        if target < 0:
            return NONE
        return int(needed[first[target + 1]]) - 1

    waits, on = list(rank.waits_on), rank.blocks_on.copy()
    for merge in merges:
        if merge.last:
            continue
        task = int(messages.at[merge.members[0]])
        number = int(np.searchsorted(gathers, merge.members[0]))
        chosen = (moved(number, other) for other in waits[task])
        waits[task] = tuple(sorted({other for other in chosen if other != NONE}))
        call = task - 1
        while call >= 0 and rank.stream[call] == NONE:
            on[call] = moved(number, int(on[call])) if on[call] != NONE else NONE
            call -= 1
    return replace(rank, waits_on=tuple(waits), blocks_on=on)


def _move_reduction_waits(
    rank: RankGraph, messages: RankMessages, merges: Sequence[_Merge], partners: PartnerCopies
) -> RankGraph:
    """Make compute wait for the reduction n blocks earlier instead of n units earlier.

    Engines delay the next backward pass until earlier gradients are reduced and freed.
    """
    chosen = np.array([kind in _REDUCES for kind in messages.kind], dtype=np.bool_)
    reduces = np.flatnonzero(chosen)
    tasks = messages.at[reduces]
    # pieces of one reduction count once; a replica all_reduce after each reduction counts itself
    pieces = [(messages.kind[at], int(messages.unit[at])) for at in reduces.tolist()]
    whole = np.cumsum([not at or pieces[at] != pieces[at - 1] for at in range(len(pieces))])
    group = _number_merged(
        len(reduces), {int(at): number for number, at in enumerate(reduces)}, merges, last=True
    )
    ends = np.searchsorted(group, np.arange(group.max(initial=-1) + 1), side="right") - 1
    number_of = {int(task): number for number, task in enumerate(tasks)}
    for number, task in enumerate(tasks.tolist()):
        behind = partners.behind(task)
        if behind is not None:
            number_of[behind] = number
    computing = np.flatnonzero((rank.stream == main_stream_of_rank(rank)) & (rank.collective == NONE))
    moved: dict[int, set[int]] = defaultdict(set)
    waits = list(rank.waits_on)
    for task in computing.tolist():
        mine = [other for other in waits[task] if other in number_of]
        for other in mine:
            number = number_of[other]
            latest = int(np.searchsorted(tasks, task)) - 1
            back = int(whole[latest] - whole[number]) if latest >= number else NONE
            if back < 0 or group[number] + back >= len(ends):
                continue
            place = int(np.searchsorted(computing, tasks[ends[group[number] + back]]))
            if place < len(computing) and rank.tasks.step[computing[place]] == rank.tasks.step[task]:
                waits[task] = tuple(each for each in waits[task] if each != other)
                moved[int(computing[place])].add(other)
    for task, others in moved.items():
        waits[task] = (*waits[task], *sorted(others))
    return replace(rank, waits_on=tuple(waits))


def _number_merged(
    count: int, order: Mapping[int, int], merges: Sequence[_Merge], *, last: bool = False
) -> Int64s:
    """Number the gathers (with ``last``, the reductions) by the message that they are merged into."""
    first = np.arange(count)
    for merge in merges:
        if merge.last == last:
            for member in merge.members:
                first[order[member]] = order[merge.members[0]]
    numbers: Int64s = np.unique(first, return_inverse=True)[1].astype(np.int64)
    return np.maximum.accumulate(numbers) if count else numbers


def _drop_hooks(rank: RankGraph, messages: RankMessages, removed: Sequence[int]) -> RankGraph:
    """Remove the hook time before the first kernel of merged units: cap their gaps at the typical gap.

    The hooks of a unit run before its first kernel, even in passes without a gather.
    """
    computing = np.flatnonzero(messages.blocks != NONE)
    usual = [at for at in computing.tolist() if at and messages.blocks[at - 1] != NONE]
    if not usual or not removed:
        return rank
    gap = float(np.median(rank.gap_ns[usual]))
    starts = {int(task) for task in messages.needed[list(removed)]}
    sequences: dict[tuple[str, ...], list[list[int]]] = defaultdict(list)
    for tasks in np.split(computing, np.flatnonzero(np.diff(messages.blocks[computing])) + 1):
        sequences[tuple(rank.tasks.kernel[task] for task in tasks.tolist())].append(tasks.tolist())
    hooked = np.zeros(len(rank.tasks), dtype=np.bool_)
    for passes in sequences.values():
        offsets = {offset for tasks in passes for offset, task in enumerate(tasks) if task in starts}
        hooked[[tasks[offset] for tasks in passes for offset in offsets]] = True
    return replace(rank, gap_ns=np.where(hooked, np.minimum(rank.gap_ns, gap), rank.gap_ns))


def _drop_tasks(rank: RankGraph, kept: Mapping[int, int], place: Floats) -> RankGraph:
    """Remove tasks that were merged into others, with their launch cost; reorder the rest by ``place``."""
    gone = np.zeros(len(rank.tasks), dtype=np.bool_)
    gone[list(kept)] = True
    idle = np.zeros(len(gone), dtype=np.bool_)
    for task in np.flatnonzero(gone).tolist():
        before = task - 1
        while before >= 0 and rank.stream[before] == NONE:
            idle[before] = True
            before -= 1
    collected: dict[int, set[int]] = defaultdict(set)
    for task, mine in enumerate(rank.waits_on):
        collected[kept.get(task, task)].update(kept.get(other, other) for other in mine)
    waits = tuple(
        tuple(sorted(other for other in collected[task] if place[other] < place[task]))
        for task in range(len(gone))
    )
    on = np.array([kept.get(other, other) for other in rank.blocks_on.tolist()], dtype=np.int64)
    on = np.where((on != NONE) & (place[np.maximum(on, 0)] <= place), on, NONE)
    free = gone | idle
    changed = replace(
        rank,
        stream=np.where(gone, NONE, rank.stream),
        collective=np.where(gone, NONE, rank.collective),
        gap_ns=np.where(free, 0.0, rank.gap_ns),
        call_ns=np.where(free, 0.0, rank.call_ns),
        blocks_on=np.where(idle, NONE, on),
        waits_on=waits,
    )
    return reorder_tasks(changed, np.argsort(place, kind="stable"))


class SmallMessages(Struct, frozen=True, kw_only=True):
    """Messages that are mostly latency. ``per_block``: units per block, None if names do not show blocks.

    ``is_met``: the fastest messages also take about the latency.
    """

    step: StepModel
    latency_ratio: float
    latency_ns: float
    is_met: bool
    per_block: float | None
    wall_ns: float

    @property
    def units_are_at_fault(self) -> bool:
        """True if the units are the cause, not the link."""
        if not self.step.traffic.before:
            return False
        return self.are_parts or self.latency_ns <= ORDINARY_LATENCY_NS

    @property
    def are_parts(self) -> bool:
        """True if names show that units are parts of blocks."""
        return self.per_block is not None and self.per_block > UNITS_PER_BLOCK

    @property
    def sizes(self) -> tuple[float, ...]:
        """Multiples of the current size that fix the problem: full blocks if names show them, else the best
        sizes.
        """
        if self.per_block is not None and self.are_parts:
            return (self.per_block / 2, self.per_block)
        fewest = min(messages.count for messages in self.step.traffic.both)
        return tuple(sizes_that_help(self.step, max(fewest / MIN_UNITS, SIZE_MULTIPLES[0])))

    @property
    def saving_ns(self) -> tuple[float, float]:
        """Saving per step with messages of those sizes."""
        return self.step.saving_ns(self.sizes)

    @property
    def is_worth_it(self) -> bool:
        """True if larger messages save enough of the step."""
        return bool(self.sizes) and self.saving_ns[1] >= WORTH_RATIO * self.wall_ns

    @property
    def facts(self) -> list[Fact]:
        """Counts, sizes, times and exposed times of the messages."""
        facts = []
        for messages in self.step.traffic.both:
            kind = messages.kind.value
            facts += [
                make_fact("{kind}_count_per_step", messages.count, kind=kind),
                make_fact("{kind}_bytes_median", messages.bytes, kind=kind),
                make_fact("{kind}_time_median", messages.each_ns, kind=kind),
                make_fact("{kind}_latency", messages.latency_ns or 0.0, kind=kind),
            ]
        facts += [
            make_fact("latency_share", self.latency_ratio),
            make_fact("exposed_transfer_per_step", self.step.exposed_ns),
        ]
        if self.step.traffic.launch_ns:
            launch = self.step.traffic.launch_ns
            facts.append(make_fact("launch_time_per_step", launch))
        return facts


def rate_small_messages(small: SmallMessages) -> Confidence:
    """Return the confidence of a finding about small messages.

    Low if the saving may be close to 0, or if fast messages contradict the latency and no name supports it.
    High if the step's model matches the measurement.
    """
    if is_guess(small.saving_ns, small.wall_ns) or not (small.is_met or small.are_parts):
        return Confidence.LOW
    met = small.step.missed_ns <= MISSED_RATIO * small.step.exposed_ns
    enough_seen = all(len(messages.rows) >= SURE_COUNT for messages in small.step.traffic.both)
    return Confidence.HIGH if met and enough_seen else Confidence.MEDIUM


def find_unknown_latency(analysis: RunAnalysis) -> Untested | None:
    """Return what is missing if exposed messages may be small and the latency is unknown, else None."""
    missing = find_missing_collectives(analysis)
    if missing:
        return missing
    traffic = read_step_traffic(analysis) if analysis.run.world_size > 1 else None
    if traffic is None or not _is_exposed(traffic, mean_wall_ns(analysis)):
        return None
    if traffic.latency_ratio is not None or max(m.bytes for m in traffic.both) > SURELY_LARGE_BYTES:
        return None
    return make_untested("latency_unknown")


def _is_exposed(traffic: StepTraffic, wall: float) -> bool:
    return traffic.exposed_ns + traffic.launch_ns > WORTH_RATIO * wall


def find_small_messages(analysis: RunAnalysis) -> SmallMessages | None:
    """Return the small messages of a run, None if messages are not mostly latency or cost nothing."""
    if has_no_collectives(analysis) or analysis.run.world_size == 1:
        return None
    traffic = read_step_traffic(analysis)
    wall = mean_wall_ns(analysis)
    if traffic is None or not _is_exposed(traffic, wall):
        return None
    ratio = traffic.latency_ratio
    if ratio is None or ratio <= LATENCY_RATIO:
        return None
    names = traffic.gathers.rows.texts("unit").list_distinct() if traffic.gathers is not None else None
    return SmallMessages(
        step=model_step(analysis, traffic),
        latency_ratio=ratio,
        latency_ns=max(messages.latency_ns or 0.0 for messages in traffic.both),
        is_met=all(_is_latency_confirmed(analysis, messages) for messages in traffic.both),
        per_block=None if names is None else count_units_per_block(names),
        wall_ns=wall,
    )


def _is_latency_confirmed(analysis: RunAnalysis, messages: Messages) -> bool:
    quick = float(np.quantile(measure_transfers(analysis, messages.rows).floats("elapsed_ns"), QUICK_SHARE))
    return quick >= QUICKER_RATIO * (messages.latency_ns or 0.0)


_BLOCK = re.compile(r"(?:[A-Za-z_]\w*\.)*\d+(?![^.\s\[])", re.ASCII)
#: Longer names are not module names.
_MAX_NAME_LENGTH = 1_000


def find_block(unit: str) -> str | None:
    """Return a unit's name up to its first number, None without one."""
    found = _BLOCK.match(unit[:_MAX_NAME_LENGTH])
    return found.group() if found else None


def count_units_per_block(units: Iterable[str]) -> float | None:
    """Return the median number of distinct units per block, None if no name shows a block."""
    blocks: dict[str, int] = {}
    for unit in sorted(set(units)):
        block = find_block(unit)
        if block is not None:
            blocks[block] = blocks.get(block, 0) + 1
    return float(median(blocks.values())) if blocks else None
