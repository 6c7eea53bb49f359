"""Build the head of a report: verdict, key figures, the fix to try first, the runs, modelled parts."""

from collections.abc import Iterator, Sequence

from zprof.base.formatting import format_ns, format_percent, shorten
from zprof.model.cursor import Cursor, every, get, read
from zprof.model.hang import is_stuck
from zprof.model.quantities import BOUND_WORDS, Aggregation, Unit, Value
from zprof.model.report import Report, RunFacts, VerdictStatus
from zprof.model.time import LEDGER_NAMES
from zprof.reports.page import Block, Code, Facts, KeyFigures, Note, VerdictBlock
from zprof.reports.pages.findings import find_first_confident, has_tested_causes, merge_gaps
from zprof.reports.pages.ledger import exposure, step_ns
from zprof.reports.pages.names import (
    describe_run,
    describe_settings,
    format_reported_steps,
)
from zprof.reports.pages.ranks import list_late_ranks, read_wait_share
from zprof.reports.pages.tenants import format_largest_peak, largest_rank, peak_bytes
from zprof.reports.table import Cell, Column, Kind, Mark, Marked, Opens, Row, Table

#: Waiting below this share of the step is not a key figure; the table of late ranks shows it.
_MIN_WAIT_RATIO = 0.01

_STATUS = {
    VerdictStatus.OK: ("✓ OK", Mark.GOOD),
    VerdictStatus.SLOWER: ("✗ SLOWER", Mark.BAD),
    VerdictStatus.RISK: ("! RISK", Mark.DOUBTFUL),
    VerdictStatus.INCONCLUSIVE: ("? INCONCLUSIVE", Mark.DOUBTFUL),
}
_MAX_DIFFERENCES = 28
MARKS = {
    VerdictStatus.OK: "✓",
    VerdictStatus.SLOWER: "✗",
    VerdictStatus.RISK: "!",
    VerdictStatus.INCONCLUSIVE: "?",
}


def build_head_blocks(report: Report, *, with_fix: bool = True) -> tuple[Block, ...]:
    """Build the summary blocks of the report."""
    runs = [report.run, *list_baseline_runs(report)]
    facts = []
    for name, run in zip(("run", "baseline"), runs, strict=False):
        facts.append((name, describe_run(run, format_reported_steps(report, run))))
        if settings := describe_settings(run):
            facts.append(("settings", settings))
    comparison = report.comparison
    if comparison is not None and comparison.step_time is not None and comparison.equal_work is not None:
        work = comparison.equal_work
        if work.b_ns == comparison.step_time.b_ns and work.a_per_step == work.b_per_step:
            facts.append(("same work", f"{work.b_per_step} {work.unit.value} per step in both"))
    status, figures = report.verdict.status, tuple(_list_key_figures(report))
    return (
        VerdictBlock(tone=status.value, mark=MARKS[status], text=report.verdict.sentence),
        *([KeyFigures(figures=figures)] if figures else ()),
        *(_build_first_fix(report) if with_fix else ()),
        Facts(rows=tuple(facts)),
        *build_modelled_notes(runs),
    )


def list_baseline_runs(report: Report) -> tuple[RunFacts, ...]:
    """Return the baseline run, if there is one."""
    before = report.comparison.baseline_run if report.comparison else None
    return () if before is None else (before,)


def build_modelled_notes(runs: Sequence[RunFacts]) -> tuple[Note, ...]:
    """Build the note on simulated parts of these runs, which must never be omitted."""
    names = dict.fromkeys(name for run in runs for name in run.modelled)
    if not names:
        return ()
    explanation = "simulated, not executed; these times come from a model, not from your hardware"
    return (Note(label="MODELLED", text=f"{'; '.join(names)}: {explanation}."),)


def _build_first_fix(report: Report) -> Iterator[Code]:
    finding = find_first_confident(report.findings)
    if finding is None:
        return
    first, *more = lines = tuple(finding.fix.split("\n"))
    brief = ""
    if first.endswith(":"):  # a fix for each of several engines
        brief = f"see the fix of {finding.id} below"
    elif more:
        brief = f"{first}\n(complete fix: {finding.id} below)"
    yield Code(title="try first", lines=lines, brief=brief)


