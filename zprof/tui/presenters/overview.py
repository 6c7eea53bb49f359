"""Content of the overview: verdict, ledger with bars, findings with evidence, and remaining facts.

Pure functions of a loaded run.
"""

from collections.abc import Mapping
from itertools import accumulate

from zprof.model.findings import Confidence, Finding
from zprof.model.formatting import shorten
from zprof.model.report import Report, VerdictStatus
from zprof.model.time import LEDGER_NAMES
from zprof.reports.presenters.findings import grouped_gaps
from zprof.reports.presenters.time_figures import ledger, per, step_change_ns
from zprof.reports.presenters.time_words import AT_LEAST, AT_MOST, bounds
from zprof.tui.figures import Aggregation, Figure, Range, Unit, figure, make_range
from zprof.tui.session import LoadedRun
from zprof.tui.tables import BarCell, Cell, Column, Line, Mark, Opens, Table, TextCell

_STATUS = {
    VerdictStatus.OK: ("✓ OK", Mark.GOOD),
    VerdictStatus.SLOWER: ("✗ SLOWER", Mark.BAD),
    VerdictStatus.RISK: ("! RISK", Mark.DOUBTFUL),
    VerdictStatus.INCONCLUSIVE: ("? INCONCLUSIVE", Mark.DOUBTFUL),
}
_MAX_DIFFERENCES = 28
#: Note of a findings table without findings, indexed by whether there are gaps.
_NO_FINDING = ("all that zprof tests for was tested", "what was not tested, and why, is said below")
#: Separator after a part's name, indexed by whether the text has several lines.
_NEXT_LINE = (" ", "\n")


def format_verdict(report: Report) -> list[TextCell]:
    """Return the status with its sign, and the sentence without the status."""
    word, mark = _STATUS[report.verdict.status]
    return [TextCell(word, mark), TextCell(report.verdict.sentence.removeprefix(word[2:]).strip())]


def format_warning(report: Report) -> str:
    """Return that the jobs differ and what is simulated; empty if neither applies.

    A single line that is cut at its end, so the simulation facts come last and can be lost, but not the
    statement that there is one.
    """
    comparison = report.comparison
    baseline = comparison.baseline_run if comparison else None
    said = []
    if comparison is not None and comparison.differences:
        differing = ", ".join(entry.what for entry in comparison.differences)
        said.append(f"not the same job: {shorten(differing, _MAX_DIFFERENCES)}")
    facts = dict.fromkeys(fact for run in (report.run, baseline) if run is not None for fact in run.modelled)
    if facts:
        said.append(f"MODELLED, not measured: {'; '.join(sorted(facts, key=_is_not_link))}")
    return " · ".join(said)


def _is_not_link(fact: str) -> bool:
    return not fact.startswith("link")


def format_warning_cell(report: Report) -> TextCell:
    """Return the warning as a cell."""
    said = format_warning(report)
    return TextCell(f"! {said}" if said else "", Mark.DOUBTFUL)


def build_findings_table(loaded: LoadedRun) -> Table:
    """Return findings in the report's order: by what a fix saves."""
    columns = (
        Column(title="finding"),
        Column(title="saves", numeric=True, says="what a fix saves in a step, or frees on the largest rank"),
        Column(title="sure", says="how sure the rule is"),
        Column(title="frees", numeric=True, from_width=110, says="memory of the largest rank"),
        Column(title="what", rest=True),
    )
    found = loaded.report.findings
    return Table(
        name="findings",
        title=_findings_title(loaded.report),
        columns=columns,
        lines=tuple(_finding(loaded, place, one) for place, one in enumerate(found)),
        help="By what a fix saves in a step, or frees of memory. Those of low confidence are notes.",
        note="enter: evidence, fix, how to disprove it" if found else _NO_FINDING[bool(loaded.report.gaps)],
    )


def _findings_title(report: Report) -> str:
    if report.findings:
        return "why, and what to change"
    if not report.time.per_rank:
        return "no step was timed: what costs time was not tested"
    return "nothing to change: no cause that was tested was found"


