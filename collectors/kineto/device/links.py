"""Joins a device's work to the host: the call that launched it, and what stands around that call.

A kernel's correlation is that of the call; the call lies on a thread inside ``record_param_comms`` (which
carries the metadata), inside an operator, inside a range.  ``External id`` names the operator directly, but
old traces repeat the correlation there: it counts only where the times allow it.
"""

from dataclasses import dataclass

import numpy as np

from zprof.collectors.kineto.collectives.finding import Enclosing, rows_of
from zprof.collectors.kineto.columns import Int64s, Trace
from zprof.collectors.kineto.device.operators import is_annotation, is_operator

_RECORD = "record_param_comms"
_ENDINGS = ("_runtime", "_driver")
NONE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """For each row of a device's work, rows of the host, or ``NONE``.

    ``call``: the launch.  ``record``: the ``record_param_comms``.  ``operator``, ``annotation``: what else
    encloses the launch.
    """

    rows: Int64s
    call: Int64s
    record: Int64s
    operator: Int64s
    annotation: Int64s


class Host:
    """The rows of a trace's host that launch a device's work or say something of it."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._calls = np.flatnonzero(trace.category.where(lambda category: category.endswith(_ENDINGS)))
        self._records = rows_of(trace, ("cpu_op", "user_annotation"), _RECORD.__eq__)
        operators = rows_of(trace, ("cpu_op",), is_operator)
        annotations = rows_of(trace, ("user_annotation", "cpu_op"), is_annotation)
        self._around = [Enclosing(trace, rows) for rows in (self._records, operators, annotations)]

    def links(self, rows: Int64s) -> Links:
        """Where the work in some rows comes from."""
        trace = self._trace
        call = _with_same(trace.correlation[rows], self._calls, trace.correlation[self._calls])
        around, operator, annotation = (self._enclosing(found, call) for found in self._around)
        by_id = self._by_external_id(rows, call)
        record = np.where(by_id >= 0, by_id, around)
        return Links(rows=rows, call=call, record=record, operator=operator, annotation=annotation)

    def _enclosing(self, intervals: Enclosing, call: Int64s) -> Int64s:
        known = call >= 0
        found = np.full(len(call), NONE)
        calls = call[known]
        found[known] = intervals.at(self._trace.thread[calls], self._trace.start_ns[calls])
        return found

    def _by_external_id(self, rows: Int64s, call: Int64s) -> Int64s:
        trace = self._trace
        record = _with_same(trace.external_id[rows], self._records, trace.external_id[self._records])
        begun = trace.start_ns[record]
        ended = begun + trace.duration_ns[record]
        within = (trace.start_ns[call] >= begun) & (trace.start_ns[call] <= ended)
        unlaunched = (trace.external_id[rows] != trace.correlation[rows]) & (trace.start_ns[rows] >= begun)
        return np.where(np.where(call >= 0, within, unlaunched), record, NONE)


def _with_same(wanted: Int64s, rows: Int64s, numbers: Int64s) -> Int64s:
    """Of some rows with a number each, the first that has the wanted one; 0 and absent ones are none."""
    asked = np.unique(wanted)
    place = np.minimum(np.searchsorted(asked, numbers), max(len(asked) - 1, 0))
    asked_for = asked[place] == numbers if len(asked) else np.zeros(len(numbers), dtype=np.bool_)
    rows, numbers = rows[asked_for], numbers[asked_for]
    order = np.argsort(numbers, kind="stable")
    rows, numbers = rows[order], numbers[order]
    if not len(rows):
        return np.full(len(wanted), NONE)
    place = np.minimum(np.searchsorted(numbers, wanted), len(rows) - 1)
    return np.where((numbers[place] == wanted) & (wanted > 0), rows[place], NONE)
