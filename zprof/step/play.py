"""Play a step unchanged and with one change: when each rank finishes its steps, and what a fix saves.

Each rank goes through its tasks in host order. A collective is entered on a rank when its stream is free and
its dependencies are done. It starts once its last rank has arrived and, if its communicator runs one
operation at a time, once the previous operation is done.

Concurrent messages may share a link, and then take longer than alone. Groups of different ranks may have
separate links, but often do not: hybrid sharding's inner and outer groups share one network card. The
recording shows this: if a communicator's messages are slower, byte for byte, the longer another
communicator's messages run concurrently,

    bytes / transfer = rate of the communicator and kind * (1 - lost * share of the concurrent time)

then it loses this share of its rate to them: half if both get equal parts, all if the other has priority.

What a fix saves:

    gain   = play(step) - play(edit(step))          one gain for each way in which the fix may turn out
    saving = least gain * (1 - 0.10) - 0.002 step  ..  largest gain * (1 + 0.20) + 0.002 step

The two ends have different errors. A gain is too large if the changed step encounters something that the
recording did not show (a dependency, a queue, a slower kernel); it is too small by costs of the cause outside
the step's own tasks (the host time of a dropped collective, concurrent kernels that slowed down). For 178
planted causes in simulated jobs with a known fixed step, the truth was 0.96 to 1.12 times the gain in 90 % of
cases, and 0.65 to 1.36 times in 98 %; the remaining margin is for effects that simulators leave out.

The step is played from its kernels if their launches were recorded, else from its threads' spans. A different
engine schedule cannot be expressed by editing spans: then the units are played
(:mod:`zprof.step.unit_calibration`), and the gain comes from their model.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from functools import cached_property

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns
from zprof.analysis.intervals import Int64s, covered, union
from zprof.model.gaps import Gap
from zprof.model.plan import Change
from zprof.step.edits import edit_ranks
from zprof.step.from_recording import build_graph, build_host_graph
from zprof.step.message_sizes import ResizedMessages
from zprof.step.prediction import predict_gain_ns
from zprof.step.tasks import NONE, Floats, Graph, RankGraph, merge_orders, step_places

#: Maximum rounds until the times of messages that share a link converge; usually up to ten.
_MAX_ROUNDS = 30
#: Converged if no step end moves by more than this.
_CONVERGED_NS = 1_000.0
Strings = npt.NDArray[np.str_]

#: Maximum standard error of an accepted fit; communicators that lose less than the second value have their
#: own link.
_MAX_ERROR_RATIO, _LOST_RATIO = 0.15, 0.2
#: Upper bound of the loss, so that every message ends.
_MAX_LOST_RATIO = 0.95
#: Minimum degrees of freedom of a fit.
_MIN_FREEDOM = 8
#: A message with less time left is done.
_DONE_NS = 0.5
#: Maximum relative errors of a gain: too large, too small.
_LOWER_ERROR_RATIO, _UPPER_ERROR_RATIO = 0.10, 0.20
#: Minimum error at both ends, as a share of the step.
_STEP_ERROR_RATIO = 0.002


class ReplayDeadlock(Exception):
    """The ranks wait for each other in a cycle: the changed step is not a valid program."""


def play_graph(graph: Graph) -> Floats:
    """Return when each rank ends each step, in nanoseconds: an array of [rank, step].

    A step ends when all work launched in it or before is done. If communicators share links, a message's
    duration depends on when it runs. The step is then played repeatedly until its end times converge.

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
    """Return the step ends and each collective's start, NaN if no rank enters it.

    ``longer_ns``: extra time of each collective compared with running alone.
    """
    link = _Rendezvous(graph, longer_ns)
    ranks = [_RankState(rank, link) for rank in graph.ranks]
    link.resumed.extend(ranks)
    while link.resumed:
        rank = link.resumed.popleft()
        rank.awaited = next(rank.calls, NONE)
    if not all(rank.is_done for rank in ranks):
        raise ReplayDeadlock
    return np.array([rank.step_ends(graph.steps) for rank in ranks]), np.array(link.begins)


