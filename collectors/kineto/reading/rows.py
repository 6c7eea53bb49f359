"""Append events to the columns of a trace, some hundred at a time, and keep the other arguments of the few
rows that need them: collectives, and waits for devices.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from zprof.collectors.kineto.reading.columns import (
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
from zprof.collectors.kineto.reading.decoding import DecodedEvents, Piece, RepairedPiece
from zprof.collectors.kineto.reading.events import (
    DECODE_ERRORS,
    NO_TEXT,
    Event,
    ExactEvent,
    FewArguments,
    Span,
    SpanArguments,
)
from zprof.collectors.kineto.trace import ABSENT, Arguments, Int64s, Mask
from zprof.model.errors import BadInput

#: From this time on (µs) a double cannot hold three decimals; traces of 2023 to April 2024 have such times.
_COARSE_US = float(1 << 43)
_FRACTION = re.compile(rb'"ts"\s*:\s*"?-?\d+\.')
_MANY = 64
_MAX_ROWS = 1 << 26
_MAX_NAMES, _LONG_NAME = 1 << 16, 1 << 10
Int32s = npt.NDArray[np.int32]
_COLUMNS = ("start", "duration", "process", "thread", "stream", "correlation", "external_id", "bytes")
_AnyEvent = Span | Event | ExactEvent
_FewArguments = SpanArguments | FewArguments


class EventRows:
    """Columns of a trace while it is read.

    ``events`` counts objects of any kind, ``phased`` those with a ``ph``, ``timeless`` those with a duration
    but no valid time.
    """

    def __init__(self) -> None:
        self.events = self.phased = self.timeless = self.repaired = 0
        self.names, self.categories, self.wanted = TextCodes(), Categories(), KeptArguments()
        self.thread_names: dict[int, set[str]] = {}
        self._thread_names = 0
        self.columns = {name: GrowingColumn(np.int64) for name in _COLUMNS}
        self.codes = {name: GrowingColumn(np.int32) for name in ("category", "name")}
        self._exact, self._usual = False, True

    def add(self, piece: Piece | RepairedPiece) -> None:
        """Add all events of a piece, or none.

        Raises:
            DECODE_ERRORS: a part of it is invalid.
        """
        decoded = piece.exact() if self._exact else self._decode(piece)
        times = None if self._exact else self._from_doubles(decoded.spans, piece.array)
        if times is None:
            decoded, self._exact = (decoded if self._exact else piece.exact()), True
            spans = decoded.spans
            times = _times_from_digits([e.ts for e in spans]), _times_from_digits([e.dur for e in spans])
        if decoded.spans:
            self._add_spans(decoded, piece, *times)
        self.events += decoded.number
        self.phased += decoded.phased
        self._note_threads(decoded.named)

    def _decode(self, piece: Piece | RepairedPiece) -> DecodedEvents:
        """Decode the cheap way, until the file has an event of an unusual kind."""
        if isinstance(piece, RepairedPiece):
            return piece.any()
        decoded = piece.usual() if self._usual else None
        if decoded is None:
            decoded = piece.any()
            self._usual = False
        return decoded

    @staticmethod
    def _from_doubles(spans: Sequence[Any], source: memoryview | bytes) -> tuple[Int64s, Int64s] | None:
        """Return starts and durations, or None if doubles are too coarse for them.

        If some of many times have fractions, a few still show it in doubles; for fewer, the text is searched.
        """
        start = to_doubles([event.ts for event in spans])
        duration = to_doubles([event.dur for event in spans])
        coarse = (np.abs(start) >= _COARSE_US) | (np.abs(duration) >= _COARSE_US)
        if coarse.any():
            fractions = coarse & ((start != np.floor(start)) | (duration >= _COARSE_US))
            if fractions.any() or (len(spans) < _MANY and _FRACTION.search(source)):
                return None
        return to_nanoseconds(start), to_nanoseconds(duration)

    def _note_threads(self, events: Sequence[Any]) -> None:
        for event in events:
            name = event.args.name
            if event.name == "thread_name" and isinstance(name, str):
                self._note_thread(to_int64(event.tid), name)

    def _note_thread(self, thread: int, name: str) -> None:
        if self._thread_names < _MAX_NAMES and len(name) < _LONG_NAME:
            names = self.thread_names.setdefault(thread, set())
            self._thread_names += name not in names
            names.add(name)

    def _add_spans(
        self, decoded: DecodedEvents, piece: Piece | RepairedPiece, start: Int64s, duration: Int64s
    ) -> None:
        spans = decoded.spans
        few = [event.args for event in spans]
        names, categories = self.names, self.categories.texts
        codes = {
            "category": _encode_texts(categories, [event.cat for event in spans]),
            "name": _encode_texts(names, [event.name for event in spans]),
        }
        columns = _read_identities(spans, few)
        columns["start"], columns["duration"] = start, duration
        device = self.categories.device_rows(codes["category"])
        columns |= self._of_a_device(
            codes["category"], device, [few[row] for row in device.tolist()], columns
        )
        texts = (names.texts, codes["name"]), (categories.texts, codes["category"])
        wanted = self.wanted.mask(*texts, few, device)
        placed = _mask_placed(columns["start"], columns["duration"])
        kept = np.flatnonzero(wanted & placed).tolist()
        self._keep_arguments(kept, placed, piece.arguments(decoded, kept))
        self._append(codes, columns, placed)

    def _of_a_device(
        self, codes: Int32s, rows: Int64s, few: Sequence[_FewArguments], columns: Mapping[str, Int64s]
    ) -> dict[str, Int64s]:
        size = np.full(len(codes), ABSENT, dtype=np.int64)
        size[rows] = to_int64s([each.bytes for each in few])
        stated = to_int64s([each.stream for each in few])
        return {"bytes": size, "stream": self.categories.streams(codes, rows, stated, columns["thread"])}

    def _keep_arguments(self, kept: list[int], placed: Mask, few: Sequence[FewArguments]) -> None:
        if kept:
            rows = len(self.columns["start"]) + np.cumsum(placed) - 1
            for row, each in zip(rows[kept].tolist(), few, strict=True):
                self.wanted.keep(row, each)

    def _append(self, codes: Mapping[str, Int32s], columns: Mapping[str, Int64s], placed: Mask) -> None:
        whole = bool(placed.all())
        self.timeless += 0 if whole else int((~placed).sum())
        for name, column in columns.items():
            self.columns[name].append(column if whole else column[placed])
        for name, code in codes.items():
            self.codes[name].append(code if whole else code[placed])
        if len(self.columns["start"]) > _MAX_ROWS:
            raise BadInput(f"more than {_MAX_ROWS} events", hint="record fewer steps")


def _encode_texts(texts: TextCodes, words: Sequence[str | None]) -> Int32s:
    return np.fromiter(map(texts.__getitem__, words), np.int32, len(words))


def _read_identities(spans: Sequence[_AnyEvent], few: Sequence[_FewArguments]) -> dict[str, Int64s]:
    columns = {
        "process": to_int64s([event.pid for event in spans]),
        "thread": to_int64s([event.tid for event in spans]),
        "correlation": to_int64s([each.correlation for each in few]),
        "external_id": to_int64s([each.external_id for each in few]),
    }
    missing = np.flatnonzero(columns["external_id"] == ABSENT)
    old = [few[row].external_id_2021 for row in missing.tolist()]
    if old.count(None) != len(old):
        columns["external_id"] = columns["external_id"].copy()
        columns["external_id"][missing] = to_int64s(old)
    return columns


def _times_from_digits(numbers: Sequence[Any]) -> Int64s:
    found = (microseconds_to_ns(bytes(digits)) for digits in numbers)
    return np.fromiter((ABSENT if each is None else each for each in found), np.int64, len(numbers))


def _mask_placed(start: Int64s, duration: Int64s) -> Mask:
    """Mark the events that have a valid time. The profiler itself writes no time below 0.

    Work whose times the device never reported is written as ``ts: 0, dur: 0``: it is not work of no length at
    the start of the trace.
    """
    found: Mask = (start >= 0) & (duration >= 0) & ((start != 0) | (duration != 0))
    return found


_KEPT_PREFIXES = ("c10d::", "gloo:", "nccl:", "record_param_comms", "symm_mem::")
_KEPT_CATEGORY = "cuda_sync"
#: Limits for hostile files: a decoded list takes twenty times the memory of its text.
_MAX_VALUE_BYTES, _MAX_BYTES = 64 << 10, 64 << 20
#: Memory of one rank, in a list and in the name of its group.
_RANK_BYTES, _MAX_RANKS = 32, 1 << 16
_NOT_KEPT = "external_id_2021"
_FIELDS = FewArguments.__struct_fields__
_TextAndCodes = tuple[list[str], npt.NDArray[np.int32]]


class KeptArguments:
    """``rows``: the kept arguments by row. ``unkept`` counts rows whose arguments exceeded the limits."""

    def __init__(self) -> None:
        self.rows: dict[int, Arguments] = {}
        self.unkept = 0
        self._kept_bytes = 0
        self._repeated: dict[str, str] = {}
        self._strided: set[tuple[int | str | None, ...]] = set()
        self._names = TextPredicate(lambda name: name.startswith(_KEPT_PREFIXES))
        self._categories = TextPredicate(lambda category: category == _KEPT_CATEGORY)

    def mask(
        self, names: _TextAndCodes, categories: _TextAndCodes, few: Sequence[Any], device: Int64s
    ) -> Mask:
        """Return a mask of the rows to keep; ``device`` are the rows of device work."""
        found = self._names.of(*names) | self._categories.of(*categories)
        for row in device.tolist():
            if few[row].collective is not None or few[row].group is not None:
                found[row] = True
        return found

    def keep(self, row: int, few: FewArguments) -> None:
        """Keep the arguments of a row, unless they exceed the limits."""
        stated = {
            name: value
            for name, value in zip(_FIELDS, msgspec.structs.astuple(few), strict=True)
            if value is not None and value is not NO_TEXT
        }
        stated.pop(_NOT_KEPT, None)
        sizes = [_measure_value(value) for value in stated.values() if not isinstance(value, int)]
        size = sum(sizes) + self._bytes_of_stride(few)
        if max(sizes, default=0) > _MAX_VALUE_BYTES or self._kept_bytes + size > _MAX_BYTES:
            self.unkept += 1
            return
        self._kept_bytes += size
        if few.global_rank_stride is not None:
            self._strided.add(_make_group_key(few))
        self.rows[row] = Arguments(**{name: self._kept(value) for name, value in stated.items()})

    def _bytes_of_stride(self, few: FewArguments) -> int:
        """Return the memory of the list of ranks that a stride expands to, once per group."""
        size = few.group_size
        if few.global_rank_stride is None or not isinstance(size, int) or size <= 0:
            return 0
        return 0 if _make_group_key(few) in self._strided else _RANK_BYTES * min(size, _MAX_RANKS)

    def _kept(self, value: Any) -> Any:
        """Return a number, an interned text or a decoded list; None for everything else."""
        if isinstance(value, str):
            return self._repeated.setdefault(value, value)
        if isinstance(value, msgspec.Raw):
            return _decode_list(value)
        return value if isinstance(value, int | float) and value != ABSENT else None


def _make_group_key(few: FewArguments) -> tuple[int | str | None, ...]:
    """Return a group's names, with the numbers that define its ranks."""
    values = (few.group, few.group_id, few.group_description, few.first_global_rank, few.global_rank_stride)
    return tuple(each if isinstance(each, int | str) else None for each in (*values, few.group_size))


def _measure_value(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    return len(memoryview(value)) if isinstance(value, msgspec.Raw) else 0


def _decode_list(text: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(text) if len(memoryview(text)) else None
    except DECODE_ERRORS:
        return None
