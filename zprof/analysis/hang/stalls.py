"""Read the marks of a watch: which ranks made no progress when the run ended, and which had gone on."""

from msgspec import Struct

from zprof.model.hang import HangStatus
from zprof.run.reader import Run

_STUCK, _RESUMED = "stuck", "resumed"


class Stall(Struct, frozen=True, kw_only=True):
    """What a watch last saw.

    ``status``: stuck if nothing is known of any rank after its stall, resumed if all ranks went on, running
    if some did: the run ended in between. ``ranks``: those of which nothing more is known. ``duration_ns``:
    the longest time without progress.
    """

    status: HangStatus
    ranks: tuple[int, ...]
    duration_ns: int


class _Mark(Struct, frozen=True, kw_only=True):
    """A rank's last mark of a watch."""

    time_ns: int
    kind: str
    duration_ns: int


def find_stall(run: Run) -> Stall | None:
    """Return what a watch last saw of a run; None if it saw no stall.

    Raises:
        BadInput: a table of the run is damaged.
    """
    marks = {rank: mark for rank in run.ranks if (mark := _read_last(run, rank))}
    if not marks:
        return None
    stuck = tuple(rank for rank, mark in marks.items() if not _has_gone_on(run, rank, mark))
    status = HangStatus.STUCK if len(stuck) == len(marks) else HangStatus.RUNNING
    return Stall(
        status=status if stuck else HangStatus.RESUMED,
        ranks=stuck,
        duration_ns=max(mark.duration_ns for rank, mark in marks.items() if rank in stuck or not stuck),
    )


def _has_gone_on(run: Run, rank: int, mark: _Mark) -> bool:
    """Return True if a rank's stall ended, or a step of it did later: a killed rank writes no mark."""
    step_end_ns = run.last_step_end_ns(rank)
    return mark.kind == _RESUMED or (step_end_ns is not None and step_end_ns > mark.time_ns)


def _read_last(run: Run, rank: int) -> _Mark | None:
    if not run.has_table(rank, "mark"):
        return None
    rows = run.table(rank, "mark", ("time_ns", "kind", "number")).to_pylist()
    marks = [
        _Mark(time_ns=row["time_ns"], kind=row["kind"], duration_ns=row["number"])
        for row in rows
        if row["kind"] in (_STUCK, _RESUMED)
    ]
    return max(marks, key=lambda mark: mark.time_ns, default=None)
