"""Estimate what shorter or earlier collectives save, from the collectives of one rank alone.

Of each rank and step three things are played, on the instants that were measured:

    thread   the compute stream of a device, or the main thread of a CPU rank.  It runs as it did, skips the
             idle time that is taken out, and stops where it waited for a collective until that is done
    queues   a process group runs one collective at a time, in the order of the launches (as many at a time
             as the recording shows)
    link     groups over the same link share it: of n that move bytes each gets 1/n of its speed

A collective joins its queue when the thread comes to the instant at which its last rank was ready, so time
saved before moves it, and a shorter one lets those behind it begin earlier. How much a collective has to
move is its transfer less what others took of the link meanwhile. The other ranks are taken to save as much
as this one. The same play of the step as it was is subtracted, so the model's own error cancels.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.time.collective_rows import parse_group_ranks

#: Between the end of a collective and the start of one that had queued behind it.
_TOUCHING_NS = 60_000
#: Ranks and steps that are replayed: a thousand ranks say the same as some.
_MAX_RANKS, _MAX_STEPS = 8, 32
#: Of its transfer: one that moves more than this by itself is as good as alone.
_BESIDE_RATIO = 0.9
#: Less than this is a rounding of shares.
_NOTHING_NS = 1e-3
_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]
_Spans = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChange:
    """What is different in the replayed steps.

    ``transfer_ns``: of each row of the collectives, where it is another than measured.  ``ready_ns``: when a
    row joins its queue, as an instant of the measured step; NaN where that stays as it was, minus infinity
    for what is done before the step.  ``taken_out``: idle time of the thread, by rank, that does not occur.
    """

    transfer_ns: "pd.Series[float] | None" = None
    ready_ns: "pd.Series[float] | None" = None
    taken_out: Mapping[int, npt.NDArray[np.int64]] = field(default_factory=dict)


def estimate_transfer_saving_ns(analysis: RunAnalysis, new_transfer_ns: "pd.Series[float]") -> float:
    """Return what a step of a rank wins, in the mean, when its collectives transfer for this long.

    ``new_transfer_ns`` has an entry for each row of ``analysis.collectives``.
    """
    return estimate_saving_ns(analysis, StepChange(transfer_ns=new_transfer_ns))


def estimate_saving_ns(analysis: RunAnalysis, changed: StepChange) -> float:
    """Return what a changed step of a rank wins, in the mean over ranks and steps; not below 0."""
    links = _assign_links(analysis)
    won = [_save_in_step(step, changed, links) for step in _sample_steps(analysis.collectives)]
    return max(0.0, float(np.mean(won))) if won else 0.0


def _sample_steps(rows: pd.DataFrame) -> Iterator[pd.DataFrame]:
    ranks, steps = _sample_values(rows["rank"], _MAX_RANKS), _sample_values(rows["step"], _MAX_STEPS)
    kept = rows[rows["rank"].isin(ranks) & rows["step"].isin(steps)]
    for _, step in kept.groupby(["rank", "step"], observed=True):
        yield step


def _sample_values(values: "pd.Series[int]", most: int) -> list[int]:
    known: list[int] = sorted(values.unique().tolist())
    return known[:: -(-len(known) // most)] if known else []


def _assign_links(analysis: RunAnalysis) -> Mapping[str, int]:
    """The link of each group: the network where its ranks lie on several hosts, else that of their host.

    Each group has a link of its own where messages are no longer beside others than alone.
    """
    hosts, rows = analysis.hosts, analysis.collectives
    names = [str(name) for name in rows["group"].unique()] if "group" in rows else []
    spans = {name: {hosts.get(rank) for rank in parse_group_ranks(name)} - {None} for name in names}
    links = {name: int(len(found) > 1) for name, found in spans.items()}
    return links if _are_shared(analysis, links) else {}


def _are_shared(analysis: RunAnalysis, links: Mapping[str, int]) -> bool:
    """Whether a message takes longer beside others than one of its kind and size alone; yes if unknown."""
    alike = ["kind", "group", "bytes"]
    rows = analysis.collectives
    if not len(rows) or not set(alike) <= set(rows.columns):
        return True
    seen = [
        (step, _MeasuredStep.of(step, int(step["start_ns"].min()), links)) for step in _sample_steps(rows)
    ]
    table = pd.concat([step[alike].astype({"kind": str, "group": str}) for step, _ in seen])
    table = table.assign(
        transfer=np.concatenate([one.transfer for _, one in seen]),
        work=np.concatenate([one.work for _, one in seen]),
    )
    beside = table["work"] < _BESIDE_RATIO * table["transfer"]
    alone = table[~beside].groupby(alike)["transfer"].median().rename("alone")
    known = table[beside].join(alone, on=alike, how="inner")
    # shared in full they would have taken transfer / work times as long, and not shared as long as alone
    middle = (known["alone"] * (1 + known["transfer"] / known["work"].clip(lower=1.0))) / 2
    return bool(known.empty or known["transfer"].sum() > middle.sum())


def _save_in_step(rows: pd.DataFrame, changed: StepChange, links: Mapping[str, int]) -> float:
    origin = int(rows["start_ns"].min())  # a float counts nanoseconds since 1970 in steps of 256
    seen = _MeasuredStep.of(rows, origin, links)
    new, ready = seen.work, seen.ready
    if changed.transfer_ns is not None:
        transfer = np.asarray(changed.transfer_ns.loc[rows.index], dtype=np.float64)
        new = seen.work * np.divide(
            transfer, seen.transfer, out=np.ones_like(transfer), where=seen.transfer > 0
        )
    if changed.ready_ns is not None:
        asked = changed.ready_ns.loc[rows.index]
        earlier = np.asarray(asked, dtype=np.float64) - origin
        ready = np.where(np.isnan(earlier), seen.ready, np.minimum(seen.ready, earlier))
    spans = changed.taken_out.get(int(rows["rank"].iloc[0]))
    taken = [] if spans is None else _idle_spans(spans, rows, origin)
    return _play_step(seen, new, ready, taken) - _play_step(seen, seen.work, seen.ready, [])


def _idle_spans(spans: npt.NDArray[np.int64], rows: pd.DataFrame, origin: int) -> list[tuple[float, float]]:
    """Those between the first launch and the last end of the step's collectives, and right before it."""
    return [(float(begin - origin), float(end - origin)) for begin, end in spans.tolist()]