def _list_key_figures(report: Report) -> Iterator[tuple[str, str, str]]:
    if is_stuck(report.hang):
        if report.hang.stall_ns:
            yield "without progress", format_ns(report.hang.stall_ns), "when the ranks were saved"
    elif report.time.per_rank:
        ranks = report.time.per_rank
        times = report.comparison.step_time if report.comparison else None
        before = f"baseline {format_ns(times.a_ns)}, " if times else ""
        name = "total time" if report.time.is_whole else "step"
        yield name, format_ns(times.b_ns if times else step_ns(ranks)), f"{before}mean of the ranks"
        exposed = exposure(ranks)
        if exposed.ratio is not None:
            yield (
                "exposed communication",
                f"{BOUND_WORDS[exposed.bound]}{format_ns(exposed.exposed_ns)}",
                f"{format_percent(exposed.ratio)} of {format_ns(exposed.collective_ns)} in collectives, "
                f"{report.time.basis}",
            )
        for late in list_late_ranks(report)[:1]:
            caused = read(late.exposed_wait_per_rank_ns)
            if (caused.number or 0) < _MIN_WAIT_RATIO * step_ns(ranks):
                continue
            yield (
                f"wait caused by rank {get(late.rank)}",
                caused.text,
                f"{report.time.basis}, per waiting rank; "
                f"{read_wait_share(report, late).text} of all exposed waiting",
            )
    if report.memory.per_rank and not is_stuck(report.hang):
        yield _make_peak_figure(report)
    if not has_tested_causes(report):
        return
    groups = len(merge_gaps(report.gaps))
    note = f"{groups:,} not measured" if groups else "everything requested was measured"
    yield "findings", f"{len(report.findings):,}", note


def _make_peak_figure(report: Report) -> tuple[str, str, str]:
    ranks = report.memory.per_rank
    before = report.comparison.baseline_memory if report.comparison else ()
    rank = largest_rank(ranks)
    note = f"allocated on rank {rank.rank}{', the largest' if len(ranks) > 1 else ''}" if rank else ""
    if before:
        change = Value(peak_bytes(ranks) / max(1, peak_bytes(before)) - 1, Unit.RATIO, signed=True)
        note = f"on the largest rank; baseline {format_largest_peak(before)}, {change.text}"
    return "peak memory", format_largest_peak(ranks), note


def format_verdict(report: Report) -> tuple[Marked, str]:
    """Format the status with its symbol, and the sentence without the status."""
    word, mark = _STATUS[report.verdict.status]
    return Marked(word, mark), report.verdict.sentence.removeprefix(word[2:]).strip()


def format_warning(report: Report) -> str:
    """Format a warning if the jobs differ or values are simulated; empty if neither applies.

    The line is cut at its end, so the list of simulated parts comes last: it may be cut, but not the
    statement that some parts are simulated.
    """
    comparison = report.comparison
    baseline = comparison.baseline_run if comparison else None
    warnings = []
    if comparison is not None and comparison.differences:
        differing = ", ".join(entry.what for entry in comparison.differences)
        warnings.append(f"not the same job: {shorten(differing, _MAX_DIFFERENCES)}")
    facts = dict.fromkeys(fact for run in (report.run, baseline) if run is not None for fact in run.modelled)
    if facts:
        links_first = sorted(facts, key=lambda fact: not fact.startswith("link"))
        warnings.append(f"MODELLED, not measured: {'; '.join(links_first)}")
    return " · ".join(warnings)


def format_warning_cell(report: Report) -> Marked:
    """Format the warning as a cell."""
    warning = format_warning(report)
    return Marked(f"! {warning}" if warning else "", Mark.DOUBTFUL)


