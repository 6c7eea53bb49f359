"""Name each leaf of JSON and each line of text that differs between two answers to the same commands."""

import difflib
import json
import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from msgspec import Struct

from benchmarks.frozen.run_case import Documents

#: Floats that differ by less are equal: rounding to the digits that count may go either way.
_CLOSE_RATIO = 1e-9
_MAX_VALUE = 160


class Change(Struct, frozen=True, kw_only=True):
    """A leaf or a line before and after; None if there was or is none."""

    document: str
    path: str
    before: str | None
    after: str | None


def is_text(document: Any) -> bool:
    """Return True for lines of text; a JSON document of zprof is an object."""
    return isinstance(document, list)


def list_leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and value of each leaf; an empty object or array is one."""
    if isinstance(value, dict) and value:
        for key in sorted(value):
            yield from list_leaves(value[key], f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value:
        for place, each in enumerate(value):
            yield from list_leaves(each, f"{path}[{place}]")
    else:
        yield path, value


def list_changes(before: Documents, after: Documents) -> list[Change]:
    """Return what differs, by document; a document that is only in one of them is one change."""
    changes: list[Change] = []
    for name in sorted({*before, *after}):
        if name not in before or name not in after:
            sides = ["a document" if name in each else None for each in (before, after)]
            changes.append(Change(document=name, path="", before=sides[0], after=sides[1]))
        elif is_text(before[name]) and is_text(after[name]):
            changes += _compare_lines(name, before[name], after[name])
        else:
            changes += _compare_leaves(name, before[name], after[name])
    return changes


def _compare_leaves(name: str, before: Any, after: Any) -> Iterator[Change]:
    old, new = dict(list_leaves(before)), dict(list_leaves(after))
    for path in sorted({*old, *new}):
        one, other = (json.dumps(each[path]) if path in each else None for each in (old, new))
        if one != other and not _are_close(old.get(path), new.get(path)):
            yield Change(document=name, path=path, before=one, after=other)


def _are_close(one: Any, other: Any) -> bool:
    are_floats = isinstance(one, float) and isinstance(other, float)
    return are_floats and math.isclose(one, other, rel_tol=_CLOSE_RATIO)


def _compare_lines(name: str, before: Sequence[str], after: Sequence[str]) -> Iterator[Change]:
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for tag, old, old_end, new, new_end in matcher.get_opcodes():
        if tag != "equal":
            pairs = zip_longest(before[old:old_end], after[new:new_end])
            for number, (one, other) in enumerate(pairs, new + 1):
                yield Change(document=name, path=f"line {number}", before=one, after=other)


def format_changes(changes: Sequence[Change], max_changes: int) -> list[str]:
    """Return lines that name at most ``max_changes`` of each document, and count the others."""
    lines: list[str] = []
    for document in dict.fromkeys(each.document for each in changes):
        own = [each for each in changes if each.document == document]
        lines.append(f"  {document}: {len(own)} changed")
        for each in own[:max_changes]:
            lines.append(f"    {each.path}".rstrip())
            lines.append(f"      before: {_shorten(each.before)}")
            lines.append(f"      after:  {_shorten(each.after)}")
        if len(own) > max_changes:
            lines.append(f"    and {len(own) - max_changes} more")
    return lines


def _shorten(value: str | None) -> str:
    if value is None:
        return "(nothing)"
    return value if len(value) <= _MAX_VALUE else f"{value[:_MAX_VALUE]}… ({len(value)} characters)"
