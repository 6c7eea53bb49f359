"""Joins a device's work to the host: the call that launched it, and what stands around that call.

A kernel's correlation is that of the call; the call lies on a thread inside ``record_param_comms`` (which
carries the metadata), inside an operator, inside a range.  ``External id`` names the operator directly, but
old traces repeat the correlation there: it counts only where the times allow it.
"""

from dataclasses import dataclass

import numpy as np

from zprof.collectors.kineto.collectives.finding import Enclosing, rows_of
from zprof.collectors.kineto.columns import ABSENT, Int64s, Trace
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


def links_of(trace: Trace, rows: Int64s) -> Links:
    """Where the work in some rows comes from."""
    call = _calls(trace, rows)
    records = rows_of(trace, ("cpu_op", "user_annotation"), _RECORD.__eq__)
    operators = rows_of(trace, ("cpu_op",), is_operator)
    annotations = rows_of(trace, ("user_annotation", "cpu_op"), is_annotation)
    around = _around(trace, call, records)
    by_id = _by_external_id(trace, rows, call, records)
    return Links(
        rows=rows,
        call=call,
        record=np.where(by_id >= 0, by_id, around),
        operator=_around(trace, call, operators),
        annotation=_around(trace, call, annotations),
    )


def launched_at(trace: Trace, links: Links) -> tuple[Int64s, Int64s]:
    """Thread and time of each launch; ``ABSENT`` where it is not in the trace."""
    known = links.call >= 0
    return (
        np.where(known, trace.thread[links.call], ABSENT),
        np.where(known, trace.start_ns[links.call], ABSENT),
    )


def _calls(trace: Trace, rows: Int64s) -> Int64s:
    """The call with the same correlation."""
    calls = np.flatnonzero(trace.category.where(lambda category: category.endswith(_ENDINGS)))
    return _with_same(trace.correlation[rows], calls, trace.correlation[calls])


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


def _around(trace: Trace, call: Int64s, rows: Int64s) -> Int64s:
    known = call >= 0
    found = np.full(len(call), NONE)
    found[known] = Enclosing(trace, rows).at(trace.thread[call[known]], trace.start_ns[call[known]])
    return found


def _by_external_id(trace: Trace, rows: Int64s, call: Int64s, records: Int64s) -> Int64s:
    record = _with_same(trace.external_id[rows], records, trace.external_id[records])
    began = trace.start_ns[record]
    within = (trace.start_ns[call] >= began) & (trace.start_ns[call] <= began + trace.duration_ns[record])
    unlaunched = (trace.external_id[rows] != trace.correlation[rows]) & (trace.start_ns[rows] >= began)
    return np.where(np.where(call >= 0, within, unlaunched), record, NONE)