class _RankState:
    """One rank: its host time, and the end of each task's work, None if not known yet."""

    def __init__(self, graph: RankGraph, link: "_Rendezvous") -> None:
        self.graph = graph
        self.calls = _advance_host(self, link)
        #: The task whose end the host or the queue needs to proceed.
        self.awaited = NONE
        self.host = graph.host_begin_ns
        # a task without work runs nothing, so nothing waits for it
        self.ends: list[float | None] = [graph.begin_ns] * len(graph.stream)
        for at in np.flatnonzero(graph.stream != NONE).tolist():
            self.ends[at] = None
        self.works: list[float] = graph.work_ns.tolist()
        self.lags: list[float] = graph.lag_ns.tolist()
        self.numbers: list[int] = graph.collective.tolist()
        #: A collective queued behind another one on its stream, and the time when its other inputs are ready.
        self.followers: dict[int, tuple[int, float]] = {}

    @property
    def is_done(self) -> bool:
        """True if all work has ended."""
        return None not in self.ends

    def step_ends(self, steps: int) -> list[float]:
        """Return when the work of each step is done; for the last step, also the host."""
        places = np.searchsorted(step_places(self.graph), np.arange(steps), side="right")
        ends = np.array([self.graph.begin_ns, *self.ends], dtype=np.float64)
        reached: list[float] = np.maximum.accumulate(ends)[places].tolist()
        reached[-1] = max(reached[-1], self.host + self.graph.tail_ns)
        return reached


class _Rendezvous:
    """State of the collectives: the ranks that have arrived, and the operation that each waits for."""

    def __init__(self, graph: Graph, longer_ns: Floats) -> None:
        self._transfer, self._longer = (graph.transfer_ns + longer_ns).tolist(), longer_ns.tolist()
        self._missing = graph.members.tolist()
        self._members: list[list[tuple[_RankState, int]]] = [[] for _ in self._transfer]
        self._arrivals = [0.0] * len(self._transfer)
        self._lane = graph.lane.tolist()
        self._orders = _order_lanes(graph)
        self._free: dict[int, float] = defaultdict(float)
        self.begins = [np.nan] * len(self._transfer)
        #: Ranks that can proceed.
        self.resumed: deque[_RankState] = deque()

    def enter(self, number: int, rank: _RankState, at: int, ready: float) -> None:
        """Record that a rank has reached the collective, and end all collectives that this completes."""
        self._members[number].append((rank, at))
        if ready > self._arrivals[number]:
            self._arrivals[number] = ready
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
        arrival = max(free, self._arrivals[number])
        done = arrival + self._longer[number]
        for rank, at in self._members[number]:
            end = rank.ends[at] = done + rank.works[at]
            if rank.awaited == at:
                rank.awaited = NONE
                self.resumed.append(rank)
            if at in rank.followers:
                follower, ready = rank.followers.pop(at)
                self.enter(rank.numbers[follower], rank, follower, max(ready, end) + rank.lags[follower])
        self.begins[number] = arrival
        return arrival + self._transfer[number]


