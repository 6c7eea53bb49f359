"""Format the figures of a plan: schemes, sizes, counts, times; and make its tables.

A GB is 1e9 bytes, as in the ZeRO paper.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zprof.model.formatting import format_percent
from zprof.model.plan import SCHEME_NAMES, Axis
from zprof.reports.page import MAX_ROWS, UNKNOWN, Cell, Column, Row, Table, make_text_column

#: Prefix of a sum with unknown parts.
AT_LEAST = "≥"
#: Prefix of predicted figures wherever measured figures are shown too, and of a plan's figures that rest on
#: values that were assumed because nobody stated them.
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
    """A common unit for all cells of a table: its factor and its name."""

    factor: float
    unit: str


def choose_size_scale(sizes: Iterable[int | None]) -> Scale:
    """Choose the decimal unit for the largest size; 1 GB is 1e9 bytes, as in the paper."""
    max_value = max((size for size in sizes if size is not None), default=10**9) or 10**9
    factor, unit = next(entry for entry in _SIZES if max_value >= entry[0])
    return Scale(factor=factor, unit=unit)


def choose_time_scale(times_ns: Iterable[int | None]) -> Scale:
    """Choose the unit for the longest time: seconds from 10 s, microseconds below 1 ms, else milliseconds."""
    max_value = max((time for time in times_ns if time is not None), default=0)
    if max_value >= 10_000_000_000:
        return Scale(factor=1e9, unit="s")
    return Scale(factor=1e3, unit="µs") if 0 < max_value < 1_000_000 else Scale(factor=1e6, unit="ms")


def format_scaled(value: float | None, scale: Scale) -> str:
    """Format a value with up to three digits, as in the paper: 120, 31.4, 1.9, 0.23; a dash if unknown."""
    if value is None:
        return UNKNOWN
    size = abs(value) / scale.factor
    sign = "-" if value < 0 else ""
    if size == 0:
        return "0"
    if size >= 99.95 or scale.factor == 1:
        return f"{sign}{size:,.0f}"
    if size >= 0.95:
        return f"{sign}{size:.1f}"
    if size >= 0.0095:
        return f"{sign}{size:.2f}"
    return f"{sign}{size:.4f}" if size >= 0.00005 else f"<{sign}0.0001"


def format_with_unit(value: float | None, scale: Scale) -> str:
    """Format a value with its unit, for sentences."""
    return UNKNOWN if value is None else f"{format_scaled(value, scale)} {scale.unit}"


def format_device_size(size_bytes: int) -> str:
    """Format the memory size of a device, such as ``32 GB`` or ``40.5 GB``."""
    scale = choose_size_scale([size_bytes])
    return f"{size_bytes / scale.factor:.4g} {scale.unit}"


def format_plan_time(time_ns: int | None) -> str:
    """Format a time in a suitable unit."""
    return format_with_unit(time_ns, choose_time_scale([time_ns]))


def format_count(count: float | None) -> str:
    """Format a count such as ``7642000000`` as ``7.6B``; numbers below a thousand are unchanged."""
    if count is None:
        return UNKNOWN
    for factor, unit in _COUNTS:
        if count >= factor * 0.9995:
            value = count / factor
            return f"{value:.0f}{unit}" if value >= 99.95 else f"{value:.1f}{unit}"
    return f"{count:,.0f}"


def format_integer(count: float | None) -> str:
    """Format an integer in full, with thousands separators."""
    return UNKNOWN if count is None else f"{count:,.0f}"


def join_names(names: Iterable[str]) -> str:
    """Join names as ``a``, ``a and b`` or ``a, b and c``."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def format_signed_percent(ratio: float | None) -> str:
    """Format a relative difference with its sign; zero has no sign."""
    if ratio is None:
        return UNKNOWN
    text = format_percent(ratio)
    if text.removeprefix("-") == "0.0 %":
        return "0.0 %"
    return f"+{text}" if ratio > 0 else text


def mark_assumed(text: str, assumed: bool) -> str:
    """Mark a figure that rests on an assumed value; no figure, and 0, need no mark."""
    return f"{PREDICTED}{text}" if assumed and text not in ("", "0", UNKNOWN) else text


def make_plan_row(name: str, cells: Iterable[Cell], *, short: str = "", total: bool = False) -> Row:
    """Make a row of a plan table; ``short`` is its name in a narrow terminal."""
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
    """Make a table of a plan; the terminal shows all rows.  ``head``: header of the name column."""
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