@dataclass(frozen=True, slots=True, kw_only=True)
class _MeasuredStep:
    """Collectives of a rank's step as they ran, in nanoseconds since its origin.

    ``ready``: when its last rank was there, or it was launched, where it then queued.  ``awaited``,
    ``resumed``: when the thread began to wait for it and went on; NaN where that is not known.
    ``work``: its transfer without what others took of the link meanwhile.
    """

    lane: npt.NDArray[np.int64]
    link: npt.NDArray[np.int64]
    ready: _Floats
    end: _Floats
    awaited: _Floats
    resumed: _Floats
    transfer: _Floats
    work: _Floats

    @classmethod
    def of(cls, rows: pd.DataFrame, origin: int, links: Mapping[str, int]) -> "_MeasuredStep":
        """From rows of the table of collectives."""
        end = (rows["end_ns"] - origin).to_numpy(np.float64)
        transfer = rows["transfer_ns"].to_numpy(np.float64)
        arrival = end - transfer
        group = rows["group"].astype(str) if "group" in rows else pd.Series("", index=rows.index)
        lane, queued = _assign_queues(pd.factorize(group)[0].astype(np.int64), arrival, end)
        own = -1 - pd.Series(lane, index=rows.index)  # of its own, where none is known
        link: _Ints = np.asarray(group.map(links).fillna(own) if links else own, dtype=np.int64)
        launch = np.fmin(_relative_ns(rows["launch_start_ns"], origin), arrival)
        blocked = (rows["exposed_wait_ns"] + rows["exposed_transfer_ns"]).to_numpy(np.float64)
        # what hid entirely may not, once the rank asks for it earlier: known where its wait was recorded
        asked = _relative_ns(rows["wait_start_ns"], origin)
        hidden = np.where(asked >= end, asked, np.nan)
        return cls(
            lane=lane,
            link=link,
            ready=np.where(queued, launch, arrival),
            end=end,
            awaited=np.where(blocked > 0, end - blocked, hidden),
            resumed=np.where(blocked > 0, end, hidden),
            transfer=transfer,
            work=_exclusive_transfer(link, arrival, end),
        )


def _relative_ns(times: "pd.Series[int]", origin: int) -> _Floats:
    """Nanoseconds since ``origin``; NaN where unknown."""
    since = (times.astype("Int64") - origin).astype("Float64")
    return np.asarray(since.to_numpy(np.float64, na_value=np.nan), dtype=np.float64)


