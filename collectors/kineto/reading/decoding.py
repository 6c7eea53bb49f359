"""Decode events in the cheapest way that their text allows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from zprof.collectors.kineto.reading.events import (
    DECODE_ERRORS,
    EVENT_DECODER,
    EVENTS_DECODER,
    EXACT_EVENTS_DECODER,
    USUAL_EVENTS_DECODER,
    Event,
    ExactEvent,
    FewArguments,
    NameEvent,
    Span,
    UsualEvent,
)
from zprof.collectors.kineto.reading.repair import RepairedEvent
from zprof.collectors.kineto.reading.structure import Separators


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedEvents:
    """Events by kind. ``number`` counts all kinds, ``phased`` those that have a ``ph``.

    ``usual``: the arguments of the spans are ``SpanArguments`` only.
    """

    number: int
    spans: Sequence[Any]
    named: Sequence[Any]
    phased: int
    usual: bool


def _split_by_kind(events: Sequence[Event | ExactEvent]) -> DecodedEvents:
    return DecodedEvents(
        number=len(events),
        spans=[event for event in events if event.ph == "X"],
        named=[event for event in events if event.ph == "M"],
        phased=sum(bool(event.ph) for event in events),
        usual=False,
    )


def _split_by_type(events: Sequence[UsualEvent]) -> DecodedEvents:
    has_named = NameEvent in map(type, events)
    return DecodedEvents(
        number=len(events),
        spans=[event for event in events if type(event) is Span],
        named=[event for event in events if type(event) is NameEvent] if has_named else [],
        phased=len(events),
        usual=True,
    )


class Piece:
    """Events in a part of a text, which has the brackets of an array around it.

    ``array`` is the part with its brackets.
    """

    def __init__(self, text: bytearray, start: int, stop: int, separators: Separators) -> None:
        self._text, self._start, self._stop = text, start, stop
        self._separators = separators
        self.array = memoryview(text)[start - 1 : stop + 1]

    def usual(self) -> DecodedEvents | None:
        """Decode the events, or return None if some are of unusual kinds."""
        try:
            return _split_by_type(USUAL_EVENTS_DECODER.decode(self.array))
        except msgspec.ValidationError:
            return None

    def any(self) -> DecodedEvents:
        """Decode events of all kinds."""
        return _split_by_kind(EVENTS_DECODER.decode(self.array))

    def exact(self) -> DecodedEvents:
        """Decode events of all kinds, with the digits of their times."""
        return _split_by_kind(EXACT_EVENTS_DECODER.decode(self.array))

    def arguments(self, decoded: DecodedEvents, rows: Sequence[int]) -> list[FewArguments]:
        """Return all arguments of a few of the spans of this text.

        Each event is searched by its name, and is the right one if every other field that was read is equal.
        """
        if not decoded.usual:
            return _list_arguments(decoded, rows)
        found: list[FewArguments] = []
        at, text = self._start, self._text
        for span in [decoded.spans[row] for row in rows]:
            name = msgspec.json.encode(span.name)
            while (place := text.find(name, at, self._stop)) >= 0:
                begin, at = self._separators.around(text, self._start, place, self._stop)
                event = _decode_event(memoryview(text)[begin:at])
                if event is not None and _is_same_event(event, span):
                    found.append(event.args)
                    break
            else:
                return _list_arguments(self.any(), rows)
        return found


class RepairedPiece:
    """One event that was repaired."""

    def __init__(self, mended: RepairedEvent) -> None:
        self._mended = mended
        self.array = memoryview(mended.text)

    def any(self) -> DecodedEvents:
        """Return the event with times as doubles."""
        return _split_by_kind([self._mended.event()])

    def exact(self) -> DecodedEvents:
        """Return the event with the digits of its times."""
        return _split_by_kind([self._mended.exact_event()])

    def arguments(self, decoded: DecodedEvents, rows: Sequence[int]) -> list[FewArguments]:
        """Return all arguments of some of its events."""
        return _list_arguments(decoded, rows)


def _list_arguments(decoded: DecodedEvents, rows: Sequence[int]) -> list[FewArguments]:
    return [decoded.spans[row].args for row in rows]


def _decode_event(text: memoryview) -> Event | None:
    try:
        return EVENT_DECODER.decode(text)
    except DECODE_ERRORS:
        return None


def _is_same_event(event: Event, span: Span) -> bool:
    few, other = span.args, event.args
    return (
        event.ph == "X"
        and (event.ts, event.dur, event.name, event.cat) == (span.ts, span.dur, span.name, span.cat)
        and (event.pid, event.tid, other.collective, other.group)
        == (span.pid, span.tid, few.collective, few.group)
        and (other.correlation, other.external_id, other.external_id_2021, other.stream, other.bytes)
        == (few.correlation, few.external_id, few.external_id_2021, few.stream, few.bytes)
    )
