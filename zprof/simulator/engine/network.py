"""Time collectives on the network: arrival of a group's last rank, transfer, and slower concurrent compute.

A transfer takes alpha + bytes * bus factor / bandwidth.  It starts when the last rank of the group has
arrived, and all ranks finish together, apart from a small spread.
"""

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from zprof.model.collectives import bus_factor
from zprof.model.time import LateReason
from zprof.simulator.engine.schedule import Instant, Times, advance, find_late_reason
from zprof.simulator.plan import SimulationPlan
from zprof.simulator.program.instructions import CollectiveLaunch, Groups


class CollectiveTiming(Struct, frozen=True, kw_only=True):
    """Times of one collective.  ``late``: for each group, the rank that arrived last, and the reason."""

    end: Instant
    arrival: Times
    late: tuple[tuple[int, LateReason], ...]


class CollectiveExecutor:
    """Run collectives over a network."""

    def __init__(self, plan: SimulationPlan, random: np.random.Generator) -> None:
        self._links = Links(plan)
        self._network = plan.network
        self._random = random

    def synchronize(
        self, collective: CollectiveLaunch, groups: Groups, begin: Instant, step_start: Instant
    ) -> CollectiveTiming:
        """Time a collective of all groups of an axis; a late rank's reason is its main activity since
        ``step_start``.
        """
        members = groups.members
        starts = begin[0][members]
        last = np.take_along_axis(members, starts.argmax(axis=1)[:, None], axis=1)
        transfer = self._links.transfer_ns(collective, groups)
        arrival, duration = np.empty_like(begin[0]), np.empty_like(begin[0])
        arrival[members] = begin[0][last]
        duration[members] = transfer[:, None]
        duration += self._spread(duration)
        return CollectiveTiming(
            end=advance(begin, LateReason.PREVIOUS_COLLECTIVE, arrival + duration - begin[0]),
            arrival=arrival,
            late=tuple(
                (int(rank), find_late_reason(begin - step_start, int(rank), group[group != rank]))
                for rank, group in zip(last[:, 0], members, strict=True)
            ),
        )

    def _spread(self, duration: Times) -> Times:
        max_spread = self._network.spread_ns + duration * self._network.spread_ratio
        return np.rint(self._random.random(len(duration)) * max_spread).astype(np.int64)


class Links:
    """Compute transfer times on the network of a plan."""

    def __init__(self, plan: SimulationPlan) -> None:
        self._network = plan.network
        self._hosts = np.arange(plan.ranks) // max(1, plan.ranks_per_host)
        self._bandwidth_shares = np.ones(plan.ranks)
        for rank, share in plan.network.links:
            self._bandwidth_shares[rank] = share

    def transfer_ns(self, collective: CollectiveLaunch, groups: Groups) -> NDArray[np.int64]:
        """Return the transfer time in ns of each group along the axis, after all its ranks have arrived."""
        network, members = self._network, groups.members
        hosts = self._hosts[members]
        spans_hosts = hosts.min(axis=1) != hosts.max(axis=1)
        inter_host = (
            network.alpha_ns if network.inter_alpha_ns is None else network.inter_alpha_ns,
            network.inter_beta_bytes_per_s or network.beta_bytes_per_s,
        )
        alpha = np.where(spans_hosts, inter_host[0], network.alpha_ns)
        beta = np.where(spans_hosts, inter_host[1], network.beta_bytes_per_s)
        beta = beta * self._bandwidth_shares[members].min(axis=1)
        moved_bytes = collective.bytes * bus_factor(collective.kind, groups.size)
        return np.maximum(1, np.rint(alpha + moved_bytes * 1e9 / beta)).astype(np.int64)


_Times = NDArray[np.int64]


class Contention:
    """Track collectives that may still run.  ``slowdown``: factor on work that runs in parallel to one."""

    def __init__(self, slowdown: float) -> None:
        self._slowdown = max(1.0, slowdown)
        self._running: list[tuple[_Times, _Times]] = []

    def add(self, begin: _Times, end: _Times) -> None:
        """Record a scheduled collective."""
        if self._slowdown > 1.0:
            self._running.append((begin, end))

    def get_end(self, begin: _Times, work_ns: _Times) -> _Times:
        """Return the end of work that starts at ``begin``; ``work_ns`` is its time at full speed."""
        self._running = [pair for pair in self._running if (pair[1] > begin).any()]
        if not self._running:
            return begin + work_ns
        starts = np.stack([pair[0] for pair in self._running])
        order = np.argsort(starts, axis=0, kind="stable")
        starts = np.take_along_axis(starts, order, axis=0)
        ends = np.take_along_axis(np.stack([pair[1] for pair in self._running]), order, axis=0)
        now, work_left = begin.copy(), work_ns.astype(np.float64)
        for first, last in zip(starts, ends, strict=True):
            uncontended = np.clip(first - now, 0, work_left)
            now, work_left = now + np.rint(uncontended).astype(np.int64), work_left - uncontended
            contended = np.clip(last - now, 0, np.rint(work_left * self._slowdown))
            now, work_left = (
                now + contended.astype(np.int64),
                np.maximum(0.0, work_left - contended / self._slowdown),
            )
        return now + np.rint(work_left).astype(np.int64)
