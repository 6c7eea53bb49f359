"""Build the second opinion of another tool: what bounds the critical path, what idle streams wait for."""

from zprof.model.leaves import take_value
from zprof.model.quantities import Unit, Value
from zprof.model.report import Report
from zprof.model.second_opinion import RankOpinion, SecondOpinion
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
            [_make_path_row(rank) for rank in opinion.per_rank if rank.critical_path is not None],
            unit="ms",
            note=f"{opinion.source}: what bounds each rank's critical path",
            notes=(_NOTE,),
            max_text_rows=_MAX_TEXT_RANKS,
            noun="ranks",
        ),
        _build_idle_table(opinion),
    )


def _make_path_row(rank: RankOpinion) -> tuple[Cell, ...]:
    path = rank.critical_path
    assert path is not None
    shares = (Value(path.shares.get(bound), Unit.RATIO) for bound in _BOUNDS)
    return (str(rank.rank), path.window, take_value(path, "length_ns", in_ms=True), *shares)


def _build_idle_table(opinion: SecondOpinion) -> Table | None:
    rows: list[tuple[Cell, ...]] = []
    for rank in opinion.per_rank:
        for idle in rank.idle or ():
            waits = [take_value(idle, field, in_ms=True) for field in _WAITS]
            if any(wait.number for wait in waits):
                rows.append((str(rank.rank), str(idle.stream), *waits))
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
