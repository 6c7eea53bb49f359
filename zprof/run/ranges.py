"""Parse the ranges that an engine writes with ``torch.profiler.record_function``.

    <engine>::launch <kind> pg=<name> seq=<int> unit=<name> bytes=<int> dtype=<name>
    <engine>::wait   <kind> pg=<name> seq=<int> unit=<name>
    <engine>::comm   <kind> pg=<name> seq=<int> unit=<name> bytes=<int> dtype=<name>
    <engine>::compute <phase> unit=<name>
    <engine>::copy <what> unit=<name> bytes=<int>
    <engine>::ping

Any engine may use this grammar. Work within a ping measures clocks and is not part of the program. A wait
without a kind is anonymous: it is unknown what blocked the thread. Fields may be in any order; unknown fields
are ignored, and text that does not match is not a range.
"""

import re
from enum import StrEnum

from msgspec import Struct

from zprof.model.collectives import CollectiveKind

_MAX_LENGTH = 2000
_HEAD = re.compile(r"(\w{1,64})::(launch|wait|comm|compute|copy|ping)(?:\s+(.*))?", re.ASCII | re.DOTALL)
_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)


class RangeVerb(StrEnum):
    """Activity of the thread inside a range."""

    LAUNCH = "launch"
    WAIT = "wait"
    COMM = "comm"
    COMPUTE = "compute"
    COPY = "copy"
    PING = "ping"


class EngineRange(Struct, frozen=True, kw_only=True):
    """One parsed range; ``kind`` is None for compute and copy ranges, or if the collective is unknown."""

    engine: str
    verb: RangeVerb
    kind: CollectiveKind | None = None
    group: str | None = None
    sequence: int | None = None
    unit: str | None = None
    bytes: int | None = None
    dtype: str | None = None


def parse_range(name: str) -> EngineRange | None:
    """Return the range that a profiler annotation encodes, or None if it is not a range."""
    head = _HEAD.fullmatch(name) if len(name) <= _MAX_LENGTH else None
    if head is None:
        return None
    words = (head[3] or "").split()
    fields = dict(word.split("=", 1) for word in reversed(words) if "=" in word)
    return EngineRange(
        engine=head[1],
        verb=RangeVerb(head[2]),
        kind=_parse_kind(words),
        group=fields.get("pg") or None,
        sequence=_parse_number(fields.get("seq")),
        unit=fields.get("unit") or None,
        bytes=_parse_number(fields.get("bytes")),
        dtype=fields.get("dtype") or None,
    )


def _parse_kind(words: list[str]) -> CollectiveKind | None:
    try:
        return CollectiveKind(words[0]) if words else None
    except ValueError:
        return None


def _parse_number(text: str | None) -> int | None:
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None
