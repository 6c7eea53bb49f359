"""Append events to the columns of a trace in batches of a few hundred, and keep further arguments only for
collectives and device waits.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from zprof.base.errors import BadInput
from zprof.collectors.read.kineto.reading.columns import (
    Categories,
    GrowingColumn,
    TextCodes,
    TextPredicate,
    microseconds_to_ns,
    to_doubles,
    to_int64,
    to_int64s,
    to_nanoseconds,
)
from zprof.collectors.read.kineto.reading.decoding import DecodedEvents, EventChunk, RepairedChunk
from zprof.collectors.read.kineto.reading.events import (
    DECODE_ERRORS,
    NO_TEXT,
    ExactEvent,
    FewArguments,
    Span,
    SpanArguments,
    TraceEvent,
)
from zprof.collectors.read.kineto.trace import ABSENT, TASK_PREFIX, Arguments, Int64s, Mask

#: Above this time (µs), a double has fewer than three decimals; affects traces of 2023 to April 2024.
_MIN_COARSE_US = float(1 << 43)
_FRACTION = re.compile(rb'"ts"\s*:\s*"?-?\d+\.')
_MIN_SPANS_FOR_SAMPLING = 64
_MAX_ROWS = 1 << 26
_MAX_NAMES, _MAX_NAME_LENGTH = 1 << 16, 1 << 10
Int32s = npt.NDArray[np.int32]
_COLUMNS = ("start", "duration", "process", "thread", "stream", "correlation", "external_id", "bytes")
_AnyEvent = Span | TraceEvent | ExactEvent
_KnownArguments = SpanArguments | FewArguments
_KEPT_PREFIXES = (
    "c10d::",
    "_c10d_functional::",
    "gloo:",
    "nccl:",
    "xccl:",
    "record_param_comms",
    "symm_mem::",
    "hcom_",
)
_KEPT_CATEGORY = "cuda_sync"
#: Limits against malicious files: a decoded list takes twenty times the memory of its text.
_MAX_VALUE_BYTES, _MAX_BYTES = 64 << 10, 64 << 20


class EventRows:
    """Accumulate the columns of a trace while it is read.

    ``events`` counts objects of any kind, ``with_phase`` events with a ``ph``, ``without_time`` events with a
    duration but no valid time.
    """

    def __init__(self) -> None:
        self.events = self.with_phase = self.without_time = self.repaired = 0
        self.names, self.categories, self.kept_arguments = TextCodes(), Categories(), KeptArguments()
        self.thread_names: dict[int, set[str]] = {}
        self.lane_names: dict[tuple[int, int], str] = {}
        self.process_names: dict[int, str] = {}
        self._thread_names = 0
        self.columns = {name: GrowingColumn(np.int64) for name in _COLUMNS}
        self.codes = {name: GrowingColumn(np.int32) for name in ("category", "name")}
        self._decodes_exactly, self._only_common = False, True

    def add(self, chunk: EventChunk | RepairedChunk) -> None:
        """Add all events of a chunk, or none.

        Raises:
            DECODE_ERRORS: the chunk is malformed.
        """
        decoded = chunk.decode_exact() if self._decodes_exactly else self._decode(chunk)
        times = None if self._decodes_exactly else self._from_doubles(decoded.spans, chunk.array)
        if times is None:
            decoded, self._decodes_exactly = (
                (decoded if self._decodes_exactly else chunk.decode_exact()),
                True,
            )
            spans = decoded.spans
            times = _parse_times([e.ts for e in spans]), _parse_times([e.dur for e in spans])
        if decoded.spans:
            self._add_spans(decoded, chunk, *times)
        self.events += decoded.count
        self.with_phase += decoded.with_phase
        for event in decoded.name_events:
            name = event.args.name
            if event.name == "thread_name" and isinstance(name, str):
                thread = to_int64(event.tid)
                if self._thread_names < _MAX_NAMES and len(name) < _MAX_NAME_LENGTH:
                    names = self.thread_names.setdefault(thread, set())
                    self._thread_names += name not in names
                    names.add(name)
                    if len(self.lane_names) < _MAX_NAMES:
                        self.lane_names[to_int64(event.pid), thread] = name
            elif event.name == "process_name" and isinstance(name, str):
                process = to_int64(event.pid)
                has_room = process in self.process_names or len(self.process_names) < _MAX_NAMES
                if process != ABSENT and len(name) < _MAX_NAME_LENGTH and has_room:
                    self.process_names[process] = name

    def _decode(self, chunk: EventChunk | RepairedChunk) -> DecodedEvents:
        """Decode with the fast decoder until the file has an event that it does not support."""
        if isinstance(chunk, RepairedChunk):
            return chunk.decode_any()
        decoded = chunk.decode_common() if self._only_common else None
        if decoded is None or None in [event.cat for event in decoded.spans]:
            decoded = chunk.decode_any()
            self._only_common = False
        return decoded

    @staticmethod
    def _from_doubles(spans: Sequence[Any], source: memoryview | bytes) -> tuple[Int64s, Int64s] | None:
        """Return starts and durations, or None if doubles are too coarse for them.

        With many coarse times, some still have fractions as doubles; with few, the text is searched.
        """
        start = to_doubles([event.ts for event in spans])
        duration = to_doubles([event.dur for event in spans])
        is_coarse = (np.abs(start) >= _MIN_COARSE_US) | (np.abs(duration) >= _MIN_COARSE_US)
        if is_coarse.any():
            fractions = is_coarse & ((start != np.floor(start)) | (duration >= _MIN_COARSE_US))
            if fractions.any() or (len(spans) < _MIN_SPANS_FOR_SAMPLING and _FRACTION.search(source)):
                return None
        return to_nanoseconds(start), to_nanoseconds(duration)

    def _add_spans(
        self, decoded: DecodedEvents, chunk: EventChunk | RepairedChunk, start: Int64s, duration: Int64s
    ) -> None:
        spans = decoded.spans
        arguments = [event.args for event in spans]
        names, categories = self.names, self.categories.texts
        codes = {
            "category": _encode_texts(categories, [event.cat or _name_task(event.args) for event in spans]),
            "name": _encode_texts(names, [event.name for event in spans]),
        }
        columns = {
            "process": to_int64s([event.pid for event in spans]),
            "thread": to_int64s([event.tid for event in spans]),
            "correlation": to_int64s([entry.correlation for entry in arguments]),
            "external_id": to_int64s([entry.external_id for entry in arguments]),
        }
        missing = np.flatnonzero(columns["external_id"] == ABSENT)
        legacy_ids = [arguments[row].external_id_2021 for row in missing.tolist()]
        if legacy_ids.count(None) != len(legacy_ids):
            columns["external_id"] = columns["external_id"].copy()
            columns["external_id"][missing] = to_int64s(legacy_ids)
        columns["start"], columns["duration"] = start, duration
        device = self.categories.find_device_rows(codes["category"])
        columns |= self._read_device_columns(
            codes["category"], device, [arguments[row] for row in device.tolist()], columns
        )
        texts = (names.texts, codes["name"]), (categories.texts, codes["category"])
        is_kept = self.kept_arguments.mask(*texts, arguments, device)
        # The profiler itself writes no negative time. ``ts: 0, dur: 0`` means that the device never reported
        # the times; it is not zero-length work at the start of the trace.
        start, duration = columns["start"], columns["duration"]
        has_valid_time: Mask = (start >= 0) & (duration >= 0) & ((start != 0) | (duration != 0))
        kept = np.flatnonzero(is_kept & has_valid_time).tolist()
        self._keep_arguments(kept, has_valid_time, chunk.get_arguments(decoded, kept))
        all_valid = bool(has_valid_time.all())
        self.without_time += 0 if all_valid else int((~has_valid_time).sum())
        for name, column in columns.items():
            self.columns[name].append(column if all_valid else column[has_valid_time])
        for name, code in codes.items():
            self.codes[name].append(code if all_valid else code[has_valid_time])
        if len(self.columns["start"]) > _MAX_ROWS:
            raise BadInput(f"more than {_MAX_ROWS} events", hint="record fewer steps")

    def _read_device_columns(
        self, codes: Int32s, rows: Int64s, arguments: Sequence[_KnownArguments], columns: Mapping[str, Int64s]
    ) -> dict[str, Int64s]:
        size = np.full(len(codes), ABSENT, dtype=np.int64)
        size[rows] = to_int64s([entry.bytes for entry in arguments])
        given = to_int64s([entry.stream for entry in arguments])
        return {"bytes": size, "stream": self.categories.get_streams(codes, rows, given, columns["thread"])}

    def _keep_arguments(
        self, kept: list[int], has_valid_time: Mask, arguments: Sequence[FewArguments]
    ) -> None:
        if kept:
            rows = len(self.columns["start"]) + np.cumsum(has_valid_time) - 1
            for row, entry in zip(rows[kept].tolist(), arguments, strict=True):
                self.kept_arguments.keep(row, entry)


def _name_task(arguments: _KnownArguments) -> str | None:
    """Return a category for an event that has none: the type of its task on an Ascend device."""
    task = arguments.task_type if isinstance(arguments, FewArguments) else None
    return f"{TASK_PREFIX}{task}" if isinstance(task, str) else None


def _encode_texts(texts: TextCodes, words: Sequence[str | None]) -> Int32s:
    return np.fromiter(map(texts.__getitem__, words), np.int32, len(words))


def _parse_times(numbers: Sequence[Any]) -> Int64s:
    mask = (microseconds_to_ns(bytes(digits)) for digits in numbers)
    return np.fromiter((ABSENT if entry is None else entry for entry in mask), np.int64, len(numbers))


#: Estimated bytes per rank, in a list of ranks and in the name of the group.
_RANK_BYTES, _MAX_RANKS = 32, 1 << 16
_IGNORED_FIELDS = ("external_id_2021", "task_type")
_FIELDS = FewArguments.__struct_fields__
_TextAndCodes = tuple[list[str], npt.NDArray[np.int32]]


class KeptArguments:
    """Keep the arguments of some rows. ``dropped`` counts rows whose arguments exceeded the limits."""

    def __init__(self) -> None:
        self.rows: dict[int, Arguments] = {}
        self.dropped = 0
        self._kept_bytes = 0
        self._interned: dict[str, str] = {}
        self._lists: dict[bytes, Any] = {}
        self._strided_groups: set[tuple[int | str | None, ...]] = set()
        self._names = TextPredicate(lambda name: name.startswith(_KEPT_PREFIXES))
        self._categories = TextPredicate(lambda category: category == _KEPT_CATEGORY)

    def mask(
        self, names: _TextAndCodes, categories: _TextAndCodes, arguments: Sequence[Any], device: Int64s
    ) -> Mask:
        """Return a mask of the rows to keep; ``device`` are the rows of device work."""
        mask = self._names.match(*names) | self._categories.match(*categories)
        for row in device.tolist():
            if arguments[row].collective is not None or arguments[row].group is not None:
                mask[row] = True
        return mask

    def keep(self, row: int, arguments: FewArguments) -> None:
        """Keep the arguments of a row, unless they exceed the limits."""
        given = {
            name: value
            for name, value in zip(_FIELDS, msgspec.structs.astuple(arguments), strict=True)
            if value is not None and value is not NO_TEXT and value is not ABSENT
        }
        for name in _IGNORED_FIELDS:
            given.pop(name, None)
        sizes = [_measure_value(value) for value in given.values() if type(value) is not int]
        size = sum(sizes) + self._measure_stride(arguments)
        if max(sizes, default=0) > _MAX_VALUE_BYTES or self._kept_bytes + size > _MAX_BYTES:
            self.dropped += 1
            return
        self._kept_bytes += size
        if arguments.global_rank_stride is not None:
            self._strided_groups.add(_make_group_key(arguments))
        self.rows[row] = Arguments(**{name: self._intern_value(value) for name, value in given.items()})

    def _measure_stride(self, arguments: FewArguments) -> int:
        """Return the memory of the list of ranks that a stride expands to, once per group."""
        size = arguments.group_size
        if arguments.global_rank_stride is None or not isinstance(size, int) or size <= 0:
            return 0
        return (
            0 if _make_group_key(arguments) in self._strided_groups else _RANK_BYTES * min(size, _MAX_RANKS)
        )

    def _intern_value(self, value: Any) -> Any:
        """Return a number, a text or a decoded list, equal ones as one object; None for everything else."""
        if isinstance(value, str):
            return self._interned.setdefault(value, value)
        if isinstance(value, msgspec.Raw):
            text = bytes(value)
            if text not in self._lists:
                try:
                    self._lists[text] = msgspec.json.decode(text) if text else None
                except DECODE_ERRORS:
                    self._lists[text] = None
            return self._lists[text]
        return value if isinstance(value, int | float) and value != ABSENT else None


def _make_group_key(arguments: FewArguments) -> tuple[int | str | None, ...]:
    """Return a group's names, with the numbers that define its ranks."""
    values = (
        arguments.group,
        arguments.group_id,
        arguments.group_description,
        arguments.first_global_rank,
        arguments.global_rank_stride,
    )
    return tuple(entry if isinstance(entry, int | str) else None for entry in (*values, arguments.group_size))


def _measure_value(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    return len(memoryview(value)) if isinstance(value, msgspec.Raw) else 0
