"""Repair one event that is not valid JSON, or has fields of unusual types.

Bare ``nan`` and ``Infinity`` become null, and bytes that are not UTF-8 become the replacement character;
unescaped control characters and unknown escapes are taken literally.
"""

import json
import re
from typing import Any, NoReturn

import msgspec
from msgspec import Struct

from zprof.collectors.read.kineto.reading.columns import to_int64
from zprof.collectors.read.kineto.reading.events import (
    NO_ARGUMENTS,
    NO_TEXT,
    ExactEvent,
    FewArguments,
    TraceEvent,
)
from zprof.collectors.read.kineto.trace import ARGUMENT_KEYS

_MAX_BYTES = 1 << 20
_MAX_DIGITS = 64
_LISTS = ("dims", "types", "values", "grid")
_COLUMNS = ("stream", "correlation", "external_id", "external_id_2021", "bytes")
_OTHER_FIELDS = tuple(
    f.name for f in msgspec.structs.fields(FewArguments) if f.name not in (*_COLUMNS, *_LISTS)
)
_TOKEN = re.compile(
    r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[-+]?\b(?:nan|inf|infinity)\b(?:\([^()"]*\))?', re.DOTALL | re.IGNORECASE
)
_BAD_ESCAPE = re.compile(r'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|(.))', re.DOTALL)


class RepairedEvent(Struct, frozen=True, kw_only=True):
    """A repaired event. ``changed``: the text was not valid JSON. ``text``: the event as valid JSON."""

    values: dict[str, Any]
    changed: bool
    text: bytes

    def event(self) -> TraceEvent:
        """Return the event with times as doubles."""
        values = self.values
        return TraceEvent(
            ph=_text_or_none(values.get("ph")),
            cat=_text_or_none(values.get("cat")),
            name=_text_or_none(values.get("name")),
            ts=_float_or_none(values.get("ts")),
            dur=_float_or_none(values.get("dur")),
            pid=to_int64(_plain_number(values.get("pid"))),
            tid=to_int64(_plain_number(values.get("tid"))),
            args=_read_arguments(values.get("args")),
        )

    def exact_event(self) -> ExactEvent:
        """Return the event with the digits of its times."""
        event = self.event()
        return ExactEvent(
            ph=event.ph,
            cat=event.cat,
            name=event.name,
            ts=_raw_digits(self.values.get("ts")),
            dur=_raw_digits(self.values.get("dur")),
            pid=event.pid,
            tid=event.tid,
            args=event.args,
        )


def repair_event(text: bytes) -> RepairedEvent | None:
    """Return the event repaired, or None if it cannot be read."""
    if len(text) > _MAX_BYTES:
        return None
    try:
        return _make_repaired_event(
            json.loads(text.decode(), parse_constant=_reject_constant, **_NUMBER_PARSERS), text, changed=False
        )
    except (ValueError, RecursionError):
        pass
    repaired = _TOKEN.sub(_repair_token, text.decode(errors="replace"))
    try:
        values = json.loads(repaired, strict=False, **_NUMBER_PARSERS)
    except (ValueError, RecursionError):
        return None
    return _make_repaired_event(values, msgspec.json.encode(_replace_surrogates(values)), changed=True)


def _make_repaired_event(values: Any, text: bytes, *, changed: bool) -> RepairedEvent | None:
    return RepairedEvent(values=values, changed=changed, text=text) if isinstance(values, dict) else None


class _Digits(str):
    """A number with a fraction or an exponent, as written in the file."""

    __slots__ = ()


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(constant)


def _parse_integer(digits: str) -> int | None:
    return int(digits) if len(digits) <= _MAX_DIGITS else None


_NUMBER_PARSERS: dict[str, Any] = {"parse_int": _parse_integer, "parse_float": _Digits}


def _repair_token(token: re.Match[str]) -> str:
    text = token.group()
    if not text.startswith('"'):
        return "null"
    return _BAD_ESCAPE.sub(lambda bad: bad.group() if bad.group(1) else "\\\\" + bad.group(2), text)


def _replace_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return _text_or_none(value)
    if isinstance(value, dict):
        return {_text_or_none(key): _replace_surrogates(item) for key, item in value.items()}
    return [_replace_surrogates(item) for item in value] if isinstance(value, list) else value


def _text_or_none(value: object) -> str | None:
    return str(value).encode(errors="replace").decode() if isinstance(value, str) else None


def _raw_digits(value: object) -> msgspec.Raw:
    is_plain = isinstance(value, int | str) and not isinstance(value, bool)
    return msgspec.Raw(str(value).encode(errors="replace")) if is_plain else NO_TEXT


def _float_or_none(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _plain_number(value: object) -> object:
    return _float_or_none(value) if isinstance(value, _Digits) else value


def _clean_if_text(value: object) -> object:
    return _text_or_none(value) if isinstance(value, str) else value


def _encode_raw(value: object) -> msgspec.Raw:
    return NO_TEXT if value is None else msgspec.Raw(msgspec.json.encode(_replace_surrogates(value)))


def _read_arguments(arguments: object) -> FewArguments:
    if not isinstance(arguments, dict):
        return NO_ARGUMENTS
    legacy_id = arguments.get("external id")
    others: dict[str, Any] = {
        name: _clean_if_text(arguments.get(ARGUMENT_KEYS.get(name, name))) for name in _OTHER_FIELDS
    }
    others |= {name: _encode_raw(arguments.get(ARGUMENT_KEYS.get(name, name))) for name in _LISTS}
    return FewArguments(
        stream=to_int64(_plain_number(arguments.get("stream"))),
        correlation=to_int64(_plain_number(arguments.get("correlation"))),
        external_id=to_int64(_plain_number(arguments.get("External id"))),
        external_id_2021=None if legacy_id is None else to_int64(_plain_number(legacy_id)),
        bytes=to_int64(_plain_number(arguments.get("bytes"))),
        **others,
    )
