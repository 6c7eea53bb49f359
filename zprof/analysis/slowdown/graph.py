"""Build the dependencies of the operations of a step: one graph for all steps and replicas of a job.

The order of operations is taken from one recorded step of one replica. On each worker, forward and backward
computations form a chain, and so do the sends and receives of each direction. A receive waits for the
computation before its own, a computation for its receive, a send for its computation. A send and its receive
end together, and so do the collectives of several stages or replicas.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

from msgspec import Struct

FORWARD, BACKWARD = "forward-compute", "backward-compute"
COMPUTE = (FORWARD, BACKWARD)
#: Each send, its receive, the computation of both, and the direction along the pipeline.
_TRANSFERS = (
    ("forward-send", "forward-recv", FORWARD, 1),
    ("backward-send", "backward-recv", BACKWARD, -1),
)
POINT_TO_POINT = frozenset({"forward-send", "forward-recv", "backward-send", "backward-recv"})
PARAMS_GATHER, GRADS_SCATTER = "params-all-gather", "grads-reduce-scatter"
SEPARATE_GRADS = "separate-grads-all-reduce"
EMBEDDING_GRADS, CLIP_GRADS = "embedding-grads-all-reduce", "optimizer-clip-main-grad"
LAYERNORM_GRADS = "layernorm-grads-all-reduce"
OPTIMIZER = "optimizer"
#: Collectives of all replicas of a stage; gradient clipping also waits for all stages.
_ACROSS_REPLICAS = frozenset({PARAMS_GATHER, GRADS_SCATTER, SEPARATE_GRADS, CLIP_GRADS})
_ACROSS_STAGES = frozenset({EMBEDDING_GRADS, CLIP_GRADS})
COMMUNICATION = POINT_TO_POINT | _ACROSS_REPLICAS | _ACROSS_STAGES | {LAYERNORM_GRADS}
#: After the last computation, in order. Gradients that were reduced during the backward come first.
_END = ("gc", LAYERNORM_GRADS, EMBEDDING_GRADS, GRADS_SCATTER, CLIP_GRADS, OPTIMIZER)
_END_OVERLAPPED = ("gc", LAYERNORM_GRADS, EMBEDDING_GRADS, SEPARATE_GRADS, CLIP_GRADS, OPTIMIZER)
KNOWN = COMMUNICATION | frozenset(COMPUTE) | frozenset(_END)
#: Clocks of one worker's streams differ by less.
_TOLERANCE_NS = 50_000


class Operation(Struct, frozen=True):
    """One operation of the step: its type, stage, number among its type on the worker, and recorded times.

    ``chunk`` and ``model_chunk`` number the model chunks of the stage and of the model; -1 if unknown.
    ``micro_batch`` is -1 for all operations but computations.
    """

    kind: str
    stage: int
    sequence: int
    start_ns: int
    end_ns: int
    chunk: int = -1
    model_chunk: int = -1
    micro_batch: int = -1


class Node(Struct, frozen=True):
    """Operations that end together, in the order of a replay.

    ``is_sync``: their transfer starts when the last of them has started, otherwise the node is one
    computation. ``is_across_replicas``: they also wait for the replicas.
    """

    operations: tuple[int, ...]
    is_sync: bool
    is_across_replicas: bool


class StepGraph(Struct, frozen=True):
    """Nodes in the order of a replay, and what each operation waits for; both refer to positions."""

    nodes: tuple[Node, ...]
    before: tuple[tuple[int, ...], ...]


class CyclicStep(Exception):
    """The operations of a step wait for each other in a circle."""


def build_graph(operations: Sequence[Operation]) -> StepGraph:
    """Return the dependencies of the operations of one step of one replica.

    Raises:
        CyclicStep: The order of the operations contradicts itself.
    """
    before: list[list[int]] = [[] for _ in operations]
    by_stage: dict[int, list[int]] = defaultdict(list)
    for at, operation in enumerate(operations):
        by_stage[operation.stage].append(at)
    stages = {stage: _Stage(operations, members) for stage, members in by_stage.items()}
    last_stage = max(stages)
    chunks = 1 + max((operations[at].model_chunk for at in range(len(operations))), default=0)
    model_chunks = max(chunks, last_stage + 1)
    groups: list[tuple[int, ...]] = []
    for stage in stages.values():
        _chain(before, stage.compute)
        stage.add_transfer_dependencies(before, model_chunks)
        stage.add_collective_dependencies(before)
    for send, receive, compute, direction in _TRANSFERS:
        if any(stage.of(send) or stage.of(receive) for stage in stages.values()):
            groups += _pair_transfers(stages, send, receive, direction)
        else:
            _join_stages(before, operations, compute, direction)
    grouped = {at for group in groups for at in group}
    across: dict[tuple[str, int], list[int]] = defaultdict(list)
    for at, operation in enumerate(operations):
        if operation.kind in _ACROSS_STAGES:
            across[operation.kind, operation.sequence].append(at)
        elif at not in grouped and operation.kind in POINT_TO_POINT | _ACROSS_REPLICAS:
            groups.append((at,))
    return _sort_nodes(operations, before, [*groups, *map(tuple, across.values())])


class _Stage:
    """The operations of one stage, by type in the order of their start."""

    def __init__(self, operations: Sequence[Operation], members: Iterable[int]) -> None:
        self._all = operations
        self._by_kind: dict[str, list[int]] = defaultdict(list)
        ordered = sorted(
            members, key=lambda at: (operations[at].start_ns, operations[at].sequence, operations[at].kind)
        )
        for at in ordered:
            self._by_kind[operations[at].kind].append(at)
        self.compute = [at for at in ordered if operations[at].kind in COMPUTE]
        #: Transfers without a partner: recorded, but not sent.
        self.unpaired: set[int] = set()

    def of(self, kind: str) -> list[int]:
        """Return the operations of a type."""
        return self._by_kind.get(kind, [])

    def add_transfer_dependencies(self, before: list[list[int]], model_chunks: int) -> None:
        """Let computations wait for their receives, and sends for their computations.

        A transfer before the first or after the last computation that could need it is unpaired, and so is
        the transfer of the first or last chunk of the model that would leave the model.
        """
        for send, receive, kind, direction in _TRANSFERS:
            compute = sorted(self.of(kind), key=lambda at: self._all[at].sequence)
            for name in (send, receive):
                _chain(before, self.of(name))
            if not compute:
                self.unpaired.update(self.of(send), self.of(receive))
                continue
            last_start_ns = max(self._all[at].start_ns for at in compute)
            first_end_ns = min(self._all[at].end_ns for at in compute)
            receives = [
                at for at in self.of(receive) if self._all[at].start_ns <= last_start_ns + _TOLERANCE_NS
            ]
            sends = [at for at in self.of(send) if self._all[at].end_ns >= first_end_ns - _TOLERANCE_NS]
            self.unpaired.update({*self.of(receive), *self.of(send)} - {*receives, *sends})
            # The first computation of the first chunk may lack its receive.
            skipped = 1 if receives and len(receives) == len(compute) - 1 else 0
            for at, needs in zip(receives, range(skipped, len(compute)), strict=False):
                before[compute[needs]].append(at)
                if needs:
                    before[at].append(compute[needs - 1])
                self._mark_unpaired(at, compute[needs], -direction, model_chunks)
            for at, made in zip(sends, compute, strict=False):
                before[at].append(made)
                self._mark_unpaired(at, made, direction, model_chunks)
        self._delay_first_backward(before)

    def _mark_unpaired(self, transfer: int, compute: int, direction: int, model_chunks: int) -> None:
        chunk = self._all[compute].model_chunk
        chunk = self._all[compute].stage if chunk < 0 else chunk
        if not 0 <= chunk + direction < model_chunks:
            self.unpaired.add(transfer)

    def _delay_first_backward(self, before: list[list[int]]) -> None:
        """Let the first transfers of the backward wait for the last but one forward of the warm-up."""
        kinds = [self._all[at].kind for at in self.compute]
        first = kinds.index(BACKWARD) if BACKWARD in kinds else 0
        if first >= 2:
            for kind in ("backward-recv", "backward-send"):
                for at in self.of(kind):
                    if self._all[at].sequence == 0:
                        before[at].append(self.compute[first - 2])

    def add_collective_dependencies(self, before: list[list[int]]) -> None:
        """Let the first forward of a chunk wait for its parameters, and the end of the step for all work."""
        in_order = sorted(
            [*self.of(PARAMS_GATHER), *self.of(GRADS_SCATTER)],
            key=lambda at: (self._all[at].start_ns, self._all[at].sequence, self._all[at].kind),
        )
        _chain(before, in_order)
        last_gather = {self._all[at].chunk: at for at in self._by_sequence(PARAMS_GATHER)}
        for chunk, gather in last_gather.items():
            of_chunk = [at for at in self.of(FORWARD) if chunk < 0 or self._all[at].chunk == chunk]
            if of_chunk:
                before[of_chunk[0]].append(gather)
        is_overlapped = bool(self.of(SEPARATE_GRADS))
        scatters = self._by_sequence(GRADS_SCATTER)
        end: list[int] = []
        for kind in _END_OVERLAPPED if is_overlapped else _END:
            end += self._by_sequence(kind)
        if self.compute and end:
            before[end[0]].append(max(self.compute, key=lambda at: self._all[at].end_ns))
        _chain(before, end)
        if is_overlapped and scatters:
            first_scatter = {self._all[at].chunk: at for at in reversed(scatters)}
            for chunk, scatter in first_scatter.items():
                of_chunk = [at for at in self.of(BACKWARD) if chunk < 0 or self._all[at].chunk == chunk]
                if of_chunk:
                    before[scatter].append(max(of_chunk, key=lambda at: self._all[at].end_ns))
            after = [at for at in end if self._all[at].kind != "gc"]
            before[after[0]].append(scatters[-1])

    def _by_sequence(self, kind: str) -> list[int]:
        return sorted(self.of(kind), key=lambda at: self._all[at].sequence)


def _chain(before: list[list[int]], members: Sequence[int]) -> None:
    for earlier, later in pairwise(members):
        before[later].append(earlier)


def _pair_transfers(
    stages: dict[int, _Stage], send: str, receive: str, direction: int
) -> list[tuple[int, ...]]:
    """Return pairs of sends and receives: the same number between the same stages, in order."""
    pairs: list[tuple[int, ...]] = []
    for number, stage in stages.items():
        peer = stages.get((number + direction) % (max(stages) + 1))
        sends = [at for at in stage.of(send) if at not in stage.unpaired]
        receives = [at for at in peer.of(receive) if at not in peer.unpaired] if peer else []
        pairs += zip(sends, receives, strict=False)
    return pairs


def _join_stages(before: list[list[int]], operations: Sequence[Operation], kind: str, direction: int) -> None:
    """Let computations wait for the same micro-batch of the chunk before, without recorded transfers."""
    places: dict[tuple[int, int], int] = {}
    for at, operation in enumerate(operations):
        if operation.kind == kind:
            chunk = operation.stage if operation.model_chunk < 0 else operation.model_chunk
            number = operation.sequence if operation.micro_batch < 0 else operation.micro_batch
            places[chunk, number] = at
    for (chunk, number), at in places.items():
        source = places.get((chunk - direction, number))
        if source is not None:
            before[at].append(source)


def _sort_nodes(
    operations: Sequence[Operation], before: Sequence[Sequence[int]], groups: Sequence[tuple[int, ...]]
) -> StepGraph:
    """Return the nodes so that each comes after all that its operations wait for.

    Raises:
        CyclicStep: There is no such order.
    """
    node_of = {at: number for number, group in enumerate(groups) for at in group}
    nodes = [Node(group, True, operations[group[0]].kind in _ACROSS_REPLICAS) for group in groups]
    for at in range(len(operations)):
        if at not in node_of:
            node_of[at] = len(nodes)
            nodes.append(Node((at,), False, False))
    missing = [len({node_of[source] for at in node.operations for source in before[at]}) for node in nodes]
    after: list[set[int]] = [set() for _ in nodes]
    for at, sources in enumerate(before):
        for source in sources:
            after[node_of[source]].add(node_of[at])
    ready = [number for number, count in enumerate(missing) if not count]
    order = []
    while ready:
        number = ready.pop()
        order.append(nodes[number])
        for later in after[number]:
            missing[later] -= 1
            if not missing[later]:
                ready.append(later)
    if len(order) < len(nodes):
        raise CyclicStep
    return StepGraph(tuple(order), tuple(tuple(dict.fromkeys(sources)) for sources in before))
