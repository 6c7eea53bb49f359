"""How a run was recorded, the same work of two jobs, and what else differs between them."""

from zprof.model.formatting import format_ms, format_ns
from zprof.model.report import Comparison, Report, RunFacts
from zprof.reports.page import (
    Block,
    Column,
    Facts,
    Note,
    Section,
    Table,
    make_name_column,
    make_number_columns,
    make_section,
    make_table,
    make_text_column,
)
from zprof.reports.presenters.head import list_baseline_runs
from zprof.reports.presenters.run_words import format_rank_count, format_steps

_MAX_TEXT_DIFFERENCES = 12


def build_run_section(report: Report) -> tuple[Section, ...]:
    """Return the facts of this run, beside those of the baseline if there is one."""
    rows = _run_facts(report.run)
    facts: Block | None = Facts(rows=tuple(rows))
    for before in list_baseline_runs(report):
        both = [(name, was, now) for (name, now), (_, was) in zip(rows, _run_facts(before), strict=True)]
        columns = (make_text_column("fact"), make_text_column("baseline"), make_text_column("this run"))
        facts = make_table("Both runs", columns, both)
    noise = report.time.step_noise_ns
    said = None
    if noise is not None:
        said = Note(
            text="The mean steps of two recordings of this job differ by no more than "
            f"{format_ns(noise)}, 95 times out of 100."
        )
    return make_section("run", "The run", "What was recorded, and by what.", facts, said, detail=True)


def _run_facts(run: RunFacts) -> list[tuple[str, str]]:
    return [
        ("name", run.name),
        ("source", run.source),
        ("ranks", format_rank_count(run)),
        ("device", run.device),
        ("backend", run.backend or "-"),
        ("engine", run.engine),
        ("stage", "unknown" if run.stage is None else str(run.stage)),
        ("timed steps", format_steps(run.steps)),
        ("memory steps", format_steps(run.memory_steps) if run.memory_steps else "none"),
        ("modelled", "; ".join(run.modelled) or "nothing"),
    ]


def build_difference_section(report: Report) -> tuple[Section, ...]:
    """Return what else differs between the two jobs, which may be the cause instead."""
    comparison = report.comparison
    if comparison is None:
        return ()
    lead = "What may be the cause instead: the jobs are not the same."
    return make_section(
        "differences",
        "What else differs",
        lead,
        build_equal_work_table(report, comparison),
        _difference_table(comparison),
    )


def build_equal_work_table(report: Report, comparison: Comparison) -> Table | None:
    """Return the steps of both runs for the same work; None if it is not known or one job does the same."""
    times, work = comparison.step_time, comparison.equal_work
    if times is None or work is None or work.b_ns == times.b_ns:
        return None
    whole, unit = max(1, times.a_ns), work.unit.value
    low, high = (bound / whole * 100 for bound in work.ci95)
    change = f"{(work.b_ns / whole - 1) * 100:+.0f} % [{low:+.1f}, {high:+.1f}]"
    before, now = str(work.a_per_step), str(work.b_per_step)
    return make_table(
        "At equal work",
        (
            make_name_column("run"),
            *make_number_columns(f"{unit} per step", unit="count"),
            *make_number_columns("step", "at equal work", unit="ms"),
            Column(title="change", unit="95 % interval"),
        ),
        [
            (comparison.baseline, before, format_ms(times.a_ns), format_ms(times.a_ns), ""),
            (report.run.name, now, format_ms(times.b_ns), format_ms(work.b_ns), change),
        ],
        unit="ms",
        note="for as much work per rank as the baseline does",
        notes=[
            f"This includes the change of the batch: equal {unit} per step show what the program alone does."
        ],
    )


def _difference_table(comparison: Comparison) -> Table | None:
    return make_table(
        "Not the same job",
        (make_name_column("what"), make_text_column("baseline"), make_text_column("this run")),
        [(entry.what, entry.a, entry.b) for entry in comparison.differences],
        max_text_rows=_MAX_TEXT_DIFFERENCES,
        what="differences",
    )
