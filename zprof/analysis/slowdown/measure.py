"""Measure how much slower the steps of a pipeline are than their ideal, and which part explains it.

Method and definitions: "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025).
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
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


class _Replays:
    """Replays of a timeline with the own durations of a part of its operations, the others ideal."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._ideal = find_ideal_seconds(timeline.operations, timeline.seconds)
        self.stages = np.array([each.stage for each in timeline.operations])
        self.types = np.array([_TYPES.get(each.kind, each.kind) for each in timeline.operations])

    def measure_steps(self, keeps: Sequence[Mask]) -> list[float]:
        """Return the mean step of each replay in seconds; masks are operations x replicas, or fit that."""
        shape = (len(self.stages), len(self._timeline.dp_ranks))
        whole = [np.broadcast_to(keep, shape) for keep in keeps]
        replays = replay_steps(self._timeline.graph, self._timeline.seconds, self._ideal, whole)
        return [float(each.mean()) for each in replays]

    def measure_parts(self, parts: npt.NDArray[Any]) -> dict[Any, float]:
        """Return the mean step in which only one part is not ideal, by part; parts are by operation."""
        names = np.unique(parts).tolist()
        return dict(zip(names, self.measure_steps([parts[:, None] == name for name in names]), strict=True))

    def measure_replicas(self) -> dict[int, float]:
        """Return the mean step in which only one replica is not ideal, by replica."""
        replays = replay_replicas(self._timeline.graph, self._timeline.seconds, self._ideal)
        return dict(zip(self._timeline.dp_ranks, (float(each.mean()) for each in replays), strict=True))

    def measure_without(self, ranks: Collection[int]) -> float:
        """Return the mean step in which only these workers are ideal."""
        of_stage = [
            [self._timeline.ranks[replica, stage] in ranks for replica in self._timeline.dp_ranks]
            for stage in range(self.stages.max() + 1)
        ]
        return self.measure_steps([~np.array(of_stage)[self.stages]])[0]


def _compare_with_ideal(timeline: Timeline) -> Slowdown | None:
    """Replay the steps with the durations of single parts; None if the ideal step takes no time."""
    replays = _Replays(timeline)
    every = np.array([[True]])
    not_last = replays.stages[:, None] != replays.stages.max()
    own_s, ideal_s, without_last_s = replays.measure_steps([every, ~every, not_last])
    if ideal_s <= 0:
        return None
    by_type = {str(name): step_s / ideal_s for name, step_s in replays.measure_parts(replays.types).items()}
    by_stage = {stage: step_s / ideal_s for stage, step_s in replays.measure_parts(replays.stages).items()}
    by_replica = {dp_rank: step_s / ideal_s for dp_rank, step_s in replays.measure_replicas().items()}
    by_worker = {rank: min(by_replica[dp], by_stage[stage]) for (dp, stage), rank in timeline.ranks.items()}
    slowest = sorted(by_worker, key=lambda rank: (-by_worker[rank], rank))
    slowest = slowest[: -(-len(slowest) * _SLOWEST_PERCENT // 100)]
    lost_s = own_s - ideal_s
    is_lost = lost_s > _MIN_LOST_RATIO * ideal_s
    forwards = Counter(each.stage for each in timeline.operations if each.kind == FORWARD)
    return Slowdown(
        s=own_s / ideal_s,
        by_operation=dict(sorted(by_type.items(), key=lambda item: -item[1])),
        by_dp_rank=by_replica,
        by_stage=by_stage,
        by_worker=by_worker,
        m_s=(own_s - without_last_s) / lost_s if is_lost else None,
        m_w=(own_s - replays.measure_without(slowest)) / lost_s if is_lost else None,
        slowest_ranks=tuple(slowest),
        workers=tuple(
            PipelineWorker(rank=rank, dp_rank=dp, stage=stage) for (dp, stage), rank in timeline.ranks.items()
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
    names, gaps = table.texts("operation"), list[Gap]()
    is_known = np.array([word in KNOWN for word in names.words], np.bool_)[names.codes]
    if not is_known.all():
        unknown = [names.words[code] for code in np.unique(names.codes[~is_known])[:_MAX_NAMES]]
        gaps.append(make_gap("operations_unknown", names=unknown, count=int((~is_known).sum())))
        table = table.at(is_known)
    stages = np.unique(table.ints("stage"))
    if not len(stages) or stages[0] != 0 or stages[-1] != len(stages) - 1:
        return None, (*gaps, make_gap("slowdown_stages_missing", stages=stages.tolist()[:_MAX_NAMES]))
    cells = _find_cells(table)
    if cells is None:
        return None, (*gaps, make_gap("slowdown_without_steps"))
    rows, left_out = cells
    if left_out:
        gaps.append(make_gap("operation_steps_left_out", count=left_out, steps=left_out + rows.shape[1]))
    ranks = {
        (dp_rank, stage): rank
        for dp_rank, stage, rank in zip(
            *(table.ints(name)[rows[:, 0]].ravel().tolist() for name in ("dp_rank", "stage", "rank")),
            strict=True,
        )
    }
    if len({*ranks.values()}) < len(ranks):
        gap = make_gap("slowdown_ranks_repeated", workers=len(ranks), ranks=len({*ranks.values()}))
        return None, (*gaps, gap)
    operations = _list_operations(table.at(rows[:, 0, 0]))
    try:
        graph = build_graph(operations)
    except CyclicStep:
        return None, (*gaps, make_gap("slowdown_order_contradicts"))
    starts_ns = table.ints("start_ns")[rows]
    ends_ns = starts_ns + table.ints("duration_ns")[rows]
    timeline = Timeline(
        operations=operations,
        graph=graph,
        seconds=_measure_seconds(graph, starts_ns, ends_ns),
        starts_ns=starts_ns,
        ends_ns=ends_ns,
        steps=tuple(table.ints("step")[rows[0, :, 0]].tolist()),
        dp_ranks=tuple(table.ints("dp_rank")[rows[0, 0]].tolist()),
        ranks=dict(sorted(ranks.items())),
    )
    return timeline, tuple(gaps)


def _list_operations(rows: Columns) -> tuple[Operation, ...]:
    """Return the operations of one step of one replica."""
    starts = rows.ints("start_ns")
    columns = (rows.ints(name).tolist() for name in ("chunk", "model_chunk", "micro_batch"))
    return tuple(
        Operation(*values)
        for values in zip(
            rows.texts("operation"),
            rows.ints("stage").tolist(),
            rows.ints("sequence").tolist(),
            starts.tolist(),
            (starts + rows.ints("duration_ns")).tolist(),
            *columns,
            strict=True,
        )
    )


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
