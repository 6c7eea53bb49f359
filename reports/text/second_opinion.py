"""What another program says of the same ranks: what bounds the critical path, what streams wait for."""

from zprof.model.printable import printable
from zprof.model.report import Report
from zprof.model.second_opinion import RankOpinion, SecondOpinion, StreamIdle
from zprof.model.units import format_ms, format_percent
from zprof.reports.text.layout import heading, table, wrap

_MOST_RANKS = 8
_MOST_STREAMS = 16
_BOUNDS = {
    "cpu_bound": "cpu",
    "gpu_compute_bound": "compute",
    "gpu_communication_bound": "comm.",
    "gpu_kernel_kernel_overhead": "gaps",
    "gpu_kernel_launch_overhead": "launch",
}


def second_opinion(report: Report) -> list[str]:
    """Nothing where it was not asked for, or nothing was answered: the gaps say why."""
    opinion = report.second_opinion
    if opinion is None:
        return []
    return [*_critical(opinion), *_idle(opinion)]


def _critical(opinion: SecondOpinion) -> list[str]:
    ranks = [rank for rank in opinion.per_rank if rank.critical_path is not None]
    if not ranks:
        return []
    cells = [["rank", "of", "ms", *_BOUNDS.values()]]
    cells += [_path(rank) for rank in ranks[:_MOST_RANKS]]
    title = heading(f"SECOND OPINION ({printable(opinion.source)})", "what bounds each rank's critical path")
    note = "one rank at a time: a collective in the path is one piece, waiting for other ranks included"
    return ["", title, *table(cells), *_more(len(ranks), _MOST_RANKS, "ranks"), *wrap(note)]


def _path(rank: RankOpinion) -> list[str]:
    path = rank.critical_path
    assert path is not None
    shares = [path.shares.get(bound) for bound in _BOUNDS]
    shown = ["-" if share is None else format_percent(share) for share in shares]
    return [str(rank.rank), printable(path.window), format_ms(path.length_ns), *shown]


def _idle(opinion: SecondOpinion) -> list[str]:
    rows = [(rank.rank, stream) for rank in opinion.per_rank for stream in rank.idle or ()]
    rows = [row for row in rows if _length(row[1])]
    if not rows:
        return []
    cells = [["rank", "stream", "for the host", "between kernels", "other"]]
    cells += [_stream(rank, stream) for rank, stream in rows[:_MOST_STREAMS]]
    title = heading(f"IDLE STREAMS ({printable(opinion.source)})", "ms without work, by what came next")
    return ["", title, *table(cells), *_more(len(rows), _MOST_STREAMS, "streams")]


def _stream(rank: int, idle: StreamIdle) -> list[str]:
    waits = (idle.host_wait_ns, idle.kernel_wait_ns, idle.other_ns)
    return [str(rank), str(idle.stream), *map(format_ms, waits)]


def _length(idle: StreamIdle) -> int:
    return idle.host_wait_ns + idle.kernel_wait_ns + idle.other_ns


def _more(count: int, most: int, what: str) -> list[str]:
    return wrap(f"{most} of {count} {what}; all: -f json") if count > most else []
