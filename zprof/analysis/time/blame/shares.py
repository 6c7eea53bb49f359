"""Sums what was waited by whom it was waited for: blamed + tied + unjudged = all exposed wait."""

from collections.abc import Sequence

import pandas as pd

from zprof.analysis.time.transfer.arrival import UNKNOWN_RANK
from zprof.model.time import Blame, WaitShares

_COLUMNS = (
    "rank", "instance", "judged", "blamed_rank", "late_reason", "origin_rank", "wait_ns", "exposed_wait_ns",
)  # fmt: skip


def wait_shares(frame: pd.DataFrame, ranks: Sequence[int], steps: int) -> WaitShares:
    """Sums of a step, the rank that most exposed wait is charged to first.

    Args:
        frame: Collectives of all ranks with judged, blamed_rank, late_reason, origin_rank.
        ranks: The ranks that are loaded.
        steps: Steps of the window.
    """
    frame = frame[list(_COLUMNS)]
    blamed = frame["blamed_rank"] != UNKNOWN_RANK
    judged = frame["judged"] & (frame["instance"] >= 0)
    exposed = frame["exposed_wait_ns"]
    by_rank = {int(str(rank)): rows for rank, rows in frame[blamed].groupby("blamed_rank")}
    took_part = frame[judged].groupby("rank")["instance"].nunique()
    own = frame.groupby("rank")["exposed_wait_ns"].sum()
    entries = [
        _blame(rank, by_rank.get(rank, frame[:0]), int(took_part.get(rank, 0)), int(own.get(rank, 0)), steps)
        for rank in ranks
    ]
    return WaitShares(
        per_rank=tuple(sorted(entries, key=lambda entry: (-entry.exposed_wait_ns, entry.rank))),
        tied_ns=int(exposed[judged & ~blamed].sum()) // steps,
        unjudged_ns=int(exposed[~judged & ~blamed].sum()) // steps,
        judged=int(frame.loc[judged, "instance"].nunique()),
    )


def _blame(rank: int, rows: pd.DataFrame, took_part: int, own_ns: int, steps: int) -> Blame:
    exposed = rows[rows["exposed_wait_ns"] > 0]
    waiting = int(rows.loc[rows["wait_ns"] > 0, "rank"].nunique())
    shared = steps * max(1, waiting)
    return Blame(
        rank=rank,
        wait_ns=int(rows["wait_ns"].sum()) // steps,
        exposed_wait_ns=int(rows["exposed_wait_ns"].sum()) // steps,
        last_ratio=min(1.0, rows["instance"].nunique() / took_part) if took_part else 0.0,
        own_wait_ns=own_ns // steps,
        reasons={str(reason): value for reason, value in _sums(exposed, "late_reason", steps)},
        waiting_ranks=waiting,
        wait_per_rank_ns=int(rows["wait_ns"].sum()) // shared,
        exposed_wait_per_rank_ns=int(rows["exposed_wait_ns"].sum()) // shared,
        origins={int(str(origin)): value for origin, value in _sums(exposed, "origin_rank", steps)},
    )


def _sums(rows: pd.DataFrame, column: str, steps: int) -> list[tuple[object, int]]:
    """Exposed wait of a step by the values of a column, the largest first."""
    if not len(rows):  # of a thousand ranks nearly all
        return []
    sums = rows.groupby(column)["exposed_wait_ns"].sum().sort_values(ascending=False, kind="stable")
    return [(key, int(value) // steps) for key, value in sums.items() if int(value) >= steps]
