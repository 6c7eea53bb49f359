"""Communicators that share a link: what a message takes alone, and what beside those of others.

Groups of other ranks may use other links, and often do not: inner and outer groups of a hybrid sharding meet
on the same network card.  The recording says which.  If messages of a communicator are slower, byte for byte,
the more of their time those of another one run beside them,

    bytes / transfer = rate of the communicator and kind * (1 - lost * share of the time beside others)

then it loses that part of its rate to them: half where both get as much, all where the other one goes first.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from zprof.analysis.intervals import Int64s, covered, intervals, union
from zprof.replay.graph import Graph
from zprof.replay.tasks import NONE, Floats

#: The fit counts if it is that exact; communicators that lose less have a link of their own.
_MAX_ERROR_RATIO, _LOST_RATIO = 0.15, 0.2
#: However much it loses, a message ends at last.
_MOST_LOST_RATIO = 0.95
#: A fit wants more messages than that.
_FEWEST = 8
#: A message with less left is done.
_DONE_NS = 0.5


def share_links(graph: Graph, bytes_of_row: Mapping[int, int], kind_of_row: Mapping[int, str]) -> Graph:
    """Return the graph with transfers as long as alone, and how much longer they take beside others.

    As it is where messages of different communicators do not meet, or do not hold each other up.
    """
    count = len(graph.transfer_ns)
    if len(np.unique(graph.lane[graph.lane != NONE])) < 2:
        return graph
    beside = np.zeros(count)
    sizes = np.zeros(count)
    kinds = [""] * count
    for rank in graph.ranks:
        at = np.flatnonzero(rank.collective != NONE)
        numbers = rank.collective[at]
        end = rank.tasks.work[at, 1]
        begin = end - graph.transfer_ns[numbers]
        lanes = graph.lane[numbers]
        for lane in np.unique(lanes[lanes != NONE]).tolist():
            mine, others = lanes == lane, (lanes != lane) & (lanes != NONE)
            theirs = union(intervals(_whole(begin[others]), _whole(end[others])))
            own = covered(theirs, _whole(begin[mine]), _whole(end[mine]))
            beside[numbers[mine]] = np.maximum(beside[numbers[mine]], own)
        for number, row in zip(numbers.tolist(), rank.tasks.row[at].tolist(), strict=True):
            sizes[number], kinds[number] = bytes_of_row.get(row, 0), kind_of_row[row]
    lost = _fit(graph, beside, sizes, kinds)
    if not lost:
        return graph
    shorter = beside * np.array([lost.get(lane, 0.0) for lane in graph.lane.tolist()])
    ranks = []
    for rank in graph.ranks:
        work = rank.work_ns.copy()
        inside = rank.collective != NONE
        work[inside] -= shorter[rank.collective[inside]]
        ranks.append(replace(rank, work_ns=work))
    return replace(graph, ranks=tuple(ranks), transfer_ns=graph.transfer_ns - shorter, lost=lost)


def _fit(graph: Graph, beside: Floats, sizes: Floats, kinds: Sequence[str]) -> dict[int, float]:
    """Return which part of its rate each communicator loses beside others, if it is known to lose any."""
    found = {}
    named = np.array(kinds)
    known = (graph.lane != NONE) & (sizes > 0) & (graph.transfer_ns > 0)
    for lane in np.unique(graph.lane[known]).tolist():
        ratios, rates, freedom = [], [], -1
        for kind in np.unique(named[known & (graph.lane == lane)]).tolist():
            mine = known & (graph.lane == lane) & (named == kind)
            rate = sizes[mine] / graph.transfer_ns[mine]
            ratio = beside[mine] / graph.transfer_ns[mine]
            ratios.append(ratio)
            rates.append(rate / rate.mean())
            freedom += int(mine.sum()) - 1
        if freedom < _FEWEST:
            continue
        off = np.concatenate([ratio - ratio.mean() for ratio in ratios])
        rate = np.concatenate([each - 1 for each in rates])
        contrast = float(off @ off)
        if not contrast:
            continue
        slope = float(off @ rate) / contrast
        rest = rate - slope * off
        error = np.sqrt(float(rest @ rest) / freedom / contrast)
        share = -slope / (1 - slope * float(np.concatenate(ratios).mean()))
        if error <= _MAX_ERROR_RATIO and share >= _LOST_RATIO:
            found[lane] = min(share, _MOST_LOST_RATIO)
    return found


def _whole(times: Floats) -> Int64s:
    return np.rint(times).astype(np.int64)


def stretched_ns(graph: Graph, begins: Floats) -> Floats:
    """Return how long each message takes if it begins then and shares its link; ``begins`` by instance."""
    taken: Floats = graph.transfer_ns.copy()
    for rank in graph.ranks:
        numbers = rank.collective[rank.collective != NONE]
        numbers = numbers[(graph.lane[numbers] != NONE) & ~np.isnan(begins[numbers])]
        queues: dict[int, deque[int]] = defaultdict(deque)
        for number in numbers[np.argsort(begins[numbers], kind="stable")].tolist():
            queues[int(graph.lane[number])].append(number)
        for number, took in _share(queues, begins, graph.transfer_ns, graph.lost):
            taken[number] = max(taken[number], took)
    return taken


def _share(
    queues: Mapping[int, deque[int]], begins: Floats, alone_ns: Floats, lost: Mapping[int, float]
) -> Iterator[tuple[int, float]]:
    """Run the first message of each communicator, all at once; each with the time that it takes."""
    now = 0.0
    running: dict[int, tuple[int, float, float]] = {}  # by lane: message, when it began, what is left of it
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
        for lane, (number, began, left) in list(running.items()):
            left -= (until - now) * rates[lane]
            running[lane] = (number, began, left)
            if left <= _DONE_NS:
                del running[lane]
                yield number, until - began
        now = until
