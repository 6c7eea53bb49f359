"""How figures of a plan are written: schemes, sizes, counts, times; and its tables.

A GB is 1e9 bytes, as in the paper.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zprof.model.formatting import format_percent
from zprof.model.plan import SCHEME_NAMES, Axis
from zprof.reports.page import MAX_ROWS, UNKNOWN, Cell, Column, Row, Table, make_text_column

#: Stands before a sum of which not all parts are known.
AT_LEAST = "≥"
#: Stands before every figure that was not measured where measured ones stand beside it.
PREDICTED = "~"

SCHEMES = SCHEME_NAMES
AXES = {
    Axis.DATA: "data parallel",
    Axis.MODEL: "model parallel",
    Axis.PIPELINE: "pipeline",
    Axis.HOST: "host",
}
LINKS = {"intra": "in a node", "inter": "between nodes", "pcie": "PCIe"}

_COUNTS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))
_SIZES = ((10**9, "GB"), (10**6, "MB"), (10**3, "KB"), (1, "B"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """One unit for all cells of a table: how much of the leaf's unit it is, and its name."""

    of: float
    unit: str


def choose_size_scale(sizes: Iterable[int | None]) -> Scale:
    """Return the decimal unit that suits the largest: 1 GB is 1e9 bytes, as in the paper."""
    most = max((size for size in sizes if size is not None), default=10**9) or 10**9
    of, unit = next(entry for entry in _SIZES if most >= entry[0])
    return Scale(of=of, unit=unit)


def choose_time_scale(times_ns: Iterable[int | None]) -> Scale:
    """Return seconds from 10 s on, microseconds below 1 ms, else milliseconds."""
    most = max((time for time in times_ns if time is not None), default=0)
    if most >= 10_000_000_000:
        return Scale(of=1e9, unit="s")
    return Scale(of=1e3, unit="µs") if 0 < most < 1_000_000 else Scale(of=1e6, unit="ms")


def format_scaled(value: float | None, scale: Scale) -> str:
    """Return about three digits, as the paper prints: 120, 31.4, 1.9, 0.23; a dash if unknown."""
    if value is None:
        return UNKNOWN
    size = abs(value) / scale.of
    sign = "-" if value < 0 else ""
    if size == 0:
        return "0"
    if size >= 99.95 or scale.of == 1:
        return f"{sign}{size:,.0f}"
    if size >= 0.95:
        return f"{sign}{size:.1f}"
    if size >= 0.0095:
        return f"{sign}{size:.2f}"
    return f"{sign}{size:.4f}" if size >= 0.00005 else f"<{sign}0.0001"


def format_with_unit(value: float | None, scale: Scale) -> str:
    """Return a value with its unit, for sentences."""
    return UNKNOWN if value is None else f"{format_scaled(value, scale)} {scale.unit}"


def format_device_size(size_bytes: int) -> str:
    """Return the memory of a device as it is sold: ``32 GB``, ``40.5 GB``."""
    scale = choose_size_scale([size_bytes])
    return f"{size_bytes / scale.of:.4g} {scale.unit}"


def format_plan_time(time_ns: int | None) -> str:
    """Return a time in the unit that suits it."""
    return format_with_unit(time_ns, choose_time_scale([time_ns]))


def format_count(count: float | None) -> str:
    """Return ``7642000000`` as ``7.6B``; a number below a thousand as it is."""
    if count is None:
        return UNKNOWN
    for of, unit in _COUNTS:
        if count >= of * 0.9995:
            value = count / of
            return f"{value:.0f}{unit}" if value >= 99.95 else f"{value:.1f}{unit}"
    return f"{count:,.0f}"


def format_integer(count: float | None) -> str:
    """Return a number in full: tokens, devices."""
    return UNKNOWN if count is None else f"{count:,.0f}"


def join_names(names: Iterable[str]) -> str:
    """Return ``a``, ``a and b``, ``a, b and c``."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def format_signed_percent(ratio: float | None) -> str:
    """Return a difference with its sign; what rounds to zero has none."""
    if ratio is None:
        return UNKNOWN
    text = format_percent(ratio)
    if text.removeprefix("-") == "0.0 %":
        return "0.0 %"
    return f"+{text}" if ratio > 0 else text


def make_plan_row(name: str, cells: Iterable[Cell], *, short: str = "", total: bool = False) -> Row:
    """Return a row of a plan's table; ``short`` names it where there are only 80 columns."""
    return Row(cells=(name, *cells), short=short, total=total)


def make_plan_table(
    title: str,
    *,
    columns: Sequence[Column],
    rows: Sequence[Row],
    head: str = "",
    unit: str = "",
    note: str = "",
    notes: Sequence[str] = (),
) -> Table:
    """Return a table of a plan, which the terminal shows whole; ``head`` is the title of the names."""
    return Table(
        title=title,
        columns=(make_text_column(head), *columns),
        rows=tuple(rows[:MAX_ROWS]),
        unit=unit,
        note=note,
        notes=tuple(notes),
        max_text_rows=MAX_ROWS,
        total=len(rows),
    )
