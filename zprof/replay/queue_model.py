"""Estimate the saving of shorter collectives from the collectives of each rank on its own.

For each rank and step, three parts are replayed on the measured times:

    thread   the compute stream of a device, or the main thread of a CPU rank. It runs as recorded, and
             blocks on a collective until it is done
    queues   a process group runs one collective at a time in launch order (or as many at a time as the
             recording shows)
    link     groups on the same link share it: of n groups that move bytes, each gets 1/n of its speed

A collective joins its queue when the thread reaches the time at which its last rank was ready. Time saved
earlier therefore moves it, and a shorter collective lets later ones start earlier. The work of a collective
is its transfer time minus the link time used by others meanwhile. The other ranks are assumed to save as much
as this one. The unchanged step is replayed in the same way and subtracted, so that the model error cancels.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.time.collective_rows import parse_group_ranks

#: Maximum time between the end of a collective and the start of the next one in its queue.
_TOUCHING_NS = 60_000
#: Maximum number of replayed ranks and steps; a sample is enough for a mean.
_MAX_RANKS, _MAX_STEPS = 8, 32
#: A collective counts as alone if its own work is at least this share of its transfer.
_ALONE_RATIO = 0.9
#: Remaining work below this is a rounding error.
_MIN_WORK_NS = 1e-3
_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]


def estimate_transfer_saving_ns(analysis: RunAnalysis, new_transfer_ns: "pd.Series[float]") -> float:
    """Return the mean saving per rank and step, in ns, for new transfer times; never below 0.

    ``new_transfer_ns`` has an entry for each row of ``analysis.collectives``.
    """
    links = _assign_links(analysis)
    savings = [_save_in_step(step, new_transfer_ns, links) for step in _sample_steps(analysis.collectives)]
    return max(0.0, float(np.mean(savings))) if savings else 0.0


def _sample_steps(rows: pd.DataFrame) -> Iterator[pd.DataFrame]:
    ranks, steps = _sample_values(rows["rank"], _MAX_RANKS), _sample_values(rows["step"], _MAX_STEPS)
    kept = rows[rows["rank"].isin(ranks) & rows["step"].isin(steps)]
    for _, step in kept.groupby(["rank", "step"], observed=True):
        yield step


def _sample_values(values: "pd.Series[int]", max_values: int) -> list[int]:
    unique_values: list[int] = sorted(values.unique().tolist())
    return unique_values[:: -(-len(unique_values) // max_values)] if unique_values else []


def _assign_links(analysis: RunAnalysis) -> Mapping[str, int]:
    """Return the link of each group: the network if its ranks span several hosts, else the host's own link.

    The result is empty, so that each group has its own link, if concurrent messages take no longer than
    single ones.
    """
    hosts, rows = analysis.hosts, analysis.collectives
    names = [str(name) for name in rows["group"].unique()] if "group" in rows else []
    spans = {name: {hosts.get(rank) for rank in parse_group_ranks(name)} - {None} for name in names}
    links = {name: int(len(found) > 1) for name, found in spans.items()}
    return links if _are_shared(analysis, links) else {}


def _are_shared(analysis: RunAnalysis, links: Mapping[str, int]) -> bool:
    """Return True if concurrent messages take longer than similar ones alone, or if unknown."""
    alike = ["kind", "group", "bytes"]
    rows = analysis.collectives
    if not len(rows) or not set(alike) <= set(rows.columns):
        return True
    measured = [
        (step, _MeasuredStep.of(step, int(step["start_ns"].min()), links)) for step in _sample_steps(rows)
    ]
    table = pd.concat([step[alike].astype({"kind": str, "group": str}) for step, _ in measured])
    table = table.assign(
        transfer=np.concatenate([each_step.transfer for _, each_step in measured]),
        work=np.concatenate([each_step.work for _, each_step in measured]),
    )
    is_concurrent = table["work"] < _ALONE_RATIO * table["transfer"]
    alone = table[~is_concurrent].groupby(alike)["transfer"].median().rename("alone")
    unique_values = table[is_concurrent].join(alone, on=alike, how="inner")
    # on a shared link they take transfer / work times as long as alone; on separate links, as long as alone
    middle = (
        unique_values["alone"] * (1 + unique_values["transfer"] / unique_values["work"].clip(lower=1.0))
    ) / 2
    return bool(unique_values.empty or unique_values["transfer"].sum() > middle.sum())


def _save_in_step(rows: pd.DataFrame, new_transfer_ns: "pd.Series[float]", links: Mapping[str, int]) -> float:
    origin = int(rows["start_ns"].min())  # float64 resolves ns since 1970 only to 256
    measured = _MeasuredStep.of(rows, origin, links)
    transfer = np.asarray(new_transfer_ns.loc[rows.index], dtype=np.float64)
    new = measured.work * np.divide(
        transfer, measured.transfer, out=np.ones_like(transfer), where=measured.transfer > 0
    )
    return _play_step(measured, new) - _play_step(measured, measured.work)


class _MeasuredStep(Struct, frozen=True, kw_only=True):
    """Collectives of one rank and step as recorded, in nanoseconds since the step's origin.

    ``ready``: arrival of the last rank, or the launch of a queued collective. ``awaited``, ``resumed``: start
    and end of the wait of the thread; NaN if unknown. ``work``: transfer time without the link time used by
    others meanwhile.
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
        own = -1 - pd.Series(lane, index=rows.index)  # a separate link if unknown
        link: _Ints = np.asarray(group.map(links).fillna(own) if links else own, dtype=np.int64)
        launch = np.fmin(_relative_ns(rows["launch_start_ns"], origin), arrival)
        blocked = (rows["exposed_wait_ns"] + rows["exposed_transfer_ns"]).to_numpy(np.float64)
        # a hidden collective may block if the rank waits for it earlier: known if its wait was recorded
        new_ready = _relative_ns(rows["wait_start_ns"], origin)
        hidden = np.where(new_ready >= end, new_ready, np.nan)
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
    """Return the queue of each collective, and a mask of those that started as the previous one ended.

    A group has one queue, or several if its collectives ran concurrently.
    """
    lane, queued = np.zeros(len(group), dtype=np.int64), np.zeros(len(group), dtype=np.bool_)
    ends: dict[int, list[tuple[int, float]]] = {}
    for row in np.lexsort((end, arrival)).tolist():
        queue_ends = ends.setdefault(int(group[row]), [])
        free = [place for place, (_, last) in enumerate(queue_ends) if last <= arrival[row] + _TOUCHING_NS]
        place = max(free, key=lambda place: queue_ends[place][1], default=len(queue_ends))
        if place == len(queue_ends):
            queue_ends.append((sum(map(len, ends.values())), -np.inf))
        lane[row], last = queue_ends[place]
        queued[row] = last > arrival[row] - _TOUCHING_NS
        queue_ends[place] = (int(lane[row]), float(end[row]))
    return lane, queued


