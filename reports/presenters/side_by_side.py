"""Build the page that compares two runs: the verdict, different settings, then figure by figure."""

from collections.abc import Iterable, Sequence

from zprof.model.metrics.catalogue import find_metric
from zprof.model.metrics.metric import strip_unit
from zprof.model.paths import parse_path
from zprof.model.quantities import Unit, format_number
from zprof.model.side_by_side import ComparedRow, ComparedSection, ComparedValue, Setting, SideBySide
from zprof.reports.page import Facts, Note, Page, Paragraph, Section, VerdictBlock, make_section
from zprof.reports.presenters.head import MARKS, build_modelled_notes
from zprof.reports.presenters.memory_groups import RUN_PEAKS, build_group_change_section
from zprof.reports.presenters.run_formatting import describe_run, format_steps
from zprof.reports.table import Column, Kind, Table, make_name_column, make_table, make_text_column

UNKNOWN = "unknown"
#: Smaller relative changes are not shown.
_MIN_CHANGE = 0.0005
#: Maximum number of rows of a section, such as kernels, and of ranks with a section of their own.
_MAX_TEXT_ROWS, _MAX_RANKS = 12, 4


def label(row: ComparedRow) -> str:
    """Return the name of a row, as the catalogue has it; kernels and findings keep their names."""
    metric = find_metric(parse_path(row.leaf))
    if metric:
        return metric.title
    return strip_unit(row.name) if row.leaf else row.name


def figure(value: ComparedValue, unit: str) -> str:
    """Format a figure in its unit, or ``unknown``."""
    if value is None:
        return UNKNOWN
    return value if isinstance(value, str) else format_number(value, Unit(unit))


def change(row: ComparedRow) -> str:
    """Format the relative change, in points for ratios; empty if there is no visible change."""
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


def select_shown_rows(section: ComparedSection, *, everything: bool) -> tuple[ComparedRow, ...]:
    """Return the rows to show; rows that are zero or unknown in both runs need ``everything``."""
    return section.rows if everything else tuple(row for row in section.rows if row.a or row.b)


def select_shown_settings(settings: Iterable[Setting], *, everything: bool) -> tuple[Setting, ...]:
    """Return the settings that differ, or all with ``everything``."""
    return tuple(setting for setting in settings if everything or setting.a != setting.b)


def build_side_by_side_page(both: SideBySide, *, everything: bool = False) -> Page:
    """Build the page; with ``everything`` also equal settings and rows that are zero or unknown."""
    leaves = both.sections if everything else _drop_most_ranks(both.sections)
    tables = (_build_figure_table(section, everything=everything) for section in leaves)
    omission = "Rows that are 0 or unknown in both runs, and equal settings, are omitted (--all shows them)."
    status = both.verdict.status
    return Page(
        kind="zprof compare",
        subject=f"{both.a.name} and {both.b.name}",
        head=(
            VerdictBlock(tone=status.value, mark=MARKS[status], text=both.verdict.sentence),
            Facts(
                rows=(
                    ("A", describe_run(both.a, format_steps(both.a.steps))),
                    ("B", describe_run(both.b, format_steps(both.b.steps))),
                )
            ),
            *build_modelled_notes([both.b, both.a]),
        ),
        sections=(
            *build_group_change_section(both.comparison, RUN_PEAKS),
            *_build_setting_section(both.settings, everything=everything),
            *make_section(
                "figures",
                "Figures",
                "The same figures for both runs.",
                *tables,
                None if everything else Note(text=omission),
            ),
        ),
        made_by=f"zprof {both.zprof_version}, {both.schema}",
        data_command="zprof compare A B -f json",
    )


def _drop_most_ranks(sections: Sequence[ComparedSection]) -> list[ComparedSection]:
    """Drop the sections of most ranks of a large job."""
    ranks = [section for section in sections if section.title.startswith("rank ")]
    single = [section for section in ranks if section.title.count(" ") == 1]
    dropped = {section.title for section in (*single[_MAX_RANKS:], *ranks[2 * _MAX_RANKS :])}
    return [section for section in sections if section.title not in dropped]


def _build_setting_section(settings: Sequence[Setting], *, everything: bool) -> tuple[Section, ...]:
    title = "Settings" if everything else "Different settings"
    rows = []
    for setting in select_shown_settings(settings, everything=everything):
        name = setting.name if setting.where == "environment" else setting.name.replace("_", " ")
        sides = (UNKNOWN if value is None else value for value in (setting.a, setting.b))
        rows.append((f"{setting.where}: {name}", *sides))
    table = make_table(
        title,
        (make_name_column("setting"), make_text_column("A"), make_text_column("B")),
        rows,
        max_text_rows=200,
    )
    return make_section("settings", title, "How each run was configured.", table or Paragraph(text="None."))


def _build_figure_table(section: ComparedSection, *, everything: bool) -> Table | None:
    shown = select_shown_rows(section, everything=everything)
    is_text = bool(shown) and all(row.unit == "text" for row in shown)
    rows = [(label(row), figure(row.a, row.unit), figure(row.b, row.unit), change(row)) for row in shown]
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
