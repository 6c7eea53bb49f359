"""Build the tables of figures (with verdicts) and settings of two runs, and the popup of a row."""

from collections.abc import Callable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from zprof.base.formatting import format_ns, shorten
from zprof.model.comparison import (
    ComparedRow,
    JudgedRow,
    Judgement,
    RowPlace,
    SectionKind,
    Setting,
    SideBySide,
)
from zprof.model.cursor import Cursor, every, get, read
from zprof.model.quantities import BOUND_SIGNS, Aggregation, Unit, Value
from zprof.model.report import Report
from zprof.model.tenants import Tenant
from zprof.reports.pages.compare import (
    format_change,
    format_figure,
    label_row,
    select_shown_rows,
    select_shown_settings,
)
from zprof.reports.pages.ranks import order_by_waiting
from zprof.reports.table import UNKNOWN, Cell, Column, Kind, Mark, Marked, Opens, Row, Table

_SIGNS = {
    Judgement.BETTER: ("✓", Mark.GOOD),
    Judgement.WORSE: ("✗", Mark.BAD),
    Judgement.SAME: ("=", Mark.MUTED),
    Judgement.EXACT: ("*", Mark.PLAIN),
    Judgement.DIFFERS: ("*", Mark.PLAIN),
    Judgement.NOISE: ("~", Mark.MUTED),
    Judgement.UNKNOWN: ("?", Mark.MUTED),
    Judgement.UNJUDGED: ("", Mark.MUTED),
}
_EXPLANATIONS = {
    Judgement.SAME: "both are equal",
    Judgement.DIFFERS: "the values differ; neither is better",
    Judgement.EXACT: "counted exactly; neither value is better",
}
_VERDICT_HELP = (
    "the step time and its terms are judged by their own 95 % interval, other times by that of the step "
    "time, bytes and counts exactly. noise: the interval contains 0; exact, differs: changed, but neither is "
    "better; unknown: unknown in one of the runs; not judged: significance unknown, press enter for the "
    "reason"
)
_MAX_RANKS, _MAX_KERNELS = 8, 60
_MAX_PLACE = 200
_MAX_TEXT = 10
_MAX_SETTING, _MAX_VALUE = 22, 22
_MIN_WHOLE_PERCENT = 10
#: Shorter intervals are shown in µs.
_MIN_MS_NS = 1e6
#: Mean times and bytes are rounded to integers; shares and counts are not.
_MAX_ROUNDING, _MAX_RATIO_ROUNDING = 1.0, 1e-9
_ALL_RANKS_SUFFIX = ", all ranks"
_TENANTS = {f"{tenant.value}_bytes": tenant.value for tenant in Tenant}
#: Sections with times that are not shown per token, because they depend on the work per step.
_PER_STEP = (
    SectionKind.STEP,
    SectionKind.RANK,
    SectionKind.COLLECTIVE,
    SectionKind.LATE,
    SectionKind.KERNELS,
    SectionKind.EQUAL_WORK,
    SectionKind.VOLUME,
)

Judge = Callable[[RowPlace], JudgedRow]


class WordedValue(Value, frozen=True, kw_only=True):
    """A number computed from both runs, with its text: ``+3.2 %``, ``± 1.2 ms``."""

    words: str

    @property
    def text(self) -> str:
        """The words."""
        return self.words


class CompareOptions(Struct, frozen=True, kw_only=True):
    """Display options: differences only, and times per token instead of per step."""

    only_differences: bool = False
    per_token: bool = False


def build_compare_table(report: Report, both: SideBySide, judge: Judge, shown: CompareOptions) -> Table:
    """Build the table of all values of both runs, or only of differing values.

    ``report``: the report on B with A as its baseline. ``judge``: compares a row, per token if ``shown`` asks
    for it.
    """
    title = "side by side"
    places = _select_places(both, only_differences=shown.only_differences)
    if shown.per_token:
        unit = name_work_unit(report)
        title = f"rank time per {unit}: step times of all ranks / {unit}s of all ranks"
        places = [place for place in places if place.is_step_time or place.section.kind not in _PER_STEP]
    return Table(
        name="compare",
        title=title,
        columns=(
            Column(
                title="metric",
                kind=Kind.TEXT,
                takes_rest=True,
                help="memory: the largest rank of each run; otherwise the mean over ranks",
            ),
            Column(title="A", help="the baseline"),
            Column(title="B", help="this run"),
            Column(title="change", help="from A to B, relative to A; pt: percentage points, for shares"),
            Column(
                title="interval",
                kind=Kind.TEXT,
                help="95 % interval of the change; ±: the change that a time without an interval must exceed "
                "to be significant; exact: bytes and counts",
            ),
            Column(title="verdict", kind=Kind.TEXT, help=_VERDICT_HELP),
            Column(
                title="section",
                kind=Kind.TEXT,
                help="its section in zprof compare",
                from_width=112,
                takes_rest=True,
            ),
        ),
        rows=tuple(
            _build_line(report, place, judge(place), per_work=shown.per_token and place.is_step_time)
            for place in places
        ),
        help="Rows of zprof compare. Press enter on a number from the report for its formula and inputs, and "
        "elsewhere in a row for both values in full and an explanation of the verdict.",
        note="rows that are 0 or unknown in both runs are omitted (zprof compare --all)",
    )


