"""Make a gap from its key. The texts are in the tables of this folder, one for each part that finds gaps.

The reasons why causes are untested are in a separate table, ``untested``.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from string import Formatter
from typing import Any

from zprof.base.formatting import format_bytes, format_ns, format_percent, format_rate
from zprof.model.gaps import Gap, GapText

_FORMATS: Mapping[str, Callable[[Any], str]] = {
    "and": " and ".join,
    "bytes": format_bytes,
    "ns": format_ns,
    "percent": format_percent,
    "rate": format_rate,
}
#: The tables of this folder; the analysis table comes first, because each diagnosis needs it.
_TABLES = ("analysis", "prediction", "recording", "reading")


def make_gap(
    key: str,
    /,
    *,
    rank: int | None = None,
    step: int | None = None,
    detail: str = "",
    causes: Sequence[str] = (),
    **values: Any,
) -> Gap:
    """Return the gap with the texts of ``key``, filled with ``values``, ``rank``, ``step`` and ``detail``.

    Templates and values are those of :func:`fill_text`.
    """
    text, values = find_text(key), {"rank": rank, "step": step, "detail": detail, "causes": causes, **values}
    what, reason, remedy = (fill_text(template, values) for template in text[1:])
    return Gap(
        kind=text.kind,
        what=what,
        reason=reason,
        remedy=remedy,
        rank=rank,
        step=step,
        detail=detail,
        causes=tuple(causes),
    )


def find_text(key: str) -> GapText:
    """Return the texts of a key; a table is only loaded if the key is not in an earlier table.

    Raises:
        KeyError: No table has the key.
    """
    for name in _TABLES:
        texts: Mapping[str, GapText] = import_module(f"{__name__}.{name}").TEXTS
        if key in texts:
            return texts[key]
    raise KeyError(key)


def read_all_texts() -> dict[str, GapText]:
    """Return the texts of all tables by key."""
    return {key: text for name in _TABLES for key, text in import_module(f"{__name__}.{name}").TEXTS.items()}


def fill_text(template: str, values: Mapping[str, object]) -> str:
    """Return the text of a template.

    Values are never templates: braces in untrusted names stay as they are. Formats in addition to Python's
    are ``bytes``, ``ns``, ``percent``, ``rate``, ``plural step`` ("steps" unless the value is 1), and for
    sequences ``and`` ("a and b"), ``list`` ("a, b") and ``list4`` (the first four).
    """
    return _FORMATTER.vformat(template, (), values)


class _GapFormatter(Formatter):
    """Formats values for gaps."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.startswith("list"):
            count = int(format_spec.removeprefix("list") or len(value))
            return ", ".join(map(str, value[:count])) + (" …" if len(value) > count else "")
        if format_spec.startswith("plural "):
            return format_spec.removeprefix("plural ") + ("" if value == 1 else "s")
        format_value = _FORMATS.get(format_spec)
        return str(super().format_field(value, format_spec) if format_value is None else format_value(value))


_FORMATTER = _GapFormatter()
