"""Compute the phases of a planned step by playing its schedule, and the time of its messages on their links.

Phases of a step under each ZeRO stage, and which collectives overlap which compute:

    stage   gathers of all parameters                  reductions of all gradients
    0       none                                       all-reduce, last micro-batch
    1       once, during the first forward             last micro-batch
    2       once, during the first forward             every micro-batch
    3       in every forward and every backward        every micro-batch

Source: arXiv 1910.02054, section 7; with A micro-batches, a sharded gradient cannot wait for the last one,
and a sharded parameter is gathered for one pass only. So the elements moved per step are 2, 2, A+1 and 3A
times the model's, as in ``zprof.analysis.zero_formulas.compute_expected_volume``.

Forward of one micro-batch, with compute c_u and all-gather AG_u of unit u:

    no gathers           sum c
    stage 3              AG_1 + sum_{u<U} max(c_u, AG_{u+1}) + c_U
    stages 1 and 2       sum c + max_u (sum_{v<=u} AG_v - sum_{v<u} c_v): the first forward after an update

A root that encloses the others is gathered first and computes (its head) last. Stage 3 is the schedule of
FSDP (arXiv 2304.11277, section 3.3) with one unit prefetched. Stages 1 and 2 are the schedule of an engine
that gathers updated parameters during the next forward.

Backward of one micro-batch, with compute b_u, all-gather AG_u and reduction RS_u of unit u; unit U is first:

    stage 3        AG_U + max(b_U, AG_{U-1}) + sum_{1<u<U} max(b_u, RS_{u+1} + AG_{u-1})
                   + max(b_1, RS_2) + RS_1
    last kept      b_U + sum_{u<U} max(b_u, AG_{u-1} + RS_{u+1}) + RS_1, with AG_0 meaning AG_{U-1}
    stages 0 to 2  b_U + sum_{u<U} max(b_u, RS_{u+1}) + RS_1

There is one link, served in launch order: a unit's reduction is launched when its backward ends, before the
next unit's gather. Source: the schedule of FSDP (arXiv 2304.11277, section 3.3) and of the reference engine.

"Last kept" (the last unit stays gathered since its forward) is the usual formula: it counts the gather of
unit U-1 in the last phase instead of during b_U, where the schedule runs it. With equal units the result is
at most b_U longer than the schedule. Unequal units use the schedule as it is:

    units differ   max(b_U, AG_{U-1}) + sum_{1<u<U} max(b_u, RS_{u+1} + AG_{u-1}) + max(b_1, RS_2) + RS_1

In the backward, a root that encloses the others is gathered again, computes (its head) first and is reduced
last.

These sums follow from playing the schedule of :mod:`zprof.step.schedule`: messages launched before a pass
that nothing waits for yet are in the phase of its compute. Only the first forward of stages 1 and 2 and the
usual formula of "last kept" are coded as formulas.

A phase lasts as long as its longest activity; the part beyond compute is exposed. All times are integer
nanoseconds, so a ledger's terms sum exactly to its wall time.

Time of one collective on a group: with S bytes of the full (gathered) tensor, N ranks on n nodes, bus
bandwidth beta, and hop latencies a_i within a node and a_e between nodes:

    ring all-gather = reduce-scatter = lat(N) + S (N-1) / (N beta)      ring all-reduce = twice that
    lat(N) = n a_e + (N - n) a_i, or (N-1) a_i in one node
    tree all-reduce = 2 ceil(log2 N) a + 2 S / beta

Source: ring volume (N-1)/N from arXiv 1910.02054, section 7 (and Patarasuk and Yuan, 2009); hops and the tree
as documented by NCCL (nccl-tests, doc/PERFORMANCE.md). NCCL has no tree for all-gather and reduce-scatter.

Placement. Model-parallel ranks are adjacent, data-parallel ranks are mp apart, and pipeline stages are
farthest apart. This is the order of Megatron-LM (arXiv 2104.04473, section 3), which keeps the collectives
that cannot be hidden within a node.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from zprof.model.job import Degrees, Overlap
from zprof.model.machines import Hardware
from zprof.step.schedule import (
    Await,
    Compute,
    EnginePolicy,
    Launch,
    Pass,
    PassPhase,
    StartPass,
    UnitSize,
    build_program,
    list_passes,
)

#: Number of units played at each end of a run of equal units; units in between take as long as their
#: neighbours.
_PLAYED_ENDS = 2
_NS_PER_S = 1e9


class UnitTimes(Struct, frozen=True, kw_only=True):
    """Times of each of ``count`` equal units, in integer nanoseconds.

    ``backward_ns`` includes recomputation. ``reduce_ns``: a reduce-scatter or an all-reduce. ``model_*``:
    collectives of the model-parallel group in the pass. ``copy_ns``: one copy of the checkpoint to or from
    the host.
    """

    count: int = 1
    forward_ns: int
    backward_ns: int
    gather_ns: int = 0
    reduce_ns: int = 0
    model_forward_ns: int = 0
    model_backward_ns: int = 0
    copy_ns: int = 0


class StackTimes(Struct, frozen=True, kw_only=True):
    """Times of all units in forward order; ``root`` is a single unit that encloses the others."""

    units: tuple[UnitTimes, ...]
    root: UnitTimes | None = None

    @property
    def computed(self) -> tuple[UnitTimes, ...]:
        """Units in the order in which their forwards end."""
        return self.units if self.root is None else (*self.units, self.root)


class StepPhase(Struct, frozen=True, kw_only=True):
    """Compute and its concurrent work, repeated ``count`` times.

    ``model_ns``: collectives between pieces of the compute, never hidden because each waits for the other.
    ``link_ns``: collectives concurrent with both. ``hidden_ns``: further collectives, known to be hidden.
    ``copy_ns``: copies to or from the host, concurrent with all of these.
    """

    count: int = 1
    compute_ns: int = 0
    model_ns: int = 0
    link_ns: int = 0
    hidden_ns: int = 0
    copy_ns: int = 0

    @property
    def wall_ns(self) -> int:
        """Wall time of all ``count`` repetitions, in ns."""
        return self.count * max(self.compute_ns + self.model_ns, self.link_ns, self.copy_ns)

    @property
    def collective_ns(self) -> int:
        """Time of collectives, hidden or not, over all repetitions, in ns."""
        return self.count * (self.link_ns + self.model_ns + self.hidden_ns)

    @property
    def exposed_transfer_ns(self) -> int:
        """Time of collectives without concurrent compute, over all repetitions, in ns."""
        return self.count * max(self.model_ns, self.link_ns - self.compute_ns)

    @property
    def exposed_memcpy_ns(self) -> int:
        """Time of copies without concurrent compute or collectives, over all repetitions, in ns."""
        return self.count * max(0, self.copy_ns - max(self.compute_ns + self.model_ns, self.link_ns))


class PhaseTotal(Struct, frozen=True, kw_only=True):
    """Sum of phases: wall = compute + exposed_transfer + exposed_memcpy.

    ``collective_ns`` counts collectives, hidden or not.
    """

    wall_ns: int
    compute_ns: int
    exposed_transfer_ns: int
    exposed_memcpy_ns: int
    collective_ns: int


class MicroBatchPhases(Struct, frozen=True, kw_only=True):
    """Phases of one micro-batch."""

    forward: tuple[StepPhase, ...]
    backward: tuple[StepPhase, ...]

    @property
    def all(self) -> tuple[StepPhase, ...]:
        """The forward phases, then the backward ones."""
        return (*self.forward, *self.backward)


def sum_phases(phases: Iterable[StepPhase]) -> PhaseTotal:
    """Sum phases that run one after another."""
    all_phases = tuple(phases)
    return PhaseTotal(
        wall_ns=sum(phase.wall_ns for phase in all_phases),
        compute_ns=sum(phase.count * phase.compute_ns for phase in all_phases),
        exposed_transfer_ns=sum(phase.exposed_transfer_ns for phase in all_phases),
        exposed_memcpy_ns=sum(phase.exposed_memcpy_ns for phase in all_phases),
        collective_ns=sum(phase.collective_ns for phase in all_phases),
    )


def repeat_phases(phases: Sequence[StepPhase], times: int) -> tuple[StepPhase, ...]:
    """Return the phases with their counts multiplied by ``times``; empty if ``times`` is 0."""
    return tuple(replace(phase, count=phase.count * times) for phase in phases) if times else ()


def build_step_phases(
    times: StackTimes, *, stage: int, micro_batches: int, overlap: Overlap
) -> tuple[StepPhase, ...]:
    """Return all phases of a step."""
    if stage == 3:
        return repeat_phases(build_sharded_passes(times, overlap).all, micro_batches)
    plain, reduced = build_plain_passes(times), build_reduced_passes(times)
    first = plain.forward if stage == 0 else build_refreshed_forward(times)
    later = repeat_phases(plain.forward, micro_batches - 1)
    if stage == 2:
        return (*first, *later, *repeat_phases(reduced.backward, micro_batches))
    return (*first, *later, *repeat_phases(plain.backward, micro_batches - 1), *reduced.backward)


def build_sharded_passes(times: StackTimes, overlap: Overlap) -> MicroBatchPhases:
    """Return the passes of one micro-batch in stage 3.

    Deeper prefetch is modelled as prefetch of one unit; with equal units it hides no more.
    """
    return _build_passes(times, 3, min(1, overlap.prefetch), keep_last=overlap.keep_last)


def build_plain_passes(times: StackTimes) -> MicroBatchPhases:
    """Return the passes of a micro-batch with all parameters resident and no reductions."""
    units = tuple(replace(unit, reduce_ns=0) for unit in times.units)
    root = None if times.root is None else replace(times.root, reduce_ns=0)
    return build_reduced_passes(StackTimes(units=units, root=root))


def build_reduced_passes(times: StackTimes) -> MicroBatchPhases:
    """Return the passes of a micro-batch of stages 0 to 2, with reductions and no gathers."""
    return _build_passes(times, 0, 0, keep_last=False)


def build_refreshed_forward(times: StackTimes) -> tuple[StepPhase, ...]:
    """Return the first forward of stages 1 and 2: all gathers launch at once, each unit waits for its own.

    Along a run of equal units the wait changes linearly, so its maximum is at the first or the last one.
    """
    gathered = exposed = 0 if times.root is None else times.root.gather_ns
    computed = 0
    for unit in times.units:
        busy = unit.forward_ns + unit.model_forward_ns
        first = gathered + unit.gather_ns - computed
        exposed = max(exposed, first, first + (unit.count - 1) * (unit.gather_ns - busy))
        gathered += unit.count * unit.gather_ns
        computed += unit.count * busy
    return (StepPhase(link_ns=exposed, hidden_ns=gathered - exposed), *build_plain_passes(times).forward)


def _build_passes(times: StackTimes, stage: int, prefetch: int, *, keep_last: bool) -> MicroBatchPhases:
    """Play the schedule of one micro-batch: each pass is a phase with the messages launched before it."""
    played = [(each, skipped) for unit in times.units for each, skipped in _shorten_run(unit)]
    if times.root is not None:
        played.insert(0, (times.root, 0))
    units = [
        UnitSize(
            name="",
            gather_bytes=unit.gather_ns,  # sizes are given as times
            reduce_bytes=unit.reduce_ns,
            encloses=unit is times.root,
            skipped=skipped,
        )
        for unit, skipped in played
    ]
    backward = [index for index in reversed(range(len(units))) if not units[index].encloses]
    passes = list_passes(units, backward, 1, True, ends_forward=True)
    policy = EnginePolicy(
        stage=stage,
        prefetch=prefetch,
        keep="last" if keep_last else "none",
        overlap_reduce=True,
        overlap_gather=True,
        in_flight=1,
    )
    phases: dict[PassPhase, list[StepPhase]] = {PassPhase.FORWARD: [], PassPhase.BACKWARD: []}
    queue: dict[str, int] = {}
    found, start, inner = phases[PassPhase.FORWARD], 0, []
    for op in build_program(units, passes, policy):
        match op:
            case StartPass() if not units[passes[op.what].unit].skipped:
                found = phases[passes[op.what].phase]
                start = len(found)
            case Launch(key=key):
                queue[key] = int(op.bytes)
            case Await(key=key) if key in queue:  # nothing is computed until it is done
                found.append(StepPhase(link_ns=_take_until(queue, key)))
            case Compute() if op.what >= 0:
                unit, skipped = played[passes[op.what].unit]
                if skipped:
                    found += repeat_phases(found[start:], skipped)
                else:
                    link_ns = sum(queue.values())
                    queue.clear()
                    found.append(_time_pass(unit, passes[op.what], link_ns, encloses=unit is times.root))
                    if unit is not times.root and passes[op.what].phase is PassPhase.BACKWARD:
                        inner.append(len(found) - 1)
    if keep_last and len(times.units) == 1 and len(inner) > 1:  # the usual formula
        first, last = phases[PassPhase.BACKWARD][inner[0]], phases[PassPhase.BACKWARD][inner[-1]]
        phases[PassPhase.BACKWARD][inner[0]] = replace(first, link_ns=0)
        phases[PassPhase.BACKWARD][inner[-1]] = replace(last, link_ns=last.link_ns + first.link_ns)
    return MicroBatchPhases(
        forward=tuple(phases[PassPhase.FORWARD]), backward=tuple(phases[PassPhase.BACKWARD])
    )


def _shorten_run(unit: UnitTimes) -> Iterator[tuple[UnitTimes, int]]:
    """Yield a run's units, each with the number of units that it stands for without being played, else 0."""
    skipped = max(0, unit.count - 2 * _PLAYED_ENDS)
    ends = [(unit, 0)] * min(unit.count, 2 * _PLAYED_ENDS)
    yield from ends[:_PLAYED_ENDS]
    if skipped:
        yield unit, skipped
    yield from ends[_PLAYED_ENDS:]


