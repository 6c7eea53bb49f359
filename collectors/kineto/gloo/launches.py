"""Launches of gloo's collectives: the operators of c10d on the thread that called them."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zprof.collectors.kineto.arguments import Arguments, elements
from zprof.collectors.kineto.collectives.finding import Enclosing, rows_of
from zprof.collectors.kineto.collectives.groups import GroupNames
from zprof.collectors.kineto.collectives.spans import RangeSpan, identity
from zprof.collectors.kineto.collectives.units import units_at
from zprof.collectors.kineto.columns import Trace
from zprof.collectors.kineto.gloo.operators import OPERATORS, GlooKey, GlooOperator
from zprof.collectors.kineto.gloo.peers import place_in_group
from zprof.run.ranges import EngineRange, RangeVerb

_NOTHING = Arguments()
_MOST_REPEATS = 1 << 12
#: Between the launch of a synchronous call and its wait lie a few lines of Python.
_DIRECTLY_NS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One c10d operator; ``index`` counts them by start.

    ``stated``: what the ``::launch`` range around it says.  ``covered``: a ``::comm`` range stands for
    the collective, because it encloses this operator or because its engine writes such ranges.
    ``unit``: as the range says, or another annotation around it.
    ``root``: its place in the group, of operators that have one.
    ``wait``: a synchronous call blocks right behind its launch, so the next wait of the thread is its own.
    """

    start_ns: int
    end_ns: int
    operator: GlooOperator
    stated: EngineRange | None
    unit: str | None
    covered: bool
    wait: RangeSpan | None
    group: str
    group_size: int
    index: int
    key: GlooKey
    root: int | None


def find_launches(trace: Trace, spans: Sequence[RangeSpan], groups: GroupNames) -> list[Launch]:
    """All launches by start, without those that went to another backend."""
    find = _Launches(trace, spans, groups)
    rows = launch_rows(trace, OPERATORS.__contains__)
    units = units_at(trace, trace.thread[rows], trace.start_ns[rows])
    return [
        launch
        for index, (row, unit) in enumerate(zip(rows, units, strict=True))
        for launch in find.of(row, index, unit)
    ]


class _Launches:
    """Makes launches of the rows of operators."""

    def __init__(self, trace: Trace, spans: Sequence[RangeSpan], groups: GroupNames) -> None:
        self._trace, self._groups = trace, groups
        self._enclosing, self._waits = EnclosingRanges(spans), _NextWaits(spans)
        self._carrying = {span.range.engine for span in spans if span.range.verb is RangeVerb.COMM}

    def of(self, row: int, index: int, unit: str | None) -> list[Launch]:
        """The launch, as often as it executes."""
        operator, thread = OPERATORS[self._trace.name[row]], int(self._trace.thread[row])
        start, end = _times(self._trace, row)
        span = self._enclosing.find(thread, start, end)
        stated = span.range if span is not None and span.range.verb is RangeVerb.LAUNCH else None
        arguments = self._trace.arguments.get(row, _NOTHING)
        group, size = self._group(stated, operator, arguments)
        launch = Launch(
            start_ns=start,
            end_ns=end,
            operator=operator,
            stated=stated,
            unit=(stated.unit if stated else None) or unit,
            covered=span is not None and span.range.engine in self._carrying,
            wait=self._waits.find(thread, end) if _is_synchronous(arguments) else None,
            group=group,
            group_size=size,
            index=index,
            key=_launch_key(operator, arguments),
            root=place_in_group(arguments, operator.root),
        )
        return [launch] * (max(1, min(size, _MOST_REPEATS)) if operator.repeats else 1)

    def _group(
        self, stated: EngineRange | None, operator: GlooOperator, arguments: Arguments
    ) -> tuple[str, int]:
        if stated is not None:
            return self._groups.resolve(stated.group)
        return self._groups.of_size(_ranks_by_shape(operator, arguments))


def launch_rows(trace: Trace, named: Callable[[str], bool]) -> list[int]:
    """Return the rows of operators by start, without those that enclose a ``record_param_comms``.

    Those went to NCCL or RCCL.
    """
    rows = rows_of(trace, ("cpu_op",), named)
    elsewhere = rows_of(trace, ("cpu_op",), "record_param_comms".__eq__)
    taken = Enclosing(trace, rows).at(trace.thread[elsewhere], trace.start_ns[elsewhere])
    gone = set(taken.tolist())
    return [row for row in rows.tolist() if row not in gone]


def _ranks_by_shape(operator: GlooOperator, arguments: Arguments) -> int | None:
    """How many ranks a gather or reduce-scatter spans: the full tensor over one part."""
    if operator.shards is None:
        return None
    parts, part = (elements(arguments.dims, argument) for argument in operator.shards)
    return parts // part if parts and part and not parts % part else None


class EnclosingRanges:
    """The launch and comm ranges of a trace, to find the one that encloses an operator on its thread."""

    def __init__(self, spans: Sequence[RangeSpan]) -> None:
        self._spans: dict[int, list[RangeSpan]] = defaultdict(list)
        for span in spans:
            if span.range.verb in (RangeVerb.LAUNCH, RangeVerb.COMM) and identity(span.range) is not None:
                self._spans[span.thread].append(span)

    def find(self, thread: int, start_ns: int, end_ns: int) -> RangeSpan | None:
        """Return the range around an operator, None where there is none."""
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


def _times(trace: Trace, row: int) -> tuple[int, int]:
    start = int(trace.start_ns[row])
    return start, start + int(trace.duration_ns[row])
