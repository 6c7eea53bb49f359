"""Build the content of the overview: verdict, ledger with bars, findings with evidence, and other facts.

All functions are pure functions of a loaded run.
"""

from collections.abc import Mapping
from itertools import accumulate

from msgspec.structs import replace

from zprof.model.findings import Confidence, Finding
from zprof.model.formatting import shorten
from zprof.model.hang import is_stuck
from zprof.model.leaves import read_range, read_value
from zprof.model.paths import Path
from zprof.model.quantities import BOUND_WORDS, Aggregation, Bound, Unit, Value
from zprof.model.report import Report, VerdictStatus
from zprof.model.time import LEDGER_NAMES
from zprof.reports.presenters.findings import format_location, merge_gaps
from zprof.reports.presenters.time_figures import ledger, step_change_ns
from zprof.reports.table import Bar, Cell, Column, Kind, Mark, Marked, Opens, Row, Table
from zprof.tui.session import LoadedRun

_STATUS = {
    VerdictStatus.OK: ("✓ OK", Mark.GOOD),
    VerdictStatus.SLOWER: ("✗ SLOWER", Mark.BAD),
    VerdictStatus.RISK: ("! RISK", Mark.DOUBTFUL),
    VerdictStatus.INCONCLUSIVE: ("? INCONCLUSIVE", Mark.DOUBTFUL),
}
_MAX_DIFFERENCES = 28
#: Note of an empty findings table, indexed by whether there are gaps.
_NO_FINDING = ("all causes were tested", "see below for what was not tested, and why")
#: Separator after a part's name, indexed by whether the text has several lines.
_NEXT_LINE = (" ", "\n")


def format_verdict(report: Report) -> tuple[Marked, str]:
    """Format the status with its symbol, and the sentence without the status."""
    word, mark = _STATUS[report.verdict.status]
    return Marked(word, mark), report.verdict.sentence.removeprefix(word[2:]).strip()


def format_warning(report: Report) -> str:
    """Format a warning if the jobs differ or values are simulated; empty if neither applies.

    The line is cut at its end, so the simulated facts come last: some of them may be lost, but not the
    statement that there are any.
    """
    comparison = report.comparison
    baseline = comparison.baseline_run if comparison else None
    warnings = []
    if comparison is not None and comparison.differences:
        differing = ", ".join(entry.what for entry in comparison.differences)
        warnings.append(f"not the same job: {shorten(differing, _MAX_DIFFERENCES)}")
    facts = dict.fromkeys(fact for run in (report.run, baseline) if run is not None for fact in run.modelled)
    if facts:
        warnings.append(f"MODELLED, not measured: {'; '.join(sorted(facts, key=_is_not_link))}")
    return " · ".join(warnings)


def _is_not_link(fact: str) -> bool:
    return not fact.startswith("link")


def format_warning_cell(report: Report) -> Marked:
    """Format the warning as a cell."""
    warning = format_warning(report)
    return Marked(f"! {warning}" if warning else "", Mark.DOUBTFUL)


def build_findings_table(loaded: LoadedRun) -> Table:
    """Build the table of findings in the report's order: by predicted saving."""
    basis = loaded.report.time.basis
    columns = (
        Column(title="finding", kind=Kind.TEXT),
        Column(
            title="saves",
            help=f"predicted saving {basis}, or memory freed on the largest rank",
        ),
        Column(title="confidence", kind=Kind.TEXT, help="confidence of the rule in the finding"),
        Column(title="frees", from_width=110, help="memory freed on the largest rank"),
        Column(title="description", kind=Kind.TEXT, takes_rest=True),
    )
    findings = loaded.report.findings
    return Table(
        name="findings",
        title=_format_findings_title(loaded.report),
        columns=columns,
        rows=tuple(_make_finding_line(loaded, index, finding) for index, finding in enumerate(findings)),
        help=f"Sorted by the predicted saving {basis}, or by the memory freed. Findings of low confidence "
        "are hints only.",
        note="enter: evidence, fix, how to disprove it"
        if findings
        else _NO_FINDING[bool(loaded.report.gaps)],
    )


