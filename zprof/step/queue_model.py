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

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import fields, replace

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Groups, Texts, find_places
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
_Bools = npt.NDArray[np.bool_]


def estimate_transfer_saving_ns(analysis: RunAnalysis, new_transfer_ns: _Floats) -> float:
    """Return the mean saving per rank and step, in ns, for new transfer times; never below 0.

    ``new_transfer_ns`` has an entry for each row of ``analysis.collectives``.
    """
    savings = [
        _play_step(step, step.scale_work(new_transfer_ns)) - ahead_ns
        for step, ahead_ns in analysis.compute_once(_measure_steps)
    ]
    return max(0.0, float(np.mean(savings))) if savings else 0.0


def _measure_steps(analysis: RunAnalysis) -> list[tuple["_MeasuredStep", float]]:
    """Return the sampled steps, and the time by which the replay of each ends earlier than measured.

    Each group has its own link if concurrent messages take no longer than single ones.
    """
    collectives, links = _Collectives.of(analysis.collectives), _assign_links(analysis)
    rows = _sample_steps(analysis.collectives)
    steps = [_MeasuredStep.of(collectives.at(step), links) for step in rows]
    if links and not _are_shared(analysis, steps):
        steps = [_MeasuredStep.of(collectives.at(step), {}) for step in rows]
    return [(step, _play_step(step, step.work)) for step in steps]


def _sample_steps(rows: Columns) -> list[_Ints]:
    """Return the rows of each sampled rank and step."""
    rank, step = rows.ints("rank"), rows.ints("step")
    kept = np.flatnonzero(
        np.isin(rank, _sample_values(rank, _MAX_RANKS)) & np.isin(step, _sample_values(step, _MAX_STEPS))
    )
    kept = kept[np.lexsort((step[kept], rank[kept]))]
    starts = np.flatnonzero((np.diff(rank[kept]) != 0) | (np.diff(step[kept]) != 0)) + 1
    return np.split(kept, starts) if len(kept) else []


