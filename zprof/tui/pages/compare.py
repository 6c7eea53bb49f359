"""The two runs side by side: what is compared, every figure of both, and how they were run."""

from dataclasses import replace

from zprof.model.printable import shorten
from zprof.model.side_by_side import Setting
from zprof.reports.presenters.side_by_side import UNKNOWN, change, figure, shown_settings
from zprof.tui.pages.compare_head import Shown, work_unit
from zprof.tui.pages.compare_judged import judgement_of, sign_of
from zprof.tui.pages.compare_leaves import Part, part_of
from zprof.tui.pages.compare_places import Place, name_of, places
from zprof.tui.pages.compare_rows import line_of, per_token_line
from zprof.tui.pages.compare_verdict import Doubt, Judgement, doubt_of, verdict_word, why
from zprof.tui.session import Loaded
from zprof.tui.tables import Column, Line, Mark, Opens, Table, Word

NO_BASELINE = (
    "There is nothing to compare with: this run has no baseline.\n\n"
    "  b              type the path of another run: it is measured beside this one\n"
    "  zprof tui RUN --baseline OTHER_RUN\n\n"
    "The verdict then says whether this run is slower than the other, by how much, and why."
)
_LONGEST_SETTING, _LONGEST_VALUE = 22, 22
_PER_STEP = frozenset({Part.RANK, Part.COLLECTIVE, Part.LATE, Part.KERNELS, Part.EQUAL_WORK, Part.VOLUME})
_OF_NO_TOKEN = frozenset({"noise_floor_ns", "first_wait_ns"})
_ENVIRONMENT = "environment"


def why_no_tokens(loaded: Loaded) -> str:
    """Why times cannot be given per token; empty where they can."""
    comparison = loaded.report.comparison
    if comparison is None or comparison.step_time is None:
        return "the steps of both runs are not timed"
    if comparison.equal_work is None:
        gap = next((gap for gap in loaded.report.gaps if gap.what == "time at equal work"), None)
        return f"{gap.reason} ({gap.remedy})" if gap else "the work of a step is not known of both runs"
    runs = [loaded.report.run, *([comparison.baseline_run] if comparison.baseline_run else [])]
    if any(len(run.ranks_loaded) < run.world_size for run in runs):
        return "not all ranks are loaded, and the tokens are those of all"
    return ""


def compare_table(loaded: Loaded, shown: Shown) -> Table:
    """Every figure of both, or what differs."""
    columns = (
        Column(
            title="metric",
            rest=True,
            says="of memory the largest rank of each side, else the mean of the ranks",
        ),
        Column(title="A", says="the baseline", numeric=True),
        Column(title="B", says="this run", numeric=True),
        Column(title="change", says="from A to B, of A's value; pt: of a share, in points", numeric=True),
        Column(
            title="interval",
            says="the interval of the change; ±: of a time without one, what it must change by to be more "
            "than chance; exact: bytes and counts",
        ),
        Column(title="verdict", says=VERDICTS),
        Column(title="of", says="what it belongs to in zprof compare", from_width=112, rest=True),
    )
    lines = _token_lines(loaded, shown) if shown.per_token else _step_lines(loaded, shown)
    return Table(
        name="compare",
        title=_a_token_title(loaded) if shown.per_token else "side by side",
        columns=columns,
        lines=tuple(lines),
        help="Rows of zprof compare. enter on a number that is a leaf of the report: its formula and inputs; "
        "on the rest of a row: both figures in full, and why the verdict is what it is.",
        note="not here: what is 0 or unknown in both (zprof compare --all)",
    )


def _a_token_title(loaded: Loaded) -> str:
    """What a time is there: no step's, but a rank's for one token."""
    unit = work_unit(loaded)
    return f"rank time a {unit}: step times of all ranks / {unit}s of all ranks"


VERDICTS = (
    "times by the 95 % interval of the step time, bytes and counts exactly. noise: within that "
    "interval, be it many times as much; exact, differs: changed, and neither side is better; unknown: a "
    "side does not know it; not judged: nobody can say, enter says why"
)


def _step_lines(loaded: Loaded, shown: Shown) -> list[Line]:
    assert loaded.both is not None
    doubt = doubt_of(loaded.report)
    found = places(loaded.both, only_differences=shown.only_differences)
    return [line_of(loaded, place, doubt) for place in found]


