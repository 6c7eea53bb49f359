"""Decode events with the cheapest decoder that supports them."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from zprof.collectors.read.kineto.reading.events import (
    DECODE_ERRORS,
    EVENT_DECODER,
    EVENTS_DECODER,
    EXACT_EVENTS_DECODER,
    USUAL_EVENTS_DECODER,
    ExactEvent,
    FewArguments,
    NameEvent,
    Span,
    TraceEvent,
)
from zprof.collectors.read.kineto.reading.repair import RepairedEvent
from zprof.collectors.read.kineto.reading.structure import Separators


class DecodedEvents(Struct, frozen=True, kw_only=True):
    """Events by kind. ``count`` counts all events, ``with_phase`` those with a ``ph``.

    ``is_common``: the arguments of all spans are ``SpanArguments``.
    """

    count: int
    spans: Sequence[Any]
    name_events: Sequence[Any]
    with_phase: int
    is_common: bool


def _split_by_kind(events: Sequence[TraceEvent | ExactEvent]) -> DecodedEvents:
    return DecodedEvents(
        count=len(events),
        spans=[event for event in events if event.ph == "X"],
        name_events=[event for event in events if event.ph == "M"],
        with_phase=sum(bool(event.ph) for event in events),
        is_common=False,
    )


class EventChunk:
    """Events in a part of a text that is enclosed in the brackets of an array.

    ``array`` is the part including the brackets.
    """

    def __init__(self, text: bytearray, start: int, stop: int, separators: Separators) -> None:
        self._text, self._start, self._stop = text, start, stop
        self._separators = separators
        self.array = memoryview(text)[start - 1 : stop + 1]

    def decode_common(self) -> DecodedEvents | None:
        """Decode the events, or return None if some are of uncommon kinds."""
        try:
            events = USUAL_EVENTS_DECODER.decode(self.array)
            has_name_events = NameEvent in map(type, events)
            return DecodedEvents(
                count=len(events),
                spans=[event for event in events if type(event) is Span],
                name_events=[event for event in events if type(event) is NameEvent]
                if has_name_events
                else [],
                with_phase=len(events),
                is_common=True,
            )
        except msgspec.ValidationError:
            return None

    def decode_any(self) -> DecodedEvents:
        """Decode events of all kinds."""
        return _split_by_kind(EVENTS_DECODER.decode(self.array))

    def decode_exact(self) -> DecodedEvents:
        """Decode events of all kinds, with the digits of their times."""
        return _split_by_kind(EXACT_EVENTS_DECODER.decode(self.array))

    def get_arguments(self, decoded: DecodedEvents, rows: Sequence[int]) -> list[FewArguments]:
        """Return all arguments of a few spans in this text.

        Each event is searched by name, and matches if all other fields are equal.
        """
        if not decoded.is_common:
            return _list_arguments(decoded, rows)
        arguments: list[FewArguments] = []
        search_start, text = self._start, self._text
        for span in [decoded.spans[row] for row in rows]:
            name = msgspec.json.encode(span.name)
            while (position := text.find(name, search_start, self._stop)) >= 0:
                start, search_start = self._separators.find_enclosing(text, self._start, position, self._stop)
                try:
                    event = EVENT_DECODER.decode(memoryview(text)[start:search_start])
                except DECODE_ERRORS:
                    continue
                if _is_same_event(event, span):
                    arguments.append(event.args)
                    break
            else:
                return _list_arguments(self.decode_any(), rows)
        return arguments


class RepairedChunk:
    """A single repaired event."""

    def __init__(self, repaired: RepairedEvent) -> None:
        self._repaired = repaired
        self.array = memoryview(repaired.text)

    def decode_any(self) -> DecodedEvents:
        """Return the event with times as doubles."""
        return _split_by_kind([self._repaired.event()])

    def decode_exact(self) -> DecodedEvents:
        """Return the event with the digits of its times."""
        return _split_by_kind([self._repaired.exact_event()])

    def get_arguments(self, decoded: DecodedEvents, rows: Sequence[int]) -> list[FewArguments]:
        """Return all arguments of some events."""
        return _list_arguments(decoded, rows)


def _list_arguments(decoded: DecodedEvents, rows: Sequence[int]) -> list[FewArguments]:
    return [decoded.spans[row].args for row in rows]


def _is_same_event(event: TraceEvent, span: Span) -> bool:
    known, other = span.args, event.args
    return (
        event.ph == "X"
        and (event.ts, event.dur, event.name, event.cat) == (span.ts, span.dur, span.name, span.cat)
        and (event.pid, event.tid, other.collective, other.group)
        == (span.pid, span.tid, known.collective, known.group)
        and (other.correlation, other.external_id, other.external_id_2021, other.stream, other.bytes)
        == (known.correlation, known.external_id, known.external_id_2021, known.stream, known.bytes)
    )
