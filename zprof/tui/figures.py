"""Numbers as a screen shows them: exact, a range, a bound, or predicted.

A `Figure` names the JSON leaves it comes from (`time.per_rank[3].wall_ns`; `[*]` for all entries of a list)
and how they combine, so that it can be opened and checked against the report.
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
    """What a value counts."""

    NS = "ns"
    MS = "ns, shown in milliseconds without the unit"
    BYTES = "bytes"
    RATIO = "ratio"
    COUNT = "count"
    BYTES_PER_S = "bytes_per_s"
    FACTOR = "times"


class Aggregation(StrEnum):
    """How a value is made of its leaves, in their order; leaves that are unknown are left out."""

    LEAF = "as it stands in the report"
    SUM = "sum of"
    MEAN = "mean of"
    LARGEST = "largest of"
    SMALLEST = "smallest of"
    DIFFERENCE = "first minus the others"
    SHARE = "first as a share of the sum of the others"
    PER_WORK = "sum of all ranks / tokens or samples of all ranks"


_SHOW: Mapping[Unit, Callable[[float], str]] = {
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
    """A number: its value, where it comes from, how it is shown.  ``None`` is unknown, and says so."""

    value: float | None
    unit: Unit
    leaves: tuple[str, ...]
    how: Aggregation = Aggregation.LEAF
    signed: bool = False

    @property
    def text(self) -> str:
        """As a screen shows it."""
        if self.value is None:
            return UNKNOWN
        shown = _SHOW[self.unit](self.value)
        is_nothing = not any(digit in shown for digit in "123456789")
        return f"+{shown}" if self.signed and self.value > 0 and not is_nothing else shown

    def in_report(self) -> tuple["Figure", ...]:
        """The numbers in it that the report's JSON has, or makes: what a test holds against it."""
        return (self,)

    def in_json(self) -> dict[str, Any]:
        """As it is copied: with its leaves."""
        return {
            "value": self.value,
            "unit": self.unit.value,
            "leaves": list(self.leaves),
            "how": self.how.value,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Range(Figure):
    """Two numbers in one cell: itself is the upper end, ``low`` the other one."""

    low: Figure

    @property
    def text(self) -> str:
        """``31.9..125.8 ms``; one number where both ends read the same."""
        low, high = self.low.text, Figure.text.fget(self)  # type: ignore[attr-defined]
        if low == high or UNKNOWN in (low, high):
            return str(high)
        number, _, unit = low.rpartition(" ")
        return f"{number if number and high.endswith(f' {unit}') else low}..{high}"

    def in_report(self) -> tuple[Figure, ...]:
        """Both."""
        return (*self.low.in_report(), *Figure.in_report(self))


def make_range(low: Figure, high: Figure) -> Range:
    """From one number to the other."""
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
    """The figure that these leaves of the report's JSON make."""
    value = combine(how, [list(resolve(tree, leaf)) for leaf in leaves])
    return Figure(value=value, unit=unit, leaves=leaves, how=how, signed=signed)


def combine(how: Aggregation, found: Sequence[Sequence[float | None]]) -> float | None:
    """The value that the numbers of some leaves make; None where nothing is known."""
    known = [[value for value in values if value is not None] for values in found]
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
    """The numbers at a path; ``[*]`` takes all of a list, or of a mapping.  None where it leads nowhere."""
    nodes = [tree]
    for name, index in _PART.findall(leaf):
        nodes = [child for node in nodes for child in _children(node, name, index)]
    for node in nodes or [None]:
        known = isinstance(node, int | float) and not isinstance(node, bool) and math.isfinite(node)
        yield node if known else None


def _children(node: Any, name: str, index: str) -> list[Any]:
    if index == "*":
        values = node.values() if isinstance(node, Mapping) else node
        return list(values) if isinstance(values, Sequence) or isinstance(node, Mapping) else []
    if index:
        place = int(index)
        return [node[place]] if isinstance(node, list) and place < len(node) else []
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
    """A figure with a sign before it."""

    sign: str

    @property
    def text(self) -> str:
        """``≥ 12.0``; without the sign where it is unknown."""
        shown = str(Figure.text.fget(self))  # type: ignore[attr-defined]
        return shown if self.value is None else f"{self.sign}{shown}"


def add_bound_sign(found: Figure, sign: str) -> Figure:
    """The same figure with the sign where there is one."""
    if not sign:
        return found
    return Bound(value=found.value, unit=found.unit, leaves=found.leaves, how=found.how, sign=sign)


def make_bound_figure(
    tree: Mapping[str, Any], unit: Unit, *leaves: str, sign: str = EXACT, how: Aggregation = Aggregation.LEAF
) -> Figure:
    """The figure of these leaves, with the sign where there is one."""
    return add_bound_sign(figure(tree, unit, *leaves, how=how), sign)


#: Before every predicted number, whatever the colours.
PREDICTED_SIGN = "~"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFigure(Figure):
    """A number of the model: of the run as it was, or predicted for the changed one.

    ``words``: as it is shown.  ``said``: what it rests on, in lines.  ``assumption``: its key in the outlook.
    """

    words: str
    said: str
    assumption: str
    is_predicted: bool

    @property
    def text(self) -> str:
        """With the sign where it is predicted."""
        if self.value is None:
            return UNKNOWN
        return f"{PREDICTED_SIGN}{self.words}" if self.is_predicted else self.words

    def in_report(self) -> tuple[Figure, ...]:
        """None: a report that was measured has no outlook; a test of its own holds it against that."""
        return ()

    def in_json(self) -> dict[str, Any]:
        """And that it is predicted, and what from."""
        kind = "predicted" if self.is_predicted else "modelled"
        return {**Figure.in_json(self), "is": kind, "shown": self.text, "assumption": self.assumption}


_UNIT_SUFFIXES = (
    ("_bytes_per_s", Unit.BYTES_PER_S),
    ("_ns", Unit.NS),
    ("_bytes", Unit.BYTES),
    ("ratio", Unit.RATIO),
)
#: Mappings by tenant hold bytes.
_BYTE_NAMES = frozenset({*(tenant.value for tenant in Tenant), "untagged"})


def strip_unit(name: str) -> str:
    """A name without its unit, which its values have: ``exposed_wait_ns`` as ``exposed wait``."""
    short = next(
        (name.removesuffix(end) for end, _ in _UNIT_SUFFIXES if end[0] == "_" and name.endswith(end)), name
    )
    return short.replace("_", " ")


def infer_unit(name: str) -> Unit:
    """Its unit; a count where it names none."""
    if name == "bytes" or name.rpartition(".")[2] in _BYTE_NAMES:
        return Unit.BYTES
    return next((unit for end, unit in _UNIT_SUFFIXES if name.endswith(end)), Unit.COUNT)
