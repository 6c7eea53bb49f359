"""The answer, what to try first, which runs, what in them is simulated, and the numbers looked for first."""

from collections.abc import Iterator, Sequence

from zprof.model.findings import Confidence
from zprof.model.memory import RankMemory
from zprof.model.report import Report, RunFacts, VerdictStatus
from zprof.model.units import format_ns, format_percent
from zprof.reports.html import words
from zprof.reports.html.blocks import Head, KeyFigure
from zprof.reports.shown.memory_names import peak_text
from zprof.reports.shown.memory_presenter import largest_rank
from zprof.reports.shown.presenter import exposure, grouped_gaps, peak_change_ratio, step_ns
from zprof.reports.shown.run_words import describe_run, reported_steps
from zprof.reports.shown.time_presenter import late_ranks, per

_MARK = {
    VerdictStatus.OK: "✓",
    VerdictStatus.SLOWER: "✗",
    VerdictStatus.RISK: "!",
    VerdictStatus.INCONCLUSIVE: "?",
}


def head(report: Report) -> Head:
    """The top of the page."""
    status = report.verdict.status
    return Head(
        title=words.name(report.run.name),
        status=status.value,
        mark=_MARK[status],
        verdict=words.sentence(report.verdict.sentence),
        attempt=_attempt(report),
        runs=tuple(
            (what, words.sentence(describe_run(run, reported_steps(report, run))))
            for what, run in _runs(report)
        ),
        modelled=words.sentence(
            "; ".join(dict.fromkeys(name for _, run in _runs(report) for name in run.modelled))
        ),
        figures=(*_time(report), *_memory(report), *_counts(report)),
    )


def _attempt(report: Report) -> tuple[str, ...]:
    """The fix of the first finding that is more than a guess."""
    sure = (entry for entry in report.findings if entry.confidence is not Confidence.LOW)
    finding = next(sure, None)
    return words.lines(finding.fix) if finding else ()


def _runs(report: Report) -> Iterator[tuple[str, RunFacts]]:
    yield "this run", report.run
    if report.comparison and report.comparison.baseline_run:
        yield "baseline", report.comparison.baseline_run


def _time(report: Report) -> Iterator[KeyFigure]:
    ranks, of = report.time.per_rank, per(report.time)
    if not ranks:
        return
    times = report.comparison.step_time if report.comparison else None
    before = f"baseline {format_ns(times.a_ns)}, " if times else ""
    now = times.b_ns if times else step_ns(ranks)
    yield KeyFigure(
        name="step" if of == "a step" else "in all", value=format_ns(now), note=f"{before}mean of the ranks"
    )
    seen = exposure(ranks)
    if seen.ratio is not None:
        most = "at most " if seen.at_most else ""
        yield KeyFigure(
            name="exposed communication",
            value=f"{most}{format_ns(seen.exposed_ns)}",
            note=f"{format_percent(seen.ratio)} of {format_ns(seen.collective_ns)} collectives {of}",
        )
    yield from _late(report, of)


def _late(report: Report, of: str) -> Iterator[KeyFigure]:
    found = late_ranks(report.time.blame, 1) if report.time.blame else ()
    for entry in found:
        yield KeyFigure(
            name=f"wait caused by rank {entry.blame.rank}",
            value=format_ns(entry.blame.exposed_wait_per_rank_ns),
            note=f"{of}, per waiting rank; {format_percent(entry.share)} of all exposed waiting",
        )


def _memory(report: Report) -> Iterator[KeyFigure]:
    largest = largest_rank(report.memory.per_rank)
    if largest is None:
        return
    before: Sequence[RankMemory] = report.comparison.baseline_memory if report.comparison else ()
    yield KeyFigure(name="peak memory", value=peak_text(largest), note=_peak_note(largest, before, report))


def _peak_note(largest: RankMemory, before: Sequence[RankMemory], report: Report) -> str:
    was = largest_rank(before)
    if was is None:
        return f"allocated on rank {largest.rank}, the largest"
    change = format_percent(peak_change_ratio(before, report.memory.per_rank))
    sign = "" if change.startswith("-") else "+"
    return f"on the largest rank; baseline {peak_text(was)}, {sign}{change}"


def _counts(report: Report) -> Iterator[KeyFigure]:
    groups = len(grouped_gaps(report.gaps))
    yield KeyFigure(
        name="findings",
        value=f"{len(report.findings):,}",
        note=f"{groups:,} not measured" if groups else "nothing that was asked for is unknown",
    )