def _order_lanes(graph: Graph) -> dict[int, deque[int]]:
    """Return each communicator's collectives in launch order.

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


def _advance_host(rank: _RankState, link: _Rendezvous) -> Iterator[int]:
    """Make a rank's calls in order, and queue their work.

    Yields the collective that the rank has to wait for whenever its end is unknown. A single function with
    local variables handles all of a rank's work for speed: many thousands of kernels.
    """
    graph, ends, works, lags = rank.graph, rank.ends, rank.works, rank.lags
    collective, waits_on = graph.collective, graph.waits_on
    device = np.flatnonzero(graph.stream != NONE)
    previous = _find_previous_on_stream(graph.stream)
    first = 0
    for last in [*np.flatnonzero(graph.blocks_on != NONE).tolist(), len(ends) - 1]:
        # until the host blocks on work, its time is a running sum over its calls
        launches = _sum_host_times(rank.host, graph, first, last + 1)
        mine = device[slice(*np.searchsorted(device, (first, last + 1)))]
        earliest = np.maximum(launches[mine - first, 0] + graph.pick_up_ns, graph.begin_ns)
        for at, ready, before, number in zip(
            mine.tolist(), earliest.tolist(), previous[mine].tolist(), collective[mine].tolist(), strict=True
        ):
            for other in waits_on[at]:
                while (end := ends[other]) is None:
                    yield other
                if end > ready:
                    ready = end
            queues = False
            if before != NONE:
                while (end := ends[before]) is None:
                    queues = number != NONE and rank.numbers[before] != NONE
                    if queues:  # collectives queue: the host need not wait for the one before
                        break
                    yield before
                if end is not None and end > ready:
                    ready = end
            if number == NONE:
                ends[at] = ready + lags[at] + works[at]
            elif queues:
                rank.followers[before] = at, ready
            else:
                link.enter(number, rank, at, ready + lags[at])
        if len(launches):
            rank.host = float(launches[-1, 1])
            on = int(graph.blocks_on[last])
            if on != NONE:
                while (end := ends[on]) is None:
                    yield on
                rank.host = max(rank.host, end + float(graph.returns_ns[last]))
        first = last + 1


def _sum_host_times(host: float, graph: RankGraph, first: int, until: int) -> Floats:
    """Return the start and end of each call in a range of tasks, if the host never blocks."""
    times = np.empty(2 * (until - first) + 1)
    times[0], times[1::2], times[2::2] = host, graph.gap_ns[first:until], graph.call_ns[first:until]
    return np.add.accumulate(times)[1:].reshape(-1, 2)


def _find_previous_on_stream(stream: Int64s) -> Int64s:
    """Return the previous task on each task's stream, ``NONE`` for the first task and for tasks without
    work.
    """
    previous = np.full(len(stream), NONE, dtype=np.int64)
    order = np.argsort(stream, kind="stable")
    follows = (stream[order[1:]] == stream[order[:-1]]) & (stream[order[1:]] != NONE)
    previous[order[1:][follows]] = order[:-1][follows]
    return previous


def infer_link_sharing(graph: Graph, collectives: Columns) -> Graph:
    """Return the graph with the transfer times of messages running alone, and each communicator's loss.

    The graph is unchanged if messages of different communicators do not overlap or do not slow each other
    down.
    """
    if len(np.unique(graph.lane[graph.lane != NONE])) < 2:
        return graph
    kinds, sizes, beside_ns = _read_messages(graph, collectives)
    fits = (
        (lane, _fit_lost_ratio(graph, kinds, sizes, beside_ns, lane))
        for lane in np.unique(graph.lane).tolist()
    )
    lost = {lane: min(ratio, _MAX_LOST_RATIO) for lane, ratio in fits if ratio >= _LOST_RATIO}
    if not lost:
        return graph
    excess_ns = beside_ns * np.array([lost.get(lane, 0.0) for lane in graph.lane.tolist()])
    ranks = []
    for rank in graph.ranks:
        work = rank.work_ns.copy()
        inside = rank.collective != NONE
        work[inside] -= excess_ns[rank.collective[inside]]
        ranks.append(replace(rank, work_ns=work))
    return replace(graph, ranks=tuple(ranks), transfer_ns=graph.transfer_ns - excess_ns, lost=lost)


def _read_messages(graph: Graph, collectives: Columns) -> tuple[Strings, Floats, Floats]:
    """Return each collective's kind and bytes, and the time of concurrent collectives on other
    communicators.
    """
    beside, sizes = np.zeros(len(graph.transfer_ns)), np.zeros(len(graph.transfer_ns))
    kinds = np.full(len(sizes), "", dtype=object)
    for rank in graph.ranks:
        at = np.flatnonzero(rank.collective != NONE)
        numbers = rank.collective[at]
        rows = collectives.at(rank.tasks.row[at])
        sizes[numbers], kinds[numbers] = rows.ints("bytes"), list(rows.texts("kind"))
        end = rank.tasks.work[at, 1]
        spans = np.rint(np.stack([end - graph.transfer_ns[numbers], end], axis=1)).astype(np.int64)
        lanes = graph.lane[numbers]
        for lane in np.unique(lanes[lanes != NONE]).tolist():
            mine, others = lanes == lane, (lanes != lane) & (lanes != NONE)
            own = covered(union(spans[others]), spans[mine, 0], spans[mine, 1])
            beside[numbers[mine]] = np.maximum(beside[numbers[mine]], own)
    return kinds.astype(np.str_), sizes, beside


def _fit_lost_ratio(graph: Graph, kinds: Strings, sizes: Floats, beside_ns: Floats, lane: int) -> float:
    """Return the share of its rate that a communicator loses to concurrent communicators; 0 if unknown."""
    known = (graph.lane == lane) & (sizes > 0) & (graph.transfer_ns > 0) & (lane != NONE)
    beside, rates = [], []
    for kind in np.unique(kinds[known]).tolist():
        mine = known & (kinds == kind)
        rate = sizes[mine] / graph.transfer_ns[mine]
        beside.append(beside_ns[mine] / graph.transfer_ns[mine])
        rates.append(rate / rate.mean() - 1)
    degrees_of_freedom = int(known.sum()) - len(rates) - 1
    if degrees_of_freedom < _MIN_FREEDOM:
        return 0.0
    deviation = np.concatenate([each - each.mean() for each in beside])
    rate = np.concatenate(rates)
    contrast = float(deviation @ deviation)
    if not contrast:
        return 0.0
    slope = float(deviation @ rate) / contrast
    residual = rate - slope * deviation
    error = np.sqrt(float(residual @ residual) / degrees_of_freedom / contrast)
    # the rate without sharing is the rate at the mean share minus the slope times that share
    return -slope / (1 - slope * float(np.concatenate(beside).mean())) if error <= _MAX_ERROR_RATIO else 0.0


def stretch_transfers_ns(graph: Graph, begins: Floats) -> Floats:
    """Return the duration of each message if it starts at ``begins`` (by instance) and shares its link."""
    taken: Floats = graph.transfer_ns.copy()
    for rank in graph.ranks:
        numbers = rank.collective[rank.collective != NONE]
        numbers = numbers[(graph.lane[numbers] != NONE) & ~np.isnan(begins[numbers])]
        queues: dict[int, deque[int]] = defaultdict(deque)
        for number in numbers[np.argsort(begins[numbers], kind="stable")].tolist():
            queues[int(graph.lane[number])].append(number)
        for number, duration in _run_concurrently(queues, begins, graph.transfer_ns, graph.lost):
            taken[number] = max(taken[number], duration)
    return taken


def _run_concurrently(
    queues: Mapping[int, deque[int]], begins: Floats, alone_ns: Floats, lost: Mapping[int, float]
) -> Iterator[tuple[int, float]]:
    """Run each communicator's first message concurrently; yield each message and its duration."""
    now = 0.0
    running: dict[int, tuple[int, float, float]] = {}  # by lane: message, its start, time left
    while True:
        for lane, queue in queues.items():
            if lane not in running and queue and begins[queue[0]] <= now:
                number = queue.popleft()
                running[lane] = (number, now, float(alone_ns[number]))
        waiting = [float(begins[queue[0]]) for lane, queue in queues.items() if queue and lane not in running]
        if not running:
            if not waiting:
                return
            now = min(waiting)
            continue
        rates = {lane: 1 - lost.get(lane, 0.0) if len(running) > 1 else 1.0 for lane in running}
        until = min([now + left / rates[lane] for lane, (_, _, left) in running.items()] + waiting)
        for lane, (number, started, left) in list(running.items()):
            left -= (until - now) * rates[lane]
            running[lane] = (number, started, left)
            if left <= _DONE_NS:
                del running[lane]
                yield number, until - started
        now = until


