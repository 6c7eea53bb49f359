"""Build the tables of the compare screen: rows with both values, change and verdict; settings; headline."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.compare.intervals import Interval
from zprof.analysis.compare.judgement import Judgement, Uncertainty, find_uncertainty, judge_row
from zprof.model.formatting import display_width, format_ns, printable, shorten
from zprof.model.gaps import GapKind
from zprof.model.leaves import read_value
from zprof.model.quantities import BOUND_SIGNS, Aggregation, Unit
from zprof.model.side_by_side import ComparedRow, Setting
from zprof.reports.pages.compare import format_change, format_figure, select_shown_settings
from zprof.reports.table import UNKNOWN, Cell, Column, Kind, Mark, Marked, Opens, Row, Table
from zprof.tui.presenters.compare_rows import (
    RowPlace,
    SectionKind,
    WordedValue,
    classify_section,
    make_interval,
    make_side_figure,
    name_row,
    select_places,
)
from zprof.tui.presenters.compare_verdict import (
    bootstrap_time_interval,
    explain_judgement,
    find_interval,
    find_side_bound,
    format_judgement,
    is_bound,
    judge_place,
    make_time_figure,
)
from zprof.tui.presenters.overview import format_verdict
from zprof.tui.session import LoadedRun

_MAX_PLACE = 200
_MAX_TEXT = 10


def build_line(loaded: LoadedRun, place: RowPlace, uncertainty: Uncertainty) -> Row:
    """Build a row with its values per step."""
    row = place.row
    interval = find_interval(loaded, place)
    judgement = judge_place(loaded, place, uncertainty)
    cells: tuple[Cell, ...] = (
        name_row(place),
        _make_side_cell(loaded, place, after=False),
        _make_side_cell(loaded, place, after=True),
        _make_change_cell(row),
        interval if interval is not None else _make_limit_cell(row, judgement, uncertainty),
        format_judgement(judgement),
        Marked(shorten(f"{place.section.title}: {place.section.note}", _MAX_PLACE), Mark.MUTED),
    )
    return Row(
        key=place.key,
        cells=cells,
        opens=Opens.COMPARED,
        mark=Mark.TITLE
        if row.name == "wall_ns" and classify_section(place.section) is SectionKind.STEP
        else Mark.PLAIN,
    )


def _make_side_cell(loaded: LoadedRun, place: RowPlace, *, after: bool) -> Cell:
    value = place.row.b if after else place.row.a
    if place.row.unit != "text":
        number = make_side_figure(loaded, place.section, place.row, after=after)
        return replace(number, bound=find_side_bound(loaded, place, after=after))
    if classify_section(place.section) is SectionKind.FINDINGS:
        return "not tested" if value is None else value if value == "not found" else "found"
    return shorten(format_figure(value, "text"), _MAX_TEXT)


def _make_change_cell(row: ComparedRow) -> Cell:
    """Make a cell with the change as ``zprof compare`` writes it; it sorts by the change relative to A."""
    if not isinstance(row.a, int | float) or not isinstance(row.b, int | float):
        return ""
    share = row.b - row.a if row.unit == "ratio" else row.b / row.a - 1 if row.a else None
    return WordedValue(number=share, unit=Unit.RATIO, words=format_change(row))


def _make_exact_cell(row: ComparedRow, judgement: Judgement) -> Marked:
    is_known = judgement not in (Judgement.UNKNOWN, Judgement.UNJUDGED)
    return Marked("exact" if row.unit in ("bytes", "count") and is_known else "", Mark.MUTED)


def _make_limit_cell(row: ComparedRow, judgement: Judgement, uncertainty: Uncertainty) -> Cell:
    """Make a cell with the change that a time must exceed to be significant, if it was judged by that."""
    is_judged = judgement in (Judgement.BETTER, Judgement.WORSE, Judgement.NOISE, Judgement.DIFFERS)
    if row.unit != "ns" or not is_judged or uncertainty.times_ns is None:
        return _make_exact_cell(row, judgement)
    limit = format_ns(uncertainty.times_ns)
    return WordedValue(number=uncertainty.times_ns, unit=Unit.NS, words=f"± {limit}")


def build_per_token_line(loaded: LoadedRun, place: RowPlace, uncertainty: Uncertainty) -> Row:
    """Build a row with a step time per token, summed over all ranks so that jobs of any size compare."""
    row, report = place.row, loaded.report
    before = read_value(
        report,
        f"comparison.baseline_time[*].{row.name}",
        "comparison.equal_work.a_per_step",
        how=Aggregation.PER_WORK,
    )
    after = read_value(
        report,
        f"time.per_rank[*].{row.name}",
        "comparison.equal_work.b_per_step",
        how=Aggregation.PER_WORK,
    )
    scaled = replace(row, a=before.number, b=after.number)
    is_wall = _is_wall_time(place)
    interval = _get_work_interval(loaded) if is_wall else _bootstrap_per_work(loaded, place)
    judgement = judge_row(scaled, uncertainty, own=interval, is_bound=is_bound(loaded, place))
    cells: Sequence[Cell] = (
        ("rank time" if is_wall else name_row(place)),
        replace(before, bound=find_side_bound(loaded, place, after=False)),
        replace(after, bound=find_side_bound(loaded, place, after=True)),
        _make_change_cell(scaled),
        make_interval(report, "equal_work")
        if is_wall
        else make_time_figure(interval)
        if interval is not None
        else _make_limit_cell(scaled, judgement, uncertainty),
        format_judgement(judgement),
        Marked("step times of all ranks / work of all ranks", Mark.MUTED),
    )
    return Row(key=f"{place.key} a token", cells=tuple(cells), mark=Mark.TITLE if is_wall else Mark.PLAIN)


def _is_wall_time(place: RowPlace) -> bool:
    return place.row.name == "wall_ns"


def _bootstrap_per_work(loaded: LoadedRun, place: RowPlace) -> Interval | None:
    """Return the interval of a term's change per token or sample, of all ranks."""
    comparison = loaded.report.comparison
    work = comparison.equal_work if comparison else None
    if comparison is None or work is None:
        return None
    ranks = len(comparison.baseline_time), len(loaded.report.time.per_rank)
    return bootstrap_time_interval(loaded, place, (ranks[0] / work.a_per_step, ranks[1] / work.b_per_step))


