"""Play a graph: compute when each rank finishes its steps.

Each rank goes through its tasks in host order. A collective is entered on a rank when its stream is free and
its dependencies are done. It starts once its last rank has arrived and, if its communicator runs one
operation at a time, once the previous operation is done.
"""

from collections import defaultdict, deque

import numpy as np

from zprof.replay.graph import Graph, RankGraph, step_places
from zprof.replay.link_sharing import stretch_transfers_ns
from zprof.replay.lost_members import merge_orders
from zprof.replay.tasks import NONE, Floats

#: Maximum rounds until the times of messages that share a link converge; up to ten are usual.
_MAX_ROUNDS = 30
#: Converged if no step end moves by more than this.
_CONVERGED_NS = 1_000.0


class ReplayDeadlock(Exception):
    """The ranks wait for each other in a cycle: the changed step is not a valid program."""


def play_graph(graph: Graph) -> Floats:
    """Return when each rank ends each step, in nanoseconds: an array of [rank, step].

    A step ends when all work launched in it or before is done. If communicators share links, the duration of
    a message depends on when it runs. The step is then played again until its end times converge.

    Raises:
        ReplayDeadlock: No rank can proceed.
    """
    ends, begins = _play_once(graph, np.zeros(len(graph.transfer_ns)))
    if graph.lost:
        for _ in range(_MAX_ROUNDS):
            before = ends
            ends, begins = _play_once(graph, stretch_transfers_ns(graph, begins) - graph.transfer_ns)
            if np.abs(ends - before).max() <= _CONVERGED_NS:
                break
    return ends


def _play_once(graph: Graph, longer_ns: Floats) -> tuple[Floats, Floats]:
    """Return the ends of steps, and the start of each collective, NaN for those that no rank enters.

    ``longer_ns``: extra time of each collective compared with running alone.
    """
    link = _Rendezvous(graph, longer_ns)
    ranks = [_RankPlayer(rank, link, graph.steps) for rank in graph.ranks]
    while not all(rank.is_done for rank in ranks):
        if not any([rank.advance() for rank in ranks]):
            raise ReplayDeadlock
    return np.array([rank.step_ends() for rank in ranks]), np.array(link.begins)


class _Rendezvous:
    """The state of the collectives: which ranks have arrived, and which operation each waits for."""

    def __init__(self, graph: Graph, longer_ns: Floats) -> None:
        self._transfer, self._longer = (graph.transfer_ns + longer_ns).tolist(), longer_ns.tolist()
        self._missing = graph.members.tolist()
        self._ready: list[list[tuple[_RankPlayer, int, float]]] = [[] for _ in self._transfer]
        self._lane = graph.lane.tolist()
        self._orders = _order_lanes(graph)
        self._free: dict[int, float] = defaultdict(float)
        self.begins = [np.nan] * len(self._transfer)

    def enter(self, number: int, rank: "_RankPlayer", at: int, ready: float) -> None:
        """Record that a rank has reached the collective, and end all collectives that this completes."""
        self._ready[number].append((rank, at, ready))
        self._missing[number] -= 1
        lane = self._lane[number]
        if lane == NONE:
            if not self._missing[number]:
                self._end(number, 0.0)
            return
        order = self._orders[lane]
        while order and not self._missing[order[0]]:
            first = order.popleft()
            self._free[lane] = self._end(first, self._free[lane])

    def _end(self, number: int, free: float) -> float:
        arrival = max(free, max(ready for _, _, ready in self._ready[number]))
        for rank, at, _ in self._ready[number]:
            rank.complete(at, arrival + self._longer[number])
        self.begins[number] = arrival
        end: float = arrival + self._transfer[number]
        return end


def _order_lanes(graph: Graph) -> dict[int, deque[int]]:
    """Return the collectives of each communicator in launch order.

    A rank may lack some of them. If ranks contradict each other, the first rank that has a collective counts.
    """
    orders: dict[int, list[list[int]]] = defaultdict(list)
    for rank in graph.ranks:
        numbers = rank.collective[rank.collective != NONE]
        lanes = graph.lane[numbers]
        for lane in np.unique(lanes[lanes != NONE]).tolist():
            orders[lane].append(numbers[lanes == lane].tolist())
    return {
        lane: deque(merge_orders(each) or dict.fromkeys(number for order in each for number in order))
        for lane, each in orders.items()
    }