def _take_until(queue: dict[str, int], key: str) -> int:
    """Remove the messages up to this one from the link's queue, and return their time in ns."""
    keys = list(queue)
    return sum(queue.pop(each) for each in keys[: keys.index(key) + 1])


def _time_pass(unit: UnitTimes, each: Pass, link_ns: int, *, encloses: bool) -> StepPhase:
    """Return the phase of a pass; a root computes (its head) after the forward and before the backward."""
    is_forward = each.phase is PassPhase.FORWARD
    if encloses and each.needs is is_forward:
        return StepPhase(link_ns=link_ns)
    return StepPhase(
        compute_ns=unit.forward_ns if is_forward else unit.backward_ns,
        model_ns=unit.model_forward_ns if is_forward else unit.model_backward_ns,
        link_ns=link_ns,
        copy_ns=unit.copy_ns,
    )


class RankRing(Struct, frozen=True, kw_only=True):
    """Ranks that communicate, described as a ring.

    ``per_node``: ranks on each node. ``bytes_per_s``: bus bandwidth. ``latency_ns``: once around the ring.
    ``hop_ns``: its slowest hop.
    """

    ranks: int
    per_node: int
    bytes_per_s: float
    latency_ns: int
    hop_ns: int

    @property
    def nodes(self) -> int:
        """Nodes that the group spans."""
        return -(-self.ranks // self.per_node)


def make_group(hardware: Hardware, ranks: int, stride: int = 1) -> RankRing:
    """Return the group of every ``stride``-th rank; ranks fill one node after the other.

    The group has g = devices_per_node / stride ranks per node (at least 1) and a bus bandwidth of min(intra,
    node g / devices_per_node). A common mistake is to give a flat group over full nodes (g =
    devices_per_node) one device's share of the NICs, node / devices_per_node. A ring enters and leaves each
    node once and uses all NICs there, so that estimate is too slow by a factor of devices_per_node. A group
    with one rank per node does get only that share, because devices_per_node such groups run concurrently.
    """
    per_node = min(ranks, max(1, hardware.devices_per_node // stride))
    nodes = -(-ranks // per_node)
    if nodes == 1:
        return RankRing(
            ranks=ranks,
            per_node=per_node,
            bytes_per_s=hardware.intra_bytes_per_s,
            latency_ns=(ranks - 1) * hardware.intra_latency_ns,
            hop_ns=hardware.intra_latency_ns,
        )
    share = hardware.node_bytes_per_s * per_node / hardware.devices_per_node
    return RankRing(
        ranks=ranks,
        per_node=per_node,
        bytes_per_s=min(hardware.intra_bytes_per_s, share),
        latency_ns=nodes * hardware.inter_latency_ns + (ranks - nodes) * hardware.intra_latency_ns,
        hop_ns=hardware.inter_latency_ns,
    )


def gather_ns(group: RankRing, size_bytes: float, messages: int = 1) -> float:
    """Return the time in ns of an all-gather or reduce-scatter; ``size_bytes`` counts full tensors."""
    if group.ranks == 1:
        return 0.0
    return messages * group.latency_ns + ring_bytes(group.ranks, size_bytes) / group.bytes_per_s * _NS_PER_S


def all_reduce_ns(group: RankRing, size_bytes: float, messages: int = 1) -> float:
    """Return the time of an all-reduce by ring or tree, whichever is faster."""
    ring = 2 * gather_ns(group, size_bytes, messages)
    return min(ring, tree_all_reduce_ns(group, size_bytes, messages))


def tree_all_reduce_ns(group: RankRing, size_bytes: float, messages: int = 1) -> float:
    """Return the time of an all-reduce up and down a pipelined binary tree."""
    if group.ranks == 1:
        return 0.0
    hops = 2 * math.ceil(math.log2(group.ranks)) * group.hop_ns
    return messages * hops + 2 * size_bytes / group.bytes_per_s * _NS_PER_S


def ring_bytes(ranks: int, size_bytes: float) -> float:
    """Return the bytes of a tensor that cross one link of a ring: (N-1)/N of it."""
    return size_bytes * (ranks - 1) / ranks


def make_data_group(hardware: Hardware, degrees: Degrees) -> RankRing:
    """Return the group of ranks with the same part of the model."""
    return make_group(hardware, degrees.dp, stride=degrees.mp)


def make_model_group(hardware: Hardware, degrees: Degrees) -> RankRing:
    """Return the group of ranks that share the matrices of every block."""
    return make_group(hardware, degrees.mp)


def make_boundary_group(hardware: Hardware, degrees: Degrees) -> RankRing:
    """Return the slowest pair of neighbouring pipeline stages; it spans two nodes if the job does."""
    spans = degrees.devices > hardware.devices_per_node
    return make_group(hardware, 2, stride=hardware.devices_per_node if spans else 1)


def get_link_name(group: RankRing) -> str:
    """Return ``intra`` for a group within a node, ``inter`` for one that uses NICs."""
    return "intra" if group.nodes == 1 else "inter"