def _sample_values(values: _Ints, max_values: int) -> _Ints:
    unique_values = np.unique(values)
    return unique_values[:: max(1, -(-len(unique_values) // max_values))]


def _assign_links(analysis: RunAnalysis) -> Mapping[str, int]:
    """Return the link of each group: the network if its ranks span several hosts, else that of its host."""
    hosts, rows = analysis.hosts, analysis.collectives
    names = rows.texts("group").list_distinct() if "group" in rows else []
    spans = {name: {hosts.get(rank) for rank in parse_group_ranks(name)} - {None} for name in names}
    return {name: int(len(found) > 1) for name, found in spans.items()}


def _are_shared(analysis: RunAnalysis, measured: Sequence["_MeasuredStep"]) -> bool:
    """Return True if concurrent messages take longer than similar ones alone, or if unknown."""
    rows = analysis.collectives
    if not measured or not {"kind", "group", "bytes"} <= set(rows.names):
        return True
    transfer = np.concatenate([step.transfer for step in measured])
    work = np.concatenate([step.work for step in measured])
    is_concurrent = work < _ALONE_RATIO * transfer
    if not is_concurrent.any():
        return True
    table = rows.at(np.concatenate([step.row for step in measured]))
    alike = table.group_by("kind", "group", "bytes").codes
    alone = Groups(alike[~is_concurrent])
    places = find_places([alike], [alike[~is_concurrent][alone.first]])
    compared = is_concurrent & (places >= 0)
    transfer, alone_ns = transfer[compared], alone.median(transfer[~is_concurrent])[places[compared]]
    # on a shared link they take transfer / work times as long as alone; on separate links, as long as alone
    middle = (alone_ns * (1 + transfer / np.maximum(1.0, work[compared]))) / 2
    return bool(not len(transfer) or transfer.sum() > middle.sum())


class _Collectives(Struct, frozen=True, kw_only=True):
    """Columns of the collectives table; times in ns, ``launch`` and ``wait_start`` 0 if not known."""

    row: _Ints
    group: _Ints
    groups: tuple[str, ...]
    start: _Ints
    end: _Ints
    transfer: _Floats
    blocked: _Floats
    launch: _Ints
    has_launch: _Bools
    wait_start: _Ints
    has_wait: _Bools

    @classmethod
    def of(cls, rows: Columns) -> "_Collectives":
        group = rows.texts("group") if "group" in rows else Texts(("",), np.zeros(len(rows), dtype=np.int64))
        return cls(
            row=np.arange(len(rows)),
            group=group.codes,
            groups=group.words,
            start=rows.ints("start_ns"),
            end=rows.ints("end_ns"),
            transfer=rows.floats("transfer_ns"),
            blocked=rows.floats("exposed_wait_ns") + rows.floats("exposed_transfer_ns"),
            launch=rows.ints("launch_start_ns"),
            has_launch=rows.known("launch_start_ns"),
            wait_start=rows.ints("wait_start_ns"),
            has_wait=rows.known("wait_start_ns"),
        )

    def at(self, rows: _Ints) -> "_Collectives":
        """Return these rows."""
        arrays = {each.name: getattr(self, each.name)[rows] for each in fields(self) if each.name != "groups"}
        return replace(self, **arrays)


class _MeasuredStep(Struct, frozen=True, kw_only=True):
    """Collectives of one rank and step as recorded, in nanoseconds since the step's origin.

    ``row``: their rows in the table. ``ready``: arrival of the last rank, or the launch of a queued
    collective. ``awaited``, ``resumed``: start and end of the wait of the thread; NaN if unknown. ``work``:
    transfer time without the link time used by others meanwhile.
    """

    row: _Ints
    lane: _Ints
    link: _Ints
    ready: _Floats
    end: _Floats
    awaited: _Floats
    resumed: _Floats
    transfer: _Floats
    work: _Floats

    @classmethod
    def of(cls, rows: _Collectives, links: Mapping[str, int]) -> "_MeasuredStep":
        """Build the step from its collectives."""
        origin = rows.start.min()  # float64 resolves ns since 1970 only to 256
        end = (rows.end - origin).astype(np.float64)
        arrival = end - rows.transfer
        lane, queued = _assign_queues(rows.group, arrival, end)
        # a separate link if unknown
        link = np.array([links.get(name, 0) for name in rows.groups])[rows.group] if links else -1 - lane
        launch = np.where(rows.has_launch, (rows.launch - origin).astype(np.float64), np.nan)
        wait_start = np.where(rows.has_wait, (rows.wait_start - origin).astype(np.float64), np.nan)
        # a hidden collective may block if the rank waits for it earlier: known if its wait was recorded
        hidden = np.where(wait_start >= end, wait_start, np.nan)
        return cls(
            row=rows.row,
            lane=lane,
            link=link,
            ready=np.where(queued, np.fmin(launch, arrival), arrival),
            end=end,
            awaited=np.where(rows.blocked > 0, end - rows.blocked, hidden),
            resumed=np.where(rows.blocked > 0, end, hidden),
            transfer=rows.transfer,
            work=_exclusive_transfer(link, arrival, end),
        )

    def scale_work(self, new_transfer_ns: _Floats) -> _Floats:
        """Return the work for new transfer times, one for each row of the table."""
        new = new_transfer_ns[self.row]
        ratio = np.divide(new, self.transfer, out=np.ones_like(new), where=self.transfer > 0)
        scaled: _Floats = self.work * ratio
        return scaled


def _assign_queues(
    group: npt.NDArray[np.int64], arrival: _Floats, end: _Floats
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the queue of each collective, and a mask of those that started as the previous one ended.

    A group has one queue, or several if its collectives ran concurrently.
    """
    lane, queued = np.zeros(len(group), dtype=np.int64), np.zeros(len(group), dtype=np.bool_)
    queues: dict[int, list[tuple[int, float]]] = {}
    count = 0
    order = np.lexsort((end, arrival))
    for row, number, begins, ends in zip(
        order.tolist(), group[order].tolist(), arrival[order].tolist(), end[order].tolist(), strict=True
    ):
        queue_ends = queues.setdefault(number, [])
        free = [place for place, (_, last) in enumerate(queue_ends) if last <= begins + _TOUCHING_NS]
        place = max(free, key=lambda place: queue_ends[place][1], default=len(queue_ends))
        if place == len(queue_ends):
            queue_ends.append((count, -np.inf))
            count += 1
        own, last = queue_ends[place]
        lane[row], queued[row] = own, last > begins - _TOUCHING_NS
        queue_ends[place] = own, ends
    return lane, queued


def _exclusive_transfer(link: npt.NDArray[np.int64], arrival: _Floats, end: _Floats) -> _Floats:
    """Return the exclusive link time of each collective: n concurrent ones get 1/n of the time each."""
    work = np.zeros(len(link))
    for number in np.unique(link):
        rows = np.flatnonzero(link == number)
        edges = np.unique(np.concatenate((arrival[rows], end[rows])))
        starts, stops = np.sort(arrival[rows]), np.sort(end[rows])
        busy = np.searchsorted(starts, edges[:-1], "right") - np.searchsorted(stops, edges[:-1], "right")
        each = np.diff(edges) / np.maximum(1, busy)
        total = np.concatenate(([0.0], np.cumsum(each)))
        work[rows] = total[np.searchsorted(edges, end[rows])] - total[np.searchsorted(edges, arrival[rows])]
    return work


def _play_step(measured: _MeasuredStep, work: _Floats) -> float:
    """Return the time by which the thread reaches the end earlier than measured, in ns."""
    link, ready = _LinkQueues(measured, work), measured.ready.tolist()
    waiting = deque(np.argsort(measured.ready, kind="stable").tolist())
    stops = np.flatnonzero(~np.isnan(measured.awaited))
    stops = stops[np.argsort(measured.awaited[stops], kind="stable")]
    ahead = 0.0
    for row, at, until in zip(
        stops.tolist(), measured.awaited[stops].tolist(), measured.resumed[stops].tolist(), strict=True
    ):
        while waiting and ready[waiting[0]] < max(at, until):  # others continue while the thread waits
            joining = waiting.popleft()
            link.joined[joining] = ready[joining] - ahead
        ahead = until - max(at - ahead, link.run_until_done(row))
    return ahead


class _LinkQueues:
    """Queues of groups on their links: the head of each queue moves, and heads on one link share it.

    ``joined``: when each collective joins its queue, infinity if not yet; the order in the queue is fixed in
    advance.
    """

    def __init__(self, measured: _MeasuredStep, work: _Floats) -> None:
        self.joined = [np.inf] * len(work)
        self._on: list[int] = measured.link.tolist()
        self._left: list[float] = work.tolist()
        self._ends: dict[int, float] = {}
        self._now = -np.inf
        queues: dict[int, deque[int]] = {}
        lanes = measured.lane.tolist()
        for row in np.lexsort((measured.end, measured.end - measured.transfer)).tolist():
            queues.setdefault(lanes[row], deque()).append(row)
        self._queues = list(queues.values())

    def run_until_done(self, row: int) -> float:
        """Advance until the collective is done, and return its end time."""
        while row not in self._ends and self._step():
            pass
        return self._ends.get(row, self._now)

    def _step(self) -> bool:
        """Advance to the next start or end of a collective; return False if there is none."""
        now, joined, left, on = self._now, self.joined, self._left, self._on
        moving: list[deque[int]] = []
        until = np.inf
        for queue in self._queues:
            if queue:
                at = joined[queue[0]]
                if at <= now:
                    moving.append(queue)
                elif at < until:
                    until = at
        if not moving:
            if until == np.inf:
                return False
            self._now = until
            return True
        links = [on[queue[0]] for queue in moving]
        shares = [links.count(link) for link in links]
        for queue, share in zip(moving, shares, strict=True):
            until = min(until, now + left[queue[0]] * share)
        self._now = until
        for queue, share in zip(moving, shares, strict=True):
            row = queue[0]
            left[row] -= (until - now) / share
            # Of times that are far from zero, what is left may be too little to change them.
            if left[row] <= _MIN_WORK_NS or until + left[row] * share <= until:
                self._ends[row] = until
                queue.popleft()
        return True