def _format_findings_title(report: Report) -> str:
    if report.findings:
        return "why, and what to change"
    if not report.time.per_rank:
        return "no step was timed: causes that cost time were not tested"
    return "nothing to change: none of the tested causes was found"


def _make_finding_line(loaded: LoadedRun, index: int, finding: Finding) -> Row:
    freed = _make_saving(loaded, index, "saving_bytes") if finding.saving_bytes else None
    saved = _make_saving(loaded, index, "saving_ns") if finding.saving_ns[1] else None
    return Row(
        key=str(index),
        cells=(
            finding.id,
            saved or freed or "",
            finding.confidence.value,
            freed or "",
            finding.sentence,
        ),
        opens=Opens.FINDING,
        target=index,
        mark=Mark.MUTED if finding.confidence is Confidence.LOW else Mark.PLAIN,
    )


def _make_saving(loaded: LoadedRun, index: int, name: str) -> Value:
    return read_range(loaded.report, f"findings[{index}].{name}")


def describe_finding(report: Report, index: int, *, whole: bool = False) -> str:
    """Return the finding's sentence, unless the verdict repeats it, and the first line of its fix.

    ``whole``: return sentence, fix and how to disprove it in full.
    """
    if not 0 <= index < len(report.findings):
        return ""
    finding = report.findings[index]
    if whole:
        parts = {finding.id: finding.sentence}
        if finding.location is not None:
            parts["in"] = format_location(finding.location)
        parts |= {"fix": finding.fix.strip(), "to disprove it": finding.disprove}
        return "\n".join(f"{name}:{_NEXT_LINE[_is_multiline(text)]}{text}" for name, text in parts.items())
    first, *more = finding.fix.strip().split("\n")
    fix = f"{first} {more[0].strip()}" if first.endswith(":") and more else first
    sentence = "" if finding.sentence in report.verdict.sentence else f"{finding.id} {finding.sentence}. "
    place = f"in {format_location(finding.location)}; " if finding.location is not None else ""
    return f"{sentence}{place}fix: {fix}{' …' if len(more) > 1 else ''}"


def list_untested(report: Report) -> str:
    """List what could not be tested or measured, with reasons, for a report without findings."""
    reasons = [f"{gap.subject}: {gap.reason}" for gap in merge_gaps(report.gaps)]
    return "\n".join(["not tested:", *reasons]) if reasons else ""


def _is_multiline(text: str) -> bool:
    return "\n" in text


def build_rest_table(loaded: LoadedRun) -> Table:
    """Build one row each for a ledger without a place, memory, headroom, unclaimed time, untested rules."""
    lines = [
        *_list_ledger_lines(loaded),
        *_list_memory_lines(loaded),
        *_list_headroom_lines(loaded),
        *_list_unclaimed_lines(loaded),
        *_list_untested_lines(loaded.report),
    ]
    columns = (
        Column(title="", kind=Kind.TEXT),
        Column(
            title="",
        ),
        Column(title="", kind=Kind.TEXT),
        Column(
            title="",
        ),
        Column(title="", kind=Kind.TEXT, takes_rest=True),
    )
    help_text = (
        "memory: the largest peak, and the baseline's; unclaimed: time lost "
        f"{loaded.report.time.basis} that no finding "
        "explains, and the step time; not tested: what zprof could not test or measure; press enter for "
        "reasons and remedies."
    )
    return Table(name="rest", title="", columns=columns, rows=tuple(lines), help=help_text)


def _list_ledger_lines(loaded: LoadedRun) -> list[Row]:
    """Return the row that opens where the time went before a job was stuck."""
    report = loaded.report
    if not is_stuck(report.hang) or not report.time.per_rank:
        return []
    step = read_value(report, f"{_RANKS}.{_STEP}", how=Aggregation.MEAN, in_ms=True)
    note = "before it was stuck; press enter for where the time went"
    line = _make_line("ledger", report.time.total_name, step, "", "", note)
    return [Row(key=line.key, cells=line.cells, opens=Opens.LEDGER)]


