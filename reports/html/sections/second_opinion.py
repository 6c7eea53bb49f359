"""What another program makes of the same ranks: what bounds the critical path, what streams wait for."""

from collections.abc import Sequence

from zprof.model.report import Report
from zprof.model.second_opinion import RankOpinion, SecondOpinion
from zprof.model.units import format_ms, format_percent
from zprof.reports.html import words
from zprof.reports.html.blocks import Block, Column

_MOST = 200
_BOUNDS = {
    "cpu_bound": "cpu",
    "gpu_compute_bound": "compute",
    "gpu_communication_bound": "communication",
    "gpu_kernel_kernel_overhead": "gaps",
    "gpu_kernel_launch_overhead": "launch",
}


def second_opinion(report: Report) -> Sequence[Block]:
    """Nothing where it was not asked for, or nothing was answered: the gaps say why."""
    opinion = report.second_opinion
    return () if opinion is None else (*_critical(opinion), *_idle(opinion))


def _critical(opinion: SecondOpinion) -> Sequence[Block]:
    known = [rank for rank in opinion.per_rank if rank.critical_path is not None]
    columns = (
        Column(title="rank"),
        Column(title="of"),
        *words.numbers(("length",), "ms"),
        *words.numbers(tuple(_BOUNDS.values()), "%"),
    )
    note = "one rank at a time: a collective in the path is one piece, waiting for other ranks included"
    rows = [_path(rank) for rank in known[:_MOST]]
    notes = (note, *words.left_out(len(rows), len(known), "ranks"))
    return words.table(f"What bounds each rank's path ({words.name(opinion.source)})", columns, rows, notes)


def _path(rank: RankOpinion) -> tuple[str, ...]:
    path = rank.critical_path
    assert path is not None
    shares = [path.shares.get(bound) for bound in _BOUNDS]
    shown = [words.NOTHING if share is None else format_percent(share) for share in shares]
    return (str(rank.rank), words.name(path.window), format_ms(path.length_ns), *shown)


def _idle(opinion: SecondOpinion) -> Sequence[Block]:
    streams = [(rank.rank, stream) for rank in opinion.per_rank for stream in rank.idle or ()]
    known = [
        (rank, idle) for rank, idle in streams if idle.host_wait_ns or idle.kernel_wait_ns or idle.other_ns
    ]
    rows = [
        (
            str(rank),
            str(idle.stream),
            *(format_ms(ns) for ns in (idle.host_wait_ns, idle.kernel_wait_ns, idle.other_ns)),
        )
        for rank, idle in known[:_MOST]
    ]
    columns = (
        Column(title="rank"),
        Column(title="stream", numeric=True),
        *words.numbers(("for the host", "between kernels", "other"), "ms"),
    )
    title = f"Idle streams, by what came next ({words.name(opinion.source)})"
    return words.table(title, columns, rows, words.left_out(len(rows), len(known), "streams"))
