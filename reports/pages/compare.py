"""Compare two runs: the page of ``zprof compare``, and the report sections on the jobs.

The page has the verdict, the different settings, then all figures. The sections cover how the runs were
recorded, how they compare at equal work, and what else differs.
"""

from collections.abc import Iterable, Sequence

from zprof.base.formatting import format_ns
from zprof.model.comparison import (
    ComparedRow,
    ComparedSection,
    ComparedValue,
    SectionKind,
    Setting,
    SideBySide,
)
from zprof.model.cursor import Cursor, read
from zprof.model.metrics import find_metric
from zprof.model.quantities import Unit, format_number, parse_path, strip_unit
from zprof.model.report import Comparison, Report, RunFacts
from zprof.reports.page import Block, Facts, Note, Page, Paragraph, Section, VerdictBlock, make_section
from zprof.reports.pages.head import MARKS, build_modelled_notes, list_baseline_runs
from zprof.reports.pages.memory_changes import RUN_PEAKS, build_group_change_section
from zprof.reports.pages.names import describe_run, format_rank_count, format_steps
from zprof.reports.table import (
    Column,
    Kind,
    Table,
    make_name_column,
    make_number_columns,
    make_table,
    make_text_column,
)

_UNKNOWN = "unknown"
#: Smaller relative changes are not shown.
_MIN_CHANGE = 0.0005
#: Maximum number of rows per section, such as kernels, and of ranks with their own section.
_MAX_TEXT_ROWS, _MAX_RANKS = 12, 4
_MAX_TEXT_DIFFERENCES = 12


def label_row(row: ComparedRow) -> str:
    """Return the catalogue name of a row; kernels and findings keep their names."""
    metric = find_metric(parse_path(row.leaf))
    if metric:
        return metric.title
    return strip_unit(row.name) if row.leaf else row.name


def format_figure(value: ComparedValue, unit: str) -> str:
    """Format a figure in its unit, or ``unknown``."""
    if value is None:
        return _UNKNOWN
    return value if isinstance(value, str) else format_number(value, Unit(unit))


def format_change(row: ComparedRow) -> str:
    """Format the relative change, in points for ratios; empty without a visible change."""
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
    """Return the settings that differ, or all settings with ``everything``."""
    return tuple(setting for setting in settings if everything or setting.a != setting.b)


def build_compare_page(both: SideBySide, *, everything: bool = False) -> Page:
    """Build the page; ``everything`` adds equal settings and rows that are zero or unknown."""
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
            *build_group_change_section(Cursor(both).comparison, RUN_PEAKS),
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
    """Drop the sections of most ranks in a large job."""
    ranks = [section for section in sections if section.rank is not None]
    single = [section for section in ranks if section.kind is SectionKind.RANK]
    dropped = {section.title for section in (*single[_MAX_RANKS:], *ranks[2 * _MAX_RANKS :])}
    return [section for section in sections if section.title not in dropped]


def _build_setting_section(settings: Sequence[Setting], *, everything: bool) -> tuple[Section, ...]:
    title = "Settings" if everything else "Different settings"
    rows = []
    for setting in select_shown_settings(settings, everything=everything):
        name = setting.name if setting.where == "environment" else setting.name.replace("_", " ")
        sides = (_UNKNOWN if value is None else value for value in (setting.a, setting.b))
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
    rows = [
        (label_row(row), format_figure(row.a, row.unit), format_figure(row.b, row.unit), format_change(row))
        for row in shown
    ]
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


def build_run_section(report: Report) -> tuple[Section, ...]:
    """Build the section on the run's facts, next to the facts of a baseline if there is one."""
    rows = _list_run_facts(report.run)
    facts: Block | None = Facts(rows=tuple(rows))
    for before in list_baseline_runs(report):
        side_by_side = [
            (name, baseline_value, run_value)
            for (name, run_value), (_, baseline_value) in zip(rows, _list_run_facts(before), strict=True)
        ]
        columns = (make_text_column("fact"), make_text_column("baseline"), make_text_column("this run"))
        facts = make_table("Both runs", columns, side_by_side)
    noise = report.time.step_noise_ns
    noise_note = None
    if noise is not None:
        noise_note = Note(
            text="Between two recordings of this job, the mean step differs by less than "
            f"{format_ns(noise)} in 95 of 100 cases."
        )
    return make_section("run", "The run", "What was recorded, and how.", facts, noise_note, detail=True)


def _list_run_facts(run: RunFacts) -> list[tuple[str, str]]:
    return [
        ("name", run.name),
        ("source", run.source),
        ("ranks", format_rank_count(run)),
        ("device", run.device),
        ("backend", run.backend or "-"),
        ("engine", run.engine),
        ("stage", "unknown" if run.stage is None else str(run.stage)),
        ("timed steps", format_steps(run.steps)),
        ("memory steps", format_steps(run.memory_steps) if run.memory_steps else "none"),
        ("modelled", "; ".join(run.modelled) or "nothing"),
    ]


def build_difference_section(report: Report) -> tuple[Section, ...]:
    """Build the section on other differences between the jobs, which may be the real cause."""
    comparison = report.comparison
    if comparison is None:
        return ()
    lead = "The jobs are not the same: these differences may be the cause instead."
    table = make_table(
        "Not the same job",
        (make_name_column("setting"), make_text_column("baseline"), make_text_column("this run")),
        [(entry.what, entry.a, entry.b) for entry in comparison.differences],
        max_text_rows=_MAX_TEXT_DIFFERENCES,
        noun="differences",
    )
    return make_section(
        "differences",
        "What else differs",
        lead,
        build_equal_work_table(report, comparison),
        table,
    )


def build_equal_work_table(report: Report, comparison: Comparison) -> Table | None:
    """Compare the steps at equal work; None if the work is unknown or already equal."""
    times, work = comparison.step_time, comparison.equal_work
    if times is None or work is None or work.b_ns == times.b_ns:
        return None
    baseline_ns, unit = max(1, times.a_ns), work.unit.value
    low, high = (bound / baseline_ns * 100 for bound in work.ci95)
    change = f"{(work.b_ns / baseline_ns - 1) * 100:+.0f} % [{low:+.1f}, {high:+.1f}]"
    found = Cursor(report).comparison
    before, after, scaled = (
        read(place, in_ms=True)
        for place in (found.step_time.a_ns, found.step_time.b_ns, found.equal_work.b_ns)
    )
    return make_table(
        "At equal work",
        (
            make_name_column("run"),
            *make_number_columns(f"{unit} per step", unit="count"),
            *make_number_columns("step", "at equal work", unit="ms"),
            Column(title="change", unit="95 % interval"),
        ),
        [
            (comparison.baseline, read(found.equal_work.a_per_step), before, before, ""),
            (report.run.name, read(found.equal_work.b_per_step), after, scaled, change),
        ],
        unit="ms",
        note="scaled to the baseline's work per rank",
        notes=[
            f"Includes the effect of the batch size; equal {unit} per step would compare the programs alone."
        ],
    )
