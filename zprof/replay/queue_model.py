"""Estimate what shorter or earlier collectives save, from the collectives of one rank alone.

For each rank and step, three things are played on the measured instants:

    thread   the compute stream of a device, or the main thread of a CPU rank. It runs as recorded, skips the
             idle time that is taken out, and stops where it waited for a collective until that is done
    queues   a process group runs one collective at a time in launch order (or as many at a time as the
             recording shows)
    link     groups on the same link share it: of n groups that move bytes, each gets 1/n of its speed

A collective joins its queue when the thread reaches the instant at which its last rank was ready. So time
saved earlier moves it, and a shorter collective lets those behind it start earlier. The work of a collective
is its transfer less what others took of the link meanwhile. The other ranks are assumed to save as much as
this one. The unchanged step is played in the same way and subtracted, so the model's own error cancels.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.time.collective_rows import parse_group_ranks

#: Maximum distance between the end of a collective and the start of one that was queued behind it.
_TOUCHING_NS = 60_000
#: Limits on the ranks and steps that are replayed; a sample is enough for a mean.
_MAX_RANKS, _MAX_STEPS = 8, 32
#: A collective counts as alone if its own work is at least this share of its transfer.
_BESIDE_RATIO = 0.9
#: Less work than this is a rounding error of the shares.
_NOTHING_NS = 1e-3
_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]
_Spans = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChange:
    """The difference between the measured and the changed steps.

    ``transfer_ns``: new transfer time of each row of the collectives. ``ready_ns``: when a row joins its
    queue, as an instant of the measured step; NaN if unchanged, minus infinity if it is done before the step.
    ``taken_out``: idle time of the thread that does not occur, by rank.
    """

    transfer_ns: "pd.Series[float] | None" = None
    ready_ns: "pd.Series[float] | None" = None
    taken_out: Mapping[int, npt.NDArray[np.int64]] = field(default_factory=dict)


def estimate_transfer_saving_ns(analysis: RunAnalysis, new_transfer_ns: "pd.Series[float]") -> float:
    """Return the mean saving per rank and step, in ns, if collectives transfer for this long.

    ``new_transfer_ns`` has an entry for each row of ``analysis.collectives``.
    """
    return estimate_saving_ns(analysis, StepChange(transfer_ns=new_transfer_ns))


def estimate_saving_ns(analysis: RunAnalysis, changed: StepChange) -> float:
    """Return the mean saving of a changed step over ranks and steps, in ns; never below 0."""
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
    """Return the link of each group: the network if its ranks span several hosts, else that of their host.

    The result is empty, which gives each group a link of its own, if messages take no longer beside others
    than alone.
    """
    hosts, rows = analysis.hosts, analysis.collectives
    names = [str(name) for name in rows["group"].unique()] if "group" in rows else []
    spans = {name: {hosts.get(rank) for rank in parse_group_ranks(name)} - {None} for name in names}
    links = {name: int(len(found) > 1) for name, found in spans.items()}
    return links if _are_shared(analysis, links) else {}


def _are_shared(analysis: RunAnalysis, links: Mapping[str, int]) -> bool:
    """Return whether messages take longer beside others than alike ones alone; True if unknown."""
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
    # fully shared they would take transfer / work times as long as alone; not shared, as long as alone
    middle = (known["alone"] * (1 + known["transfer"] / known["work"].clip(lower=1.0))) / 2
    return bool(known.empty or known["transfer"].sum() > middle.sum())


def _save_in_step(rows: pd.DataFrame, changed: StepChange, links: Mapping[str, int]) -> float:
    origin = int(rows["start_ns"].min())  # float64 resolves ns since 1970 only to 256
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
    """Return the spans relative to ``origin``."""
    return [(float(begin - origin), float(end - origin)) for begin, end in spans.tolist()]


@dataclass(frozen=True, slots=True, kw_only=True)
class _MeasuredStep:
    """Collectives of one rank and step as recorded, in nanoseconds since the step's origin.

    ``ready``: when the last rank arrived, or for a queued collective its launch. ``awaited``, ``resumed``:
    when the thread started to wait for it and when it went on; NaN if unknown. ``work``: its transfer without
    what others took of the link meanwhile.
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
        """Build the step from rows of the collectives table."""
        end = (rows["end_ns"] - origin).to_numpy(np.float64)
        transfer = rows["transfer_ns"].to_numpy(np.float64)
        arrival = end - transfer
        group = rows["group"].astype(str) if "group" in rows else pd.Series("", index=rows.index)
        lane, queued = _assign_queues(pd.factorize(group)[0].astype(np.int64), arrival, end)
        own = -1 - pd.Series(lane, index=rows.index)  # a link of its own if none is known
        link: _Ints = np.asarray(group.map(links).fillna(own) if links else own, dtype=np.int64)
        launch = np.fmin(_relative_ns(rows["launch_start_ns"], origin), arrival)
        blocked = (rows["exposed_wait_ns"] + rows["exposed_transfer_ns"]).to_numpy(np.float64)
        # a hidden collective may block once the rank asks for it earlier: known if its wait was recorded
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
    """Return nanoseconds since ``origin``, NaN if unknown."""
    since = (times.astype("Int64") - origin).astype("Float64")
    return np.asarray(since.to_numpy(np.float64, na_value=np.nan), dtype=np.float64)


def _assign_queues(
    group: npt.NDArray[np.int64], arrival: _Floats, end: _Floats
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the queue of each collective, and which ones started as the previous one in their queue ended.

    A group has one queue, or as many as it takes if its collectives ran at the same time.
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
    """Return the link time of each collective alone: of n on a link at once, each gets 1/n of the time."""
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
    """Return how much earlier than measured the thread reaches the end, in ns."""
    link = _Link(seen, work)
    waiting = deque(np.argsort(ready, kind="stable").tolist())
    stops = [(float(at), row) for row, at in enumerate(seen.awaited) if not np.isnan(at)]
    stops += [(begin, -1 - place) for place, (begin, _) in enumerate(taken)]
    ahead = 0.0
    for at, row in sorted(stops):
        until = float(seen.resumed[row]) if row >= 0 else taken[-1 - row][1]
        while waiting and ready[waiting[0]] < max(at, until):
            # others go on while the thread waits; idle time that it skips delays nobody
            instant = float(ready[waiting[0]])
            link.add(waiting.popleft(), (instant if row >= 0 else min(instant, at)) - ahead)
        ahead = max(ahead, until - (at - ahead)) if row < 0 else until - max(at - ahead, link.end_of(row))
    return ahead


class _Link:
    """Queues of groups on their links: the head of each queue moves, and heads on one link share it."""

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
        """Let the collective join its queue at an instant. The order in the queue is fixed beforehand."""
        self._joined[row] = at

    def end_of(self, row: int) -> float:
        """Move bytes until the collective is done, and return when that is."""
        while row not in self._ends and self._step():
            pass
        return self._ends.get(row, self._now)

    def _step(self) -> bool:
        """Advance to the next start or end of a collective; return False if nothing is left to do."""
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