def _finding(loaded: LoadedRun, place: int, found: Finding) -> Line:
    frees = _range(loaded, place, "saving_bytes", Unit.BYTES) if found.saving_bytes else None
    saves = _range(loaded, place, "saving_ns", Unit.NS) if found.saving_ns[1] else None
    return Line(
        key=str(place),
        cells=(
            TextCell(found.id),
            saves or frees or TextCell(""),
            TextCell(found.confidence.value),
            frees or TextCell(""),
            TextCell(found.sentence),
        ),
        opens=Opens.FINDING,
        target=place,
        mark=Mark.MUTED if found.confidence is Confidence.LOW else Mark.PLAIN,
    )


def _range(loaded: LoadedRun, place: int, name: str, unit: Unit) -> Range:
    low, high = (figure(loaded.tree, unit, f"findings[{place}].{name}[{end}]") for end in (0, 1))
    return make_range(low, high)


def describe_finding(report: Report, place: int, *, whole: bool = False) -> str:
    """Return the finding's sentence, unless the verdict repeats it, and the first line of its fix.

    ``whole``: return sentence, fix and how to disprove it in full.
    """
    if not 0 <= place < len(report.findings):
        return ""
    found = report.findings[place]
    if whole:
        parts = {found.id: found.sentence, "fix": found.fix.strip(), "to disprove it": found.disprove}
        return "\n".join(f"{name}:{_NEXT_LINE[_is_long(said)]}{said}" for name, said in parts.items())
    first, *more = found.fix.strip().split("\n")
    fix = f"{first} {more[0].strip()}" if first.endswith(":") and more else first
    sentence = "" if found.sentence in report.verdict.sentence else f"{found.id} {found.sentence}. "
    return f"{sentence}fix: {fix}{' …' if len(more) > 1 else ''}"


def list_untested(report: Report) -> str:
    """Return what could not be tested or measured with reasons, for a report without findings."""
    said = [f"{gap.subject}: {gap.reason}" for gap in grouped_gaps(report.gaps)]
    return "\n".join(["not tested:", *said]) if said else ""


def _is_long(text: str) -> bool:
    return "\n" in text


def build_rest_table(loaded: LoadedRun) -> Table:
    """Return one row each for memory, headroom, unclaimed time and untested rules."""
    lines = [*_memory(loaded), *_headroom(loaded), *_unclaimed(loaded), *_untested(loaded.report)]
    columns = (
        Column(title=""),
        Column(title="", numeric=True),
        Column(title=""),
        Column(title="", numeric=True),
        Column(title="", rest=True),
    )
    help_text = (
        "The largest peak, beside the baseline's; unclaimed: what is lost in a step and no finding claims, "
        "beside the whole step; what zprof could not test or measure: enter there says why, and what helps."
    )
    return Table(name="rest", title="", columns=columns, lines=tuple(lines), help=help_text)


def _memory(loaded: LoadedRun) -> list[Line]:
    report = loaded.report
    if not report.memory.per_rank:
        return []
    peak = _largest(loaded, "memory.per_rank[*].peak_bytes")
    before = report.comparison.baseline_memory if report.comparison else ()
    was: Cell = _largest(loaded, "comparison.baseline_memory[*].peak_bytes") if before else TextCell("")
    says = "in the baseline; largest rank of each" if before else "on the largest rank"
    return [_line("memory", "peak memory", peak, "was" if before else "", was, says)]


def _headroom(loaded: LoadedRun) -> list[Line]:
    """Return the headroom of the fullest device, if device counters are known."""
    known = [
        (device.device_total_bytes - device.device_used_bytes, place, device.rank)
        for place, device in enumerate(loaded.report.memory.devices)
        if device.device_total_bytes is not None and device.device_used_bytes is not None
    ]
    if not known:
        return []
    _, place, rank = min(known)
    stem = f"memory.devices[{place}]"
    total = f"{stem}.device_total_bytes"
    free = figure(loaded.tree, Unit.BYTES, total, f"{stem}.device_used_bytes", how=Aggregation.DIFFERENCE)
    whole = figure(loaded.tree, Unit.BYTES, total)
    return [_line("headroom", "headroom", free, "of", whole, f"of the device of rank {rank}, the fullest")]


