"""Splits the collectives of all ranks into lanes: rows that could be matched with one another.

A lane is a group in one way of counting (a stated sequence, or only an order); of messages from rank to
rank it is one direction between two ranks, whatever the group counted.  A group "0,1,5" or "0,1#name" has
known ranks; any other name has not.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.intervals import Int64s
from zprof.analysis.time.matching.rows import Rows
from zprof.model.collectives import CollectiveKind

_STREAM = "stream:"
#: What a lane is called whose ranks nothing states.
UNKNOWN_RANKS = "of unknown ranks"
_SEND, _RECV = str(CollectiveKind.SEND), str(CollectiveKind.RECV)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Rows (positions in the frame, by rank and sequence) of a group.

    ``members`` are the loaded ranks, ``size`` all ranks of the group, 0 where that is not known.
    ``stated``: the sequence is the program's own, not only an order.
    """

    group: str
    members: tuple[int, ...]
    size: int
    stated: bool
    rows: Int64s
    stream: bool = False


def lanes_of(frame: pd.DataFrame, rows: Rows, ranks: Sequence[int], world_size: int | None) -> list[Lane]:
    """All lanes of groups whose ranks are known, and of the streams that all ranks have."""
    message = frame["kind"].isin([_SEND, _RECV]).to_numpy()
    found = _groups(frame, rows, np.flatnonzero(~message), ranks)
    found += _messages(frame, rows, np.flatnonzero(message), ranks)
    return found + _streams(frame, rows, ranks, world_size)


def members_of(group: str, ranks: Sequence[int]) -> tuple[int, ...]:
    """Loaded ranks of a group "0,1" (or "0,1#name"); none where its ranks are not known."""
    words = group.split("#", 1)[0].split(",")
    if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
        return ()
    return tuple(sorted({int(word) for word in words} & set(ranks)))


def _groups(frame: pd.DataFrame, rows: Rows, where: Int64s, ranks: Sequence[int]) -> list[Lane]:
    sizes = frame["group_size"].to_numpy(dtype=np.int64)
    found = []
    for mine in _split(where, rows.counting[where]):
        group, method = str(frame["group"].iat[mine[0]]), str(frame["method"].iat[mine[0]])
        members = members_of(group, ranks)
        if members:
            lane = Lane(
                group=group,
                members=members,
                size=int(sizes[mine[0]]),
                stated=not method.endswith("_order"),
                rows=_ordered(mine, rows),
            )
            found.append(lane)
    return found


def _messages(frame: pd.DataFrame, rows: Rows, where: Int64s, ranks: Sequence[int]) -> list[Lane]:
    """One lane for each group, sender and receiver; rows that do not name the other side have none."""
    where = where[rows.peer[where] >= 0]
    if not len(where):
        return []
    sends = (frame["kind"].iloc[where] == _SEND).to_numpy()
    ends = pd.DataFrame(
        {
            "group": rows.group[where],
            "sender": np.where(sends, rows.rank[where], rows.peer[where]),
            "receiver": np.where(sends, rows.peer[where], rows.rank[where]),
        }
    )
    found = []
    for mine in _split(
        np.arange(len(where)), ends.groupby(list(ends), sort=False).ngroup().to_numpy().astype(np.int64)
    ):
        _, sender, receiver = ends.iloc[mine[0]]
        group = str(frame["group"].iat[int(where[mine[0]])])
        members = tuple(sorted({int(sender), int(receiver)} & set(ranks)))
        if sender != receiver:
            mine = _ordered(where[mine], rows)
            found.append(Lane(group=group, members=members, size=2, stated=False, rows=mine))
    return found


def _streams(frame: pd.DataFrame, rows: Rows, ranks: Sequence[int], world_size: int | None) -> list[Lane]:
    """Return a lane for each stream of collectives without a group, if all ranks have the same streams.

    A rank with one such stream needs no name for it; of several, those with one name belong together.
    Several mean several groups, and which ranks are in them is known only where all ranks are there: two
    ranks of many may have no group in common.
    """
    first = np.unique(rows.group, return_index=True)[1]
    streams = [int(rows.group[row]) for row in first if str(frame["group"].iat[row]).startswith(_STREAM)]
    where = np.flatnonzero(np.isin(rows.group, streams))
    if not len(where) or len(ranks) < 2:
        return []
    of_rank = {rank: set(rows.group[where[rows.rank[where] == rank]].tolist()) for rank in ranks}
    if all(len(groups) == 1 for groups in of_rank.values()):
        parts = [where]
    elif len(ranks) == world_size and all(groups == set(streams) for groups in of_rank.values()):
        parts = _split(where, rows.group[where])
    else:
        return []
    return [
        Lane(
            group=UNKNOWN_RANKS if len(parts) == 1 else f"{UNKNOWN_RANKS} ({frame['group'].iat[mine[0]]})",
            members=tuple(sorted(ranks)),
            size=world_size if world_size == len(ranks) else 0,
            stated=False,
            rows=_ordered(mine, rows),
            stream=True,
        )
        for mine in parts
    ]


def _ordered(where: Int64s, rows: Rows) -> Int64s:
    order = np.lexsort((rows.start[where], rows.sequence[where], rows.rank[where]))
    return where[order]


def _split(where: Int64s, code: Int64s) -> list[Int64s]:
    if not len(where):
        return []
    order = np.argsort(code, kind="stable")
    return np.split(where[order], np.flatnonzero(np.diff(code[order])) + 1)
