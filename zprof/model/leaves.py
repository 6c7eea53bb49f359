"""Read numbers by path text and by field name."""

from msgspec.structs import replace

from zprof.model.cursor import Cursor, follow, read
from zprof.model.metrics.metric import find_unit
from zprof.model.paths import parse_path
from zprof.model.quantities import Aggregation, Bound, Bounds, Value


def read_value(
    report: object,
    *leaves: str,
    how: Aggregation = Aggregation.LEAF,
    signed: bool = False,
    in_ms: bool = False,
) -> Value:
    """Return the number that some leaves yield."""
    places: list[Cursor] = [follow(report, parse_path(leaf)) for leaf in leaves]
    return read(*places, how=how, signed=signed, in_ms=in_ms)


def read_range(report: object, leaf: str) -> Value:
    """Return the range that a pair such as ``findings[0].saving_ns`` holds."""
    low, high = (read_value(report, f"{leaf}[{end}]") for end in (0, 1))
    return replace(high, low=low.number, leaves=(*low.leaves, *high.leaves))


def take_value(entry: object, name: str, *, in_ms: bool = False) -> Value:
    """Return the number in a field of an entry, with its unit and bound."""
    bounds: Bounds = getattr(entry, "bounds", {})
    bound = bounds.get(name, Bound.EXACT)
    return Value(number=getattr(entry, name), unit=find_unit(name), bound=bound, in_ms=in_ms)
