"""Format the figures of a plan: schemes, sizes, counts, times; and make its tables.

A GB is 1e9 bytes, as in the ZeRO paper.
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from zprof.model.leaves import take_value
from zprof.model.plan import SCHEME_NAMES, Axis
from zprof.model.quantities import ESTIMATE_SIGN, Scale, Value, format_scaled
from zprof.reports.table import MAX_ROWS, UNKNOWN, Cell, Column, Row, Table, make_text_column

SCHEMES = SCHEME_NAMES
AXES = {
    Axis.DATA: "data parallel",
    Axis.MODEL: "model parallel",
    Axis.PIPELINE: "pipeline",
    Axis.HOST: "host",
}
LINKS = {"intra": "in a node", "inter": "between nodes", "pcie": "PCIe"}

#: Of counts that are shown in full, with thousands separators.
IN_FULL = Scale(factor=1, unit="")
_COUNTS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))
_SIZES = ((10**9, "GB"), (10**6, "MB"), (10**3, "KB"), (1, "B"))


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


def take_scaled(entry: object, field: str, scale: Scale | None, *, assumed: bool = False) -> Value:
    """Return a field as a cell in the unit of its table; 0 rests on no assumption."""
    value = take_value(entry, field)
    return replace(value, scale=scale, is_estimate=assumed and bool(value.number))


def mark_assumed(text: str, assumed: bool) -> str:
    """Mark a figure that rests on an assumed value; no figure, and 0, need no mark."""
    return f"{ESTIMATE_SIGN}{text}" if assumed and text not in ("", "0", UNKNOWN) else text


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
