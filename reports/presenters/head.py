"""Build the head of a report: verdict, key figures, the fix to try first, the runs, what is modelled."""

from collections.abc import Iterator, Sequence

from zprof.model.formatting import format_ns, format_percent
from zprof.model.hang import is_stuck
from zprof.model.quantities import BOUND_WORDS, Unit, Value
from zprof.model.report import Report, RunFacts, VerdictStatus
from zprof.reports.page import Block, Code, Facts, KeyFigures, Note, VerdictBlock
from zprof.reports.pages.tenants import (
    format_largest_peak,
    largest_rank,
    peak_bytes,
)
from zprof.reports.presenters.findings import find_first_confident, merge_gaps
from zprof.reports.presenters.run_formatting import (
    describe_run,
    describe_settings,
    format_reported_steps,
)
from zprof.reports.presenters.time_figures import exposure, list_late_ranks, step_ns

#: Waiting below this share of the step is no key figure; the table of late ranks has it.
_MIN_WAIT_RATIO = 0.01

MARKS = {
    VerdictStatus.OK: "✓",
    VerdictStatus.SLOWER: "✗",
    VerdictStatus.RISK: "!",
    VerdictStatus.INCONCLUSIVE: "?",
}


def build_head_blocks(report: Report, *, with_fix: bool = True) -> tuple[Block, ...]:
    """Build the blocks that summarize the report."""
    runs = [report.run, *list_baseline_runs(report)]
    return (
        build_verdict_block(report),
        KeyFigures(figures=tuple(_list_key_figures(report))),
        *(_build_first_fix(report) if with_fix else ()),
        Facts(rows=(*_describe_runs(report, runs), *_describe_same_work(report))),
        *build_modelled_notes(runs),
    )


def _describe_runs(report: Report, runs: Sequence[RunFacts]) -> Iterator[tuple[str, str]]:
    for name, run in zip(("run", "baseline"), runs, strict=False):
        yield name, describe_run(run, format_reported_steps(report, run))
        if settings := describe_settings(run):
            yield "settings", settings


def _describe_same_work(report: Report) -> Iterator[tuple[str, str]]:
    """Yield a fact if both runs do the same work per step."""
    comparison = report.comparison
    if comparison is None or comparison.step_time is None or comparison.equal_work is None:
        return
    work = comparison.equal_work
    if work.b_ns == comparison.step_time.b_ns and work.a_per_step == work.b_per_step:
        yield "same work", f"{work.b_per_step} {work.unit.value} per step in both"


def build_verdict_block(report: Report) -> VerdictBlock:
    """Build the verdict."""
    status = report.verdict.status
    return VerdictBlock(tone=status.value, mark=MARKS[status], text=report.verdict.sentence)


def list_baseline_runs(report: Report) -> tuple[RunFacts, ...]:
    """Return the baseline run, if there is one."""
    before = report.comparison.baseline_run if report.comparison else None
    return () if before is None else (before,)


def build_modelled_notes(runs: Sequence[RunFacts]) -> tuple[Note, ...]:
    """Build the note on what is simulated in these runs; it must never be omitted."""
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
        yield from _list_time_figures(report)
    if report.memory.per_rank and not is_stuck(report.hang):
        yield _make_peak_figure(report)
    groups = len(merge_gaps(report.gaps))
    note = f"{groups:,} not measured" if groups else "everything requested was measured"
    yield "findings", f"{len(report.findings):,}", note


def _list_time_figures(report: Report) -> Iterator[tuple[str, str, str]]:
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
    late = list_late_ranks(report.time.blame, 1) if report.time.blame else ()
    for entry in late:
        if entry.blame.exposed_wait_per_rank_ns < _MIN_WAIT_RATIO * step_ns(ranks):
            continue
        yield (
            f"wait caused by rank {entry.blame.rank}",
            format_ns(entry.blame.exposed_wait_per_rank_ns),
            f"{report.time.basis}, per waiting rank; {format_percent(entry.share)} of all exposed waiting",
        )


def _make_peak_figure(report: Report) -> tuple[str, str, str]:
    ranks = report.memory.per_rank
    before = report.comparison.baseline_memory if report.comparison else ()
    rank = largest_rank(ranks)
    note = f"allocated on rank {rank.rank}{', the largest' if len(ranks) > 1 else ''}" if rank else ""
    if before:
        change = Value(peak_bytes(ranks) / max(1, peak_bytes(before)) - 1, Unit.RATIO, signed=True)
        note = f"on the largest rank; baseline {format_largest_peak(before)}, {change.text}"
    return "peak memory", format_largest_peak(ranks), note
