"""Numbers as displayed: exact, a range, a bound, or predicted.

A `Figure` refers to the JSON leaves it comes from (`time.per_rank[3].wall_ns`; `[*]` for all entries of a
list) and how they combine, so that it can be opened and checked against the report.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import Any

from zprof.model.formatting import format_bytes, format_ms, format_ns, format_percent, format_rate
from zprof.model.tenants import Tenant

UNKNOWN = "unknown"
_PART = re.compile(r"([^.\[\]]+)|\[(\d+|\*)\]")


class Unit(StrEnum):
    """Unit of a value."""

    NS = "ns"
    MS = "ns, shown in milliseconds without the unit"
    BYTES = "bytes"
    RATIO = "ratio"
    COUNT = "count"
    BYTES_PER_S = "bytes_per_s"
    FACTOR = "times"


class Aggregation(StrEnum):
    """How a value is computed from its leaves, in order; unknown leaves are skipped."""

    LEAF = "taken directly from the report"
    SUM = "sum of"
    MEAN = "mean of"
    LARGEST = "largest of"
    SMALLEST = "smallest of"
    DIFFERENCE = "first minus the others"
    SHARE = "first as a share of the sum of the others"
    PER_WORK = "sum of all ranks / tokens or samples of all ranks"


_FORMATTERS: Mapping[Unit, Callable[[float], str]] = {
    Unit.NS: format_ns,
    Unit.MS: format_ms,
    Unit.BYTES: format_bytes,
    Unit.RATIO: format_percent,
    Unit.COUNT: lambda count: f"{count:g}" if abs(count) < 1e6 else f"{count:.0f}",
    Unit.BYTES_PER_S: format_rate,
    Unit.FACTOR: lambda factor: f"{factor:.2f}x",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number with its unit, its report leaves and how they combine; ``None`` is shown as unknown."""

    value: float | None
    unit: Unit
    leaves: tuple[str, ...]
    how: Aggregation = Aggregation.LEAF
    signed: bool = False

    @property
    def text(self) -> str:
        """The value formatted for the screen."""
        if self.value is None:
            return UNKNOWN
        shown = _FORMATTERS[self.unit](self.value)
        is_zero = not any(digit in shown for digit in "123456789")
        return f"+{shown}" if self.signed and self.value > 0 and not is_zero else shown

    def in_report(self) -> tuple["Figure", ...]:
        """Return the component figures that the report's JSON contains or yields; tests check these."""
        return (self,)

    def in_json(self) -> dict[str, Any]:
        """Return the figure for JSON export, with its leaves."""
        return {
            "value": self.value,
            "unit": self.unit.value,
            "leaves": list(self.leaves),
            "how": self.how.value,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Range(Figure):
    """Two numbers in one cell: the figure itself is the upper end, ``low`` the lower."""

    low: Figure

    @property
    def text(self) -> str:
        """Formatted as ``31.9..125.8 ms``, or as one number if both ends look the same."""
        low, high = self.low.text, Figure.text.fget(self)  # type: ignore[attr-defined]
        if low == high or UNKNOWN in (low, high):
            return str(high)
        number, _, unit = low.rpartition(" ")
        return f"{number if number and high.endswith(f' {unit}') else low}..{high}"

    def in_report(self) -> tuple[Figure, ...]:
        """Return both ends."""
        return (*self.low.in_report(), *Figure.in_report(self))


def make_range(low: Figure, high: Figure) -> Range:
    """Return the range from `low` to `high`."""
    return Range(
        value=high.value, unit=high.unit, leaves=high.leaves, how=high.how, signed=high.signed, low=low
    )


def figure(
    tree: Mapping[str, Any],
    unit: Unit,
    *leaves: str,
    how: Aggregation = Aggregation.LEAF,
    signed: bool = False,
) -> Figure:
    """Return the figure computed from these leaves of the report's JSON tree."""
    value = combine(how, [list(resolve(tree, leaf)) for leaf in leaves])
    return Figure(value=value, unit=unit, leaves=leaves, how=how, signed=signed)


def combine(how: Aggregation, leaf_values: Sequence[Sequence[float | None]]) -> float | None:
    """Combine the values of some leaves into one; return None if none of them is known."""
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


def resolve(tree: Any, leaf: str) -> Iterator[float | None]:
    """Yield the numbers at a path; ``[*]`` expands a list or mapping. Yield None if there is no value."""
    nodes = [tree]
    for name, index in _PART.findall(leaf):
        nodes = [child for node in nodes for child in _list_children(node, name, index)]
    for node in nodes or [None]:
        known = isinstance(node, int | float) and not isinstance(node, bool) and math.isfinite(node)
        yield node if known else None


def _list_children(node: Any, name: str, index: str) -> list[Any]:
    if index == "*":
        values = node.values() if isinstance(node, Mapping) else node
        return list(values) if isinstance(values, Sequence) or isinstance(node, Mapping) else []
    if index:
        position = int(index)
        return [node[position]] if isinstance(node, list) and position < len(node) else []
    return [node[name]] if isinstance(node, Mapping) and name in node else []


def _first(values: Sequence[float]) -> float:
    return values[0]


_COMBINE: Mapping[Aggregation, Callable[[Sequence[float]], float]] = {
    Aggregation.LEAF: _first,
    Aggregation.SUM: sum,
    Aggregation.MEAN: fmean,
    Aggregation.LARGEST: max,
    Aggregation.SMALLEST: min,
}


AT_LEAST, AT_MOST, EXACT = "≥ ", "≤ ", ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound(Figure):
    """A figure with a sign such as ``≥`` in front: a lower or upper bound."""

    sign: str

    @property
    def text(self) -> str:
        """Formatted as ``≥ 12.0``; an unknown value has no sign."""
        shown = str(Figure.text.fget(self))  # type: ignore[attr-defined]
        return shown if self.value is None else f"{self.sign}{shown}"


def add_bound_sign(figure: Figure, sign: str) -> Figure:
    """Return the figure as a bound with this sign, or unchanged if the sign is empty."""
    if not sign:
        return figure
    return Bound(value=figure.value, unit=figure.unit, leaves=figure.leaves, how=figure.how, sign=sign)


def make_bound_figure(
    tree: Mapping[str, Any], unit: Unit, *leaves: str, sign: str = EXACT, how: Aggregation = Aggregation.LEAF
) -> Figure:
    """Return the figure of these leaves, as a bound if a sign is given."""
    return add_bound_sign(figure(tree, unit, *leaves, how=how), sign)


#: Prefix of every predicted number, so that it is recognizable without colours.
PREDICTED_SIGN = "~"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFigure(Figure):
    """A number from the model: for the run as recorded, or predicted for the changed run.

    ``words``: the formatted value. ``explanation``: lines of text. ``assumption``: the key of its assumption
    in the outlook.
    """

    words: str
    explanation: str
    assumption: str
    is_predicted: bool

    @property
    def text(self) -> str:
        """The formatted value, prefixed with ``~`` if it is predicted."""
        if self.value is None:
            return UNKNOWN
        return f"{PREDICTED_SIGN}{self.words}" if self.is_predicted else self.words

    def in_report(self) -> tuple[Figure, ...]:
        """Return nothing: a measured report has no outlook, and a separate test checks these."""
        return ()

    def in_json(self) -> dict[str, Any]:
        """Return the figure with its kind (predicted or modelled), shown text and assumption."""
        kind = "predicted" if self.is_predicted else "modelled"
        return {**Figure.in_json(self), "is": kind, "shown": self.text, "assumption": self.assumption}


_UNIT_SUFFIXES = (
    ("_bytes_per_s", Unit.BYTES_PER_S),
    ("_ns", Unit.NS),
    ("_bytes", Unit.BYTES),
    ("ratio", Unit.RATIO),
)
#: Mappings keyed by tenant hold bytes.
_BYTE_NAMES = frozenset({*(tenant.value for tenant in Tenant), "untagged"})


def strip_unit(name: str) -> str:
    """Return a field name as words without its unit suffix: ``exposed_wait_ns`` as ``exposed wait``."""
    short = next(
        (name.removesuffix(end) for end, _ in _UNIT_SUFFIXES if end[0] == "_" and name.endswith(end)), name
    )
    return short.replace("_", " ")


def infer_unit(name: str) -> Unit:
    """Return the unit that a field name implies; a name without a unit is a count."""
    if name == "bytes" or name.rpartition(".")[2] in _BYTE_NAMES:
        return Unit.BYTES
    return next((unit for end, unit in _UNIT_SUFFIXES if name.endswith(end)), Unit.COUNT)