def name_work_unit(report: Report) -> str:
    """Return ``token`` or ``sample``, the unit of work of both runs; empty if unknown."""
    work = report.comparison.equal_work if report.comparison else None
    return work.unit.value.removesuffix("s") if work else ""


def _select_places(both: SideBySide, *, only_differences: bool) -> list[RowPlace]:
    """Select the informative rows, the step first; only notable ranks and the longest kernels."""
    times = both.comparison.baseline_time if both.comparison else ()
    numbers = sorted({section.rank for section in both.sections if section.rank is not None})
    timed = [entry.rank for entry in times]
    notable = ([timed[at] for at in order_by_waiting(times, timed)] or numbers)[:_MAX_RANKS]
    order = list(SectionKind)
    sections = sorted(enumerate(both.sections), key=lambda entry: order.index(entry[1].kind))
    places = []
    for at, section in sections:
        if section.rank is not None and section.rank not in notable:
            continue
        informative = select_shown_rows(section, everything=False)
        if section.kind is SectionKind.KERNELS:
            informative = informative[:_MAX_KERNELS]
        selected = {id(row) for row in informative}
        places += [
            RowPlace(section=section, row=row, at=(at, number))
            for number, row in enumerate(section.rows)
            if id(row) in selected and (not only_differences or _differs(row))
        ]
    return places


def _differs(row: ComparedRow) -> bool:
    is_other_text = row.unit == "text" and row.a != row.b
    return bool(format_change(row)) or is_other_text or (row.a is None) != (row.b is None)


def name_row(place: RowPlace) -> str:
    """Return a row name that is clear without its section."""
    section, name = place.section, label_row(place.row)
    title = section.title.removesuffix(_ALL_RANKS_SUFFIX)
    if section.kind is SectionKind.STEP:
        return "step time" if place.row.name == "wall_ns" else name
    if section.kind is SectionKind.MEMORY:
        return "peak memory" if place.row.name == "peak_bytes" else name
    names = {
        SectionKind.RANK: f"rank {section.rank} {name}",
        SectionKind.LATE: f"rank {section.rank} late: {name}",
        SectionKind.COLLECTIVE: f"{title} {name}",
        SectionKind.LINK: f"{title.removeprefix('link of ')} link {name}",
        SectionKind.CLOCKS: f"clocks {name}",
        SectionKind.VOLUME: f"volume {name}",
    }
    return names.get(section.kind, name)


def _build_line(report: Report, place: RowPlace, judged: JudgedRow, *, per_work: bool) -> Row:
    """Build a row with values per step, or per token or sample."""
    row = judged.row
    is_wall = row.name == "wall_ns" and place.section.kind is SectionKind.STEP
    where = f"{place.section.title}: {place.section.note}"
    change: Cell = ""
    if isinstance(row.a, int | float) and isinstance(row.b, int | float):
        share = row.b - row.a if row.unit == "ratio" else row.b / row.a - 1 if row.a else None
        change = WordedValue(number=share, unit=Unit.RATIO, words=format_change(row))
    if per_work:
        where = "step times of all ranks / work of all ranks"
    cells: tuple[Cell, ...] = (
        "rank time" if per_work and is_wall else name_row(place),
        _make_side_cell(report, place, judged, after=False, per_work=per_work),
        _make_side_cell(report, place, judged, after=True, per_work=per_work),
        change,
        _make_interval_cell(report, place, judged, per_work=per_work),
        format_judgement(judged.judgement),
        Marked(shorten(where, _MAX_PLACE), Mark.MUTED),
    )
    return Row(
        key=f"{place.key} a token" if per_work else place.key,
        cells=cells,
        opens=Opens.NOTHING if per_work else Opens.COMPARED,
        mark=Mark.TITLE if is_wall else Mark.PLAIN,
    )


