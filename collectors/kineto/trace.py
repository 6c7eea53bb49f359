"""Reads a Kineto trace (Chrome trace format, JSON) into columns.

Absolute time is ``baseTimeNanoseconds + 1000 * ts``, with ``ts`` in microseconds and up to three
decimals.  It is computed on the digits: a double of 4e12 µs is off by up to half a nanosecond, and the
sum with the base (1.8e18) does not fit a double at all.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from zprof.collectors.kineto.arguments import Arguments, decode_arguments
from zprof.model.errors import BadInput

_NO_NUMBER = msgspec.Raw(b"")
_MAX_NS = 1 << 62


class _Event(msgspec.Struct):
    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: msgspec.Raw = _NO_NUMBER
    dur: msgspec.Raw = _NO_NUMBER
    tid: Any = None
    args: msgspec.Raw = _NO_NUMBER


class _Group(msgspec.Struct):
    pg_name: Any = ""
    ranks: Any = ()


class _Distributed(msgspec.Struct):
    backend: Any = ""
    rank: Any = None
    world_size: Any = None
    pg_config: list[_Group] = []


class _File(msgspec.Struct, rename={"base": "baseTimeNanoseconds", "events": "traceEvents"}):
    events: list[_Event]
    base: int = 0
    distributedInfo: _Distributed = msgspec.field(default_factory=_Distributed)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceColumns:
    """All events with a duration, in the order of the file; one entry an event in each column.

    ``arguments`` holds those rows only whose arguments zprof reads.  ``thread_names`` keeps every name
    that a thread ever had.  ``groups`` are the process groups by name, with their global ranks.
    """

    start_ns: npt.NDArray[np.int64]
    duration_ns: npt.NDArray[np.int64]
    category: list[str]
    name: list[str]
    thread: npt.NDArray[np.int64]
    arguments: Mapping[int, Arguments]
    thread_names: Mapping[int, frozenset[str]]
    groups: Mapping[str, tuple[int, ...]]
    world_size: int | None

    def __len__(self) -> int:
        return len(self.name)


def read_trace(path: Path) -> TraceColumns:
    """Read a trace file.

    Raises:
        BadInput: it cannot be read, or is not such a trace.
    """
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File, strict=False)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})", hint="give a trace file") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadInput(f"{path}: not a Kineto trace ({error})", hint="export the trace again") from None
    return _columns(file)


def _columns(file: _File) -> TraceColumns:
    spans = [
        (*span, event)
        for event in file.events
        if event.ph == "X" and (span := _span(event, file.base)) is not None
    ]
    decoded = ((row, decode_arguments(e.cat, e.name, e.args)) for row, (_, _, e) in enumerate(spans))
    distributed = file.distributedInfo
    return TraceColumns(
        start_ns=np.array([start for start, _, _ in spans], dtype=np.int64),
        duration_ns=np.array([duration for _, duration, _ in spans], dtype=np.int64),
        category=[event.cat for _, _, event in spans],
        name=[event.name for _, _, event in spans],
        thread=np.array([_thread(event.tid) for _, _, event in spans], dtype=np.int64),
        arguments={row: arguments for row, arguments in decoded if arguments is not None},
        thread_names=_thread_names(file.events),
        groups=dict(group for entry in distributed.pg_config if (group := _group(entry))),
        world_size=distributed.world_size if isinstance(distributed.world_size, int) else None,
    )


def _span(event: _Event, base_ns: int) -> tuple[int, int] | None:
    start, duration = microseconds_to_ns(event.ts), microseconds_to_ns(event.dur)
    if start is None or duration is None or duration < 0 or not 0 <= base_ns + start < _MAX_NS:
        return None
    return base_ns + start, duration


def microseconds_to_ns(number: msgspec.Raw) -> int | None:
    """A JSON number of microseconds as whole nanoseconds, without going through a double."""
    whole, _, fraction = bytes(number).partition(b".")
    if whole.isdigit() and (not fraction or fraction.isdigit()):
        return int(whole[:19]) * 1000 + int(fraction[:3].ljust(3, b"0"))
    try:
        value = Decimal(bytes(number).decode("ascii")) * 1000
        return int(value) if abs(value) < _MAX_NS else None
    except (ArithmeticError, ValueError):
        return None


def _thread(tid: object) -> int:
    """Threads are numbers; rows of the profiler's own bookkeeping have words and become -1."""
    return tid if isinstance(tid, int) and 0 <= tid < _MAX_NS else -1


def _thread_names(events: list[_Event]) -> dict[int, frozenset[str]]:
    names: dict[int, frozenset[str]] = {}
    for event in events:
        if event.ph == "M" and event.name == "thread_name":
            arguments = decode_arguments("", "thread_name", event.args)
            if arguments is not None and isinstance(arguments.name, str):
                thread = _thread(event.tid)
                names[thread] = names.get(thread, frozenset()) | {arguments.name}
    return names


def _group(entry: _Group) -> tuple[str, tuple[int, ...]] | None:
    ranks = entry.ranks
    if not isinstance(ranks, list) or not all(isinstance(rank, int) and rank >= 0 for rank in ranks):
        return None
    return str(entry.pg_name), tuple(sorted(ranks))
