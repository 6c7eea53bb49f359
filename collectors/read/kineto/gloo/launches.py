"""Find gloo's collectives in a trace: launches (c10d operators on the calling thread) and executions
(``gloo:<op>`` on the threads of a process group).

The table of operators is based on traces of torch 2.13: a reduce-scatter runs as ``gloo:all_reduce`` over the
full input, so its kind is known only from the launch.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct

from zprof.collectors.read.kineto.annotations import (
    IntervalIndex,
    RangeSpan,
    find_rows,
    find_units,
    get_collective_key,
)
from zprof.collectors.read.kineto.collectives import parse_element_type
from zprof.collectors.read.kineto.process_groups import GroupResolver, parse_group_rank
from zprof.collectors.read.kineto.trace import Arguments, Int64s, Trace, count_elements
from zprof.model.collectives import CollectiveKind
from zprof.run.ranges import EngineRange, RangeVerb

#: Key shared by a launch and its execution: the operator that gloo runs, and its elements.
GlooKey = tuple[str, int | None]
#: Executions of point-to-point messages, which run on the calling thread (see ``messages``).
MESSAGE_KINDS = {
    "gloo:send": CollectiveKind.SEND,
    "gloo:recv": CollectiveKind.RECV,
    "gloo:recvAnySource": CollectiveKind.RECV,
}
_NO_ARGUMENTS = Arguments()
_MAX_REPEATS = 1 << 12
#: Maximum time from the launch of a synchronous call to its wait: a few lines of Python.
_MAX_WAIT_DELAY_NS = 1_000_000
_WORKER_THREAD = "pt_gloo_runloop"


class GlooOperator(Struct, frozen=True, kw_only=True):
    """One c10d operator.

    ``executed`` is the name after ``gloo:``. The execution has the elements of the launch's ``argument``;
    None if it has no tensor that exists on all ranks. ``repeats``: it executes once per rank of the group.
    ``gathers``: the full tensor is the recorded tensor times the group's size. ``shards``: the arguments with
    the full tensor and this rank's shard; their ratio is the group's size. ``root``: the argument of rooted
    operators with the root's group rank.
    """

    kind: CollectiveKind
    executed: str
    argument: int | None
    repeats: bool = False
    gathers: bool = False
    shards: tuple[int, int] | None = None
    root: int | None = None


GLOO_OPERATORS: dict[str, GlooOperator] = {
    "c10d::_allgather_base_": GlooOperator(
        kind=CollectiveKind.ALL_GATHER, executed="all_gather", argument=1, gathers=True, shards=(0, 1)
    ),
    "c10d::allgather_": GlooOperator(
        kind=CollectiveKind.ALL_GATHER, executed="all_gather", argument=1, gathers=True, shards=(0, 1)
    ),
    "c10d::_reduce_scatter_base_": GlooOperator(
        kind=CollectiveKind.REDUCE_SCATTER, executed="all_reduce", argument=1, shards=(1, 0)
    ),
    "c10d::reduce_scatter_": GlooOperator(
        kind=CollectiveKind.REDUCE_SCATTER, executed="all_reduce", argument=0, repeats=True
    ),
    "c10d::allreduce_": GlooOperator(kind=CollectiveKind.ALL_REDUCE, executed="all_reduce", argument=0),
    "c10d::broadcast_": GlooOperator(kind=CollectiveKind.BROADCAST, executed="broadcast", argument=0, root=2),
    "c10d::alltoall_base_": GlooOperator(kind=CollectiveKind.ALL_TO_ALL, executed="all_to_all", argument=1),
    "c10d::alltoall_": GlooOperator(kind=CollectiveKind.ALL_TO_ALL, executed="all_to_all", argument=1),
    "c10d::reduce_": GlooOperator(kind=CollectiveKind.REDUCE, executed="reduce", argument=0, root=3),
    "c10d::gather_": GlooOperator(
        kind=CollectiveKind.GATHER, executed="gather", argument=1, gathers=True, root=3
    ),
    "c10d::scatter_": GlooOperator(kind=CollectiveKind.SCATTER, executed="scatter", argument=None, root=3),
    "c10d::barrier": GlooOperator(kind=CollectiveKind.BARRIER, executed="barrier", argument=None),
}

#: Executions without a tensor that the launches of all ranks have.
WITHOUT_TENSOR = frozenset(o.executed for o in GLOO_OPERATORS.values() if o.argument is None)


class GlooLaunch(Struct, frozen=True, kw_only=True):
    """One c10d operator; ``index`` counts operators by start.

    ``launch_range``: the ``::launch`` range around it. ``has_no_row``: it is a clock ping of the recorder,
    or a ``::comm`` range represents the collective, because the range encloses this operator or because its
    engine writes such ranges. ``unit``: from the range, or from another annotation around it. ``root``: the
    root's group rank, for operators that have one. ``wait``: the next wait of the thread, for synchronous
    calls, which block right after their launch.
    """

    start_ns: int
    end_ns: int
    operator: GlooOperator
    launch_range: EngineRange | None
    unit: str | None
    has_no_row: bool
    wait: RangeSpan | None
    group: str
    group_size: int
    index: int
    key: GlooKey
    root: int | None


def find_launches(trace: Trace, spans: Sequence[RangeSpan], groups: GroupResolver) -> list[GlooLaunch]:
    """Return all launches by start, excluding launches on another backend."""
    reader = _LaunchReader(trace, spans, groups)
    rows = find_launch_rows(trace, GLOO_OPERATORS.__contains__)
    units = find_units(trace, trace.thread[rows], trace.start_ns[rows])
    return [
        launch
        for index, (row, unit) in enumerate(zip(rows, units, strict=True))
        for launch in reader.read(row, index, unit)
    ]


class _LaunchReader:
    """Make launches from rows of operators."""

    def __init__(self, trace: Trace, spans: Sequence[RangeSpan], groups: GroupResolver) -> None:
        self._trace, self._groups = trace, groups
        self._enclosing, self._waits = EnclosingRanges(spans), _NextWaits(spans)
        self._engines_with_comm_ranges = {
            span.range.engine for span in spans if span.range.verb is RangeVerb.COMM
        }

    def read(self, row: int, index: int, unit: str | None) -> list[GlooLaunch]:
        """Return the launch, once per execution."""
        operator, thread = GLOO_OPERATORS[self._trace.name[row]], int(self._trace.thread[row])
        start = int(self._trace.start_ns[row])
        start, end = start, start + int(self._trace.duration_ns[row])
        span = self._enclosing.find(thread, start, end)
        launch_range = span.range if span is not None and span.range.verb is RangeVerb.LAUNCH else None
        arguments = self._trace.arguments.get(row, _NO_ARGUMENTS)
        group, size = (
            self._groups.resolve(launch_range.group)
            if launch_range is not None
            else self._groups.resolve_by_size(_count_ranks_by_shape(operator, arguments))
        )
        # ``asyncOp`` is the second-to-last argument of every c10d operator.
        values = arguments.values
        is_synchronous = isinstance(values, list) and len(values) >= 2 and values[-2] == "False"
        launch = GlooLaunch(
            start_ns=start,
            end_ns=end,
            operator=operator,
            launch_range=launch_range,
            unit=(launch_range.unit if launch_range else None) or unit,
            has_no_row=span is not None
            and (span.range.verb is RangeVerb.PING or span.range.engine in self._engines_with_comm_ranges),
            wait=self._waits.find(thread, end) if is_synchronous else None,
            group=group,
            group_size=size,
            index=index,
            key=(
                operator.executed,
                None if operator.argument is None else count_elements(arguments.dims, operator.argument),
            ),
            root=parse_group_rank(arguments, operator.root),
        )
        return [launch] * (max(1, min(size, _MAX_REPEATS)) if operator.repeats else 1)


def find_launch_rows(trace: Trace, named: Callable[[str], bool]) -> list[int]:
    """Return the rows of operators by start, excluding those that enclose a ``record_param_comms``, which
    ran on NCCL or RCCL.
    """
    rows = find_rows(trace, ("cpu_op",), named)
    nccl_records = find_rows(trace, ("cpu_op",), "record_param_comms".__eq__)
    nccl_rows = IntervalIndex(trace, rows).find_innermost(
        trace.thread[nccl_records], trace.start_ns[nccl_records]
    )
    nccl_row_set = set(nccl_rows.tolist())
    return [row for row in rows.tolist() if row not in nccl_row_set]


def _count_ranks_by_shape(operator: GlooOperator, arguments: Arguments) -> int | None:
    """Return the group's size for a gather or reduce-scatter: elements of the full tensor per shard
    element.
    """
    if operator.shards is None:
        return None
    full_elements, shard_elements = (count_elements(arguments.dims, argument) for argument in operator.shards)
    return (
        full_elements // shard_elements
        if full_elements and shard_elements and not full_elements % shard_elements
        else None
    )


class EnclosingRanges:
    """Index the launch, comm and ping ranges of a trace, to find the one around an operator on its thread."""

    def __init__(self, spans: Sequence[RangeSpan]) -> None:
        self._spans_by_thread: dict[int, list[RangeSpan]] = defaultdict(list)
        for span in spans:
            is_collective = (
                span.range.verb in (RangeVerb.LAUNCH, RangeVerb.COMM)
                and get_collective_key(span.range) is not None
            )
            if is_collective or span.range.verb is RangeVerb.PING:
                self._spans_by_thread[span.thread].append(span)

    def find(self, thread: int, start_ns: int, end_ns: int) -> RangeSpan | None:
        """Return the range around an operator, or None."""
        spans = self._spans_by_thread.get(thread, [])
        index = bisect_right(spans, start_ns, key=lambda span: span.start_ns) - 1
        return spans[index] if index >= 0 and spans[index].end_ns >= end_ns else None


class _NextWaits:
    """Index the anonymous waits of a trace, to find the one directly after a launch."""

    def __init__(self, spans: Sequence[RangeSpan]) -> None:
        self._spans_by_thread: dict[int, list[RangeSpan]] = defaultdict(list)
        for span in spans:
            if span.range.verb is RangeVerb.WAIT and span.range.kind is None:
                self._spans_by_thread[span.thread].append(span)

    def find(self, thread: int, launch_ns: int) -> RangeSpan | None:
        spans = self._spans_by_thread.get(thread, [])
        index = bisect_right(spans, launch_ns, key=lambda span: span.start_ns)
        is_close = index < len(spans) and spans[index].start_ns - launch_ns <= _MAX_WAIT_DELAY_NS
        return spans[index] if is_close else None


class Execution(Struct, frozen=True, kw_only=True):
    """One ``gloo:<op>`` on a worker thread. ``dtype`` is torch's name and the bytes per element."""

    thread: int
    start_ns: int
    end_ns: int
    elements: int | None
    dtype: tuple[str, int] | None
    key: GlooKey


