"""Read numbers of the report by path, with their unit and bound."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from msgspec.structs import replace

from zprof.model.metrics.catalogue import find_metric
from zprof.model.metrics.metric import find_unit
from zprof.model.quantities import Aggregation, Bound, Bounds, Unit, Value, combine_bounds, negate_bound

_PART = re.compile(r"([^.\[\]]+)|\[(\d+|\*)\]")


def read_value(
    report: object,
    *leaves: str,
    how: Aggregation = Aggregation.LEAF,
    signed: bool = False,
    in_ms: bool = False,
) -> Value:
    """Return the number that some leaves yield.

    Args:
        report: A report, or its JSON tree.
        leaves: Paths such as ``time.per_rank[3].wall_ns``; ``[*]`` is every entry of a list or mapping.
        how: How the leaves combine.
        signed: True for a change, which is shown with its sign.
        in_ms: True if it is shown in a column headed ``ms``.
    """
    found = [list(_resolve(report, leaf)) for leaf in leaves]
    bounds = [combine_bounds(bound for _, bound in entries) for entries in found]
    if how in (Aggregation.DIFFERENCE, Aggregation.SHARE, Aggregation.PER_WORK):
        bounds[1:] = map(negate_bound, bounds[1:])
    metric = find_metric(leaves[0])
    unit = metric.unit if metric else find_unit(leaves[0])
    return Value(
        number=combine(how, [[number for number, _ in entries] for entries in found]),
        unit=Unit.RATIO if how is Aggregation.SHARE else unit,
        leaves=leaves,
        bound=combine_bounds(bounds),
        how=how,
        signed=signed,
        in_ms=in_ms,
    )


def take_value(entry: object, name: str, *, in_ms: bool = False) -> Value:
    """Return the number in a field of an entry, with its unit and bound."""
    bounds: Bounds = getattr(entry, "bounds", {})
    bound = bounds.get(name, Bound.EXACT)
    return Value(number=getattr(entry, name), unit=find_unit(name), bound=bound, in_ms=in_ms)


def read_range(report: object, leaf: str) -> Value:
    """Return the range that a pair such as ``findings[0].saving_ns`` holds."""
    low, high = (read_value(report, f"{leaf}[{end}]") for end in (0, 1))
    return replace(high, low=low.number, leaves=(*low.leaves, *high.leaves))


def combine(how: Aggregation, leaf_values: Sequence[Sequence[float | None]]) -> float | None:
    """Combine the numbers of some leaves into one; return None if none of them is known."""
    known = [[value for value in values if value is not None] for values in leaf_values]
    flat = [value for values in known for value in values]
    if not flat:
        return None
    if how in (Aggregation.DIFFERENCE, Aggregation.SHARE, Aggregation.PER_WORK):
        if not known[0]:
            return None
        rest = sum(value for values in known[1:] for value in values)
        if how is Aggregation.DIFFERENCE:
            return sum(known[0]) - rest
        return sum(known[0]) / rest if rest else None
    return _COMBINE[how](flat)


def _resolve(report: object, leaf: str) -> Iterator[tuple[float | None, Bound]]:
    """Yield the numbers at a path with their bounds; one unknown number if nothing is there."""
    nodes: list[tuple[Any, Bound]] = [(report, Bound.EXACT)]
    for name, index in _PART.findall(leaf):
        nodes = [child for node, _ in nodes for child in _list_children(node, name, index)]
    for node, bound in nodes or [(None, Bound.EXACT)]:
        is_number = isinstance(node, int | float) and not isinstance(node, bool) and math.isfinite(node)
        yield (node, bound) if is_number else (None, Bound.EXACT)


def _list_children(node: Any, name: str, index: str) -> list[tuple[Any, Bound]]:
    if index == "*":
        children = list(node.values()) if isinstance(node, Mapping) else _list_entries(node)
        return [(child, Bound.EXACT) for child in children]
    if index:
        entries = _list_entries(node)
        return [(entries[int(index)], Bound.EXACT)] if int(index) < len(entries) else []
    if isinstance(node, Mapping):
        bounds = node.get("bounds") or {}
        return [(node[name], Bound(bounds.get(name, Bound.EXACT)))] if name in node else []
    if node is None or not hasattr(node, name):
        return []
    return [(getattr(node, name), getattr(node, "bounds", {}).get(name, Bound.EXACT))]


def _list_entries(node: Any) -> Sequence[Any]:
    return node if isinstance(node, list | tuple) else ()


def _first(values: Sequence[float]) -> float:
    return values[0]


_COMBINE: Mapping[Aggregation, Callable[[Sequence[float]], float]] = {
    Aggregation.LEAF: _first,
    Aggregation.SUM: sum,
    Aggregation.MEAN: fmean,
    Aggregation.LARGEST: max,
    Aggregation.SMALLEST: min,
}
