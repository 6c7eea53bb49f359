"""Define the numbers of the report: unit, bound, path, and catalogue entry."""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import cached_property
from typing import Final

from msgspec import Struct

from zprof.base.formatting import format_bytes, format_ms, format_ns, format_percent, format_psi, format_rate
from zprof.model.tenants import Tenant

#: Index that stands for every entry of a list or mapping; its text is ``[*]``.
EVERY: Final = -1
#: Text of an unknown number on a screen.
UNKNOWN = "unknown"


class Path(Struct, frozen=True, dict=True):
    """A path such as ``time.per_rank[3].wall_ns``: names, and indices of entries or ``EVERY``."""

    parts: tuple[str | int, ...] = ()

    def __str__(self) -> str:
        return "".join(
            f".{part}" if isinstance(part, str) else f"[{'*' if part == EVERY else part}]"
            for part in self.parts
        ).removeprefix(".")

    @cached_property
    def pattern(self) -> str:
        """The path without its indices, as in the catalogue: ``time.per_rank[].wall_ns``."""
        return "".join(f".{part}" if isinstance(part, str) else "[]" for part in self.parts).removeprefix(".")

    @property
    def name(self) -> str:
        """The name of the last field or key, without indices."""
        return next((part for part in reversed(self.parts) if isinstance(part, str)), "")

    @property
    def parent(self) -> "Path":
        """The path of the record that has the last field: ``time.per_rank[3]``."""
        last_name = max((at for at, part in enumerate(self.parts) if isinstance(part, str)), default=0)
        return Path(self.parts[:last_name])

    @property
    def indices(self) -> tuple[int, ...]:
        """The indices of the path, in order."""
        return tuple(part for part in self.parts if isinstance(part, int))

    def at(self, index: int) -> "Path":
        """Return the path with an index instead of ``EVERY``."""
        return Path(tuple(index if part == EVERY else part for part in self.parts))

    def starts_with(self, *names: str) -> bool:
        """Return True if the path begins with these names."""
        return self.parts[: len(names)] == names


def parse_path(text: str) -> Path:
    """Parse ``time.per_rank[3].wall_ns``; ``[*]`` and ``[]`` stand for every entry.

    Raises:
        ValueError: An index is not a number.
    """
    parts: list[str | int] = []
    for piece in text.split("."):
        name, *indices = piece.split("[")
        parts += [name] if name else []
        parts += [EVERY if index in ("*]", "]") else int(index.removesuffix("]")) for index in indices]
    return Path(tuple(parts))


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


#: Bounds by field name; other fields are exact.
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
    """A common unit of the numbers in a table: its factor, and its name for the header."""

    factor: float
    unit: str


class _Reading(Struct, frozen=True):
    """The two positional fields of a value."""

    number: float | None
    unit: Unit


class Value(_Reading, frozen=True, kw_only=True):
    """A number as shown; None is unknown.

    ``leaves`` are its paths in the report, and ``how`` is their aggregation. For a range, the number is the
    upper end and ``low`` the lower end. ``signed``: a change, shown with its sign. ``in_ms``: shown in a
    column headed ``ms``; ``scale``: shown in the column's unit. ``is_estimate``: predicted, assumed, or
    inferred from sizes alone.
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
        """The number as shown on a screen."""
        return format_value(self)


#: Sign in front of an estimate.
ESTIMATE_SIGN = "~"
#: Signs in front of a bound.
BOUND_SIGNS: Mapping[Bound, str] = {
    Bound.EXACT: "",
    Bound.AT_LEAST: "≥ ",
    Bound.AT_MOST: "≤ ",
    Bound.UNKNOWN: "≈ ",
}
#: The same signs in words, for sentences.
BOUND_WORDS: Mapping[Bound, str] = {
    Bound.EXACT: "",
    Bound.AT_LEAST: "at least ",
    Bound.AT_MOST: "at most ",
    Bound.UNKNOWN: "about ",
}
#: Counts from this value are shown without a fraction.
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
    """Return the bound of a number that grows with each of several bounded numbers."""
    kinds = set(bounds) - {Bound.EXACT}
    if len(kinds) > 1:
        return Bound.UNKNOWN
    return kinds.pop() if kinds else Bound.EXACT


def negate_bound(bound: Bound) -> Bound:
    """Return the bound of a number that falls as the bounded one grows."""
    return {Bound.AT_LEAST: Bound.AT_MOST, Bound.AT_MOST: Bound.AT_LEAST}.get(bound, bound)


#: Unit by the suffix of a name, longest suffix first.
_SUFFIXES = (
    ("_bytes_per_s", Unit.BYTES_PER_S),
    ("_ns", Unit.NS),
    ("_bytes", Unit.BYTES),
    ("_ratio", Unit.RATIO),
)
#: Mappings keyed by tenant hold bytes; each of these names is its own unit.
_UNITS: Mapping[str, Unit] = {
    "bytes": Unit.BYTES,
    "ns": Unit.NS,
    "ratio": Unit.RATIO,
    "untagged": Unit.BYTES,
    **{tenant.value: Unit.BYTES for tenant in Tenant},
}


class Better(StrEnum):
    """Which direction of a change is an improvement."""

    LESS = "less"
    MORE = "more"
    NEITHER = "neither"


class Metric(Struct, frozen=True, kw_only=True):
    """A number of the report that users read.

    ``path``: its leaf in the report, with ``[]`` instead of indices. ``help``: what it is, in a few
    sentences. ``inputs``: the leaves from which it is computed, in the notation of :func:`resolve_input`.
    ``has_interval``: False for a median, fit, sample or rate, whose changes cannot be told from noise.
    ``own_unit``: the unit if the leaf's name does not end in a unit.
    """

    path: str
    title: str
    help: str
    formula: str = ""
    inputs: tuple[str, ...] = ()
    better: Better = Better.NEITHER
    has_interval: bool = True
    own_unit: Unit | None = None

    @property
    def unit(self) -> Unit:
        """Its own unit if given, else the unit at the end of the leaf's name."""
        return self.own_unit or find_unit(parse_path(self.path).name)


def find_unit(name: str) -> Unit:
    """Return the unit of a field or column by its name; a name without a unit is a count."""
    return _UNITS.get(name) or next((unit for end, unit in _SUFFIXES if name.endswith(end)), Unit.COUNT)


def strip_unit(name: str) -> str:
    """Return a name as words without its unit: ``exposed_wait_ns`` as ``exposed wait``."""
    suffix = next((end for end, unit in _SUFFIXES if unit is not Unit.RATIO and name.endswith(end)), "")
    return name.removesuffix(suffix).replace("_", " ")


def resolve_input(path: Path, name: str) -> Path:
    """Return the path of an input of a leaf.

    ``name`` is a sibling, ``../name`` is one level up, and ``/name`` is an absolute path.
    """
    if name.startswith("/"):
        return parse_path(name[1:])
    record = path.parent.parent if name.startswith("../") else path.parent
    return Path((*record.parts, *parse_path(name.removeprefix("../")).parts))