def find_executions(trace: Trace) -> list[Execution]:
    """Return all executions by start."""
    rows = find_rows(
        trace,
        ("user_annotation", "cpu_op"),
        lambda name: name.startswith("gloo:") and name not in MESSAGE_KINDS,
    )
    workers = _find_worker_threads(trace, rows) if len(rows) else frozenset()
    found: list[Execution] = []
    for row in rows.tolist():
        thread = int(trace.thread[row])
        if thread not in workers:
            continue
        start = int(trace.start_ns[row])
        arguments = trace.arguments.get(row, _NO_ARGUMENTS)
        executed = trace.name[row].removeprefix("gloo:")
        count = count_elements(arguments.dims, types=arguments.types)
        key = (executed, None if executed in WITHOUT_TENSOR else count)
        types = arguments.types if isinstance(arguments.types, list) and arguments.types else [None]
        dtype = parse_element_type(types[0])
        found.append(
            Execution(
                thread=thread,
                start_ns=start,
                end_ns=start + int(trace.duration_ns[row]),
                elements=count,
                dtype=dtype,
                key=key,
            )
        )
    return found


def _find_worker_threads(trace: Trace, executions: Int64s) -> frozenset[int]:
    """Return gloo's threads by name; if no thread has that name, the threads that run no operators."""
    named = {t for t, names in trace.thread_names.items() if any(_WORKER_THREAD in name for name in names)}
    if named:
        return frozenset(named)
    operators = trace.thread[trace.category.where("cpu_op".__eq__)]
    return frozenset(np.setdiff1d(trace.thread[executions], operators).tolist())