def _token_lines(loaded: Loaded, shown: Shown) -> list[Line]:
    """The ledger per token; memory and what else is of no step stays."""
    assert loaded.both is not None
    doubt = doubt_of(loaded.report, per_token=True)
    lines = []
    for place in places(loaded.both, only_differences=shown.only_differences):
        part = part_of(place.section)
        if part is Part.STEP and place.row.unit == "ns" and place.row.name not in _OF_NO_TOKEN:
            lines.append(per_token_line(loaded, place, _a_token(doubt, loaded)))
        elif part is not Part.STEP and part not in _PER_STEP:
            lines.append(line_of(loaded, place, doubt))
    return lines


def _a_token(doubt: Doubt, loaded: Loaded) -> Doubt:
    """Of the time of all of A's ranks over its tokens."""
    comparison = loaded.report.comparison
    assert comparison is not None
    assert comparison.equal_work is not None
    share = len(comparison.baseline_time) / comparison.equal_work.a_per_step
    return replace(doubt, times_ns=None if doubt.times_ns is None else doubt.times_ns * share)


def settings_differ(loaded: Loaded) -> bool:
    """Whether any setting does."""
    return loaded.both is not None and bool(shown_settings(loaded.both.settings, everything=False))


def settings_table(loaded: Loaded, shown: Shown) -> Table:
    """Settings that differ first."""
    assert loaded.both is not None
    found = list(enumerate(loaded.both.settings))
    differing = shown_settings(loaded.both.settings, everything=False)
    ordered = sorted(found, key=lambda entry: entry[1].a == entry[1].b)
    lines = [_setting(at, setting) for at, setting in ordered if setting in differing]
    if not shown.only_differences:
        lines += [_setting(at, setting) for at, setting in ordered if setting not in differing]
    return Table(
        name="settings",
        title=f"settings: {len(differing) or 'none'} {'differs' if len(differing) == 1 else 'differ'}",
        columns=(
            Column(title="setting", says="of the environment, the training program or the run"),
            Column(title="A", says="the baseline"),
            Column(title="verdict"),
            Column(title="B", says="this run", rest=True),
        ),
        lines=tuple(lines),
        note="" if differing else "all settings are the same",
        help="How both were run. enter: both values in full.",
    )


def _setting(at: int, setting: Setting) -> Line:
    is_same = setting.a == setting.b
    name = setting.name if setting.where == _ENVIRONMENT else setting.name.replace("_", " ")
    before, after = (UNKNOWN if value is None else value for value in (setting.a, setting.b))
    return Line(
        key=f"settings[{at}]",
        cells=(
            Word(shorten(name, _LONGEST_SETTING)),
            Word(shorten(before, _LONGEST_VALUE)),
            verdict_word(Judgement.SAME if is_same else Judgement.DIFFERS),
            Word(after),
        ),
        opens=Opens.COMPARED,
        mark=Mark.MUTED if is_same else Mark.PLAIN,
    )


def said_of_row(loaded: Loaded, key: str) -> tuple[str, str]:
    """Title and text on a row or setting, both sides in full."""
    both = loaded.both
    assert both is not None
    settings = {f"settings[{at}]": setting for at, setting in enumerate(both.settings)}
    if key in settings:
        setting = settings[key]
        sides = [UNKNOWN if value is None else value for value in (setting.a, setting.b)]
        return f"{setting.where}: {setting.name}", _sides(loaded, sides, setting.name, key)
    place = next(place for place in places(both, only_differences=False) if place.key == key)
    return name_of(place), _row_text(loaded, place)


def _row_text(loaded: Loaded, place: Place) -> str:
    section, row, doubt = place.section, place.row, doubt_of(loaded.report)
    judgement = judgement_of(loaded, place, doubt)
    figures = [
        f"{sign_of(loaded, place, after=after)}{figure(row.b if after else row.a, row.unit)}"
        for after in (False, True)
    ]
    said = [
        f"{section.title}: {row.name}",
        section.note,
        "",
        _sides(loaded, figures, name_of(place), place.key),
    ]
    return "\n".join([*said, "", f"change   {change(row) or 'none'}", why(judgement, row, doubt)])


def _sides(loaded: Loaded, values: list[str], what: str, key: str) -> str:
    assert loaded.both is not None
    lines = [f"A  {loaded.both.a.name}", f"   {values[0]}", f"B  {loaded.both.b.name}", f"   {values[1]}"]
    return "\n".join([*lines, "", f"{what}, in zprof compare A B -f json: {key}"])