def _get_work_interval(loaded: LoadedRun) -> Interval | None:
    comparison = loaded.report.comparison
    return comparison.equal_work.ci95 if comparison and comparison.equal_work else None


#: Terminal columns of the header line, excluding the two names.
_OTHER_WIDTH = 62
_MIN_NAME_WIDTH = 14
#: A common prefix of two names is cut if it has at least this many characters.
_MIN_COMMON_PREFIX = 4


class CompareOptions(Struct, frozen=True, kw_only=True):
    """Display options: differences only, and times per token instead of per step."""

    only_differences: bool = False
    per_token: bool = False


def format_header(loaded: LoadedRun, shown: CompareOptions, width: int = 0) -> list[Marked]:
    """Format the names of A and B and the display options, for a terminal width."""
    comparison = loaded.report.comparison
    before = comparison.baseline if comparison else (loaded.both.a.name if loaded.both else "")
    max_width = max(_MIN_NAME_WIDTH, (width - _OTHER_WIDTH) // 2)
    names = shorten_names(before, loaded.report.run.name, max_width)
    return [
        Marked(f"A {names[0]} (baseline)", Mark.TITLE),
        Marked(f"B {names[1]} (this run)", Mark.TITLE),
        Marked(f"per {get_work_unit(loaded) if shown.per_token else 'step'}", Mark.MUTED),
        Marked("differences only" if shown.only_differences else "all rows", Mark.MUTED),
    ]


def get_work_unit(loaded: LoadedRun) -> str:
    """Return ``token`` or ``sample``, the unit of work of both runs; empty if unknown."""
    work = loaded.report.comparison.equal_work if loaded.report.comparison else None
    return work.unit.value.removesuffix("s") if work else ""


def shorten_names(before: str, after: str, max_width: int) -> tuple[str, str]:
    """Shorten two names to ``max_width`` columns each, cutting their common prefix first."""
    names = (printable(before), printable(after))
    prefix = next((index for index, (a, b) in enumerate(zip(*names, strict=False)) if a != b), 0)
    if prefix >= _MIN_COMMON_PREFIX and max(map(display_width, names)) > max_width:
        names = (f"…{names[0][prefix:]}", f"…{names[1][prefix:]}")
    return shorten(names[0], max_width), shorten(names[1], max_width)


def format_short_verdict(loaded: LoadedRun) -> list[Cell]:
    """Format the verdict without its cause, which the overview shows."""
    status, sentence = format_verdict(loaded.report)
    return [status, sentence.partition(", because ")[0]]


NO_BASELINE = (
    "No comparison: this run has no baseline.\n\n"
    "  b              enter the path of another run to use as the baseline\n"
    "  zprof tui RUN --baseline OTHER_RUN\n\n"
    "The verdict then shows whether this run is slower than the baseline, by how much, and why."
)
_MAX_SETTING, _MAX_VALUE = 22, 22
_PER_STEP = frozenset(
    {
        SectionKind.RANK,
        SectionKind.COLLECTIVE,
        SectionKind.LATE,
        SectionKind.KERNELS,
        SectionKind.EQUAL_WORK,
        SectionKind.VOLUME,
    }
)
_NOT_PER_TOKEN = frozenset({"noise_floor_ns", "first_wait_ns"})
_ENVIRONMENT = "environment"


def explain_no_tokens(loaded: LoadedRun) -> str:
    """Explain why times cannot be shown per token; empty if they can."""
    comparison = loaded.report.comparison
    if comparison is None or comparison.step_time is None:
        return "step times of both runs are required"
    if comparison.equal_work is None:
        gap = next((gap for gap in loaded.report.gaps if gap.kind is GapKind.UNEQUAL_WORK), None)
        return f"{gap.reason} ({gap.remedy})" if gap else "the work per step is unknown for both runs"
    runs = [loaded.report.run, *([comparison.baseline_run] if comparison.baseline_run else [])]
    if any(len(run.ranks_loaded) < run.world_size for run in runs):
        return "not all ranks are loaded, but the token count covers all ranks"
    return ""


def build_compare_table(loaded: LoadedRun, shown: CompareOptions) -> Table:
    """Build the table of all values of both runs, or only of those that differ."""
    columns = (
        Column(
            title="metric",
            kind=Kind.TEXT,
            takes_rest=True,
            help="memory: the largest rank of each run; otherwise the mean over ranks",
        ),
        Column(
            title="A",
            help="the baseline",
        ),
        Column(
            title="B",
            help="this run",
        ),
        Column(
            title="change",
            help="from A to B, relative to A; pt: percentage points, for shares",
        ),
        Column(
            title="interval",
            kind=Kind.TEXT,
            help="95 % interval of the change; ±: the change that a time without an interval must exceed "
            "to be significant; exact: bytes and counts",
        ),
        Column(title="verdict", kind=Kind.TEXT, help=VERDICTS),
        Column(
            title="section",
            kind=Kind.TEXT,
            help="its section in zprof compare",
            from_width=112,
            takes_rest=True,
        ),
    )
    lines = _build_token_lines(loaded, shown) if shown.per_token else _build_step_lines(loaded, shown)
    return Table(
        name="compare",
        title=_format_token_title(loaded) if shown.per_token else "side by side",
        columns=columns,
        rows=tuple(lines),
        help="Rows of zprof compare. Press enter on a number from the report for its formula and inputs, and "
        "elsewhere in a row for both values in full and an explanation of the verdict.",
        note="rows that are 0 or unknown in both runs are omitted (zprof compare --all)",
    )


def _format_token_title(loaded: LoadedRun) -> str:
    """Format the title of times per token, which are rank times, not step times."""
    unit = get_work_unit(loaded)
    return f"rank time per {unit}: step times of all ranks / {unit}s of all ranks"


VERDICTS = (
    "the step time and its terms are judged by their own 95 % interval, other times by that of the step "
    "time, bytes and counts exactly. noise: the interval contains 0; exact, differs: changed, but neither is "
    "better; unknown: unknown in one of the runs; not judged: significance unknown, press enter for the "
    "reason"
)


def _build_step_lines(loaded: LoadedRun, shown: CompareOptions) -> list[Row]:
    assert loaded.both is not None
    uncertainty = find_uncertainty(loaded.report)
    places = select_places(loaded.both, only_differences=shown.only_differences)
    return [build_line(loaded, place, uncertainty) for place in places]


def _build_token_lines(loaded: LoadedRun, shown: CompareOptions) -> list[Row]:
    """Build the ledger rows per token, plus rows such as memory that do not depend on the step."""
    assert loaded.both is not None
    uncertainty = find_uncertainty(loaded.report, per_token=True)
    lines = []
    for place in select_places(loaded.both, only_differences=shown.only_differences):
        part = classify_section(place.section)
        if part is SectionKind.STEP and place.row.unit == "ns" and place.row.name not in _NOT_PER_TOKEN:
            lines.append(build_per_token_line(loaded, place, _scale_to_token(uncertainty, loaded)))
        elif part is not SectionKind.STEP and part not in _PER_STEP:
            lines.append(build_line(loaded, place, uncertainty))
    return lines


def _scale_to_token(uncertainty: Uncertainty, loaded: LoadedRun) -> Uncertainty:
    """Scale the uncertainty to the time of all of A's ranks per token."""
    comparison = loaded.report.comparison
    assert comparison is not None
    assert comparison.equal_work is not None
    share = len(comparison.baseline_time) / comparison.equal_work.a_per_step
    return replace(
        uncertainty, times_ns=None if uncertainty.times_ns is None else uncertainty.times_ns * share
    )


def settings_differ(loaded: LoadedRun) -> bool:
    """Return True if any setting differs."""
    return loaded.both is not None and bool(select_shown_settings(loaded.both.settings, everything=False))


def build_settings_table(loaded: LoadedRun, shown: CompareOptions) -> Table:
    """Build the table of the settings of both runs, those that differ first."""
    assert loaded.both is not None
    settings = enumerate(loaded.both.settings)
    differing = select_shown_settings(loaded.both.settings, everything=False)
    ordered = sorted(settings, key=lambda entry: entry[1].a == entry[1].b)
    lines = [_build_setting_line(index, setting) for index, setting in ordered if setting in differing]
    if not shown.only_differences:
        lines += [
            _build_setting_line(index, setting) for index, setting in ordered if setting not in differing
        ]
    return Table(
        name="settings",
        title=f"settings: {len(differing) or 'none'} {'differs' if len(differing) == 1 else 'differ'}",
        columns=(
            Column(
                title="setting", kind=Kind.TEXT, help="from the environment, the training program or the run"
            ),
            Column(title="A", kind=Kind.TEXT, help="the baseline"),
            Column(title="verdict", kind=Kind.TEXT),
            Column(title="B", kind=Kind.TEXT, help="this run", takes_rest=True),
        ),
        rows=tuple(lines),
        note="" if differing else "all settings are equal",
        help="Settings of both runs. Press enter for both values in full.",
    )


def _build_setting_line(index: int, setting: Setting) -> Row:
    is_same = setting.a == setting.b
    name = setting.name if setting.where == _ENVIRONMENT else setting.name.replace("_", " ")
    before, after = (UNKNOWN if value is None else value for value in (setting.a, setting.b))
    return Row(
        key=f"settings[{index}]",
        cells=(
            shorten(name, _MAX_SETTING),
            shorten(before, _MAX_VALUE),
            format_judgement(Judgement.SAME if is_same else Judgement.DIFFERS),
            after,
        ),
        opens=Opens.COMPARED,
        mark=Mark.MUTED if is_same else Mark.PLAIN,
    )


def describe_row(loaded: LoadedRun, key: str) -> tuple[str, str]:
    """Return the title and text for a row or setting, with both values in full."""
    both = loaded.both
    assert both is not None
    settings = {f"settings[{index}]": setting for index, setting in enumerate(both.settings)}
    if key in settings:
        setting = settings[key]
        values = [UNKNOWN if value is None else value for value in (setting.a, setting.b)]
        return f"{setting.where}: {setting.name}", _format_sides(loaded, values, setting.name, key)
    place = next(place for place in select_places(both, only_differences=False) if place.key == key)
    return name_row(place), _format_row(loaded, place)


def _format_row(loaded: LoadedRun, place: RowPlace) -> str:
    section, row, uncertainty = place.section, place.row, find_uncertainty(loaded.report)
    judgement = judge_place(loaded, place, uncertainty)
    own = bootstrap_time_interval(loaded, place)
    values = [
        BOUND_SIGNS[find_side_bound(loaded, place, after=after)] + format_figure(value, row.unit)
        for value, after in ((row.a, False), (row.b, True))
    ]
    lines = [
        f"{section.title}: {row.name}",
        section.note,
        "",
        _format_sides(loaded, values, name_row(place), place.key),
    ]
    why = explain_judgement(judgement, row, uncertainty, has_own=own is not None)
    return "\n".join([*lines, "", f"change   {format_change(row) or 'none'}", why])


def _format_sides(loaded: LoadedRun, values: list[str], name: str, key: str) -> str:
    assert loaded.both is not None
    lines = [f"A  {loaded.both.a.name}", f"   {values[0]}", f"B  {loaded.both.b.name}", f"   {values[1]}"]
    return "\n".join([*lines, "", f"{name}, in zprof compare A B -f json: {key}"])
