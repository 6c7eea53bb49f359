"""The full report as a page: the answer, its evidence, the gaps, and the run.

The section on time details covers steps, units, message sizes, link fits, and rank clocks.
"""

from msgspec.structs import replace

from zprof.model.cursor import Cursor, get, read
from zprof.model.quantities import Unit
from zprof.model.report import Report, SecondOpinion
from zprof.model.step_overview import StepOverview
from zprof.model.time import LEDGER_NAMES, Alignment
from zprof.reports.page import Page, Section, make_section
from zprof.reports.pages.collectives import (
    build_collective_section,
    build_fit_table,
    build_message_table,
    build_unit_table,
)
from zprof.reports.pages.communicators import build_communicator_sections
from zprof.reports.pages.compare import build_difference_section, build_run_section
from zprof.reports.pages.findings import build_finding_section, build_gap_section, has_tested_causes
from zprof.reports.pages.hang import build_ending_section, build_hang_section
from zprof.reports.pages.head import build_head_blocks
from zprof.reports.pages.ledger import build_ledger_section, read_terms
from zprof.reports.pages.memory import (
    build_history_sections,
    build_memory_detail_section,
    build_memory_section,
)
from zprof.reports.pages.memory_allocations import build_stack_section
from zprof.reports.pages.memory_changes import build_group_change_section, build_rank_spread_section
from zprof.reports.pages.memory_device import build_device_section, build_out_of_memory_section
from zprof.reports.pages.memory_timeline import build_timeline_section
from zprof.reports.pages.parallelism import build_parallelism_section
from zprof.reports.pages.ranks import build_rank_section
from zprof.reports.pages.slowdown import build_slowdown_section
from zprof.reports.pages.step_chart import build_step_section
from zprof.reports.pages.whatif import build_outlook_sections
from zprof.reports.table import (
    MAX_ROWS,
    UNKNOWN,
    Cell,
    Table,
    make_name_column,
    make_number_columns,
    make_table,
    make_text_column,
)

_MAX_TEXT_ROWS, _MAX_TEXT_CLOCKS = 12, 8
_US = 1_000
_MAX_TEXT_RANKS, _MAX_TEXT_STREAMS = 8, 16
_BOUNDS = {
    "cpu_bound": "cpu",
    "gpu_compute_bound": "compute",
    "gpu_communication_bound": "communication",
    "gpu_kernel_kernel_overhead": "gaps",
    "gpu_kernel_launch_overhead": "launch",
}
_WAITS = ("host_wait_ns", "kernel_wait_ns", "other_ns")
_NOTE = "Each rank on its own: a collective on the path includes the time it waits for other ranks."


def build_report_page(report: Report, overview: StepOverview | None = None) -> Page:
    """Return all sections with content; ``overview``: the step of all ranks to draw.

    Short outputs include time details if the report has no memory, and vice versa.
    """
    has_time, has_memory = bool(report.time.per_rank), bool(report.memory.per_rank)
    return Page(
        kind="zprof report",
        subject=report.run.name,
        head=build_head_blocks(report),
        sections=(
            *build_ending_section(report),
            *(build_finding_section(report) if has_tested_causes(report) else ()),
            *build_hang_section(report),
            *build_step_section(report.time, overview),
            *build_ledger_section(report),
            *build_parallelism_section(report),
            *build_slowdown_section(report.time),
            *build_communicator_sections(report.time),
            *build_out_of_memory_section(report),
            *build_memory_section(report, with_largest=has_time),
            *build_group_change_section(Cursor(report).comparison),
            *build_history_sections(report),
            *build_rank_spread_section(report),
            *build_timeline_section(report),
            *build_stack_section(report),
            *build_rank_section(report),
            *build_collective_section(report),
            *build_difference_section(report),
            *build_time_detail_section(report, detail=has_memory),
            *build_memory_detail_section(report, detail=has_time),
            *build_device_section(report, detail=has_time),
            *build_second_opinion_section(report),
            *build_outlook_sections(report),
            *build_gap_section(report.gaps),
            *build_run_section(report),
        ),
        made_by=f"zprof {report.zprof_version}, {report.schema}",
        data_command="zprof report RUN -f json",
    )


def build_time_detail_section(report: Report, *, detail: bool) -> tuple[Section, ...]:
    """Build the section on time details that the ledger and collectives do not cover."""
    return make_section(
        "time-detail",
        "Time in detail",
        "Time by step, unit and message size; link fit; clock offsets.",
        _build_step_table(report),
        build_unit_table(report),
        build_message_table(report),
        build_fit_table(report),
        _build_clock_table(report.time.alignment),
        detail=detail,
        fold_rows=8,
    )


