"""The columns of a trace while they grow, some hundred events at a time."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from zprof.collectors.kineto.columns import ABSENT, Int64s, Mask
from zprof.collectors.kineto.reading.categories import Categories
from zprof.collectors.kineto.reading.decoding import Decoded, MendedPiece, Piece
from zprof.collectors.kineto.reading.events import Event, ExactEvent, FewArguments, Span, SpanArguments
from zprof.collectors.kineto.reading.growing import Growing
from zprof.collectors.kineto.reading.numbers import (
    doubles,
    microseconds_to_ns,
    nanoseconds,
    whole_number,
    whole_numbers,
)
from zprof.collectors.kineto.reading.texts import Texts
from zprof.collectors.kineto.reading.wanted import Wanted
from zprof.model.errors import BadInput

#: From here on (in µs) a double does not hold three decimals.  Between 2023 and April 2024 traces have such.
_COARSE = float(1 << 43)
_FRACTION = re.compile(rb'"ts"\s*:\s*"?-?\d+\.')
_MANY = 64
_MOST_ROWS = 1 << 26
_MOST_NAMES, _LONG_NAME = 1 << 16, 1 << 10
Int32s = npt.NDArray[np.int32]
_COLUMNS = ("start", "duration", "process", "thread", "stream", "correlation", "external_id", "bytes")
_AnyEvent = Span | Event | ExactEvent
_FewArguments = SpanArguments | FewArguments


class Rows:
    """``events``: objects read, of any kind.  ``phased``: those that say which kind.

    ``timeless``: with a duration, but not at a place in time.
    """

    def __init__(self) -> None:
        self.events = self.phased = self.timeless = self.repaired = 0
        self.names, self.categories, self.wanted = Texts(), Categories(), Wanted()
        self.thread_names: dict[int, set[str]] = {}
        self._thread_names = 0
        self.columns = {name: Growing(np.int64) for name in _COLUMNS}
        self.codes = {name: Growing(np.int32) for name in ("category", "name")}
        self._exact, self._usual = False, True

    def add(self, piece: Piece | MendedPiece) -> None:
        """All events of a piece, or nothing.

        Raises:
            NOT_DECODED: something in it is not as it should be.
        """
        decoded = piece.exact() if self._exact else self._decode(piece)
        times = None if self._exact else self._from_doubles(decoded.spans, piece.array)
        if times is None:
            decoded, self._exact = (decoded if self._exact else piece.exact()), True
            spans = decoded.spans
            times = _from_digits([e.ts for e in spans]), _from_digits([e.dur for e in spans])
        if decoded.spans:
            self._add_spans(decoded, piece, *times)
        self.events += decoded.number
        self.phased += decoded.phased
        self._note_threads(decoded.named)

    def _decode(self, piece: Piece | MendedPiece) -> Decoded:
        """Cheaply, until the file has an event of an unusual kind."""
        if isinstance(piece, MendedPiece):
            return piece.any()
        decoded = piece.usual() if self._usual else None
        if decoded is None:
            decoded = piece.any()
            self._usual = False
        return decoded

    @staticmethod
    def _from_doubles(spans: Sequence[Any], source: memoryview | bytes) -> tuple[Int64s, Int64s] | None:
        """Begin and duration; None where doubles are too coarse: of many with fractions some show it."""
        start = doubles([event.ts for event in spans])
        duration = doubles([event.dur for event in spans])
        coarse = (np.abs(start) >= _COARSE) | (np.abs(duration) >= _COARSE)
        if coarse.any():
            fractions = coarse & ((start != np.floor(start)) | (duration >= _COARSE))
            if fractions.any() or (len(spans) < _MANY and _FRACTION.search(source)):
                return None
        return nanoseconds(start), nanoseconds(duration)

    def _note_threads(self, events: Sequence[Any]) -> None:
        for event in events:
            name = event.args.name
            if event.name == "thread_name" and isinstance(name, str):
                self._note_thread(whole_number(event.tid), name)

    def _note_thread(self, thread: int, name: str) -> None:
        if self._thread_names < _MOST_NAMES and len(name) < _LONG_NAME:
            names = self.thread_names.setdefault(thread, set())
            self._thread_names += name not in names
            names.add(name)

    def _add_spans(
        self, decoded: Decoded, piece: Piece | MendedPiece, start: Int64s, duration: Int64s
    ) -> None:
        spans = decoded.spans
        few = [event.args for event in spans]
        names, categories = self.names, self.categories.texts
        codes = {
            "category": _codes(categories, [event.cat for event in spans]),
            "name": _codes(names, [event.name for event in spans]),
        }
        columns = _identities(spans, few)
        columns["start"], columns["duration"] = start, duration
        device = self.categories.device_rows(codes["category"])
        columns |= self._of_a_device(
            codes["category"], device, [few[row] for row in device.tolist()], columns
        )
        texts = (names.texts, codes["name"]), (categories.texts, codes["category"])
        wanted = self.wanted.mask(*texts, few, device)
        placed = _placed(columns["start"], columns["duration"])
        kept = np.flatnonzero(wanted & placed).tolist()
        self._keep_arguments(kept, placed, piece.arguments(decoded, kept))
        self._append(codes, columns, placed)

    def _of_a_device(
        self, codes: Int32s, rows: Int64s, few: Sequence[_FewArguments], columns: Mapping[str, Int64s]
    ) -> dict[str, Int64s]:
        size = np.full(len(codes), ABSENT, dtype=np.int64)
        size[rows] = whole_numbers([each.bytes for each in few])
        stated = whole_numbers([each.stream for each in few])
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
        if len(self.columns["start"]) > _MOST_ROWS:
            raise BadInput(f"more than {_MOST_ROWS} events", hint="record fewer steps")


def _codes(texts: Texts, words: Sequence[str | None]) -> Int32s:
    return np.fromiter(map(texts.__getitem__, words), np.int32, len(words))


def _identities(spans: Sequence[_AnyEvent], few: Sequence[_FewArguments]) -> dict[str, Int64s]:
    columns = {
        "process": whole_numbers([event.pid for event in spans]),
        "thread": whole_numbers([event.tid for event in spans]),
        "correlation": whole_numbers([each.correlation for each in few]),
        "external_id": whole_numbers([each.external_id for each in few]),
    }
    missing = np.flatnonzero(columns["external_id"] == ABSENT)
    old = [few[row].external_id_2021 for row in missing.tolist()]
    if old.count(None) != len(old):
        columns["external_id"] = columns["external_id"].copy()
        columns["external_id"][missing] = whole_numbers(old)
    return columns


def _from_digits(numbers: Sequence[Any]) -> Int64s:
    found = (microseconds_to_ns(bytes(digits)) for digits in numbers)
    return np.fromiter((ABSENT if each is None else each for each in found), np.int64, len(numbers))


def _placed(start: Int64s, duration: Int64s) -> Mask:
    """Mark those that have a place in time; the profiler itself writes no time below 0.

    Work whose times the device never reported is written as ``ts: 0, dur: 0``: it is no work of no length
    at the begin of the trace.
    """
    found: Mask = (start >= 0) & (duration >= 0) & ((start != 0) | (duration != 0))
    return found