def format_judgement(judgement: Judgement) -> Marked:
    """Format the verdict as a cell with symbol and word."""
    sign, mark = _SIGNS[judgement]
    return Marked(f"{sign} {judgement.value}".strip(), mark)


def _make_side_cell(
    report: Report, place: RowPlace, judged: JudgedRow, *, after: bool, per_work: bool
) -> Cell:
    """Make the figure of one side, with its report leaves if they yield exactly this number."""
    value, unit = (judged.row.b if after else judged.row.a), judged.row.unit
    if unit == "text":
        if place.section.kind is SectionKind.FINDINGS:
            return "not tested" if value is None else "not found" if value == "not found" else "found"
        return shorten(format_figure(value, unit), _MAX_TEXT)
    assert not isinstance(value, str)
    bound = judged.bounds[after]
    found = _read_side(report, place, after=after, per_work=per_work)
    tolerance = _MAX_ROUNDING if unit in (Unit.NS, Unit.BYTES) else _MAX_RATIO_ROUNDING
    if found is not None and (
        per_work
        or (found.number is not None and value is not None and abs(found.number - value) <= tolerance)
    ):
        return replace(found, bound=bound)
    return Value(number=value, unit=Unit(unit), bound=bound)


def _read_side(report: Report, place: RowPlace, *, after: bool, per_work: bool) -> Value | None:
    """Read the figure of one side from the report on B; None if the report lacks it."""
    found, name, section = Cursor(report), place.row.name, place.section
    comparison, rank = found.comparison, section.rank
    if get(comparison) is None:
        return None
    times = found.time.per_rank if after else comparison.baseline_time
    if per_work:
        work = comparison.equal_work
        amount = work.b_per_step if after else work.a_per_step
        return read(every(times)[name], amount, how=Aggregation.PER_WORK)
    if section.kind is SectionKind.STEP:
        return read(every(times)[name], how=Aggregation.MEAN)
    if section.kind is SectionKind.RANK:
        ranks = [entry.rank for entry in get(times)]
        return read(times[ranks.index(rank)][name]) if rank in ranks else None
    if section.kind is SectionKind.MEMORY:
        memory = every(found.memory.per_rank if after else comparison.baseline_memory)
        tenant = _TENANTS.get(name)
        return read(memory.tenants[tenant] if tenant else memory[name], how=Aggregation.LARGEST)
    if section.kind is SectionKind.EQUAL_WORK and place.row.unit == "ns":
        return read(comparison.equal_work.b_ns if after else comparison.step_time.a_ns)
    if section.kind is SectionKind.EQUAL_WORK:
        return read(comparison.equal_work[f"{'b' if after else 'a'}_per_step"])
    return read(found.volume[name]) if section.kind is SectionKind.VOLUME and after else None


def _make_interval_cell(report: Report, place: RowPlace, judged: JudgedRow, *, per_work: bool) -> Cell:
    """Make a cell with the interval, or the minimum significant change of a time."""
    row, judgement, interval = judged.row, judged.judgement, judged.interval
    if interval is not None and row.unit == "ratio":
        low, high = (100 * end for end in interval)
        return WordedValue(number=interval[1], unit=Unit.RATIO, words=f"{low:+.0f}..{high:+.0f} pt")
    if interval is not None and judged.is_term:
        unit, scale = ("ms", 1e6) if max(map(abs, interval)) >= _MIN_MS_NS else ("µs", 1e3)
        low, high = (end / scale for end in interval)
        return WordedValue(number=interval[1], unit=Unit.NS, words=f"{low:+.1f}..{high:+.1f} {unit}")
    if interval is not None:
        is_scaled = per_work or place.section.kind is SectionKind.EQUAL_WORK
        return _make_relative_interval(report, "equal_work" if is_scaled else "step_time")
    is_judged = judgement in (Judgement.BETTER, Judgement.WORSE, Judgement.NOISE, Judgement.DIFFERS)
    if row.unit == "ns" and is_judged and judged.noise_ns is not None:
        return WordedValue(number=judged.noise_ns, unit=Unit.NS, words=f"± {format_ns(judged.noise_ns)}")
    is_known = judgement not in (Judgement.UNKNOWN, Judgement.UNJUDGED)
    return Marked("exact" if row.unit in ("bytes", "count") and is_known else "", Mark.MUTED)


