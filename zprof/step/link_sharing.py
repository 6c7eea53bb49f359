"""Infer which communicators share a link, and how long a message takes alone and with concurrent messages.

Groups of different ranks may have separate links, but often do not: the inner and outer groups of hybrid
sharding share one network card. The recording shows it: if the messages of a communicator are slower, byte
for byte, the longer messages of another communicator run concurrently,

    bytes / transfer = rate of the communicator and kind * (1 - lost * share of the concurrent time)

then it loses that share of its rate to them: half if both get equal parts, all if the other has priority.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.columns import Columns
from zprof.analysis.intervals import covered, union
from zprof.step.tasks import NONE, Floats, Graph

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


class _ConcurrentMessages(Struct, frozen=True):
    """The kind and bytes of each collective, and the time of concurrent messages of other communicators."""

    kind: Strings
    size: Floats
    beside_ns: Floats


def infer_link_sharing(graph: Graph, collectives: Columns) -> Graph:
    """Return the graph with the transfer times of messages alone, and the loss of each communicator.

    The graph is returned unchanged if messages of different communicators do not overlap or do not slow each
    other.
    """
    if len(np.unique(graph.lane[graph.lane != NONE])) < 2:
        return graph
    messages = _read_messages(graph, collectives)
    fits = ((lane, _fit_lost_ratio(graph, messages, lane)) for lane in np.unique(graph.lane).tolist())
    lost = {lane: min(ratio, _MAX_LOST_RATIO) for lane, ratio in fits if ratio >= _LOST_RATIO}
    if not lost:
        return graph
    excess_ns = messages.beside_ns * np.array([lost.get(lane, 0.0) for lane in graph.lane.tolist()])
    ranks = []
    for rank in graph.ranks:
        work = rank.work_ns.copy()
        inside = rank.collective != NONE
        work[inside] -= excess_ns[rank.collective[inside]]
        ranks.append(replace(rank, work_ns=work))
    return replace(graph, ranks=tuple(ranks), transfer_ns=graph.transfer_ns - excess_ns, lost=lost)


def _read_messages(graph: Graph, collectives: Columns) -> _ConcurrentMessages:
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
    return _ConcurrentMessages(kinds.astype(np.str_), sizes, beside)


def _fit_lost_ratio(graph: Graph, messages: _ConcurrentMessages, lane: int) -> float:
    """Return the share of its rate that a communicator loses to concurrent ones; 0 if unknown."""
    known = (graph.lane == lane) & (messages.size > 0) & (graph.transfer_ns > 0) & (lane != NONE)
    beside, rates = [], []
    for kind in np.unique(messages.kind[known]).tolist():
        mine = known & (messages.kind == kind)
        rate = messages.size[mine] / graph.transfer_ns[mine]
        beside.append(messages.beside_ns[mine] / graph.transfer_ns[mine])
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
    # the rate alone is the rate at the mean share, less the slope times that share
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
    """Run the first message of each communicator, all at once; yield each message and its duration."""
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
