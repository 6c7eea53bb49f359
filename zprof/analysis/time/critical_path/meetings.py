"""The collectives of all ranks, as the walk along the critical path asks for them."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.intervals import Int64s
from zprof.analysis.time.blame.excess import by_rank
from zprof.analysis.time.transfer.arrival import UNKNOWN_RANK
from zprof.analysis.time.transfer.instances import Instances, RowFinder
from zprof.model.collectives import FULL_SYNC

#: A collective that starts so soon after the one before it on its stream was waiting for that.
_RIGHT_AFTER_NS = 20_000
#: From the end of a collective to the next thing that a rank does: seen, 30 to 200 µs on CPU ranks.
_WAKE_UP_NS = 300_000
#: Collectives that a rank may have started and not ended: their launches are queued.
_MOST_AT_ONCE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Meetings:
    """Columns of the rows, and by rank the rows by start.

    ``last``: the row of the rank that was waited for, the row itself where nobody is known.  ``queued``: the
    row of the collective before it on its stream where that is what it waited for, else -1.
    """

    rank: Int64s
    start: Int64s
    end: Int64s
    last: Int64s
    queued: Int64s
    rows_of: dict[int, Int64s]

    def ended(self, rank: int, since_ns: int, until_ns: int) -> int:
        """The row of a rank that ended last while it was held up, shortly before it went on; -1 without one.

        One that ended long before that, or still ran, is not what the rank had waited for.
        """
        rows = self.rows_of.get(rank)
        if rows is None:
            return -1
        rows = rows[: int(np.searchsorted(self.start[rows], until_ns, side="left"))][-_MOST_AT_ONCE:]
        end = self.end[rows]
        likely = np.flatnonzero(
            (end > since_ns) & (end >= until_ns - _WAKE_UP_NS) & (end <= until_ns + _RIGHT_AFTER_NS)
        )
        return int(rows[likely[np.argmax(end[likely])]]) if len(likely) else -1


def meetings_of(frame: pd.DataFrame) -> Meetings:
    """From a table of collectives with launch and arrival columns."""
    rank, start, end = (frame[name].to_numpy(np.int64) for name in ("rank", "start_ns", "end_ns"))
    return Meetings(
        rank=rank,
        start=start,
        end=end,
        last=_last(frame, rank, start),
        queued=_queued(frame, rank, start),
        rows_of={number: rows[np.argsort(start[rows], kind="stable")] for number, rows in by_rank(rank)},
    )


def _last(frame: pd.DataFrame, rank: Int64s, start: Int64s) -> Int64s:
    """Of full meetings the row that starts last; of others that of the rank surely waited for."""
    instance, itself = frame["instance"].to_numpy(np.int64), np.arange(len(frame))
    instances = Instances(instance)
    latest = instances.spread(instances.largest(start), itself)
    together = frame["kind"].isin([str(kind) for kind in FULL_SYNC]).to_numpy(np.bool_)
    together &= ~frame["bound"].to_numpy(np.bool_) & (instance >= 0)
    waited = frame["last_rank"].to_numpy(np.int64)
    theirs = RowFinder(instance, rank).find(np.where(waited == UNKNOWN_RANK, -1, instance), waited)
    return np.where(together, latest, np.where(theirs >= 0, theirs, itself))


def _queued(frame: pd.DataFrame, rank: Int64s, start: Int64s) -> Int64s:
    """The collective before it, where neither its launch nor compute came later than the end of that."""
    before = frame["previous_ns"].to_numpy(np.int64)
    ready = np.maximum(frame["launch_ns"].to_numpy(np.int64), frame["computed_ns"].to_numpy(np.int64))
    ready = np.where(frame["launch_start_ns"].notna(), ready, frame["computed_ns"].to_numpy(np.int64))
    waited = (before >= ready) & (start - before <= _RIGHT_AFTER_NS)
    finder = RowFinder(frame["instance"].to_numpy(np.int64), rank)
    theirs = finder.find(np.where(waited, frame["previous_instance"].to_numpy(np.int64), -1), rank)
    return np.where(theirs >= 0, theirs, -1)
