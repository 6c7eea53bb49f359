"""What was recorded: the run, its baseline, what differs between the two jobs."""

from collections.abc import Iterator, Sequence

from zprof.model.report import Comparison, Report, RunFacts
from zprof.model.time import Time
from zprof.model.units import format_ms, format_ns
from zprof.reports.html import words
from zprof.reports.html.blocks import Block, Column, Facts, Notes
from zprof.reports.shown.run_words import ranks_text, steps_text, window_text

_DIFFERENCES = 100


def run_facts(report: Report) -> Sequence[Block]:
    """Facts of this run, a table of both where there is a baseline."""
    notes = tuple(_window(report.time))
    return (
        *_facts(report),
        *((Notes(lines=notes),) if notes else ()),
        *(_equal_work(report, report.comparison) if report.comparison else ()),
        *(_differences(report.comparison) if report.comparison else ()),
    )


def _facts(report: Report) -> Sequence[Block]:
    before = report.comparison.baseline_run if report.comparison else None
    rows = [(name, words.sentence(value)) for name, value in _of(report.run)]
    if before is None:
        return (Facts(rows=tuple(rows)),)
    cells = [
        (name, words.sentence(was), now) for (name, now), (_, was) in zip(rows, _of(before), strict=True)
    ]
    return words.table(
        "Both runs", (Column(title=""), Column(title="baseline"), Column(title="this run")), cells
    )


def _of(run: RunFacts) -> list[tuple[str, str]]:
    return [
        ("name", run.name),
        ("source", run.source),
        ("ranks", ranks_text(run)),
        ("device", run.device),
        ("backend", run.backend or words.NOTHING),
        ("engine", run.engine),
        ("stage", "unknown" if run.stage is None else str(run.stage)),
        ("timed steps", steps_text(run.steps)),
        ("memory steps", steps_text(run.memory_steps) if run.memory_steps else "none"),
        ("modelled", "; ".join(run.modelled) or "nothing"),
    ]


def _window(time: Time) -> Iterator[str]:
    """What was measured, and by how much two recordings of this job differ."""
    if said := window_text(time):
        yield words.sentence(said)
    if time.step_noise_ns is not None:
        yield (
            f"the mean steps of two recordings of this job differ by no more than "
            f"{format_ns(time.step_noise_ns)}, 95 times of 100"
        )


def _equal_work(report: Report, comparison: Comparison) -> Sequence[Block]:
    times, work = comparison.step_time, comparison.equal_work
    if times is None or work is None:
        return ()
    whole, unit = max(1, times.a_ns), work.unit.value
    low, high = (bound / whole * 100 for bound in work.ci95)
    change = f"{(work.b_ns / whole - 1) * 100:+.0f} % [{low:+.1f}, {high:+.1f}]"
    columns = (
        Column(title="run"),
        Column(title=f"{unit} a step", unit="count", numeric=True),
        *words.numbers(("step", "at equal work"), "ms"),
        Column(title="change", unit="95 % interval", numeric=True),
    )
    rows = [
        (words.name(comparison.baseline), str(work.a_per_step), *[format_ms(times.a_ns)] * 2, ""),
        (
            words.name(report.run.name),
            str(work.b_per_step),
            format_ms(times.b_ns),
            format_ms(work.b_ns),
            change,
        ),
    ]
    return words.table("At equal work", columns, rows)


def _differences(comparison: Comparison) -> Sequence[Block]:
    found = comparison.differences
    rows = [
        (words.name(entry.what), words.sentence(entry.a), words.sentence(entry.b))
        for entry in found[:_DIFFERENCES]
    ]
    return words.table(
        "What else differs between the jobs",
        (Column(title="what"), Column(title="baseline"), Column(title="this run")),
        rows,
        words.left_out(len(rows), len(found), "differences"),
    )