def _unclaimed(loaded: LoadedRun) -> list[Line]:
    left = {term: ns for term, ns in loaded.report.unclaimed.items() if ns > 0}
    if not left or not loaded.report.time.per_rank:
        return []
    most = max(left, key=lambda term: left[term])
    ranks = [entry.rank for entry in loaded.report.time.per_rank]
    rank = loaded.report.unclaimed_rank
    on = "" if rank is None else f" on rank {rank}"
    says = f"of a step{on}, by no finding; mostly {LEDGER_NAMES.get(most, most)}"
    lost = figure(loaded.tree, Unit.NS, "unclaimed[*]", how=Aggregation.SUM)
    whole = f"time.per_rank[{ranks.index(rank)}].wall_ns" if rank in ranks else "time.per_rank[*].wall_ns"
    step = figure(loaded.tree, Unit.NS, whole, how=Aggregation.LARGEST)
    return [_line("unclaimed", "unclaimed", lost, "of", step, says)]


def _untested(report: Report) -> list[Line]:
    """Return a row with the subjects of the gaps; ``enter`` shows reasons and remedies."""
    names = [gap.subject for gap in grouped_gaps(report.gaps)]
    if not names:
        return []
    line = _line("untested", "not tested", TextCell(""), "", TextCell(""), ", ".join(names))
    return [Line(key=line.key, cells=line.cells, opens=Opens.GAP)]


def _line(key: str, name: str, value: Cell, beside: str, other: Cell, says: str) -> Line:
    """Return a row of two values; ``beside`` relates the other value to the first."""
    words = (TextCell(said, Mark.MUTED) for said in (name, beside, says))
    return Line(key=key, cells=(next(words), value, next(words), other, next(words)))


def _largest(loaded: LoadedRun, leaf: str) -> Figure:
    return figure(loaded.tree, Unit.BYTES, leaf, how=Aggregation.LARGEST)


_RANKS, _BASELINE = "time.per_rank[*]", "comparison.baseline_time[*]"
_STEP = "wall_ns"
_MAX_NAME = 20
#: Rounds to 0.1 ms; smaller times would be shown as 0.0.
_MIN_SHOWN_NS = 50_000
_BOUND = {AT_LEAST: "at least", AT_MOST: "at most"}


def build_ledger_table(loaded: LoadedRun) -> Table:
    """Return the ledger terms and the step that they sum to, with the baseline if there is one."""
    report = loaded.report
    compared = step_change_ns(report) is not None
    columns = [
        Column(title="term", says="terms of the step's wall time"),
        Column(title="ms", numeric=True, says="this run"),
        Column(title="of step", numeric=True),
    ]
    if compared:
        columns.append(Column(title="was ms", numeric=True, says="the baseline"))
        columns.append(Column(title="change", numeric=True, says="in ms; the changes sum to the step's"))
    columns.append(Column(title="", says="each bar begins where the one above it ends"))
    terms = select_terms(report)
    segments = layout_bars(report, terms)
    lines = [_build_term(loaded, term, segments, compared=compared) for term in (*terms, _STEP)]
    return Table(
        name="ledger",
        title=_format_title(report, compared=compared),
        columns=tuple(columns),
        lines=tuple(lines) if report.time.per_rank else (),
        help="Means over ranks and steps. The terms sum to the step time; terms of 0.0 ms are left out.\n"
        "enter on a number: its formula, its inputs, and the steps that it was measured from.",
        note=f"{per(report.time)}, mean over ranks" if report.time.per_rank else "no step was timed",
    )


def _format_title(report: Report, *, compared: bool) -> str:
    if not compared or report.comparison is None:
        return "where the time goes"
    before, after = (shorten(name, _MAX_NAME) for name in (report.comparison.baseline, report.run.name))
    return f"where the time goes: from {before} to {after}"


