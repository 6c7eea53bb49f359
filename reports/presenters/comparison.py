"""Build the sections about the jobs: how they were recorded, equal work, and what else differs."""

from zprof.model.formatting import format_ns
from zprof.model.leaves import take_value
from zprof.model.report import Comparison, Report, RunFacts
from zprof.reports.page import Block, Facts, Note, Section, make_section
from zprof.reports.presenters.head import list_baseline_runs
from zprof.reports.presenters.run_formatting import format_rank_count, format_steps
from zprof.reports.table import (
    Column,
    Table,
    make_name_column,
    make_number_columns,
    make_table,
    make_text_column,
)

_MAX_TEXT_DIFFERENCES = 12


def build_run_section(report: Report) -> tuple[Section, ...]:
    """Build the section with the facts of this run, next to those of the baseline if there is one."""
    rows = _list_run_facts(report.run)
    facts: Block | None = Facts(rows=tuple(rows))
    for before in list_baseline_runs(report):
        side_by_side = [
            (name, baseline_value, run_value)
            for (name, run_value), (_, baseline_value) in zip(rows, _list_run_facts(before), strict=True)
        ]
        columns = (make_text_column("fact"), make_text_column("baseline"), make_text_column("this run"))
        facts = make_table("Both runs", columns, side_by_side)
    noise = report.time.step_noise_ns
    noise_note = None
    if noise is not None:
        noise_note = Note(
            text="Between two recordings of this job, the mean step differs by less than "
            f"{format_ns(noise)} in 95 of 100 cases."
        )
    return make_section("run", "The run", "What was recorded, and how.", facts, noise_note, detail=True)


def _list_run_facts(run: RunFacts) -> list[tuple[str, str]]:
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
    """Build the section with other differences between the jobs, which may be the real cause."""
    comparison = report.comparison
    if comparison is None:
        return ()
    lead = "The jobs are not the same: these differences may be the cause instead."
    return make_section(
        "differences",
        "What else differs",
        lead,
        build_equal_work_table(report, comparison),
        _build_difference_table(comparison),
    )


def build_equal_work_table(report: Report, comparison: Comparison) -> Table | None:
    """Compare the steps at equal work; None if the work is unknown or is already equal."""
    times, work = comparison.step_time, comparison.equal_work
    if times is None or work is None or work.b_ns == times.b_ns:
        return None
    baseline_ns, unit = max(1, times.a_ns), work.unit.value
    low, high = (bound / baseline_ns * 100 for bound in work.ci95)
    change = f"{(work.b_ns / baseline_ns - 1) * 100:+.0f} % [{low:+.1f}, {high:+.1f}]"
    before, after = (take_value(times, side, in_ms=True) for side in ("a_ns", "b_ns"))
    return make_table(
        "At equal work",
        (
            make_name_column("run"),
            *make_number_columns(f"{unit} per step", unit="count"),
            *make_number_columns("step", "at equal work", unit="ms"),
            Column(title="change", unit="95 % interval"),
        ),
        [
            (comparison.baseline, take_value(work, "a_per_step"), before, before, ""),
            (
                report.run.name,
                take_value(work, "b_per_step"),
                after,
                take_value(work, "b_ns", in_ms=True),
                change,
            ),
        ],
        unit="ms",
        note="scaled to the baseline's work per rank",
        notes=[
            f"Includes the effect of the batch size; equal {unit} per step would compare the programs alone."
        ],
    )


def _build_difference_table(comparison: Comparison) -> Table | None:
    return make_table(
        "Not the same job",
        (make_name_column("setting"), make_text_column("baseline"), make_text_column("this run")),
        [(entry.what, entry.a, entry.b) for entry in comparison.differences],
        max_text_rows=_MAX_TEXT_DIFFERENCES,
        noun="differences",
    )
