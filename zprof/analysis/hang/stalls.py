"""Read the marks of a watch: how long a rank made no progress, and whether it went on later."""

from msgspec import Struct

from zprof.run.reader import Run

_STUCK, _RESUMED = "stuck", "resumed"


class Stall(Struct, frozen=True, kw_only=True):
    """A stall that a watch saved and that had not ended: its ranks, and the longest time without progress."""

    ranks: tuple[int, ...]
    duration_ns: int


def find_stall(run: Run) -> Stall | None:
    """Return the stall in which a run ended; None if no watch saw one, or all ranks went on.

    Raises:
        BadInput: a table of the run is damaged.
    """
    durations = {rank: last[1] for rank in run.ranks if (last := _read_last(run, rank)) and last[0] == _STUCK}
    return Stall(ranks=tuple(durations), duration_ns=max(durations.values())) if durations else None


def list_resumed(run: Run) -> tuple[int, ...]:
    """Return the ranks whose last stall ended.

    Raises:
        BadInput: a table of the run is damaged.
    """
    return tuple(rank for rank in run.ranks if (last := _read_last(run, rank)) and last[0] == _RESUMED)


def _read_last(run: Run, rank: int) -> tuple[str, int] | None:
    """Return the kind and number of a rank's last mark of a watch."""
    if not run.has_table(rank, "mark"):
        return None
    rows = run.table(rank, "mark", ("time_ns", "kind", "number")).to_pylist()
    own = [(row["time_ns"], row["kind"], row["number"]) for row in rows if row["kind"] in (_STUCK, _RESUMED)]
    return max(own)[1:] if own else None