def _exclusive_transfer(link: npt.NDArray[np.int64], arrival: _Floats, end: _Floats) -> _Floats:
    """Return the exclusive link time of each collective: n concurrent ones get 1/n of the time each."""
    work = np.zeros(len(link))
    for number in np.unique(link):
        queue_ends = np.flatnonzero(link == number)
        edges = np.unique(np.concatenate((arrival[queue_ends], end[queue_ends])))
        starts, stops = np.sort(arrival[queue_ends]), np.sort(end[queue_ends])
        busy = np.searchsorted(starts, edges[:-1], "right") - np.searchsorted(stops, edges[:-1], "right")
        each = np.diff(edges) / np.maximum(1, busy)
        total = np.concatenate(([0.0], np.cumsum(each)))
        work[queue_ends] = (
            total[np.searchsorted(edges, end[queue_ends])]
            - total[np.searchsorted(edges, arrival[queue_ends])]
        )
    return work


def _play_step(measured: _MeasuredStep, work: _Floats) -> float:
    """Return the time by which the thread reaches the end earlier than measured, in ns."""
    link, ready = _LinkQueues(measured, work), measured.ready
    waiting = deque(np.argsort(ready, kind="stable").tolist())
    stops = [(float(at), row) for row, at in enumerate(measured.awaited) if not np.isnan(at)]
    ahead = 0.0
    for at, row in sorted(stops):
        until = float(measured.resumed[row])
        while waiting and ready[waiting[0]] < max(at, until):  # others continue while the thread waits
            joining = waiting.popleft()
            link.add(joining, float(ready[joining]) - ahead)
        ahead = until - max(at - ahead, link.run_until_done(row))
    return ahead


class _LinkQueues:
    """Queues of groups on their links: the head of each queue moves, and heads on one link share it."""

    def __init__(self, measured: _MeasuredStep, work: _Floats) -> None:
        order = np.lexsort((measured.end, measured.end - measured.transfer)).tolist()
        self._on = measured.link.tolist()
        self._left = [float(value) for value in work]
        self._ends: dict[int, float] = {}
        self._joined: dict[int, float] = {}
        self._queues: dict[int, deque[int]] = {}
        for row in order:
            self._queues.setdefault(int(measured.lane[row]), deque()).append(row)
        self._now = -np.inf

    def add(self, row: int, at: float) -> None:
        """Add the collective to its queue at a time; the order in the queue is fixed in advance."""
        self._joined[row] = at

    def run_until_done(self, row: int) -> float:
        """Advance until the collective is done, and return its end time."""
        while row not in self._ends and self._step():
            pass
        return self._ends.get(row, self._now)

    def _step(self) -> bool:
        """Advance to the next start or end of a collective; return False if there is none."""
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
            if self._left[row] <= _MIN_WORK_NS:
                self._ends[row] = self._now
                next(queue for queue in self._queues.values() if queue and queue[0] == row).popleft()
        return True
