"""Define a number that a person reads: its unit, the leaves it comes from, and whether it is exact."""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

from msgspec import Struct

from zprof.model.formatting import format_bytes, format_ms, format_ns, format_percent, format_psi, format_rate
from zprof.model.paths import Path

#: How an unknown number is shown on a screen.
UNKNOWN = "unknown"


class Unit(StrEnum):
    """Unit of a number; ``PSI``: multiples of the bytes of all parameters."""

    NS = "ns"
    BYTES = "bytes"
    RATIO = "ratio"
    COUNT = "count"
    BYTES_PER_S = "bytes_per_s"
    FACTOR = "times"
    PSI = "psi"


class Bound(StrEnum):
    """Whether a number is exact or a bound; ``UNKNOWN``: the true number may be lower or higher."""

    EXACT = "exact"
    AT_LEAST = "at_least"
    AT_MOST = "at_most"
    UNKNOWN = "unknown"


#: Bounds by name of the field; fields that are not named are exact.
Bounds = Mapping[str, Bound]


class Aggregation(StrEnum):
    """How a number is computed from its leaves, in order; unknown leaves are skipped."""

    LEAF = "taken directly from the report"
    SUM = "sum of"
    COUNT = "number of entries of"
    MEAN = "mean of"
    LARGEST = "largest of"
    SMALLEST = "smallest of"
    DIFFERENCE = "first minus the others"
    SHARE = "first as a share of the sum of the others"
    PER_WORK = "sum of all ranks / tokens or samples of all ranks"


class Scale(Struct, frozen=True, kw_only=True):
    """A common unit of the numbers of a table: its factor, and its name, which the header shows."""

    factor: float
    unit: str


class _Reading(Struct, frozen=True):
    """The two fields of a value that need no name."""

    number: float | None
    unit: Unit


class Value(_Reading, frozen=True, kw_only=True):
    """A number as shown; None is unknown.

    ``leaves`` are its paths in the report, and ``how`` says how they combine; of a range, the number is the
    upper end and ``low`` the lower. ``signed``: a change, shown with its sign. ``in_ms``: it is shown in a
    column headed ``ms``, ``scale``: in its unit. ``is_estimate``: predicted, assumed, or inferred from sizes
    alone.
    """

    leaves: tuple[Path, ...] = ()
    bound: Bound = Bound.EXACT
    how: Aggregation = Aggregation.LEAF
    low: float | None = None
    signed: bool = False
    in_ms: bool = False
    scale: Scale | None = None
    is_estimate: bool = False

    @property
    def text(self) -> str:
        """The number as a screen shows it."""
        return format_value(self)


#: Sign in front of an estimate.
ESTIMATE_SIGN = "~"
#: Signs in front of a number that is not exact.
BOUND_SIGNS: Mapping[Bound, str] = {
    Bound.EXACT: "",
    Bound.AT_LEAST: "≥ ",
    Bound.AT_MOST: "≤ ",
    Bound.UNKNOWN: "≈ ",
}
#: The same in words, for sentences.
BOUND_WORDS: Mapping[Bound, str] = {
    Bound.EXACT: "",
    Bound.AT_LEAST: "at least ",
    Bound.AT_MOST: "at most ",
    Bound.UNKNOWN: "about ",
}
#: Counts from here on are shown without a fraction.
_MIN_INTEGER_COUNT = 9999.5
_FORMATTERS: Mapping[Unit, Callable[[float], str]] = {
    Unit.NS: format_ns,
    Unit.BYTES: format_bytes,
    Unit.RATIO: format_percent,
    Unit.COUNT: lambda count: f"{count:.4g}" if abs(count) < _MIN_INTEGER_COUNT else f"{count:.0f}",
    Unit.BYTES_PER_S: format_rate,
    Unit.FACTOR: lambda factor: f"{factor:.2f}x",
    Unit.PSI: format_psi,
}


def format_value(value: Value, unknown: str = UNKNOWN) -> str:
    """Format a number with its unit, bound and sign, and a range as ``31.9..125.8 ms``."""
    if value.number is None:
        return unknown
    high = _format_end(value, value.number)
    low = high if value.low is None else _format_end(value, value.low)
    sign = f"{ESTIMATE_SIGN * value.is_estimate}{BOUND_SIGNS[value.bound]}"
    if low == high:
        return f"{sign}{high}"
    number, _, unit = low.rpartition(" ")
    return f"{sign}{number if number and high.endswith(f' {unit}') else low}..{high}"


def _format_end(value: Value, number: float) -> str:
    if value.scale:
        return format_scaled(number, value.scale)
    shown = format_ms(number) if value.in_ms else format_number(number, value.unit)
    is_zero = not any(digit in shown for digit in "123456789")
    if is_zero:
        return shown.removeprefix("-")
    return f"+{shown}" if value.signed and number > 0 else shown


def format_scaled(number: float, scale: Scale) -> str:
    """Format a number with up to three digits, as the ZeRO paper does: 120, 31.4, 1.9, 0.23."""
    size = abs(number) / scale.factor
    sign = "-" if number < 0 else ""
    if size == 0:
        return "0"
    if size >= 99.95 or scale.factor == 1:
        return f"{sign}{size:,.0f}"
    if size >= 0.95:
        return f"{sign}{size:.1f}"
    if size >= 0.0095:
        return f"{sign}{size:.2f}"
    return f"{sign}{size:.4f}" if size >= 0.00005 else f"<{sign}0.0001"


def format_number(number: float, unit: Unit) -> str:
    """Format a number in its unit."""
    return _FORMATTERS[unit](number)


def format_signed(change: float, unit: Unit) -> str:
    """Format a change with its sign: ``+0.8 MiB`` or ``-12.0 ms``."""
    return f"{'-' if change < 0 else '+'}{format_number(abs(change), unit)}"


def combine_bounds(bounds: Iterable[Bound]) -> Bound:
    """Return the bound of a number computed from several, each of which it grows with."""
    kinds = set(bounds) - {Bound.EXACT}
    if len(kinds) > 1:
        return Bound.UNKNOWN
    return kinds.pop() if kinds else Bound.EXACT


def negate_bound(bound: Bound) -> Bound:
    """Return the bound of a number that falls as the bounded one grows."""
    return {Bound.AT_LEAST: Bound.AT_MOST, Bound.AT_MOST: Bound.AT_LEAST}.get(bound, bound)
