"""Which rows and settings of two runs are shown, and how their figures and changes read."""

from collections.abc import Callable, Iterable

from zprof.model.side_by_side import Figure, Row, Section, Setting
from zprof.model.units import format_bytes, format_ns, format_percent, format_rate

UNKNOWN = "unknown"
_SHOW: dict[str, Callable[[float], str]] = {
    "ns": format_ns,
    "bytes": format_bytes,
    "ratio": format_percent,
    "bytes_per_s": format_rate,
    "count": lambda count: f"{count:g}" if count < 1e6 else f"{count:.0f}",
}
_SUFFIXES = ("_bytes_per_s", "_ns", "_bytes", "_ratio")
_NAMES = {
    "exposed_memcpy_ns": "exposed copies",
    "memcpy_ns": "copies",
    "overlap_ratio": "hidden share",
    "overlapped_ns": "hidden",
    "collective_ns": "collectives",
    "busbw_bytes_per_s": "bus bandwidth",
    "algbw_bytes_per_s": "algorithm bandwidth",
    "last_ratio": "came last",
    "own_wait_ns": "its own wait",
    "waiting_ranks": "waiting ranks",
    "unsplit_ns": "wait or transfer unknown",
    "first_wait_ns": "wait of the first",
}
#: Of an earlier value: a change that the figures do not show.
_TRIFLE = 0.0005


def label(row: Row) -> str:
    """``exposed_wait_ns`` as ``exposed wait``; what is no leaf (a kernel, a finding) keeps its name."""
    if row.name in _NAMES:
        return _NAMES[row.name]
    name = next((row.name.removesuffix(end) for end in _SUFFIXES if row.name.endswith(end)), None)
    return row.name if name is None else name.replace("_", " ")


def figure(value: Figure, unit: str) -> str:
    """A figure in its unit; a word where it is not known."""
    if value is None:
        return UNKNOWN
    return value if isinstance(value, str) else _SHOW[unit](value)


def change(row: Row) -> str:
    """Relative, or in points where the figures are shares; empty where there is none to tell."""
    if not isinstance(row.a, int | float) or not isinstance(row.b, int | float):
        return ""
    if row.unit == "ratio":
        points = (row.b - row.a) * 100
        return f"{points:+.1f} pt" if abs(points) >= 100 * _TRIFLE else ""
    if row.a == 0:
        return "new" if row.b else ""
    relative = row.b / row.a - 1
    if abs(relative) < _TRIFLE:
        return ""
    return f"x {row.b / row.a:.1f}" if relative >= 1 else f"{relative * 100:+.1f} %"


def shown_rows(section: Section, *, everything: bool) -> tuple[Row, ...]:
    """Rows that say something: not those that are zero or unknown on both sides."""
    return section.rows if everything else tuple(row for row in section.rows if row.a or row.b)


def shown_settings(settings: Iterable[Setting], *, everything: bool) -> tuple[Setting, ...]:
    """Those that differ, or all."""
    return tuple(setting for setting in settings if everything or setting.a != setting.b)
