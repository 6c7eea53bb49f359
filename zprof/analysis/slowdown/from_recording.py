"""Make the operation timeline of a recorded pipeline, so that it can be compared with its ideal.

A worker is one stage of one replica. Ranks that split a worker's layers or sequences (tensor, context) run in
step; its first rank stands for them. The operations of a worker are

    forward-compute, backward-compute    its passes, with the messages inside layers
    forward-send, ... backward-recv      messages of its pipeline; a send belongs to the pass before it
    params-all-gather                    gathers of states before the first pass
    grads-reduce-scatter                 reductions of states after the last pass
    optimizer-clip-main-grad             messages between stages after the last pass
    optimizer                            its update

Messages of states beside passes are left out: they are hidden, or part of the pass that they delay. So are
gathers after the update.
"""

from collections.abc import Iterator

import numpy as np

from zprof.analysis.columns import Columns, Texts, find_places, make_column
from zprof.analysis.mesh.measure import select_role
from zprof.analysis.mesh.stages import list_lanes
from zprof.analysis.slowdown.graph import (
    BACKWARD,
    CLIP_GRADS,
    FORWARD,
    GRADS_SCATTER,
    OPTIMIZER,
    PARAMS_GATHER,
)
from zprof.analysis.time.passes import read_launch_times
from zprof.model.collectives import CollectiveKind
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.mesh import Bubble, GroupRole, Mesh
from zprof.model.training import Phase

_COMPUTE = {Phase.FORWARD.value: FORWARD, Phase.BACKWARD.value: BACKWARD}
_DIRECTIONS = {Phase.FORWARD.value: "forward", Phase.BACKWARD.value: "backward"}
_STATE_ROLES = (GroupRole.SHARD, GroupRole.REPLICA)
_IN_STEP_ROLES = (GroupRole.TENSOR, GroupRole.CONTEXT)
_COLUMNS = (
    "dp_rank", "rank", "stage", "operation", "sequence", "step", "start_ns", "duration_ns",
    "chunk", "model_chunk", "micro_batch",
)  # fmt: skip
#: Type, number among its type, step, start and duration; chunk, chunk of the model and micro-batch, or -1.
_Row = tuple[str, int, int, int, int, int, int, int]


def make_operations(
    mesh: Mesh, bubble: Bubble, collectives: Columns, passes: Columns
) -> tuple[Columns | None, tuple[Gap, ...]]:
    """Return the operations of a recorded pipeline; None if ranks are missing, or its passes not told apart.

    Args:
        mesh: The mesh of the job.
        bubble: The shape of its pipelines.
        collectives: The rows of all ranks.
        passes: The compute passes of all ranks.
    """
    if not {rank for lane in list_workers(mesh) for rank in lane} <= set(
        np.unique(passes.ints("rank")).tolist()
    ):
        return None, ()
    messages = _add_directions(select_role(collectives, mesh.groups, GroupRole.PIPELINE), passes)
    rows: list[tuple[str | int, ...]] = []
    for dp_rank, lane in enumerate(list_workers(mesh)):
        for stage, rank in enumerate(lane):
            own = passes.at(passes.ints("rank") == rank)
            if not _is_complete(own, bubble):
                expected = bubble.micro_batches * bubble.virtual
                return None, (make_gap("slowdown_passes_unknown", rank=rank, count=expected),)
            found: list[_Row] = [
                *_list_computations(own, stage, bubble),
                *_list_messages(messages.at(messages.ints("rank") == rank)),
                *_list_rest_of_step(own, collectives.at(collectives.ints("rank") == rank), mesh, lane),
            ]
            rows += [(dp_rank, rank, stage, *row) for row in found]
    columns = zip(_COLUMNS, map(list, zip(*rows, strict=True)), strict=True)
    return Columns({name: make_column(values) for name, values in columns}), ()


def list_workers(mesh: Mesh) -> tuple[tuple[int, ...], ...]:
    """Return the first rank of each worker, by replica and stage."""
    in_step = [set(group.ranks) for group in mesh.groups if group.role in _IN_STEP_ROLES]
    workers: list[tuple[int, ...]] = []
    for lane in sorted(list_lanes(mesh.groups)):
        firsts = {other[0] for other in workers}
        if not any(lane[0] in ranks and firsts & ranks for ranks in in_step):
            workers.append(lane)
    return tuple(workers)


def _is_complete(passes: Columns, bubble: Bubble) -> bool:
    """Return whether each step has all passes of all micro-batches and chunks, forward and backward."""
    phases, expected = passes.texts("phase"), bubble.micro_batches * bubble.virtual
    counts = [passes.at(phases.equals(phase)).group_by("step").sizes for phase in _COMPUTE]
    steps = len(np.unique(passes.ints("step")))
    return bool(steps) and all(len(each) == steps and (each == expected).all() for each in counts)


