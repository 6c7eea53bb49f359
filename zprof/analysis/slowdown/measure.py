"""Measure how much slower the steps of a pipeline are than their ideal, and which part explains it.

Method and definitions: "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025).
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from zprof.analysis.columns import Columns, Floats, Mask
from zprof.analysis.intervals import Int64s
from zprof.analysis.slowdown.graph import (
    COMMUNICATION,
    FORWARD,
    KNOWN,
    CyclicStep,
    Operation,
    StepGraph,
    build_graph,
)
from zprof.analysis.slowdown.replay import replay_replicas, replay_steps
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.slowdown import PipelineWorker, Slowdown

#: The share of the workers that count as the slowest, as published.
_SLOWEST_PERCENT = 3
#: A smaller share of the ideal step is the error of sums, not lost time.
_MIN_LOST_RATIO = 1e-6
#: A transfer that ends longer before its start than clocks err did not take place: it takes no time.
_CLOCK_ERROR_NS = 10_000_000
#: Sends and receives of a direction are one type of operation.
_TYPES: Mapping[str, str] = {
    "forward-send": "forward-pp-comm",
    "forward-recv": "forward-pp-comm",
    "backward-send": "backward-pp-comm",
    "backward-recv": "backward-pp-comm",
}
_MAX_NAMES = 8
#: If most steps lack most operations, they are not steps of one pipeline.
_MAX_EMPTY, _MIN_CELLS = 8, 1 << 16


class Timeline(Struct, frozen=True):
    """The recorded steps that have the same operations, as arrays of operations x steps x replicas.

    ``seconds``: the duration of a computation, and the time from the last start to the end of a transfer.
    ``starts_ns`` and ``ends_ns`` are as recorded. ``ranks``: global rank of a worker by (replica, stage).
    """

    operations: tuple[Operation, ...]
    graph: StepGraph
    seconds: Floats
    starts_ns: Int64s
    ends_ns: Int64s
    steps: tuple[int, ...]
    dp_ranks: tuple[int, ...]
    ranks: Mapping[tuple[int, int], int]

    @property
    def spans_ns(self) -> Int64s:
        """Return the length of each recorded step."""
        spans: Int64s = self.ends_ns.max(axis=(0, 2)) - self.starts_ns.min(axis=(0, 2))
        return spans


def measure_slowdown(table: Columns) -> tuple[Slowdown | None, tuple[Gap, ...]]:
    """Return the slowdown of an operation timeline, and gaps; None if its steps cannot be replayed.

    Args:
        table: The table ``operations`` of a run.
    """
    timeline, gaps = make_timeline(table)
    if timeline is None:
        return None, gaps
    slowdown = _compare_with_ideal(timeline)
    return slowdown, gaps if slowdown is not None else (*gaps, make_gap("slowdown_without_time"))


def _compare_with_ideal(timeline: Timeline) -> Slowdown | None:
    """Replay the steps with the durations of single parts; None if the ideal step takes no time."""
    operations, replicas = timeline.operations, timeline.dp_ranks
    ideal = find_ideal_seconds(operations, timeline.seconds)
    stages = np.array([each.stage for each in operations])
    types = np.array([_TYPES.get(each.kind, each.kind) for each in operations])
    every_stage, every_type = np.unique(stages).tolist(), np.unique(types).tolist()

    def replay(keeps: Sequence[Mask]) -> list[float]:
        """Return the mean step of each replay, in seconds."""
        whole = (np.broadcast_to(keep, (len(operations), len(replicas))) for keep in keeps)
        return [
            float(each.mean()) for each in replay_steps(timeline.graph, timeline.seconds, ideal, [*whole])
        ]

    own_s, ideal_s, without_last_s = replay(
        [np.array([[True]]), np.array([[False]]), stages[:, None] != every_stage[-1]]
    )
    if ideal_s <= 0:
        return None
    type_s = replay([types[:, None] == each for each in every_type])
    stage_s = replay([stages[:, None] == each for each in every_stage])
    replica_s = [float(each.mean()) for each in replay_replicas(timeline.graph, timeline.seconds, ideal)]
    by_stage = {stage: each / ideal_s for stage, each in zip(every_stage, stage_s, strict=True)}
    by_replica = {rank: each / ideal_s for rank, each in zip(replicas, replica_s, strict=True)}
    by_worker = {
        rank: min(by_replica[replica], by_stage[stage]) for (replica, stage), rank in timeline.ranks.items()
    }
    slowest = sorted(by_worker, key=lambda rank: (-by_worker[rank], rank))
    slowest = slowest[: -(-len(slowest) * _SLOWEST_PERCENT // 100)]
    by_place = [[timeline.ranks[replica, stage] in slowest for replica in replicas] for stage in every_stage]
    without_slowest_s = replay([~np.array(by_place)[stages]])[0]
    lost_s = own_s - ideal_s
    by_type = sorted(zip(every_type, type_s, strict=True), key=lambda pair: -pair[1])
    forwards = Counter(each.stage for each in operations if each.kind == FORWARD)
    return Slowdown(
        s=own_s / ideal_s,
        by_operation={name: each / ideal_s for name, each in by_type},
        by_dp_rank=by_replica,
        by_stage=by_stage,
        by_worker=by_worker,
        m_s=(own_s - without_last_s) / lost_s if lost_s > _MIN_LOST_RATIO * ideal_s else None,
        m_w=(own_s - without_slowest_s) / lost_s if lost_s > _MIN_LOST_RATIO * ideal_s else None,
        slowest_ranks=tuple(slowest),
        workers=tuple(
            PipelineWorker(rank=rank, dp_rank=replica, stage=stage)
            for (replica, stage), rank in timeline.ranks.items()
        ),
        recorded_step_ns=round(float(timeline.spans_ns.mean())),
        replayed_step_ns=round(1e9 * own_s),
        ideal_step_ns=round(1e9 * ideal_s),
        steps=timeline.seconds.shape[1],
        micro_batches=max(forwards.values(), default=0),
    )


def find_ideal_seconds(operations: tuple[Operation, ...], seconds: Floats) -> Floats:
    """Return the ideal duration of each operation: the mean of its type, the median for communication."""
    kinds = np.array([each.kind for each in operations])
    ideal = np.empty(len(operations))
    for kind in set(kinds.tolist()):
        average = np.median if kind in COMMUNICATION else np.mean
        ideal[kinds == kind] = average(seconds[kinds == kind])
    return ideal


def make_timeline(table: Columns) -> tuple[Timeline | None, tuple[Gap, ...]]:
    """Return the steps that can be replayed together, and gaps for what is left out."""
    names = table.texts("operation")
    is_known = np.array([word in KNOWN for word in names.words], np.bool_)[names.codes]
    gaps = []
    if not is_known.all():
        unknown = [names.words[code] for code in np.unique(names.codes[~is_known])[:_MAX_NAMES]]
        gaps.append(make_gap("operations_unknown", names=unknown, count=int((~is_known).sum())))
        table = table.at(is_known)
    stages = np.unique(table.ints("stage")) if len(table) else np.zeros(0)
    if not len(stages) or stages[0] != 0 or stages[-1] != len(stages) - 1:
        return None, (*gaps, make_gap("slowdown_stages_missing", stages=stages.tolist()[:_MAX_NAMES]))
    cells = _find_cells(table)
    if cells is None:
        return None, (*gaps, make_gap("slowdown_without_steps"))
    rows, left_out = cells
    if left_out:
        gaps.append(make_gap("operation_steps_left_out", count=left_out, steps=left_out + rows.shape[1]))
    starts_ns = table.ints("start_ns")[rows]
    ends_ns = starts_ns + table.ints("duration_ns")[rows]
    first = rows[:, 0, 0]
    operations = tuple(
        Operation(*values)
        for values in zip(
            (names.words[code] for code in table.texts("operation").codes[first].tolist()),
            *(table.ints(name)[first].tolist() for name in ("stage", "sequence")),
            starts_ns[:, 0, 0].tolist(),
            ends_ns[:, 0, 0].tolist(),
            *(table.ints(name, -1)[first].tolist() for name in ("chunk", "model_chunk", "micro_batch")),
            strict=True,
        )
    )
    try:
        graph = build_graph(operations)
    except CyclicStep:
        return None, (*gaps, make_gap("slowdown_order_contradicts"))
    of_replicas = table.ints("dp_rank")[rows[0, 0]].tolist()
    ranks = {
        (dp_rank, operation.stage): rank
        for operation, in_replicas in zip(operations, table.ints("rank")[rows[:, 0]].tolist(), strict=True)
        for dp_rank, rank in zip(of_replicas, in_replicas, strict=True)
    }
    if len({*ranks.values()}) < len(ranks):
        gap = make_gap("slowdown_ranks_repeated", workers=len(ranks), ranks=len({*ranks.values()}))
        return None, (*gaps, gap)
    timeline = Timeline(
        operations=operations,
        graph=graph,
        seconds=_measure_seconds(graph, starts_ns, ends_ns),
        starts_ns=starts_ns,
        ends_ns=ends_ns,
        steps=tuple(table.ints("step")[rows[0, :, 0]].tolist()),
        dp_ranks=tuple(of_replicas),
        ranks=dict(sorted(ranks.items())),
    )
    return timeline, tuple(gaps)


def _find_cells(table: Columns) -> tuple[Int64s, int] | None:
    """Return the row of each operation, step and replica, and how many steps were left out.

    The steps are those in which all replicas have the same operations, and the same as in most steps.
    """
    step, steps = _number(table.ints("step"))
    replica, replicas = _number(table.ints("dp_rank"))
    sequence, sequences = _number(table.ints("sequence"))
    stage = table.ints("stage")
    code = (table.texts("operation").codes * (stage.max() + 1) + stage) * sequences + sequence
    operation, operations = _number(code)
    size = operations * steps * replicas
    if size > _MAX_EMPTY * len(table) + _MIN_CELLS:
        return None
    cell = (operation * steps + step) * replicas + replica
    counts = np.bincount(cell, minlength=size).reshape(operations, steps, replicas)
    is_present = counts[:, :, 0] == 1
    is_even = ((counts == counts[:, :, :1]).all(axis=2) & (counts[:, :, 0] <= 1)).all(axis=0)
    patterns = [is_present[:, at].tobytes() for at in np.flatnonzero(is_even)]
    if not patterns:
        return None
    usual = Counter(patterns).most_common(1)[0][0]
    kept = np.flatnonzero(is_even)[[pattern == usual for pattern in patterns]]
    places = np.zeros(size, dtype=np.int64)
    places[cell] = np.arange(len(table))
    rows = places.reshape(operations, steps, replicas)[is_present[:, kept[0]]][:, kept]
    return rows, steps - len(kept)


def _number(values: Int64s) -> tuple[Int64s, int]:
    """Return each value's place among the distinct values, in order, and their number."""
    low, high = int(values.min()), int(values.max())
    if high - low > 4 * len(values):
        distinct, places = np.unique(values, return_inverse=True)
        return places, len(distinct)
    is_used = np.zeros(high - low + 1, dtype=np.int64)
    is_used[values - low] = 1
    return (np.cumsum(is_used) - 1)[values - low], int(is_used.sum())


def _measure_seconds(graph: StepGraph, starts_ns: Int64s, ends_ns: Int64s) -> Floats:
    """Return the durations to replay: of transfers without the wait for the last of the group to start."""
    seconds: Floats = 1e-9 * (ends_ns - starts_ns).astype(np.float64)
    for node in graph.nodes:
        if node.is_sync:
            members = list(node.operations)
            last_ns = starts_ns[members].max(axis=0)
            if node.is_across_replicas:
                last_ns = last_ns.max(axis=-1, keepdims=True)
            transfer_ns = ends_ns[members] - last_ns
            seconds[members] = 1e-9 * np.where(transfer_ns > -_CLOCK_ERROR_NS, transfer_ns, 0)
    return seconds