def _build_step_table(report: Report) -> Table | None:
    """Build the table of steps in order, or only the longest steps."""
    time, steps, places = report.time, report.time.steps, Cursor(report).time.steps
    by_length = sorted(range(len(steps)), key=lambda at: (-steps[at].wall_ns, steps[at].step, steps[at].rank))
    shown = sorted(by_length[:MAX_ROWS], key=lambda at: (steps[at].step, steps[at].rank))
    row_of = {at: row for row, at in enumerate(shown)}
    bounds = time.bounds_by_rank
    return make_table(
        "By step",
        (
            make_text_column("step"),
            *make_number_columns("rank"),
            *make_number_columns("wall", *LEDGER_NAMES.values(), unit="ms"),
        ),
        [
            (
                str(steps[at].step),
                str(steps[at].rank),
                *read_terms(places[at], bounds.get(steps[at].rank, {})),
            )
            for at in shown
        ],
        unit="ms",
        max_text_rows=_MAX_TEXT_ROWS,
        order=[row_of[at] for at in by_length[:MAX_ROWS]],
        total=len(steps),
        noun="steps of all ranks, longest first",
    )


def _build_clock_table(alignment: Alignment | None) -> Table | None:
    if alignment is None or len(alignment.offsets_ns) < 2:
        return None
    ranks = sorted(alignment.offsets_ns)
    rows = []
    for rank in ranks:
        interval, drift = alignment.interval_ns.get(rank), alignment.drift_ppb.get(rank)
        rows.append(
            (
                str(rank),
                f"{alignment.offsets_ns[rank] / _US:+.1f}",
                f"{alignment.rank_uncertainty_ns.get(rank, alignment.uncertainty_ns) / _US:.1f}",
                UNKNOWN if interval is None else f"{interval[0] / _US:+.1f} to {interval[1] / _US:+.1f}",
                UNKNOWN if drift is None else f"{drift / 1000:+.2f}",
            )
        )
    return make_table(
        "Clocks",
        (
            make_text_column("rank"),
            *make_number_columns("offset", "±", "possible range", unit="µs"),
            *make_number_columns("drift", unit="ppm"),
        ),
        rows,
        unit="µs",
        note=f"relative to rank {ranks[0]}",
        max_text_rows=_MAX_TEXT_CLOCKS,
        noun="ranks",
    )


def build_second_opinion_section(report: Report) -> tuple[Section, ...]:
    """Build the second-opinion section; empty if not requested or without results (see the gaps)."""
    opinion = report.second_opinion
    if opinion is None:
        return ()
    rows: list[tuple[Cell, ...]] = []
    for rank in Cursor(report).second_opinion.per_rank:
        path = rank.critical_path
        if get(path):
            shares = (replace(read(path.shares[bound]), unit=Unit.RATIO) for bound in _BOUNDS)
            rows.append((str(get(rank.rank)), get(path.window), read(path.length_ns, in_ms=True), *shares))
    lead = "Results of another tool for the same ranks."
    return make_section(
        "second-opinion",
        "Second opinion",
        lead,
        make_table(
            "Second opinion",
            (
                make_text_column("rank"),
                make_name_column("window"),
                *make_number_columns("length", unit="ms"),
                *make_number_columns(*_BOUNDS.values(), unit="%"),
            ),
            rows,
            unit="ms",
            note=f"{opinion.source}: what bounds each rank's critical path",
            notes=(_NOTE,),
            max_text_rows=_MAX_TEXT_RANKS,
            noun="ranks",
        ),
        _build_idle_table(report, opinion),
    )


def _build_idle_table(report: Report, opinion: SecondOpinion) -> Table | None:
    rows: list[tuple[Cell, ...]] = []
    for rank in Cursor(report).second_opinion.per_rank:
        for idle in rank.idle:
            waits = [read(idle[field], in_ms=True) for field in _WAITS]
            if any(wait.number for wait in waits):
                rows.append((str(get(rank.rank)), str(get(idle.stream)), *waits))
    return make_table(
        "Idle streams",
        (
            make_text_column("rank"),
            *make_number_columns("stream"),
            *make_number_columns("for the host", "between kernels", "other", unit="ms"),
        ),
        rows,
        unit="ms",
        note=f"{opinion.source}: time without work, by the cause of the wait",
        max_text_rows=_MAX_TEXT_STREAMS,
        noun="streams",
    )