def _make_relative_interval(report: Report, quantity: str) -> Value:
    """Make the 95 % interval of the change, relative to A's step time.

    ``quantity``: ``step_time`` or ``equal_work``. Whole percent if either end is 10 % or more.
    """
    comparison = Cursor(report).comparison
    low, high = (
        read(comparison[quantity].ci95[end], comparison.step_time.a_ns, how=Aggregation.SHARE, signed=True)
        for end in (0, 1)
    )
    if high.number is None or low.number is None:
        return high
    ends = (low.number * 100, high.number * 100)
    digits = 0 if max(map(abs, ends)) >= _MIN_WHOLE_PERCENT else 1
    words = "{:+.{digits}f}..{:+.{digits}f} %".format(*ends, digits=digits)
    return WordedValue(number=high.number, unit=high.unit, leaves=high.leaves, how=high.how, words=words)


def build_settings_table(both: SideBySide, shown: CompareOptions) -> Table:
    """Build the table of both runs' settings, different settings first."""
    differing = select_shown_settings(both.settings, everything=False)
    ordered = sorted(enumerate(both.settings), key=lambda entry: entry[1].a == entry[1].b)
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
        rows=tuple(
            _build_setting_line(index, setting)
            for index, setting in ordered
            if not shown.only_differences or setting.a != setting.b
        ),
        note="" if differing else "all settings are equal",
        help="Settings of both runs. Press enter for both values in full.",
    )


def _build_setting_line(index: int, setting: Setting) -> Row:
    is_same = setting.a == setting.b
    name = setting.name if setting.where == "environment" else setting.name.replace("_", " ")
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


def describe_compared(both: SideBySide, judge: Judge, key: str) -> tuple[str, str]:
    """Return the title and text of a row or setting, with both values in full."""
    for index, setting in enumerate(both.settings):
        if key == f"settings[{index}]":
            values = [UNKNOWN if value is None else value for value in (setting.a, setting.b)]
            title = f"{setting.where}: {setting.name}"
            return title, "\n".join(_list_sides(both, values, setting.name, key))
    place = next(place for place in _select_places(both, only_differences=False) if place.key == key)
    judged, row, section = judge(place), place.row, place.section
    values = [
        BOUND_SIGNS[bound] + format_figure(value, row.unit)
        for bound, value in zip(judged.bounds, (row.a, row.b), strict=True)
    ]
    lines = [f"{section.title}: {row.name}", section.note, ""]
    lines += _list_sides(both, values, name_row(place), key)
    lines += ["", f"change   {format_change(row) or 'none'}", _explain_judgement(judged)]
    return name_row(place), "\n".join(lines)


def _list_sides(both: SideBySide, values: list[str], name: str, key: str) -> Iterator[str]:
    yield from (f"A  {both.a.name}", f"   {values[0]}", f"B  {both.b.name}", f"   {values[1]}", "")
    yield f"{name}, in zprof compare A B -f json: {key}"


def _explain_judgement(judged: JudgedRow) -> str:
    """Explain the verdict in one line."""
    judgement, row = judged.judgement, judged.row
    if judgement is Judgement.UNKNOWN:
        return "unknown  the value of one run is unknown"
    if judgement is Judgement.UNJUDGED:
        no_interval = "it has no interval, because it is a rate, a share, a fit, a sample or a bound"
        return f"not judged: {judged.reason or no_interval}"
    is_noise = judgement is Judgement.NOISE
    interval = f"{'contains' if is_noise else 'excludes'} 0"
    if row.unit == "ratio":
        why = f"the 95 % interval of the change, from the shares of the individual steps, {interval}"
        why += "" if is_noise else "; more is better"
    elif judgement in (Judgement.SAME, Judgement.DIFFERS) or row.unit != "ns":
        why = _EXPLANATIONS.get(judgement, "counted exactly; less is better")
    elif judged.is_term:
        why = f"the 95 % interval of the change, from the times of the single steps, {interval}"
        why += "" if is_noise else "; less is better"
    else:
        limit = format_ns(judged.noise_ns or 0)
        verb = "is within" if is_noise else "exceeds"
        why = f"the change {verb} the uncertainty of the step time, {limit}"
        why += "" if is_noise else "; less is better"
    return f"{judgement.value:<8} {why}"
