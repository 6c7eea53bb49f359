"""Build the second opinion of another tool: what bounds the critical path, what idle streams wait for."""

from msgspec.structs import replace

from zprof.model.cursor import Cursor, get, read
from zprof.model.quantities import Unit
from zprof.model.report import Report, SecondOpinion
from zprof.reports.page import Section, make_section
from zprof.reports.table import (
    Cell,
    Table,
    make_name_column,
    make_number_columns,
    make_table,
    make_text_column,
)

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


def build_second_opinion_section(report: Report) -> tuple[Section, ...]:
    """Build the section; empty if it was not requested or gave no results (the gaps give the reason)."""
    opinion = report.second_opinion
    if opinion is None:
        return ()
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
            [
                _make_path_row(rank)
                for rank in Cursor(report).second_opinion.per_rank
                if get(rank.critical_path)
            ],
            unit="ms",
            note=f"{opinion.source}: what bounds each rank's critical path",
            notes=(_NOTE,),
            max_text_rows=_MAX_TEXT_RANKS,
            noun="ranks",
        ),
        _build_idle_table(report, opinion),
    )


def _make_path_row(rank: Cursor) -> tuple[Cell, ...]:
    path = rank.critical_path
    shares = (replace(read(path.shares[bound]), unit=Unit.RATIO) for bound in _BOUNDS)
    return (str(get(rank.rank)), get(path.window), read(path.length_ns, in_ms=True), *shares)


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
