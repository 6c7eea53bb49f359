"""How long a transfer takes: alpha + bytes * bus factor / bandwidth."""

import numpy as np
from numpy.typing import NDArray

from zprof.model.collectives import bus_factor
from zprof.simulator.plan import Plan
from zprof.simulator.program.instructions import Collective
from zprof.simulator.program.mesh import Groups


class Links:
    """The network of a plan."""

    def __init__(self, plan: Plan) -> None:
        self._network = plan.network
        self._hosts = np.arange(plan.ranks) // max(1, plan.ranks_per_host)
        self._share = np.ones(plan.ranks)
        for rank, share in plan.network.links:
            self._share[rank] = share

    def transfer_ns(self, collective: Collective, groups: Groups) -> NDArray[np.int64]:
        """Time of each group along the axis, once all its ranks are there."""
        network, members = self._network, groups.members
        hosts = self._hosts[members]
        spans = hosts.min(axis=1) != hosts.max(axis=1)
        outside = (
            network.alpha_ns if network.inter_alpha_ns is None else network.inter_alpha_ns,
            network.inter_beta_bytes_per_s or network.beta_bytes_per_s,
        )
        alpha = np.where(spans, outside[0], network.alpha_ns)
        beta = np.where(spans, outside[1], network.beta_bytes_per_s)
        beta = beta * self._share[members].min(axis=1)
        moved = collective.bytes * bus_factor(collective.kind, groups.size)
        found: NDArray[np.int64] = np.maximum(1, np.rint(alpha + moved * 1e9 / beta)).astype(np.int64)
        return found