def select_terms(report: Report) -> list[str]:
    """Return the terms that are not shown as 0.0 ms, by time, or with a baseline by increase."""
    names = {name: term for term, name in LEDGER_NAMES.items()}
    rows = [
        (row.this_ns if row.change_ns is None else row.change_ns, row)
        for row in ledger(report)
        if max(abs(row.this_ns), abs(row.baseline_ns or 0), abs(row.change_ns or 0)) >= _MIN_SHOWN_NS
    ]
    return [names[row.name] for _, row in sorted(rows, key=lambda entry: -entry[0])]


def layout_bars(report: Report, terms: list[str]) -> Mapping[str, tuple[tuple[str, float, float], ...]]:
    """Return the bar segments of each term: (name, start, end), as fractions of the full width.

    The step's bar stacks all terms, or with a baseline shows its change from 0.
    """
    rows = {row.name: row for row in ledger(report)}
    names = LEDGER_NAMES
    compared = step_change_ns(report) is not None
    sizes = [(rows[names[term]].change_ns if compared else rows[names[term]].this_ns) or 0 for term in terms]
    ends = list(accumulate(sizes))
    low, high = min([0, *ends]), max([0, *ends])
    scale = max(1, high - low)
    found: dict[str, tuple[tuple[str, float, float], ...]] = {}
    for term, end, size in zip(terms, ends, sizes, strict=True):
        first, last = sorted((end - size, end))
        found[term] = ((term, (first - low) / scale, (last - low) / scale),) if size else ()
    stacked = tuple(segment for term in terms for segment in found[term])
    total = sorted((0, ends[-1])) if ends else [0, 0]
    change = ((_STEP, (total[0] - low) / scale, (total[1] - low) / scale),)
    return {**found, _STEP: change if compared else stacked}


def _build_term(
    loaded: LoadedRun,
    term: str,
    segments: Mapping[str, tuple[tuple[str, float, float], ...]],
    *,
    compared: bool,
) -> Line:
    tree, is_step = loaded.tree, term == _STEP
    cells: list[Cell] = [
        TextCell("= step" if is_step else _name_term(loaded.report, term)),
        figure(tree, Unit.MS, f"{_RANKS}.{term}", how=Aggregation.MEAN),
        figure(tree, Unit.RATIO, f"{_RANKS}.{term}", f"{_RANKS}.{_STEP}", how=Aggregation.SHARE),
    ]
    if compared:
        cells.append(figure(tree, Unit.MS, f"{_BASELINE}.{term}", how=Aggregation.MEAN))
        cells.append(
            figure(tree, Unit.MS, "comparison.ledger_delta[*]", how=Aggregation.SUM, signed=True)
            if is_step
            else figure(tree, Unit.MS, f"comparison.ledger_delta.{term}", signed=True)
        )
    cells.append(BarCell("", segments=segments[term]))
    return Line(key=term, cells=tuple(cells), mark=Mark.TITLE if is_step else Mark.PLAIN)


def _name_term(report: Report, term: str) -> str:
    """Return the term's name, with "at least" or "at most" if wait and transfer could not be separated."""
    name = LEDGER_NAMES[term]
    mark = bounds(report.time.per_rank).get(name)
    return f"{name}, {_BOUND[mark]}" if mark else name


def build_evidence_table(loaded: LoadedRun, place: int) -> Table:
    """Return the evidence of the finding at an index."""
    found = loaded.report.findings
    facts = found[place].evidence if 0 <= place < len(found) else ()
    stem = f"findings[{place}].evidence"
    return Table(
        name="evidence",
        title=f"evidence of {found[place].id}" if facts else "evidence",
        columns=(Column(title="fact", rest=True), Column(title="value", numeric=True)),
        lines=tuple(
            Line(
                key=str(at),
                cells=(TextCell(fact.what), figure(loaded.tree, Unit(fact.unit), f"{stem}[{at}].value")),
            )
            for at, fact in enumerate(facts)
        ),
        help="What the finding rests on: facts that were measured, each without the first collective of each "
        "group in the window.",
    )