def widen_gains(lowest_ns: float, highest_ns: float, step_ns: float) -> tuple[float, float]:
    """Return a saving's range from the lowest and the highest gain, never below 0."""
    slack = _STEP_ERROR_RATIO * step_ns
    low = lowest_ns * (1 - _LOWER_ERROR_RATIO) - slack
    return max(0.0, low), max(0.0, highest_ns * (1 + _UPPER_ERROR_RATIO) + slack)


class PlayedStep(Struct, frozen=True, kw_only=True, dict=True):
    """A run's step, built and played on first access."""

    analysis: RunAnalysis

    @cached_property
    def _played(self) -> tuple[Graph, Floats] | None:
        """The step and its ends, None if the recording does not allow playing it.

        If wrongly matched collectives cause a deadlock, each rank is played by itself.
        """
        for build in (build_graph, build_host_graph):
            for apart in (False, True):
                graph = build(self.analysis, apart=apart)
                if isinstance(graph, Gap):
                    break
                try:
                    shared = infer_link_sharing(graph, self.analysis.collectives)
                    return shared, play_graph(shared)
                except ReplayDeadlock:
                    continue
        return None

    @property
    def graph(self) -> Graph | None:
        """The measured step, None if the recording does not allow playing it."""
        return self._played[0] if self._played else None

    @cached_property
    def sizes(self) -> ResizedMessages:
        """The step's message sizes; only valid if the step can be played."""
        assert self.graph is not None
        return ResizedMessages(self.analysis, self.graph)

    @property
    def has_kernels(self) -> bool:
        """True if the step is played from a device's kernels and their launch calls."""
        return self.graph is not None and self.graph.has_kernels

    @property
    def base_ns(self) -> Floats | None:
        """Played end of each step on each rank, None if the step cannot be played."""
        return self._played[1] if self._played else None

    @property
    def step_ns(self) -> float:
        """Played step time in ns; 0 if the step cannot be played."""
        return _mean_step_ns(self.base_ns) if self.base_ns is not None else 0.0

    @cached_property
    def _gains(self) -> dict[int, tuple[Graph, float | None]]:
        """Gains by the identity of the changed step, which is kept so that the identity stays its own."""
        return {}

    def gain_ns(self, changed: Graph) -> float | None:
        """Return the time saved by the changed step, None if it cannot be played; each is played once."""
        if id(changed) not in self._gains:
            self._gains[id(changed)] = changed, self._play_gain_ns(changed)
        return self._gains[id(changed)][1]

    def _play_gain_ns(self, changed: Graph) -> float | None:
        if self.base_ns is None:
            return None
        if changed is self.graph:
            return 0.0
        try:
            return _mean_step_ns(self.base_ns) - _mean_step_ns(play_graph(changed))
        except ReplayDeadlock:
            return None

    @cached_property
    def max_host_gain_ns(self) -> float:
        """Upper bound of the time that faster hosts save, also those that never wait: hosts that take none.

        Infinite if that step cannot be played, or if messages that run together slow each other down: then
        an earlier message may delay another one.
        """
        if self.graph is None or self.base_ns is None or self.graph.lost:
            return float("inf")
        try:
            ends = play_graph(edit_ranks(self.graph, _make_host_instant))
        except ReplayDeadlock:
            return float("inf")
        # a change may save less of the first step than this, but no less than nothing
        return float((self.base_ns - ends)[:, -1].mean()) / max(1, self.graph.steps - 1)

    def gain_of_change_ns(self, change: Change) -> float | None:
        """Return the time saved by another schedule, None if the step's units are unknown."""
        return predict_gain_ns(self.analysis, change)


def _make_host_instant(rank: RankGraph) -> RankGraph:
    nothing = np.zeros(len(rank.gap_ns))
    blocks_on = np.full(len(nothing), NONE, dtype=np.int64)
    return replace(rank, gap_ns=nothing, call_ns=nothing, blocks_on=blocks_on, tail_ns=0.0)


def _mean_step_ns(ends: Floats) -> float:
    """Return the mean step time over the ranks, without the first step, which contains the start-up."""
    if ends.shape[1] == 1:
        return float(ends.mean())
    whole = float((ends[:, -1] - ends[:, 0]).mean())
    return whole / (int(ends.shape[1]) - 1)
