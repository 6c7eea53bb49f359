"""Two runs side by side as a page: the verdict, what differs in how they were run, then figure by figure."""

from collections.abc import Callable, Iterable, Sequence

from zprof.model.formatting import format_bytes, format_ns, format_percent, format_rate
from zprof.model.side_by_side import Figure, Row, Setting, SideBySide
from zprof.model.side_by_side import Section as Leaves
from zprof.model.time import LEDGER_NAMES
from zprof.reports.page import (
    Column,
    Facts,
    Kind,
    Note,
    Page,
    Paragraph,
    Section,
    Table,
    Verdict,
    make_name_column,
    make_section,
    make_table,
    make_text_column,
)
from zprof.reports.presenters.head import MARKS, build_modelled_notes
from zprof.reports.presenters.run_words import describe_run, format_steps

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
    **LEDGER_NAMES,
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
#: A relative change that the figures do not show.
_MIN_CHANGE = 0.0005
#: Rows of a section with many, such as kernels, and ranks shown one by one.
_MAX_TEXT_ROWS, _MAX_RANKS = 12, 4


def label(row: Row) -> str:
    """Return ``exposed_wait_ns`` as ``exposed wait``; a kernel or a finding keeps its name."""
    if row.name in _NAMES:
        return _NAMES[row.name]
    name = next((row.name.removesuffix(end) for end in _SUFFIXES if row.name.endswith(end)), None)
    return row.name if name is None else name.replace("_", " ")


def figure(value: Figure, unit: str) -> str:
    """Return a figure in its unit, or that it is unknown."""
    if value is None:
        return UNKNOWN
    return value if isinstance(value, str) else _SHOW[unit](value)


def change(row: Row) -> str:
    """Return the relative change, of shares in points; empty if there is none to show."""
    if not isinstance(row.a, int | float) or not isinstance(row.b, int | float):
        return ""
    if row.unit == "ratio":
        points = (row.b - row.a) * 100
        return f"{points:+.1f} pt" if abs(points) >= 100 * _MIN_CHANGE else ""
    if row.a == 0:
        return "new" if row.b else ""
    relative = row.b / row.a - 1
    if abs(relative) < _MIN_CHANGE:
        return ""
    return f"x {row.b / row.a:.1f}" if relative >= 1 else f"{relative * 100:+.1f} %"


def shown_rows(section: Leaves, *, everything: bool) -> tuple[Row, ...]:
    """Return the rows that say something: without those that are zero or unknown on both sides."""
    return section.rows if everything else tuple(row for row in section.rows if row.a or row.b)


def shown_settings(settings: Iterable[Setting], *, everything: bool) -> tuple[Setting, ...]:
    """Return the settings that differ, or all."""
    return tuple(setting for setting in settings if everything or setting.a != setting.b)


def build_side_by_side_page(both: SideBySide, *, everything: bool = False) -> Page:
    """Return both runs; with ``everything`` also equal settings and rows that are zero or unknown."""
    leaves = both.sections if everything else _without_many_ranks(both.sections)
    tables = (_leaf_table(section, everything=everything) for section in leaves)
    left_out = "Left out: what is 0 or unknown in both, and equal settings (--all shows them)."
    status = both.verdict.status
    return Page(
        kind="zprof compare",
        subject=f"{both.a.name} and {both.b.name}",
        head=(
            Verdict(tone=status.value, mark=MARKS[status], text=both.verdict.sentence),
            Facts(
                rows=(
                    ("A", describe_run(both.a, format_steps(both.a.steps))),
                    ("B", describe_run(both.b, format_steps(both.b.steps))),
                )
            ),
            *build_modelled_notes([both.b, both.a]),
        ),
        sections=(
            *_setting_section(both.settings, everything=everything),
            *make_section(
                "figures",
                "Figures",
                "The same figures of both runs.",
                *tables,
                None if everything else Note(text=left_out),
            ),
        ),
        made_by=f"zprof {both.zprof_version}, {both.schema}",
        data_command="zprof compare A B -f json",
    )


def _without_many_ranks(sections: Sequence[Leaves]) -> list[Leaves]:
    """Return the sections without most ranks of a large job."""
    ranks = [section for section in sections if section.title.startswith("rank ")]
    single = [section for section in ranks if section.title.count(" ") == 1]
    dropped = {section.title for section in (*single[_MAX_RANKS:], *ranks[2 * _MAX_RANKS :])}
    return [section for section in sections if section.title not in dropped]


def _setting_section(settings: Sequence[Setting], *, everything: bool) -> tuple[Section, ...]:
    title = "Settings" if everything else "Different settings"
    rows = []
    for setting in shown_settings(settings, everything=everything):
        name = setting.name if setting.where == "environment" else setting.name.replace("_", " ")
        sides = (UNKNOWN if value is None else value for value in (setting.a, setting.b))
        rows.append((f"{setting.where}: {name}", *sides))
    table = make_table(
        title,
        (make_name_column("setting"), make_text_column("A"), make_text_column("B")),
        rows,
        max_text_rows=200,
    )
    return make_section("settings", title, "How the two were run.", table or Paragraph(text="None."))


def _leaf_table(section: Leaves, *, everything: bool) -> Table | None:
    found = shown_rows(section, everything=everything)
    is_text = bool(found) and all(row.unit == "text" for row in found)
    rows = [(label(row), figure(row.a, row.unit), figure(row.b, row.unit), change(row)) for row in found]
    kind = Kind.TEXT if is_text else Kind.NUMBER
    return make_table(
        section.title,
        (
            Column(title="figure", kind=Kind.NAME, min_width=30),
            Column(title="A", kind=kind, min_width=16),
            Column(title="B", kind=kind, min_width=16),
            Column(title="change", min_width=9),
        ),
        rows,
        note=section.note,
        max_text_rows=len(rows) if everything else _MAX_TEXT_ROWS,
    )
