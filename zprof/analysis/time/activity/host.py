"""Sorts the events of a rank that computes on its CPU.

The main thread (the one with most operators) computes while it runs an operator such as ``aten::mm``, or
a ``::compute`` range.  Wrappers are no compute: ``autograd::…`` encloses hooks and the waits in them,
``c10d::…`` is the launch of a collective.
"""

import re

import numpy as np
import pyarrow as pa

from zprof.analysis.intervals import EMPTY, Int64s, subtract, union
from zprof.analysis.time.activity.events import Activity
from zprof.analysis.time.activity.named import named_work, outermost
from zprof.analysis.time.activity.view import EventView, coverage_of
from zprof.run.ranges import RangeVerb, parse_range

_OPERATOR = re.compile(r"(?!_?c10d|autograd::|torch::|profiler::|record_function)\w+::\w", re.ASCII)
_CATEGORIES = ("cpu_op", "user_annotation")


def host_activity(events: pa.Table) -> Activity:
    """Sort the rows of an ``events`` table."""
    view = EventView(events, _CATEGORIES)
    operators = view.category_is("cpu_op")
    main = view.thread == _busiest(view.thread[operators])
    ranges = main & view.category_is("user_annotation")
    compute = view.name_is(operators & main, _is_operator) | view.name_is(ranges, _is_compute)
    named = view.spans[view.name_is(ranges, _is_named_wait)]
    anonymous = view.spans[view.name_is(ranges, _is_anonymous_wait)]
    waits = union(named, anonymous)
    copies = union(view.spans[view.name_is(ranges, _is_copy)])
    return Activity(
        on_device=False,
        compute=subtract(view.spans[compute], union(waits, copies)),
        waits=waits,
        anonymous_waits=subtract(anonymous, named),
        copies=subtract(copies, waits),
        coverage=coverage_of(events),
        launched=EMPTY,
        named=named_work(view, outermost(view, compute), view.spans[:, 0], ranges, ~main & main),
    )


def _is_operator(name: str) -> bool:
    return _OPERATOR.match(name) is not None


def _is_compute(name: str) -> bool:
    found = parse_range(name)
    return found is not None and found.verb is RangeVerb.COMPUTE


def _is_copy(name: str) -> bool:
    found = parse_range(name)
    return found is not None and found.verb is RangeVerb.COPY


def _is_named_wait(name: str) -> bool:
    found = parse_range(name)
    return found is not None and found.verb is RangeVerb.WAIT and found.kind is not None


def _is_anonymous_wait(name: str) -> bool:
    found = parse_range(name)
    return found is not None and found.verb is RangeVerb.WAIT and found.kind is None


def _busiest(threads: Int64s) -> int:
    if not len(threads):
        return -1
    numbers, counts = np.unique(threads, return_counts=True)
    return int(numbers[np.argmax(counts)])
