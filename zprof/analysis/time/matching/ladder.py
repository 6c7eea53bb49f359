"""Matches the collectives of different ranks, and refuses what does not fit.

Rows match by group, sequence and the way in which the sequence was found.  A match must agree in kind,
dtype and bytes, and no rank can leave a collective before another has entered it (:func:`refuse_impossible`,
after clocks are aligned).  Where a sequence is only an order, one event more on one rank shifts all
later ones: then the whole group is refused.  A refused row stands alone, and nobody is blamed for it.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from zprof.model.collectives import FULL_SYNC
from zprof.model.gaps import Gap

#: A group with a larger share of bad matches than this is not believed at all.
_TOLERATED_SHARE = 0.1
_GROUP = ["group", "method"]
_KEY = ["group", "method", "sequence"]
_REMEDY = "record again; no rank is blamed from these collectives"


def match(frame: pd.DataFrame, ranks: Sequence[int]) -> tuple[pd.DataFrame, list[Gap]]:
    """Add ``instance`` (equal on all rows of a match, -1 where refused) and ``matched``.

    Args:
        frame: Collectives of all ranks.
        ranks: The ranks that are loaded.
    """
    frame = frame.assign(instance=frame.groupby(_KEY, sort=False).ngroup().astype(np.int64))
    loaded = frame["group"].map({name: _members(name, ranks) for name in frame["group"].unique()})
    expected = loaded.map(len).astype(np.int64)
    unequal = _unequal_orders(frame, loaded)
    conflict = _conflicts(frame)
    frame["instance"] = frame["instance"].where(~unequal & ~conflict & (expected > 0), -1)
    present = _present(frame)
    partial = (frame["instance"] >= 0) & (present < expected)
    frame["matched"] = (frame["instance"] >= 0) & (present == frame["group_size"])
    missing = (frame["instance"] >= 0) & (expected < frame["group_size"])
    return frame, [
        *_gap(unequal, frame, "the ranks recorded different numbers of them, so their order says nothing"),
        *_gap(conflict & ~unequal, frame, "the ranks disagree on kind, dtype or bytes"),
        *_gap(partial, frame, "some ranks have no event for them"),
        *_bounds_gap(missing, frame),
    ]


def refuse_impossible(frame: pd.DataFrame, uncertainty_ns: int) -> tuple[pd.DataFrame, list[Gap]]:
    """Refuse matches in which a rank leaves before another enters, on the common clock."""
    first_end = frame.groupby("instance")["end_ns"].transform("min")
    last_start = frame.groupby("instance")["start_ns"].transform("max")
    impossible = (
        (frame["instance"] >= 0) & is_full_sync(frame) & (first_end < last_start - 2 * uncertainty_ns)
    )
    impossible = _spread(frame, impossible)
    return refuse(frame, impossible), _gap(impossible, frame, "a rank left before another had entered")


def refuse(frame: pd.DataFrame, rows: pd.Series) -> pd.DataFrame:
    """The frame with these rows standing alone."""
    return frame.assign(instance=frame["instance"].where(~rows, -1), matched=frame["matched"] & ~rows)


def is_full_sync(frame: pd.DataFrame) -> pd.Series:
    """Rows of kinds that no rank can leave before all have entered."""
    return frame["kind"].isin([str(kind) for kind in FULL_SYNC])


def _members(group: str, ranks: Sequence[int]) -> frozenset[int]:
    """Loaded ranks of a group "0,1" (or "0,1#name"); none where its ranks are not known."""
    words = group.split("#", 1)[0].split(",")
    if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
        return frozenset()
    return frozenset(int(word) for word in words) & frozenset(ranks)


def _unequal_orders(frame: pd.DataFrame, loaded: pd.Series) -> pd.Series:
    """Rows of groups with a sequence by order whose ranks have different numbers of rows."""
    counts = frame.groupby([*_GROUP, "rank"]).size().groupby(level=[0, 1])
    unequal = (counts.min() != counts.max()) | (counts.size() != _loaded_counts(frame, loaded))
    by_order = frame["method"].str.endswith("_order")
    return by_order & _of_groups(frame, unequal)


def _loaded_counts(frame: pd.DataFrame, loaded: pd.Series) -> pd.Series:
    return loaded.map(len).groupby([frame["group"], frame["method"]]).max()


def _conflicts(frame: pd.DataFrame) -> pd.Series:
    """Rows of keys with a rank twice or with unequal signatures, and of groups with many such."""
    grouped = frame.groupby("instance")
    conflict = grouped["rank"].transform("size") != grouped["rank"].transform("nunique")
    for column in ("kind", "dtype", "bytes", "group_size"):
        conflict |= grouped[column].transform("nunique") > 1
    return _spread(frame, conflict)


def _spread(frame: pd.DataFrame, bad: pd.Series) -> pd.Series:
    """Bad rows, and all rows of groups where they are many or where one shifts all that follow."""
    share = bad.groupby([frame["group"], frame["method"]]).mean()
    by_order = frame["method"].str.endswith("_order")
    whole_group = _of_groups(frame, share > _TOLERATED_SHARE) | (by_order & _of_groups(frame, share > 0))
    return bad | whole_group


def _of_groups(frame: pd.DataFrame, answers: pd.Series) -> pd.Series:
    """A yes or no per group and method, on each row."""
    keys = pd.MultiIndex.from_frame(frame[_GROUP])
    return pd.Series(answers.reindex(keys).to_numpy(dtype=bool), index=frame.index)


def _present(frame: pd.DataFrame) -> pd.Series:
    return frame.groupby("instance")["rank"].transform("nunique")


def _gap(rows: pd.Series, frame: pd.DataFrame, reason: str) -> list[Gap]:
    return [
        Gap(what="matching of collectives", reason=f"{int(count)} in group {group}: {reason}", remedy=_REMEDY)
        for group, count in frame[rows].groupby("group")["sequence"].nunique().items()
    ]


def _bounds_gap(rows: pd.Series, frame: pd.DataFrame) -> list[Gap]:
    return [
        Gap(
            what="wait and transfer",
            reason=f"not all ranks of group {group} are loaded: waits are lower, transfers upper bounds",
            remedy="load the run with all of its ranks",
        )
        for group in frame[rows]["group"].unique()
    ]
