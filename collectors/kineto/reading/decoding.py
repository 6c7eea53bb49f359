"""Decodes events in the cheapest way that their text allows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from zprof.collectors.kineto.reading.events import (
    EVENT,
    EVENTS,
    EXACT_EVENTS,
    NOT_DECODED,
    USUAL_EVENTS,
    Event,
    ExactEvent,
    FewArguments,
    Named,
    Span,
    Usual,
)
from zprof.collectors.kineto.reading.mend import Mended
from zprof.collectors.kineto.reading.separators import Separators


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """Events by kind.  ``number``: of all kinds.  ``phased``: so many of them say their kind.

    ``usual``: their spans have not all of their arguments.
    """

    number: int
    spans: Sequence[Any]
    named: Sequence[Any]
    phased: int
    usual: bool


def _by_kind(events: Sequence[Event | ExactEvent]) -> Decoded:
    return Decoded(
        number=len(events),
        spans=[event for event in events if event.ph == "X"],
        named=[event for event in events if event.ph == "M"],
        phased=sum(bool(event.ph) for event in events),
        usual=False,
    )


def _by_type(events: Sequence[Usual]) -> Decoded:
    has_named = Named in map(type, events)
    return Decoded(
        number=len(events),
        spans=[event for event in events if type(event) is Span],
        named=[event for event in events if type(event) is Named] if has_named else [],
        phased=len(events),
        usual=True,
    )


class Piece:
    """Events in a part of a text, which has the brackets of an array around it.

    ``array``: with those.
    """

    def __init__(self, text: bytearray, start: int, stop: int, separators: Separators) -> None:
        self._text, self._start, self._stop = text, start, stop
        self._separators = separators
        self.array = memoryview(text)[start - 1 : stop + 1]

    def usual(self) -> Decoded | None:
        """None where there are events of other kinds."""
        try:
            return _by_type(USUAL_EVENTS.decode(self.array))
        except msgspec.ValidationError:
            return None

    def any(self) -> Decoded:
        """Of all kinds."""
        return _by_kind(EVENTS.decode(self.array))

    def exact(self) -> Decoded:
        """With the digits of their times."""
        return _by_kind(EXACT_EVENTS.decode(self.array))

    def arguments(self, decoded: Decoded, rows: Sequence[int]) -> list[FewArguments]:
        """All arguments of a few of the spans of this text.

        Each is looked for by its name, and is the right one where all else that was read of it is the same.
        """
        if not decoded.usual:
            return _arguments(decoded, rows)
        found: list[FewArguments] = []
        at, text = self._start, self._text
        for span in [decoded.spans[row] for row in rows]:
            name = msgspec.json.encode(span.name)
            while (place := text.find(name, at, self._stop)) >= 0:
                begin, at = self._separators.around(text, self._start, place, self._stop)
                event = _event(memoryview(text)[begin:at])
                if event is not None and _same(event, span):
                    found.append(event.args)
                    break
            else:
                return _arguments(self.any(), rows)
        return found


class MendedPiece:
    """One event that was mended."""

    def __init__(self, mended: Mended) -> None:
        self._mended = mended
        self.array = memoryview(mended.text)

    def any(self) -> Decoded:
        """Of all kinds."""
        return _by_kind([self._mended.event()])

    def exact(self) -> Decoded:
        """With the digits of its times."""
        return _by_kind([self._mended.exact_event()])

    def arguments(self, decoded: Decoded, rows: Sequence[int]) -> list[FewArguments]:
        """All arguments of some of its events."""
        return _arguments(decoded, rows)


def _arguments(decoded: Decoded, rows: Sequence[int]) -> list[FewArguments]:
    return [decoded.spans[row].args for row in rows]


def _event(text: memoryview) -> Event | None:
    try:
        return EVENT.decode(text)
    except NOT_DECODED:
        return None


def _same(event: Event, span: Span) -> bool:
    few, other = span.args, event.args
    return (
        event.ph == "X"
        and (event.ts, event.dur, event.name, event.cat) == (span.ts, span.dur, span.name, span.cat)
        and (event.pid, event.tid, other.collective, other.group)
        == (span.pid, span.tid, few.collective, few.group)
        and (other.correlation, other.external_id, other.external_id_2021, other.stream, other.bytes)
        == (few.correlation, few.external_id, few.external_id_2021, few.stream, few.bytes)
    )
