"""Build the table ``mark`` of a snapshot: named ranges of the program, and allocations that failed."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field

from zprof.collectors.snapshot.block_sizes import compute_driver_bytes
from zprof.collectors.snapshot.columns import (
    Budget,
    Integers,
    factorize_texts,
    read_column,
    read_integers,
    read_rows,
    read_sizes,
    read_texts,
)
from zprof.collectors.snapshot.device import DeviceTables
from zprof.collectors.snapshot.segments import read_pools
from zprof.collectors.snapshot.settings import AllocatorSettings
from zprof.collectors.snapshot.stacks import StackTable
from zprof.collectors.snapshot.trace import DeviceTrace, TraceAction

#: Where an entry of the kind ``annotate`` can have its text.
_TEXT_KEYS = ("user_metadata", "metadata", "name", "text")
_ANNOTATION_KINDS = {"START": "annotation_begin", "END": "annotation_end"}
_NS_PER_US = 1000
_MAX_TIME_US = 9_000_000_000_000_000


class Annotations(Struct, frozen=True, kw_only=True):
    """Starts and ends of named ranges (``record_function``), in file order."""

    time_ns: Integers
    kind: Sequence[str]
    device: Integers
    name: Sequence[str]


def read_annotations(value: object, budget: Budget) -> Annotations:
    """Return the ranges of ``external_annotations``; stages other than START and END are ignored.

    Raises:
        BadInput: they do not have torch's format.
    """
    where = "external_annotations"
    rows = read_rows(value, where, budget)
    stages = read_texts(rows, "stage", where)
    rows = [row for row, stage in zip(rows, stages, strict=True) if stage in _ANNOTATION_KINDS]
    return Annotations(
        time_ns=np.minimum(read_sizes(rows, "time_us", where, default=0), _MAX_TIME_US) * _NS_PER_US,
        kind=[_ANNOTATION_KINDS[stage] for stage in stages if stage in _ANNOTATION_KINDS],
        device=read_integers(rows, "device", where, default=0),
        name=read_texts(rows, "name", where),
    )


def find_last_ns(traces: Mapping[int, DeviceTrace], annotations: Annotations) -> int:
    """Return the last time in the snapshot, 0 if it has no times."""
    ends = [int(trace.time_ns[-1]) for trace in traces.values() if len(trace.time_ns)]
    annotation_times = [int(time_ns) for time_ns in annotations.time_ns]
    return max([*ends, *annotation_times, 0])


class _MarkRows(Struct, frozen=True):
    """Rows of the table, in any order."""

    time_ns: list[Integers] = field(default_factory=list)
    number: list[Integers] = field(default_factory=list)
    kind: list[str] = field(default_factory=list)
    name: list[str] = field(default_factory=list)

    def add(self, time_ns: Integers, number: Integers, kind: Sequence[str], name: Sequence[str]) -> None:
        self.time_ns.append(time_ns)
        self.number.append(number)
        self.kind.extend(kind)
        self.name.extend(name)


def build_marks(
    devices: Sequence[DeviceTables],
    annotations: Annotations,
    stacks: StackTable,
    settings: AllocatorSettings,
) -> dict[str, Any]:
    """Return the table ``mark``; its kinds are described at ``MARK`` in ``zprof/run/schema.py``."""
    rows = _MarkRows()
    rows.add(annotations.time_ns, annotations.device, annotations.kind, annotations.name)
    for device in devices:
        _add_failures(rows, device, stacks, settings)
        _add_notes(rows, device)
    time_ns = np.concatenate(rows.time_ns)
    order = np.argsort(time_ns, kind="stable")
    return {
        "time_ns": time_ns[order],
        "kind": factorize_texts([rows.kind[index] for index in order.tolist()]),
        "number": np.concatenate(rows.number)[order],
        "name": factorize_texts([rows.name[index] for index in order.tolist()]),
        "thread_cpu_ns": [None] * len(order),
        "thread_queued_ns": [None] * len(order),
    }


def _add_failures(
    rows: _MarkRows, device: DeviceTables, stacks: StackTable, settings: AllocatorSettings
) -> None:
    """Add the rows of each failed allocation, all at its time."""
    where = f"oom of {device.name}"
    entries = np.flatnonzero(device.trace.action == TraceAction.OOM)
    failed = [device.trace.rows[index] for index in entries.tolist()]
    time_ns, size = device.trace.time_ns[entries], device.trace.size[entries]
    numbers = {
        "oom": read_integers(failed, "device_free", where, default=-1),
        "oom_request": size,
        "oom_driver_request": compute_driver_bytes(size, settings),
        "oom_stack": stacks.numbers(read_column(failed, "frames"), where),
    }
    for kind, number in numbers.items():
        is_known = number >= 0 if kind == "oom_stack" else np.ones(len(number), dtype=np.bool_)
        count = int(is_known.sum())
        rows.add(time_ns[is_known], number[is_known], [kind] * count, [device.name] * count)
    pools = read_pools(failed, "pool_id", where)
    private = [index for index, pool in enumerate(pools) if pool not in (None, "0,0")]
    device_number = np.full(len(private), int(device.name.rpartition(":")[2]), dtype=np.int64)
    names = [pools[index] or "" for index in private]
    rows.add(time_ns[private], device_number, ["oom_pool"] * len(private), names)


def _add_notes(rows: _MarkRows, device: DeviceTables) -> None:
    """Add the texts that entries of the kind ``annotate`` carry."""
    trace = device.trace
    entries = np.flatnonzero(trace.action == TraceAction.ANNOTATE)
    found = [(index, _find_text(trace, index)) for index in entries.tolist()]
    noted = [(index, text) for index, text in found if text]
    number = np.full(len(noted), int(device.name.rpartition(":")[2]), dtype=np.int64)
    time_ns = trace.time_ns[np.array([index for index, _ in noted], dtype=np.int64)]
    rows.add(time_ns, number, ["annotation"] * len(noted), [text for _, text in noted])


def _find_text(trace: DeviceTrace, index: int) -> str:
    values = (trace.rows[index].get(key) for key in _TEXT_KEYS)
    return next((value for value in values if type(value) is str and value), "")