def _assign_queues(
    group: npt.NDArray[np.int64], arrival: _Floats, end: _Floats
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The queue of each, and which began as the one before it in its queue ended.

    A group has one queue, unless collectives of it ran at once: then as many as that takes.
    """
    lane, queued = np.zeros(len(group), dtype=np.int64), np.zeros(len(group), dtype=np.bool_)
    ends: dict[int, list[tuple[int, float]]] = {}
    for row in np.lexsort((end, arrival)).tolist():
        mine = ends.setdefault(int(group[row]), [])
        free = [place for place, (_, last) in enumerate(mine) if last <= arrival[row] + _TOUCHING_NS]
        place = max(free, key=lambda place: mine[place][1], default=len(mine))
        if place == len(mine):
            mine.append((sum(map(len, ends.values())), -np.inf))
        lane[row], last = mine[place]
        queued[row] = last > arrival[row] - _TOUCHING_NS
        mine[place] = (int(lane[row]), float(end[row]))
    return lane, queued


def _exclusive_transfer(link: npt.NDArray[np.int64], arrival: _Floats, end: _Floats) -> _Floats:
    """What each moves by itself: where n are on a link at once, each has 1/n of the time."""
    work = np.zeros(len(link))
    for number in np.unique(link):
        mine = np.flatnonzero(link == number)
        edges = np.unique(np.concatenate((arrival[mine], end[mine])))
        starts, stops = np.sort(arrival[mine]), np.sort(end[mine])
        busy = np.searchsorted(starts, edges[:-1], "right") - np.searchsorted(stops, edges[:-1], "right")
        each = np.diff(edges) / np.maximum(1, busy)
        total = np.concatenate(([0.0], np.cumsum(each)))
        work[mine] = total[np.searchsorted(edges, end[mine])] - total[np.searchsorted(edges, arrival[mine])]
    return work


def _play_step(seen: _MeasuredStep, work: _Floats, ready: _Floats, taken: _Spans) -> float:
    """Return how much earlier than measured the thread is at the end."""
    link = _Link(seen, work)
    waiting = deque(np.argsort(ready, kind="stable").tolist())
    stops = [(float(at), row) for row, at in enumerate(seen.awaited) if not np.isnan(at)]
    stops += [(begin, -1 - place) for place, (begin, _) in enumerate(taken)]
    ahead = 0.0
    for at, row in sorted(stops):
        until = float(seen.resumed[row]) if row >= 0 else taken[-1 - row][1]
        while waiting and ready[waiting[0]] < max(at, until):
            # while the thread stands still others do not; what it is late for in idle time it is not any more
            instant = float(ready[waiting[0]])
            link.add(waiting.popleft(), (instant if row >= 0 else min(instant, at)) - ahead)
        ahead = max(ahead, until - (at - ahead)) if row < 0 else until - max(at - ahead, link.end_of(row))
    return ahead


class _Link:
    """Queues of groups over their links: the head of each queue moves, heads of one link share it."""

    def __init__(self, seen: _MeasuredStep, work: _Floats) -> None:
        order = np.lexsort((seen.end, seen.end - seen.transfer)).tolist()
        self._on = seen.link.tolist()
        self._left = [float(value) for value in work]
        self._ends: dict[int, float] = {}
        self._joined: dict[int, float] = {}
        self._queues: dict[int, deque[int]] = {}
        for row in order:
            self._queues.setdefault(int(seen.lane[row]), deque()).append(row)
        self._now = -np.inf

    def add(self, row: int, at: float) -> None:
        """Let it join its queue at an instant, in the order of the launches."""
        self._joined[row] = at

    def end_of(self, row: int) -> float:
        """Move bytes until it is done, and say when that is."""
        while row not in self._ends and self._step():
            pass
        return self._ends.get(row, self._now)

    def _step(self) -> bool:
        """Go on to where the next one begins or ends; False where nothing is left to do."""
        heads = [queue[0] for queue in self._queues.values() if queue and queue[0] in self._joined]
        if not heads:
            return False
        moving = [row for row in heads if self._joined[row] <= self._now]
        later = [self._joined[row] for row in heads if self._joined[row] > self._now]
        if not moving:
            self._now = min(later)
            return True
        share = Counter(self._on[row] for row in moving)
        until = min(self._now + self._left[row] * share[self._on[row]] for row in moving)
        until = min([until, *later])
        spent, self._now = until - self._now, until
        for row in moving:
            self._left[row] -= spent / share[self._on[row]]
            if self._left[row] <= _NOTHING_NS:
                self._ends[row] = self._now
                next(queue for queue in self._queues.values() if queue and queue[0] == row).popleft()
        return True