def build_rest_table(report: Report) -> Table:
    """Build a row each for a ledger not shown elsewhere, memory, headroom, unclaimed time, untested rules."""
    lines = [
        *_list_ledger_lines(report),
        *_list_memory_lines(report),
        *_list_headroom_lines(report),
        *_list_unclaimed_lines(report),
        *_list_untested_lines(report),
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
        f"{report.time.basis} that no finding "
        "explains, and the step time; not tested: what zprof could not test or measure; press enter for "
        "reasons and remedies."
    )
    return Table(name="rest", title="", columns=columns, rows=tuple(lines), help=help_text)


def _list_ledger_lines(report: Report) -> list[Row]:
    """Return the row that opens the ledger from before a job got stuck."""
    if not is_stuck(report.hang) or not report.time.per_rank:
        return []
    step = read(every(Cursor(report).time.per_rank).wall_ns, how=Aggregation.MEAN, in_ms=True)
    note = "before it was stuck; press enter for where the time went"
    line = _make_line("ledger", report.time.total_name, step, "", "", note)
    return [Row(key=line.key, cells=line.cells, opens=Opens.LEDGER)]


def _list_memory_lines(report: Report) -> list[Row]:
    if not report.memory.per_rank:
        return []
    peak = read(every(Cursor(report).memory.per_rank).peak_bytes, how=Aggregation.LARGEST)
    if not (report.comparison and report.comparison.baseline_memory):
        return [_make_line("memory", "peak memory", peak, "", "", "on the largest rank")]
    baseline_peak = read(every(Cursor(report).comparison.baseline_memory).peak_bytes, how=Aggregation.LARGEST)
    note = "in the baseline; largest rank of each"
    return [_make_line("memory", "peak memory", peak, "was", baseline_peak, note)]


def _list_headroom_lines(report: Report) -> list[Row]:
    """Return the headroom of the fullest device, if device counters are known."""
    known = [
        (device.device_total_bytes - device.device_used_bytes, index, device.rank)
        for index, device in enumerate(report.memory.devices)
        if device.device_total_bytes is not None and device.device_used_bytes is not None
    ]
    if not known:
        return []
    _, index, rank = min(known)
    place = Cursor(report).memory.devices[index]
    free = read(place.device_total_bytes, place.device_used_bytes, how=Aggregation.DIFFERENCE)
    capacity = read(place.device_total_bytes)
    note = f"on the device of rank {rank}, the fullest"
    return [_make_line("headroom", "headroom", free, "of", capacity, note)]


def _list_unclaimed_lines(report: Report) -> list[Row]:
    unclaimed = {term: ns for term, ns in report.unclaimed.items() if ns > 0}
    if not unclaimed or not report.time.per_rank:
        return []
    largest = max(unclaimed, key=lambda term: unclaimed[term])
    ranks = [entry.rank for entry in report.time.per_rank]
    rank = report.unclaimed_rank
    owner = "" if rank is None else f" on rank {rank}"
    mostly = LEDGER_NAMES.get(largest, largest)
    note = f"{report.time.basis}{owner}, not explained by any finding; mostly {mostly}"
    lost = read(every(Cursor(report).unclaimed), how=Aggregation.SUM)
    places = Cursor(report).time.per_rank
    place = places[ranks.index(rank)] if rank in ranks else every(places)
    step = read(place.wall_ns, how=Aggregation.LARGEST)
    return [_make_line("unclaimed", "unclaimed", lost, "of", step, note)]


def _list_untested_lines(report: Report) -> list[Row]:
    """Return a row with the gap subjects; ``enter`` shows reasons and remedies."""
    names = [gap.subject for gap in merge_gaps(report.gaps)]
    if not names:
        return []
    line = _make_line("untested", "not tested", "", "", "", ", ".join(names))
    return [Row(key=line.key, cells=line.cells, opens=Opens.GAP)]


def _make_line(key: str, name: str, value: Cell, relation: str, other: Cell, note: str) -> Row:
    """Return a row of two values; ``relation``: the word between them."""
    texts = (Marked(text, Mark.MUTED) for text in (name, relation, note))
    return Row(key=key, cells=(next(texts), value, next(texts), other, next(texts)))
