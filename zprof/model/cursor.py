"""Read numbers of a report with their path, unit and bound.

A cursor is a place in a report: ``Cursor(report).time.per_rank[3].wall_ns``. It knows its path and if the
value is a bound, so every screen can trace the :class:`~zprof.model.quantities.Value` that :func:`read`
returns back to its source.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from msgspec.structs import replace

from zprof.model.metrics import find_metric
from zprof.model.quantities import (
    EVERY,
    Aggregation,
    Bound,
    Path,
    Unit,
    Value,
    combine_bounds,
    find_unit,
    negate_bound,
)


class Cursor:
    """A place in a report, or the same place in every entry of a list.

    Attributes and indices lead to fields, keys and entries. None, or a missing key or index, is unknown, and
    so is everything below it.

    Raises:
        AttributeError: A record has no such field.
    """

    __slots__ = ("_found", "_path")

    def __init__(self, report: object) -> None:
        self._found: tuple[tuple[Any, Bound], ...] = ((report, Bound.EXACT),)
        self._path = Path()

    def __getattr__(self, name: str) -> "Cursor":
        return self._go(name, [child for node, _ in self._found for child in _get_field(node, name)])

    def __getitem__(self, at: str | int) -> "Cursor":
        if isinstance(at, str):
            return self.__getattr__(at)
        return self._go(at, [child for node, _ in self._found for child in _get_entry(node, at)])

    def __len__(self) -> int:
        return len(_list_entries(get(self)))

    def __iter__(self) -> "Iterator[Cursor]":
        return map(self.__getitem__, range(len(self)))

    def _go(self, part: str | int, found: list[tuple[Any, Bound]]) -> "Cursor":
        cursor = Cursor(None)
        cursor._found, cursor._path = tuple(found), Path((*self._path.parts, part))
        return cursor


def every(cursor: Cursor) -> Cursor:
    """Return all entries of a list or mapping as one place."""
    return cursor[EVERY]


def get(cursor: Cursor) -> Any:
    """Return the value at a place; None if there is none."""
    return cursor._found[0][0] if cursor._found else None


def get_path(cursor: Cursor) -> Path:
    """Return the path of a place."""
    return cursor._path


def follow(report: object, path: Path) -> Cursor:
    """Return the place of a path."""
    cursor = Cursor(report)
    for part in path.parts:
        cursor = cursor[part]
    return cursor


def read(
    *places: Cursor, how: Aggregation = Aggregation.LEAF, signed: bool = False, in_ms: bool = False
) -> Value:
    """Return the number computed from some places of one report.

    Args:
        places: The places of its numbers.
        how: How the numbers combine.
        signed: True for a change, which is shown with its sign.
        in_ms: True if it is shown in a column headed ``ms``.
    """
    get_number = _count_entries if how is Aggregation.COUNT else _get_number
    found = [[get_number(entry) for entry in place._found] or [(None, Bound.EXACT)] for place in places]
    bounds = [combine_bounds(bound for _, bound in entries) for entries in found]
    if how in _FIRST_AND_REST:
        bounds[1:] = map(negate_bound, bounds[1:])
    first = places[0]._path
    metric = find_metric(first)
    unit = metric.unit if metric else find_unit(first.name)
    return Value(
        number=combine(how, [[number for number, _ in entries] for entries in found]),
        unit=Unit.RATIO if how is Aggregation.SHARE else unit,
        leaves=tuple(place._path for place in places),
        bound=combine_bounds(bounds),
        how=how,
        signed=signed,
        in_ms=in_ms,
    )


def read_range(place: Cursor) -> Value:
    """Return the range that a pair such as ``findings[0].saving_ns`` holds."""
    low, high = read(place[0]), read(place[1])
    return replace(high, low=low.number, leaves=(*low.leaves, *high.leaves))


def combine(how: Aggregation, leaf_values: Sequence[Sequence[float | None]]) -> float | None:
    """Combine the numbers of some leaves; return None if none of them is known."""
    known = [[value for value in values if value is not None] for values in leaf_values]
    flat = [value for values in known for value in values]
    if not flat:
        return None
    if how not in _FIRST_AND_REST:
        return _COMBINE[how](flat)
    if not known[0]:
        return None
    rest = sum(value for values in known[1:] for value in values)
    if how is Aggregation.DIFFERENCE:
        return sum(known[0]) - rest
    return sum(known[0]) / rest if rest else None


def _get_number(entry: tuple[Any, Bound]) -> tuple[float | None, Bound]:
    node, bound = entry
    is_number = isinstance(node, int | float) and not isinstance(node, bool) and math.isfinite(node)
    return (node, bound) if is_number else (None, Bound.EXACT)


def _count_entries(entry: tuple[Any, Bound]) -> tuple[float | None, Bound]:
    node, bound = entry
    return (len(node), bound) if isinstance(node, list | tuple | Mapping) else (None, Bound.EXACT)


def _get_field(node: Any, name: str) -> list[tuple[Any, Bound]]:
    if node is None:
        return []
    if isinstance(node, Mapping):
        bounds = node.get("bounds") or {}
        return [(node[name], Bound(bounds.get(name, Bound.EXACT)))] if name in node else []
    return [(getattr(node, name), getattr(node, "bounds", {}).get(name, Bound.EXACT))]


def _get_entry(node: Any, index: int) -> list[tuple[Any, Bound]]:
    entries = _list_entries(node)
    if index == EVERY:
        return [(entry, Bound.EXACT) for entry in entries]
    return [(entries[index], Bound.EXACT)] if index < len(entries) else []


def _list_entries(node: Any) -> Sequence[Any]:
    if isinstance(node, Mapping):
        return list(node.values())
    return node if isinstance(node, list | tuple) else ()


#: Aggregations that compare the first leaf with all others.
_FIRST_AND_REST = (Aggregation.DIFFERENCE, Aggregation.SHARE, Aggregation.PER_WORK)
_COMBINE: Mapping[Aggregation, Callable[[Sequence[float]], float]] = {
    Aggregation.LEAF: lambda values: values[0],
    Aggregation.SUM: sum,
    Aggregation.COUNT: sum,
    Aggregation.MEAN: fmean,
    Aggregation.LARGEST: max,
    Aggregation.SMALLEST: min,
}