def _list_memory_lines(loaded: LoadedRun) -> list[Row]:
    report = loaded.report
    if not report.memory.per_rank:
        return []
    peak = _make_largest(loaded, "memory.per_rank[*].peak_bytes")
    if not (report.comparison and report.comparison.baseline_memory):
        return [_make_line("memory", "peak memory", peak, "", "", "on the largest rank")]
    baseline_peak = _make_largest(loaded, "comparison.baseline_memory[*].peak_bytes")
    note = "in the baseline; largest rank of each"
    return [_make_line("memory", "peak memory", peak, "was", baseline_peak, note)]


def _list_headroom_lines(loaded: LoadedRun) -> list[Row]:
    """Return the headroom of the fullest device, if device counters are known."""
    known = [
        (device.device_total_bytes - device.device_used_bytes, index, device.rank)
        for index, device in enumerate(loaded.report.memory.devices)
        if device.device_total_bytes is not None and device.device_used_bytes is not None
    ]
    if not known:
        return []
    _, index, rank = min(known)
    stem = f"memory.devices[{index}]"
    total = f"{stem}.device_total_bytes"
    free = read_value(loaded.report, total, f"{stem}.device_used_bytes", how=Aggregation.DIFFERENCE)
    capacity = read_value(loaded.report, total)
    note = f"on the device of rank {rank}, the fullest"
    return [_make_line("headroom", "headroom", free, "of", capacity, note)]


def _list_unclaimed_lines(loaded: LoadedRun) -> list[Row]:
    unclaimed = {term: ns for term, ns in loaded.report.unclaimed.items() if ns > 0}
    if not unclaimed or not loaded.report.time.per_rank:
        return []
    largest = max(unclaimed, key=lambda term: unclaimed[term])
    ranks = [entry.rank for entry in loaded.report.time.per_rank]
    rank = loaded.report.unclaimed_rank
    owner = "" if rank is None else f" on rank {rank}"
    mostly = LEDGER_NAMES.get(largest, largest)
    note = f"{loaded.report.time.basis}{owner}, not explained by any finding; mostly {mostly}"
    lost = read_value(loaded.report, "unclaimed[*]", how=Aggregation.SUM)
    wall = f"time.per_rank[{ranks.index(rank)}].wall_ns" if rank in ranks else "time.per_rank[*].wall_ns"
    step = read_value(loaded.report, wall, how=Aggregation.LARGEST)
    return [_make_line("unclaimed", "unclaimed", lost, "of", step, note)]


def _list_untested_lines(report: Report) -> list[Row]:
    """Return a row with the subjects of the gaps; ``enter`` shows reasons and remedies."""
    names = [gap.subject for gap in merge_gaps(report.gaps)]
    if not names:
        return []
    line = _make_line("untested", "not tested", "", "", "", ", ".join(names))
    return [Row(key=line.key, cells=line.cells, opens=Opens.GAP)]


def _make_line(key: str, name: str, value: Cell, relation: str, other: Cell, note: str) -> Row:
    """Return a row of two values; ``relation`` is the word between them."""
    texts = (Marked(text, Mark.MUTED) for text in (name, relation, note))
    return Row(key=key, cells=(next(texts), value, next(texts), other, next(texts)))


def _make_largest(loaded: LoadedRun, leaf: str) -> Value:
    return read_value(loaded.report, leaf, how=Aggregation.LARGEST)


_RANKS, _BASELINE = "time.per_rank[*]", "comparison.baseline_time[*]"
_STEP = "wall_ns"
_MAX_NAME = 20
#: Rounds to 0.1 ms; smaller times would be shown as 0.0.
_MIN_SHOWN_NS = 50_000


def build_ledger_table(loaded: LoadedRun) -> Table:
    """Build the ledger terms and the step that they sum to, with the baseline if there is one."""
    report = loaded.report
    is_compared = step_change_ns(report) is not None
    columns = [
        Column(title="term", kind=Kind.TEXT, help="term of the step time"),
        Column(title="ms", help="this run"),
        Column(
            title="of step",
        ),
    ]
    if is_compared:
        columns.append(Column(title="was ms", help="the baseline"))
        columns.append(Column(title="change", help="in ms; the changes sum to the change in step time"))
    columns.append(Column(title="", kind=Kind.TEXT, help="each bar starts where the one above it ends"))
    terms = select_terms(report)
    segments = layout_bars(report, terms)
    lines = [_build_term(loaded, term, segments, is_compared=is_compared) for term in (*terms, _STEP)]
    return Table(
        name="ledger",
        title=_format_title(report, is_compared=is_compared),
        columns=tuple(columns),
        rows=tuple(lines) if report.time.per_rank else (),
        help="Means over ranks and steps. The terms sum to the step time; terms of 0.0 ms are left out.\n"
        "Press enter on a number for its formula, its inputs, and the steps that it was measured from.",
        note=f"{report.time.basis}, mean over ranks" if report.time.per_rank else "no step was timed",
    )


