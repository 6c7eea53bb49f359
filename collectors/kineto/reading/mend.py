"""Reads one event that is not JSON as it should be, or not of the usual types.

Bare ``nan`` and ``Infinity`` become null, bytes that are not UTF-8 the replacement character, letters that
JSON wants escaped, and escapes that it does not know, stand for themselves.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec

from zprof.collectors.kineto.arguments import FILE_NAMES
from zprof.collectors.kineto.reading.events import NO_ARGUMENTS, NO_TEXT, Event, ExactEvent, FewArguments
from zprof.collectors.kineto.reading.numbers import whole_number

_MOST_BYTES = 1 << 20
_MOST_DIGITS = 64
_LISTS = ("dims", "types", "values", "grid")
_COLUMNS = ("stream", "correlation", "external_id", "external_id_2021", "bytes")
_OTHERS = tuple(f.name for f in msgspec.structs.fields(FewArguments) if f.name not in (*_COLUMNS, *_LISTS))
_TOKEN = re.compile(
    r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[-+]?\b(?:nan|inf|infinity)\b(?:\([^()"]*\))?', re.DOTALL | re.IGNORECASE
)
_BAD_ESCAPE = re.compile(r'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|(.))', re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mended:
    """``changed``: the text itself had to be.  ``text``: as good JSON."""

    values: dict[str, Any]
    changed: bool
    text: bytes

    def event(self) -> Event:
        """Typed."""
        values = self.values
        return Event(
            ph=_text(values.get("ph")),
            cat=_text(values.get("cat")),
            name=_text(values.get("name")),
            ts=_number(values.get("ts")),
            dur=_number(values.get("dur")),
            pid=whole_number(_plain(values.get("pid"))),
            tid=whole_number(_plain(values.get("tid"))),
            args=_few(values.get("args")),
        )

    def exact_event(self) -> ExactEvent:
        """Typed, with the digits of its times."""
        event = self.event()
        return ExactEvent(
            ph=event.ph,
            cat=event.cat,
            name=event.name,
            ts=_digits(self.values.get("ts")),
            dur=_digits(self.values.get("dur")),
            pid=event.pid,
            tid=event.tid,
            args=event.args,
        )


def mend(text: bytes) -> Mended | None:
    """None where it cannot be read."""
    if len(text) > _MOST_BYTES:
        return None
    try:
        return _mended(json.loads(text.decode(), parse_constant=_refuse, **_NUMBERS), text, changed=False)
    except (ValueError, RecursionError):
        pass
    repaired = _TOKEN.sub(_repaired, text.decode(errors="replace"))
    try:
        values = json.loads(repaired, strict=False, **_NUMBERS)
    except (ValueError, RecursionError):
        return None
    return _mended(values, msgspec.json.encode(_without_surrogates(values)), changed=True)


def _mended(values: Any, text: bytes, *, changed: bool) -> Mended | None:
    return Mended(values=values, changed=changed, text=text) if isinstance(values, dict) else None


class _Digits(str):
    """A number with a fraction or an exponent, as it stands in the file."""

    __slots__ = ()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _whole(digits: str) -> int | None:
    return int(digits) if len(digits) <= _MOST_DIGITS else None


_NUMBERS: dict[str, Any] = {"parse_int": _whole, "parse_float": _Digits}


def _repaired(token: re.Match[str]) -> str:
    text = token.group()
    return _BAD_ESCAPE.sub(_escape, text) if text.startswith('"') else "null"


def _escape(found: re.Match[str]) -> str:
    return found.group() if found.group(1) else "\\\\" + found.group(2)


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        return {_text(key): _without_surrogates(each) for key, each in value.items()}
    return [_without_surrogates(each) for each in value] if isinstance(value, list) else value


def _text(value: object) -> str | None:
    return str(value).encode(errors="replace").decode() if isinstance(value, str) else None


def _digits(value: object) -> msgspec.Raw:
    plain = isinstance(value, int | str) and not isinstance(value, bool)
    return msgspec.Raw(str(value).encode(errors="replace")) if plain else NO_TEXT


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _plain(value: object) -> object:
    return _number(value) if isinstance(value, _Digits) else value


def _any(value: object) -> object:
    return _text(value) if isinstance(value, str) else value


def _raw(value: object) -> msgspec.Raw:
    return NO_TEXT if value is None else msgspec.Raw(msgspec.json.encode(_without_surrogates(value)))


def _few(arguments: object) -> FewArguments:
    if not isinstance(arguments, dict):
        return NO_ARGUMENTS
    old = arguments.get("external id")
    others: dict[str, Any] = {name: _any(arguments.get(FILE_NAMES.get(name, name))) for name in _OTHERS}
    others |= {name: _raw(arguments.get(FILE_NAMES.get(name, name))) for name in _LISTS}
    return FewArguments(
        stream=whole_number(_plain(arguments.get("stream"))),
        correlation=whole_number(_plain(arguments.get("correlation"))),
        external_id=whole_number(_plain(arguments.get("External id"))),
        external_id_2021=None if old is None else whole_number(_plain(old)),
        bytes=whole_number(_plain(arguments.get("bytes"))),
        **others,
    )
