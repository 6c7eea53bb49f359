"""Says in the ledger whose the lasting storages of an engine's rank are.

Parameters are what is stored at rest: whole ones, or in stage 3 the shards; what stage 3 gathers is a
communication buffer.  Gradients are what autograd makes of parameters and what a shard's ``.grad`` holds.
fp32 master weights are optimizer state.
"""

from collections.abc import Iterable

import torch

from zprof.integrations.planning.fake.engine import Rank
from zprof.integrations.planning.fake.ledger import Ledger, tensors_of
from zprof.model.tenants import Tenant


class Owners:
    """Claims at the boundaries of a step, and each gradient as soon as it is made."""

    def __init__(self, ledger: Ledger, rank: Rank) -> None:
        self._ledger = ledger
        self._rank = rank
        parameters = [parameter for unit in rank.model.units for parameter in unit.parameters]
        for parameter in parameters:
            if parameter.requires_grad:
                parameter.register_hook(self._gradient)  # type: ignore[no-untyped-call]

    def at_boundary(self) -> None:
        """Between two steps."""
        for unit in self._rank.model.units:
            if unit.policy.shard_parameters:
                self._ledger.gathers(unit.full)
                self._ledger.claim(unit.shard, Tenant.PARAMETERS)
            else:
                self._ledger.claim(unit.full, Tenant.PARAMETERS)
        for buffer in self._rank.model.module.buffers():
            self._ledger.claim(buffer, Tenant.PARAMETERS)
        for state in self._rank.optimizer.state.values():
            self._claim(tensors_of(state), Tenant.OPTIMIZER_STATE)
        self._claim(self._optimized(), Tenant.OPTIMIZER_STATE)
        self.before_optimizer()

    def before_optimizer(self) -> None:
        """Gradients are complete."""
        owners = [*self._rank.model.parameters(), *self._optimized()]
        self._claim((owner.grad for owner in owners if owner.grad is not None), Tenant.GRADIENTS)

    def _optimized(self) -> list[torch.Tensor]:
        """Parameters where they are fp32 (the stronger claim), else their master weights."""
        return [tensor for group in self._rank.optimizer.param_groups for tensor in group["params"]]

    def _claim(self, tensors: Iterable[torch.Tensor], tenant: Tenant) -> None:
        for tensor in tensors:
            self._ledger.claim(tensor, tenant)

    def _gradient(self, gradient: torch.Tensor) -> None:
        self._ledger.claim(gradient, Tenant.GRADIENTS)
