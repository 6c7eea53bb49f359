"""What was recorded: the run, its baseline, what differs between the two jobs."""

from collections.abc import Iterator, Sequence

from zprof.model.report import Comparison, Report, RunFacts
from zprof.model.time import Time, WindowPolicy
from zprof.model.units import format_ms, format_ns
from zprof.reports.html import words
from zprof.reports.html.blocks import Block, Column, Facts, Notes
from zprof.reports.shown.presenter import missing_ranks

_NAMED = 8
_DIFFERENCES = 100
#: What stands for a backend or an engine that nobody named.
_NOT_SAID = frozenset({"", "none", "unknown"})


def run_facts(report: Report) -> Sequence[Block]:
    """Facts of this run, a table of both where there is a baseline."""
    notes = tuple(_window(report.time))
    return (
        *_facts(report),
        *((Notes(lines=notes),) if notes else ()),
        *(_equal_work(report, report.comparison) if report.comparison else ()),
        *(_differences(report.comparison) if report.comparison else ()),
    )


def in_short(run: RunFacts) -> str:
    """A run in one line: ranks, backend, engine, steps."""
    where = run.device if run.backend in _NOT_SAID else f"{run.backend} on {run.device}"
    parts = [_ranks(run), where]
    if run.engine not in _NOT_SAID:
        parts.append(f"{run.engine} engine" + ("" if run.stage is None else f" stage {run.stage}"))
    return f"{run.name}: {', '.join([*parts, _steps(run.steps)])}"


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
        ("ranks", _ranks(run)),
        ("device", run.device),
        ("backend", run.backend or words.NOTHING),
        ("engine", run.engine),
        ("stage", "unknown" if run.stage is None else str(run.stage)),
        ("timed steps", _steps(run.steps)),
        ("memory steps", _steps(run.memory_steps) if run.memory_steps else "none"),
        ("modelled", "; ".join(run.modelled) or "nothing"),
    ]


def _ranks(run: RunFacts) -> str:
    ranks = f"{run.world_size:,} ranks" if run.world_size != 1 else "1 rank"
    missing = missing_ranks(run)
    if not missing:
        return ranks
    names = ", ".join(str(rank) for rank in missing[:_NAMED])
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    return f"{len(run.ranks_loaded):,} of {ranks} (missing: {names}{more})"


def _steps(steps: Sequence[int]) -> str:
    if not steps:
        return "no timed step"
    if len(steps) == 1:
        return f"step {steps[0]}"
    low, high = min(steps), max(steps)
    whole = len(set(steps)) == high - low + 1
    return f"steps {low}-{high}" if whole else f"{len(steps)} steps of {low}-{high}"


def _window(time: Time) -> Iterator[str]:
    """What was measured, and by how much two recordings of this job differ."""
    window = time.window
    if window is not None and window.policy is WindowPolicy.TRACE:
        yield "measured: the whole recording as one stretch (--window trace)"
    elif window is not None:
        yield words.sentence(f"measured: steps by {window.source}")
        if window.pre_window_ns:
            yield f"{format_ns(window.pre_window_ns)} of device work outside the steps, left out"
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
