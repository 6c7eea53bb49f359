"""The columns that matching reads, as arrays: signatures, times from a base of each rank, steps."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pandas as pd

from zprof.analysis.intervals import Int64s
from zprof.analysis.time.activity.timeline import RankTimeline
from zprof.analysis.time.clocks.table import NOBODY, Bools, Floats
from zprof.model.collectives import FULL_SYNC, CollectiveKind

#: Each rank sees its own bytes of these, and they may differ.
_OWN_BYTES = [str(k) for k in (CollectiveKind.ALL_TO_ALL, CollectiveKind.GATHER, CollectiveKind.SCATTER)]
_MESSAGES = [str(CollectiveKind.SEND), str(CollectiveKind.RECV)]
#: A clock further than this from the first rank's counts from another origin.
_SANE_NS = 10**12
#: Where no step is marked, the whole trace counts as one step, which says nothing of the order.
_WHOLE_TRACE = "whole trace"
NO_STEP = -1


class Rung(StrEnum):
    """How rows were matched, the best first."""

    SEQUENCE = "sequence"
    ORDER = "order"
    SIGNATURE = "signature"
    STREAM = "stream"
    ALONE = "alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Columns of all rows.

    ``signature`` is equal where kind, dtype and bytes are.  ``step``: the marked step that launched the row,
    -1 outside of steps and where its launch is not known.  ``source``: the rank whose start the others'
    ends follow (root of a broadcast, sender); ``sink``: the rank whose end follows all starts; else -1.
    ``peer``: the other side or root, -1 where it is not known.  ``group`` numbers the groups, ``counting``
    each group in each way of counting.
    """

    rank: Int64s
    sequence: Int64s
    signature: Int64s
    start: Floats
    end: Floats
    step: Int64s
    sync: Bools
    peer: Int64s
    source: Int64s
    sink: Int64s
    group: Int64s
    counting: Int64s


def is_full_sync(frame: pd.DataFrame) -> pd.Series:
    """Rows of kinds that no rank can leave before all have entered."""
    return frame["kind"].isin([str(kind) for kind in FULL_SYNC])


def bases(frame: pd.DataFrame, timelines: Sequence[RankTimeline]) -> dict[int, int]:
    """What the times of each rank are taken from: one instant for all clocks of one origin."""
    first = {int(str(rank)): int(time) for rank, time in frame.groupby("rank")["start_ns"].min().items()}
    for timeline in timelines:
        _earlier(first, timeline.rank, (begin for begin, _ in timeline.pings.values()))
    ranks = sorted(timeline.rank for timeline in timelines)
    common = first.get(ranks[0], next(iter(first.values()), 0))
    own = {rank: first.get(rank, common) for rank in ranks}
    return {rank: common if abs(time - common) < _SANE_NS else time for rank, time in own.items()}


def rows_of(frame: pd.DataFrame, timelines: Sequence[RankTimeline], base: Mapping[int, int]) -> Rows:
    """The rows of a frame."""
    rank = frame["rank"].to_numpy(dtype=np.int64)
    moved = frame["rank"].map(base).to_numpy(dtype=np.int64)
    peer = _peers(frame)
    kind = frame["kind"].to_numpy()
    send, recv = kind == str(CollectiveKind.SEND), kind == str(CollectiveKind.RECV)
    source = np.where(send, rank, np.where(recv | (kind == str(CollectiveKind.BROADCAST)), peer, NOBODY))
    group = numbered(frame["group"])
    method = numbered(frame["method"])
    return Rows(
        rank=rank,
        sequence=frame["sequence"].to_numpy(dtype=np.int64),
        signature=_signatures(frame),
        start=(frame["start_ns"].to_numpy(dtype=np.int64) - moved).astype(np.float64),
        end=(frame["end_ns"].to_numpy(dtype=np.int64) - moved).astype(np.float64),
        step=_steps(frame, timelines),
        sync=is_full_sync(frame).to_numpy(dtype=bool),
        peer=peer,
        source=source.astype(np.int64),
        sink=np.where(kind == str(CollectiveKind.REDUCE), peer, NOBODY).astype(np.int64),
        group=group,
        counting=numbered(pd.Series(group * (int(method.max(initial=0)) + 1) + method)),
    )


def numbered(values: pd.Series) -> Int64s:
    """A small number for each value, by first appearance.

    A name of a thousand ranks is long: pandas would read each of them to the end, a dict only each object.
    """
    seen: dict[object, int] = {}
    return np.array([seen.setdefault(value, len(seen)) for value in values.tolist()], dtype=np.int64)


def _earlier(first: dict[int, int], rank: int, times: Iterable[int]) -> None:
    known = [*times, *([first[rank]] if rank in first else [])]
    if known:
        first[rank] = min(known)


def _peers(frame: pd.DataFrame) -> Int64s:
    if "peer_rank" not in frame:
        return np.full(len(frame), NOBODY, dtype=np.int64)
    known: Int64s = frame["peer_rank"].fillna(NOBODY).to_numpy(dtype=np.int64)
    return known


def _signatures(frame: pd.DataFrame) -> Int64s:
    """Send and recv are one signature: they are the two sides of one message."""
    kind = frame["kind"].where(~frame["kind"].isin(_MESSAGES), "message")
    size = frame["bytes"].where(~frame["kind"].isin(_OWN_BYTES), 0)
    columns = {"kind": kind, "dtype": frame["dtype"], "bytes": size, "group_size": frame["group_size"]}
    codes = [pd.factorize(column)[0].astype(np.int64) for column in columns.values()]
    whole = codes[0]
    for code in codes[1:]:
        whole = pd.factorize(whole * (int(code.max(initial=0)) + 1) + code)[0].astype(np.int64)
    return whole


def _steps(frame: pd.DataFrame, timelines: Sequence[RankTimeline]) -> Int64s:
    found = np.full(len(frame), NO_STEP, dtype=np.int64)
    launch = frame["launch_start_ns"]
    known = launch.notna().to_numpy()
    times = launch.fillna(0).to_numpy(dtype=np.int64)
    rank = frame["rank"].to_numpy()
    for timeline in timelines:
        if timeline.source != _WHOLE_TRACE:
            mine = np.flatnonzero(known & (rank == timeline.rank))
            found[mine] = timeline.host_steps.step_at(times[mine])
    return found