def _format_title(report: Report, *, is_compared: bool) -> str:
    if not is_compared or report.comparison is None:
        return "where the time goes"
    before, after = (shorten(name, _MAX_NAME) for name in (report.comparison.baseline, report.run.name))
    return f"where the time goes: from {before} to {after}"


def select_terms(report: Report) -> list[str]:
    """Return the terms that are not shown as 0.0 ms, sorted by time, or with a baseline by increase."""
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
    is_compared = step_change_ns(report) is not None
    term_rows = [rows[LEDGER_NAMES[term]] for term in terms]
    sizes = [(row.change_ns if is_compared else row.this_ns) or 0 for row in term_rows]
    ends = list(accumulate(sizes))
    low, high = min([0, *ends]), max([0, *ends])
    scale = max(1, high - low)
    segments: dict[str, tuple[tuple[str, float, float], ...]] = {}
    for term, end, size in zip(terms, ends, sizes, strict=True):
        first, last = sorted((end - size, end))
        segments[term] = ((term, (first - low) / scale, (last - low) / scale),) if size else ()
    stacked = tuple(segment for term in terms for segment in segments[term])
    total = sorted((0, ends[-1])) if ends else [0, 0]
    change = ((_STEP, (total[0] - low) / scale, (total[1] - low) / scale),)
    return {**segments, _STEP: change if is_compared else stacked}


def _build_term(
    loaded: LoadedRun,
    term: str,
    segments: Mapping[str, tuple[tuple[str, float, float], ...]],
    *,
    is_compared: bool,
) -> Row:
    report, is_step = loaded.report, term == _STEP
    time = read_value(report, f"{_RANKS}.{term}", how=Aggregation.MEAN, in_ms=True)
    share = read_value(report, f"{_RANKS}.{term}", f"{_RANKS}.{_STEP}", how=Aggregation.SHARE)
    term_name = ", ".join(filter(None, (LEDGER_NAMES.get(term), BOUND_WORDS[time.bound].strip())))
    name = f"= {report.time.total_name}" if is_step else term_name
    cells: list[Cell] = [
        name,
        replace(time, bound=Bound.EXACT),
        replace(share, bound=Bound.EXACT),
    ]
    if is_compared:
        cells.append(read_value(report, f"{_BASELINE}.{term}", how=Aggregation.MEAN, in_ms=True))
        cells.append(
            read_value(report, "comparison.ledger_delta[*]", how=Aggregation.SUM, signed=True, in_ms=True)
            if is_step
            else read_value(report, f"comparison.ledger_delta.{term}", signed=True, in_ms=True)
        )
    cells.append(Bar(segments=segments[term]))
    return Row(key=term, cells=tuple(cells), mark=Mark.TITLE if is_step else Mark.PLAIN)


def build_evidence_table(loaded: LoadedRun, index: int) -> Table:
    """Build the evidence table of the finding at an index."""
    findings = loaded.report.findings
    facts = findings[index].evidence if 0 <= index < len(findings) else ()
    stem = ("findings", index, "evidence")
    return Table(
        name="evidence",
        title=f"evidence of {findings[index].id}" if facts else "evidence",
        columns=(
            Column(title="fact", kind=Kind.TEXT, takes_rest=True),
            Column(
                title="value",
            ),
        ),
        rows=tuple(
            Row(
                key=str(number),
                cells=(
                    fact.what,
                    Value(number=fact.value, unit=Unit(fact.unit), leaves=(Path((*stem, number, "value")),)),
                ),
            )
            for number, fact in enumerate(facts)
        ),
        help="Measured facts that support the finding. They exclude the first collective of each group in "
        "the window.",
    )
