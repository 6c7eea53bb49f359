"""Splits the idle time of one rank by what its host did meanwhile: disjoint parts that sum to it.

On a device, in this order: the data loader; calls of the allocator; an optimizer that works for a while and
launches nothing; the rate limiter; waits for the device; then *launch*: the queue was empty, so the host was
behind; the rest (latency from a launch to its start) is *other*.  A call takes the launch gap right behind it
along, as far as the host had a lead to lose.  On a CPU rank the main thread is everything: the loader, its
copies, launches of collectives (other), and everything else that is no operator is the host's own work.

Communication that is exposed while nothing waits in the queue of the device would be exposed for less time
had the host been there earlier; how much of that falls into each part is kept beside it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from zprof.analysis.intervals import EMPTY, Int64s, Intervals, covered, intersect, intervals, subtract, union
from zprof.analysis.time.host.calls import HostCalls

#: A wait leaves the queue empty: no longer than this after it the empty queue is its doing.
AFTER_NS = 1_000_000
#: An optimizer that launches nothing for so long computes on the host.
_ON_HOST_NS = 1_000_000


class Part(StrEnum):
    """What the host did."""

    LOADER = "loader"
    ALLOCATOR = "allocator"
    LIMITER = "limiter"
    SYNC = "sync"
    OPTIMIZER = "optimizer"
    COPY = "copy"
    LAUNCH = "launch"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """``idle``: the parts of the idle time.  ``exposed``: those of exposed transfer with an empty queue.

    ``calls``: for parts that are calls of the host, these.
    """

    idle: Mapping[Part, Intervals]
    exposed: Mapping[Part, Intervals]
    calls: Mapping[Part, Intervals]

    def largest_ns(self, part: Part, begin_ns: Int64s) -> Int64s:
        """Return the idle time of the longest occurrence of a part in each step, given by its begin.

        That is what one call lost, the gap behind it included, or else one unbroken stretch.
        """
        spans = self.idle.get(part, EMPTY)
        events = spans
        if part in self.calls:
            until = self.calls[part][:, 1] + AFTER_NS
            following = np.append(self.calls[part][1:, 0], np.iinfo(np.int64).max)
            events = intervals(self.calls[part][:, 0], np.minimum(until, following))
        lost = covered(spans, events[:, 0], events[:, 1])
        step = np.searchsorted(begin_ns, events[:, 1], side="left") - 1
        found = np.zeros(len(begin_ns), dtype=np.int64)
        np.maximum.at(found, step[step >= 0], lost[step >= 0])
        return found


def of_device(idle: Intervals, moving: Intervals, pending: Intervals, calls: HostCalls) -> Shares:
    """The parts on a rank with a device.

    Args:
        idle: When the device was idle, the instants behind the ledger's term.
        moving: When it was held up by a transfer.
        pending: When work had been launched and had not started.
        calls: What its host did.
    """
    starved = subtract(idle, pending)
    behind = idle[covered(starved, idle[:, 0], idle[:, 1]) > 0]
    limited = covered(calls.limiter, calls.sync[:, 0], calls.sync[:, 1]) > 0
    ordered = {
        Part.LOADER: _and_gap(calls.loader, idle),
        Part.ALLOCATOR: _and_gap(calls.allocator, idle),
        Part.OPTIMIZER: _long(subtract(intersect(starved, calls.optimizer), calls.sync)),
        Part.LIMITER: _and_gap(calls.sync[limited], idle),
        Part.SYNC: _and_gap(calls.sync[~limited], idle),
        Part.LAUNCH: behind,
    }
    empty = {**ordered, Part.OPTIMIZER: calls.optimizer, Part.LAUNCH: moving}
    return Shares(
        idle=_shared_out(idle, ordered),
        exposed=_shared_out(subtract(moving, pending), empty),
        calls={
            Part.LOADER: calls.loader,
            Part.ALLOCATOR: calls.allocator,
            Part.OPTIMIZER: calls.optimizer,
            Part.LIMITER: calls.sync[limited],
            Part.SYNC: calls.sync[~limited],
        },
    )


def of_cpu(idle: Intervals, copies: Intervals, calls: HostCalls) -> Shares:
    """The parts on a CPU rank.  ``copies``: of its main thread."""
    ordered = {
        Part.LOADER: calls.loader,
        Part.COPY: copies,
        Part.OTHER: calls.collective,
        Part.LAUNCH: idle,
    }
    return Shares(idle=_shared_out(idle, ordered), exposed={}, calls={Part.LOADER: calls.loader})


def _shared_out(whole: Intervals, ordered: Mapping[Part, Intervals]) -> dict[Part, Intervals]:
    """Each part without what those before it took; what none takes is OTHER, all together the whole."""
    shares: dict[Part, Intervals] = {}
    for part, spans in ordered.items():
        shares[part] = intersect(whole, spans)
        whole = subtract(whole, spans)
    shares[Part.OTHER] = union(whole, shares.get(Part.OTHER, whole[:0]))
    return shares


def _and_gap(calls: Intervals, idle: Intervals) -> Intervals:
    """The calls, each with the idle time right behind it that the host's lead would have hidden.

    The lead that a call used up is the work that the device still had: what it ran during the call.
    """
    begin, end = calls.T
    lead = end - begin - covered(idle, begin, end)
    return union(calls, _behind(end, np.minimum(lead, AFTER_NS), idle))


def _behind(ends: Int64s, most_ns: Int64s, idle: Intervals) -> Intervals:
    if not len(idle) or not len(ends):
        return idle[:0]
    index = np.maximum(np.searchsorted(idle[:, 0], ends, side="right") - 1, 0)
    until = np.where(idle[index, 0] <= ends, np.minimum(idle[index, 1], ends + most_ns), ends)
    return intervals(ends, np.maximum(ends, until))


def _long(spans: Intervals) -> Intervals:
    return spans[spans[:, 1] - spans[:, 0] >= _ON_HOST_NS]