def _add_directions(messages: Columns, passes: Columns) -> Columns:
    """Add whether each message belongs to the forward or the backward; rows without a sender are left out.

    A send belongs to the pass that was launched last before it, a receive to its send.
    """
    launched = read_launch_times(messages)
    is_send = messages.texts("kind").equals(CollectiveKind.SEND.value)
    rank, phase = messages.ints("rank"), Texts.of(_COMPUTE)
    code = np.full(len(messages), -1, dtype=np.int64)
    computes = passes.at(passes.texts("phase").equals(*_COMPUTE))
    of_pass = phase.words.index(Phase.BACKWARD.value) * computes.texts("phase").equals(Phase.BACKWARD.value)
    for number in np.unique(rank).tolist():
        own = computes.ints("rank") == number
        sent = np.flatnonzero(is_send & (rank == number))
        place = np.searchsorted(computes.ints("launched_ns")[own], launched[sent], side="right") - 1
        code[sent[place >= 0]] = of_pass[own][place[place >= 0]]
    instance = np.where(
        messages.ints("instance", -1) < 0, -1 - np.arange(len(messages)), messages.ints("instance")
    )
    senders = np.flatnonzero(is_send)
    sender = find_places([instance], [instance[senders]])
    code = np.where(is_send | (sender < 0), code, code[senders][sender] if len(senders) else -1)
    return messages.with_columns(phase=Texts(phase.words, code), launched_ns=launched).at(code >= 0)


def _list_computations(passes: Columns, stage: int, bubble: Bubble) -> Iterator[_Row]:
    """Yield the passes of a worker; chunks of a stage take turns after as many micro-batches as stages."""
    turn = bubble.stages * bubble.virtual
    for phase, kind in _COMPUTE.items():
        rows = passes.at(passes.texts("phase").equals(phase))
        for step, number, start, end in _number_in_steps(rows):
            chunk = number % turn // bubble.stages if bubble.virtual > 1 else 0
            micro_batch = (
                number // turn * bubble.stages + number % bubble.stages if bubble.virtual > 1 else number
            )
            chunk = chunk if kind == FORWARD else bubble.virtual - 1 - chunk
            yield kind, number, step, start, end - start, chunk, chunk * bubble.stages + stage, micro_batch


def _list_messages(rows: Columns) -> Iterator[_Row]:
    for phase, direction in _DIRECTIONS.items():
        for kind in (CollectiveKind.SEND.value, CollectiveKind.RECV.value):
            chosen = rows.at(rows.texts("phase").equals(phase) & rows.texts("kind").equals(kind))
            for step, number, start, end in _number_in_steps(chosen):
                yield f"{direction}-{kind}", number, step, start, end - start, -1, -1, -1


def _number_in_steps(rows: Columns) -> Iterator[tuple[int, int, int, int]]:
    """Yield step, number in the step, start and end of each row, in the order of their launch."""
    rows = rows.sort_by("step", "launched_ns")
    count = dict[int, int]()
    for step, start, end in zip(
        *(rows.ints(name).tolist() for name in ("step", "start_ns", "end_ns")), strict=True
    ):
        count[step] = count.get(step, -1) + 1
        yield step, count[step], start, end


def _list_rest_of_step(
    passes: Columns, collectives: Columns, mesh: Mesh, lane: tuple[int, ...]
) -> Iterator[_Row]:
    """Yield what a worker does before its first and after its last pass: one operation per type and step."""
    states = {group.group for group in mesh.groups if group.role in _STATE_ROLES}
    spanning = {group.group for group in mesh.groups if set(lane) <= set(group.ranks)} - {
        group.group for group in mesh.list_groups(GroupRole.PIPELINE)
    }
    computes, updates = (
        passes.texts("phase").equals(*names) for names in (_COMPUTE, (Phase.OPTIMIZER.value,))
    )
    of_states = collectives.texts("group").equals(*(states - spanning))
    of_stages = collectives.texts("group").equals(*spanning)
    gathers = collectives.texts("kind").equals(CollectiveKind.ALL_GATHER.value)
    for step in np.unique(passes.ints("step")).tolist():
        in_step = passes.at(computes & (passes.ints("step") == step))
        begin_ns, end_ns = int(in_step.ints("start_ns").min()), int(in_step.ints("end_ns").max())
        own = collectives.ints("step") == step
        before, after = collectives.ints("end_ns") <= begin_ns, collectives.ints("start_ns") >= end_ns
        parts = (
            (PARAMS_GATHER, collectives.at(own & of_states & gathers & before)),
            (GRADS_SCATTER, collectives.at(own & of_states & ~gathers & after)),
            (CLIP_GRADS, collectives.at(own & of_stages & after)),
            (
                OPTIMIZER,
                passes.at(updates & (passes.ints("step") == step) & (passes.ints("start_ns") >= end_ns)),
            ),
        )
        for kind, rows in parts:
            if len(rows):
                start_ns = int(rows.ints("start_ns").min())
                yield kind, 0, step, start_ns, int(rows.ints("end_ns").max()) - start_ns, -1, -1, -1