class _RankPlayer:
    """One rank: the time of its host, and the end of each task's work."""

    def __init__(self, graph: RankGraph, link: _Rendezvous, steps: int) -> None:
        self._link = link
        self._gap, self._call = graph.gap_ns.tolist(), graph.call_ns.tolist()
        self._on, self._returns = graph.blocks_on.tolist(), graph.returns_ns.tolist()
        self._stream, self._work = graph.stream.tolist(), graph.work_ns.tolist()
        self._lag, self._waits = graph.lag_ns.tolist(), graph.waits_on
        self._number = graph.collective.tolist()
        self._pick_up, self._tail = graph.pick_up_ns, graph.tail_ns
        self._host = graph.host_begin_ns
        self.begin = graph.begin_ns
        self._end: list[float | None] = [None] * len(self._gap)
        self._last: dict[int, int] = {}
        self._queues: dict[int, deque[tuple[int, float]]] = defaultdict(deque)
        self._step, self._steps = step_places(graph), steps
        self._next = 0
        self._is_launched = False

    @property
    def is_done(self) -> bool:
        """True if all calls are made and all work has ended."""
        return self._next == len(self._gap) and not any(self._queues.values())

    def step_ends(self) -> Floats:
        """Return when the work of each step is done; for the last step, also the host."""
        ends = np.array([self.begin if end is None else end for end in self._end])
        places = np.searchsorted(self._step, np.arange(self._steps), side="right")
        reached = np.maximum.accumulate(np.concatenate(([self.begin], ends)))[places]
        reached[-1] = max(reached[-1], self._host + self._tail)
        done: Floats = reached
        return done

    def advance(self) -> bool:
        """Advance as far as possible; return True if there was any progress."""
        moved = False
        while self._next < len(self._gap):
            at = self._next
            if not self._is_launched:
                if not self._launch(at):
                    return moved
                self._is_launched = moved = True
            on = self._on[at]
            if on != NONE:
                end = self._end[on]
                if end is None:
                    return moved
                self._host = max(self._host, end + self._returns[at])
            self._next += 1
            self._is_launched = False
        return moved

    def complete(self, at: int, arrival: float) -> None:
        """End the collective of a task when its last rank arrives, and enter the next one of the stream."""
        end = arrival + self._work[at]
        self._end[at] = end
        queue = self._queues[self._stream[at]]
        queue.popleft()
        if queue:
            follower, ready = queue[0]
            self._link.enter(self._number[follower], self, follower, max(ready, end) + self._lag[follower])

    def _launch(self, at: int) -> bool:
        """Make the call and queue its work; return False if the end of a dependency is not known yet."""
        stream, is_collective = self._stream[at], self._number[at] != NONE
        free: float | None = self.begin
        if stream != NONE:
            free = self._find_start(at, stream, alone=is_collective)
            if free is None:
                return False
        launch = self._host + self._gap[at]
        self._host = launch + self._call[at]
        if stream == NONE:
            self._end[at] = self.begin  # nothing runs, so nothing has to wait for it
            return True
        ready = max(free, launch + self._pick_up)
        self._last[stream] = at
        if not is_collective:
            self._end[at] = ready + self._lag[at] + self._work[at]
            return True
        queue = self._queues[stream]
        queue.append((at, ready))
        if len(queue) == 1:
            self._link.enter(self._number[at], self, at, ready + self._lag[at])
        return True

    def _find_start(self, at: int, stream: int, *, alone: bool) -> float | None:
        """Return the time at which all dependencies of the work are done, None if not known yet.

        With ``alone``, collectives still under way on the stream do not count, because collectives queue.
        """
        free = self.begin
        for other in self._waits[at]:
            end = self._end[other]
            if end is None:
                return None
            free = max(free, end)
        before = self._last.get(stream, NONE)
        if before != NONE:
            end = self._end[before]
            if end is not None:
                return max(free, end)
            if not (alone and self._number[before] != NONE):
                return None
        return free
