"""Launches and executions of gloo's collectives, as a trace shows them."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from zprof.collectors.kineto.arguments import Arguments, dtype_of, elements
from zprof.collectors.kineto.gloo_operators import OPERATORS, WITHOUT_TENSOR, GlooOperator
from zprof.collectors.kineto.groups import GroupNames
from zprof.collectors.kineto.rows import RangeSpan, identity
from zprof.collectors.kineto.trace import TraceColumns
from zprof.run.ranges import EngineRange, RangeVerb

_WORKER = "pt_gloo_runloop"
_NOTHING = Arguments()
_MOST_REPEATS = 1 << 12
#: Between the launch of a synchronous call and its wait lie a few lines of Python.
_DIRECTLY_NS = 1_000_000

#: What a launch and its execution have in common: the operator that gloo runs, and its elements.
GlooKey = tuple[str, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One c10d operator.  ``ordinal`` counts those of a group that no range encloses.

    ``stated``: what the ``::launch`` range around it says.  ``covered``: a ``::comm`` range stands for
    the collective, because it encloses this operator or because its engine writes such ranges.
    ``wait``: a synchronous call blocks right behind its launch, so the next wait of the thread is its own.
    """

    start_ns: int
    end_ns: int
    operator: GlooOperator
    stated: EngineRange | None
    covered: bool
    wait: RangeSpan | None
    group: str
    group_size: int
    ordinal: int
    key: GlooKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One ``gloo:<op>`` on a worker thread.  ``dtype`` is torch's name and the bytes of an element."""

    start_ns: int
    end_ns: int
    elements: int | None
    dtype: tuple[str, int] | None
    key: GlooKey


def find_launches(trace: TraceColumns, spans: Sequence[RangeSpan], groups: GroupNames) -> list[Launch]:
    """All launches by start."""
    enclosing, waits = _Enclosing(spans), _NextWaits(spans)
    carrying = {span.range.engine for span in spans if span.range.verb is RangeVerb.COMM}
    ordinals: dict[str, int] = defaultdict(int)
    launches: list[Launch] = []
    for row in _rows_by_start(trace, "c10d::"):
        operator = OPERATORS.get(trace.name[row])
        if operator is None:
            continue
        start, end = _times(trace, row)
        span = enclosing.find(int(trace.thread[row]), start, end)
        stated = span.range if span is not None and span.range.verb is RangeVerb.LAUNCH else None
        covered = span is not None and span.range.engine in carrying
        group, size = groups.resolve(stated.group if stated else None)
        arguments = trace.arguments.get(row, _NOTHING)
        launch = Launch(
            start_ns=start,
            end_ns=end,
            operator=operator,
            stated=stated,
            covered=covered,
            wait=waits.find(int(trace.thread[row]), end) if _is_synchronous(arguments) else None,
            group=group,
            group_size=size,
            ordinal=ordinals[group],
            key=_launch_key(operator, arguments),
        )
        launches.extend([launch] * (max(1, min(size, _MOST_REPEATS)) if operator.repeats else 1))
        ordinals[group] += stated is None and not covered
    return launches


def find_executions(trace: TraceColumns) -> dict[GlooKey, list[Execution]]:
    """All executions by key and start."""
    workers = {t for t, names in trace.thread_names.items() if any(_WORKER in name for name in names)}
    found: dict[GlooKey, list[Execution]] = defaultdict(list)
    for row in _rows_by_start(trace, "gloo:"):
        if int(trace.thread[row]) not in workers:
            continue
        start, end = _times(trace, row)
        arguments = trace.arguments.get(row, _NOTHING)
        executed = trace.name[row].removeprefix("gloo:")
        count = elements(arguments.dims)
        key = (executed, None if executed in WITHOUT_TENSOR else count)
        types = arguments.types if isinstance(arguments.types, list) and arguments.types else [None]
        found[key].append(
            Execution(start_ns=start, end_ns=end, elements=count, dtype=dtype_of(types[0]), key=key)
        )
    return found


class _Enclosing:
    """Finds the launch or comm range that encloses an operator on its thread."""

    def __init__(self, spans: Sequence[RangeSpan]) -> None:
        self._spans: dict[int, list[RangeSpan]] = defaultdict(list)
        for span in spans:
            if span.range.verb in (RangeVerb.LAUNCH, RangeVerb.COMM) and identity(span.range) is not None:
                self._spans[span.thread].append(span)

    def find(self, thread: int, start_ns: int, end_ns: int) -> RangeSpan | None:
        spans = self._spans.get(thread, [])
        index = bisect_right(spans, start_ns, key=lambda span: span.start_ns) - 1
        return spans[index] if index >= 0 and spans[index].end_ns >= end_ns else None


class _NextWaits:
    """Finds the anonymous wait in which a thread goes on after a launch."""

    def __init__(self, spans: Sequence[RangeSpan]) -> None:
        self._spans: dict[int, list[RangeSpan]] = defaultdict(list)
        for span in spans:
            if span.range.verb is RangeVerb.WAIT and span.range.kind is None:
                self._spans[span.thread].append(span)

    def find(self, thread: int, launched_ns: int) -> RangeSpan | None:
        spans = self._spans.get(thread, [])
        index = bisect_right(spans, launched_ns, key=lambda span: span.start_ns)
        near = index < len(spans) and spans[index].start_ns - launched_ns <= _DIRECTLY_NS
        return spans[index] if near else None


def _is_synchronous(arguments: Arguments) -> bool:
    """Whether ``asyncOp``, the last argument but one of every c10d operator, is false."""
    values = arguments.values
    return isinstance(values, list) and len(values) >= 2 and values[-2] == "False"


def _launch_key(operator: GlooOperator, arguments: Arguments) -> GlooKey:
    if operator.argument is None:
        return operator.executed, None
    return operator.executed, elements(arguments.dims, operator.argument)


def _rows_by_start(trace: TraceColumns, prefix: str) -> list[int]:
    rows = [row for row, name in enumerate(trace.name) if name.startswith(prefix)]
    return sorted(rows, key=lambda row: int(trace.start_ns[row]))


def _times(trace: TraceColumns, row: int) -> tuple[int, int]:
    start = int(trace.start_ns[row])
    return start, start + int(trace.duration_ns[row])
