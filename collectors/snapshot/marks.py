"""Points in time out of a snapshot: ranges that the program named, and failed allocations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zprof.collectors.snapshot.device import DeviceTables
from zprof.collectors.snapshot.fields import Budget, Integers, integers, rows_of, sizes, words
from zprof.collectors.snapshot.texts import column_of
from zprof.collectors.snapshot.trace import Action, Trace

_KINDS = {"START": "annotation_begin", "END": "annotation_end"}
_NS_PER_US = 1000
_LAST_US = 9_000_000_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotations:
    """Begins and ends of named ranges (``record_function``), in the order of the file."""

    time_ns: Integers
    kind: Sequence[str]
    device: Integers
    name: Sequence[str]


def annotations(value: object, budget: Budget) -> Annotations:
    """The ranges of ``external_annotations``; one of another stage than START and END is left out.

    Raises:
        BadInput: they are not as torch writes them.
    """
    where = "external_annotations"
    rows = rows_of(value, where, budget)
    stages = words(rows, "stage", where)
    rows = [row for row, stage in zip(rows, stages, strict=True) if stage in _KINDS]
    return Annotations(
        time_ns=np.minimum(sizes(rows, "time_us", where, default=0), _LAST_US) * _NS_PER_US,
        kind=[_KINDS[stage] for stage in stages if stage in _KINDS],
        device=integers(rows, "device", where, default=0),
        name=words(rows, "name", where),
    )


def last_ns(traces: Mapping[int, Trace], notes: Annotations) -> int:
    """The last moment that the snapshot speaks of, 0 where it has no times."""
    ends = [int(trace.time_ns[-1]) for trace in traces.values() if len(trace.time_ns)]
    noted = [int(time_ns) for time_ns in notes.time_ns]
    return max([*ends, *noted, 0])


def marks_of(devices: Sequence[DeviceTables], notes: Annotations) -> dict[str, Any]:
    """The table ``mark``: annotations (number: device), and for each failed allocation oom (number: free
    bytes of the device) and oom_request (number: bytes asked for), both named after the device.
    """
    times, kinds = [notes.time_ns], list(notes.kind)
    numbers, names = [notes.device], list(notes.name)
    for device in devices:
        at = np.flatnonzero(device.trace.action == Action.OOM)
        rows = [device.trace.rows[index] for index in at.tolist()]
        free = integers(rows, "device_free", f"oom of {device.name}", default=-1)
        times += [device.trace.time_ns[at]] * 2
        numbers += [free, device.trace.size[at]]
        kinds += ["oom"] * len(at) + ["oom_request"] * len(at)
        names += [device.name] * (2 * len(at))
    time_ns = np.concatenate(times)
    order = np.argsort(time_ns, kind="stable")
    return {
        "time_ns": time_ns[order],
        "kind": column_of([kinds[index] for index in order.tolist()]),
        "number": np.concatenate(numbers)[order],
        "name": column_of([names[index] for index in order.tolist()]),
    }
