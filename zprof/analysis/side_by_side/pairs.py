"""Values of two sides as rows."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from zprof.model.side_by_side import Figure, Row

_T = TypeVar("_T")
_UNITS = (("_bytes_per_s", "bytes_per_s"), ("_ns", "ns"), ("_bytes", "bytes"), ("_ratio", "ratio"))


def unit_of(name: str) -> str:
    """The unit that a leaf's name ends in; a count where it ends in none."""
    if name == "bytes":
        return "bytes"
    return next((unit for suffix, unit in _UNITS if name.endswith(suffix)), "count")


def rows_of(a: object | None, b: object | None, names: Sequence[str]) -> tuple[Row, ...]:
    """The attributes of two leaves; those of a leaf that is not there are unknown."""
    return tuple(
        Row(name=name, unit=unit_of(name), a=getattr(a, name, None), b=getattr(b, name, None))
        for name in names
    )


def values_of(item: object | None, names: Sequence[str], absent: Figure) -> list[Figure]:
    """The attributes of a leaf; where there is no such leaf, what that means."""
    return [absent if item is None else getattr(item, name) for name in names]


def mean_of(items: Sequence[object], name: str) -> Figure:
    """The mean of an attribute, whole where it counts nanoseconds or bytes; unknown where one is."""
    values: list[float | None] = [getattr(item, name) for item in items]
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    mean = sum(known) / len(known)
    return round(mean) if unit_of(name) in ("ns", "bytes") else mean


def most_of(items: Sequence[object], name: str) -> Figure:
    """The largest value of an attribute; unknown where it is not known of all."""
    values: list[int | None] = [getattr(item, name) for item in items]
    known = [value for value in values if value is not None]
    return max(known) if known and len(known) == len(values) else None


def paired(
    a: Iterable[_T], b: Iterable[_T], key: "Callable[[_T], tuple[Any, ...]]"
) -> list[tuple[tuple[Any, ...], _T | None, _T | None]]:
    """Items of both sides by key, those of ``a`` first in their order, then what only ``b`` has."""
    before, after = ({key(item): item for item in side} for side in (a, b))
    keys = dict.fromkeys([*before, *after])
    return [(name, before.get(name), after.get(name)) for name in keys]
