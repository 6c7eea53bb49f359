"""What a trace says of itself outside its events; of the rest nothing is kept."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from zprof.collectors.kineto.arguments import number
from zprof.collectors.kineto.columns import ABSENT, Group, TraceHeader
from zprof.collectors.kineto.reading.numbers import whole_number

ASKED = (b"baseTimeNanoseconds", b"distributedInfo", b"deviceProperties", b"host_name", b"record_shapes")
_MOST_RANKS = 1 << 22
_MOST_LETTERS = 256


def header(values: Mapping[bytes, bytes]) -> TraceHeader:
    """From the text of each value; what is damaged or of another type counts as absent."""
    read = {key: _value(values.get(key, b"null")) for key in ASKED}
    base, info, devices, host, shapes = (read[key] for key in ASKED)
    info = info if isinstance(info, dict) else {}
    return TraceHeader(
        base_ns=max(0, whole_number(base)),
        rank=_count(info.get("rank")),
        world_size=_count(info.get("world_size")),
        backend=_text(info.get("backend")),
        groups=tuple(_groups(info.get("pg_config"))),
        devices=tuple(_text(d.get("name")) for d in _list(devices) if isinstance(d, dict)),
        host=_text(host),
        with_shapes=None if shapes is None else whole_number(shapes) == 1 or shapes is True,
    )


def _value(text: bytes) -> Any:
    try:
        return json.loads(text.decode(errors="replace"), strict=False, parse_int=_whole)
    except (ValueError, RecursionError):
        return None


def _whole(digits: str) -> int | None:
    return int(digits) if len(digits) < 64 else None


def _groups(listed: object) -> Iterator[Group]:
    left = _MOST_RANKS
    for entry in _list(listed):
        ranks = _ranks(entry.get("ranks")) if isinstance(entry, dict) else ()
        left -= len(ranks)
        if ranks and left >= 0:
            yield Group(
                name=_text(entry.get("pg_name")), description=_text(entry.get("pg_desc")), ranks=ranks
            )


def _ranks(value: object) -> tuple[int, ...]:
    """``[1, 0]`` or ``"[1, 0]"``; empty where one of them is no rank."""
    listed = _value(value.encode(errors="replace")) if isinstance(value, str) else value
    ranks = [_count(rank) for rank in _list(listed)]
    return tuple(sorted({rank for rank in ranks if rank is not None})) if None not in ranks else ()


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _count(value: object) -> int | None:
    found = whole_number(value)
    return found if found != ABSENT and found >= 0 else None


def _text(value: object) -> str:
    """Names may be numbers."""
    if isinstance(value, int) and not isinstance(value, bool) and number(value) is not None:
        return str(value)
    text = value.encode(errors="replace").decode() if isinstance(value, str) else ""
    return text[:_MOST_LETTERS]
