"""What another program says of the same ranks: what bounds the critical path, what idle streams wait for."""

from zprof.model.formatting import format_ms
from zprof.model.report import Report
from zprof.model.second_opinion import RankOpinion, SecondOpinion
from zprof.reports.page import (
    Section,
    Table,
    make_name_column,
    make_number_columns,
    make_section,
    make_table,
    make_text_column,
)
from zprof.reports.presenters.time_words import format_optional_ratio

_MAX_TEXT_RANKS, _MAX_TEXT_STREAMS = 8, 16
_BOUNDS = {
    "cpu_bound": "cpu",
    "gpu_compute_bound": "compute",
    "gpu_communication_bound": "communication",
    "gpu_kernel_kernel_overhead": "gaps",
    "gpu_kernel_launch_overhead": "launch",
}
_NOTE = "One rank at a time: a collective in the path is one piece, waiting for other ranks included."


def build_second_opinion_section(report: Report) -> tuple[Section, ...]:
    """Return nothing if it was not asked for, or nothing was answered: the gaps say why."""
    opinion = report.second_opinion
    if opinion is None:
        return ()
    lead = "What another program says of the same ranks."
    return make_section("second-opinion", "Second opinion", lead, _path_table(opinion), _idle_table(opinion))


def _path_table(opinion: SecondOpinion) -> Table | None:
    return make_table(
        "Second opinion",
        (
            make_text_column("rank"),
            make_name_column("of"),
            *make_number_columns("length", unit="ms"),
            *make_number_columns(*_BOUNDS.values(), unit="%"),
        ),
        [_path_row(rank) for rank in opinion.per_rank if rank.critical_path is not None],
        unit="ms",
        note=f"{opinion.source}: what bounds each rank's critical path",
        notes=(_NOTE,),
        max_text_rows=_MAX_TEXT_RANKS,
        noun="ranks",
    )


def _path_row(rank: RankOpinion) -> tuple[str, ...]:
    path = rank.critical_path
    assert path is not None
    shares = (format_optional_ratio(path.shares.get(bound)) for bound in _BOUNDS)
    return (str(rank.rank), path.window, format_ms(path.length_ns), *shares)


def _idle_table(opinion: SecondOpinion) -> Table | None:
    rows = []
    for rank in opinion.per_rank:
        for idle in rank.idle or ():
            waits = (idle.host_wait_ns, idle.kernel_wait_ns, idle.other_ns)
            if any(waits):
                rows.append((str(rank.rank), str(idle.stream), *map(format_ms, waits)))
    return make_table(
        "Idle streams",
        (
            make_text_column("rank"),
            *make_number_columns("stream"),
            *make_number_columns("for the host", "between kernels", "other", unit="ms"),
        ),
        rows,
        unit="ms",
        note=f"{opinion.source}: time without work, by what came next",
        max_text_rows=_MAX_TEXT_STREAMS,
        noun="streams",
    )
