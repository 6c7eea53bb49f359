"""Reads who owns which storage from the module and the optimizer themselves.

A module's parameter is ``parameters`` only where it is there at a step boundary: what an engine gathers for
the time of a forward or backward is a communication buffer, also if a parameter is a view of it.
"""

from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import nn

from zprof.collectors.memory.log import MemoryLog, Role
from zprof.collectors.memory.storages import GATHERED, StorageTracker
from zprof.collectors.memory.tensors import collected_tensors, nested_tensors, plain_tensors
from zprof.model.tenants import Tenant

WEIGHT = Role(Tenant.PARAMETERS, "weight", "scan")
BUFFER = Role(Tenant.PARAMETERS, "buffer", "scan")
STATE = Role(Tenant.OPTIMIZER_STATE, "state", "optimizer")
OPTIMIZED = Role(Tenant.PARAMETERS, "weight", "optimizer")
MASTER = Role(Tenant.OPTIMIZER_STATE, "master", "optimizer")
GRADIENT = Role(Tenant.GRADIENTS, "grad", "scan")
UNREDUCED = Role(Tenant.GRADIENTS, "unreduced", "hook")


class Scanner:
    """Claims storages for the tenants that persist: parameters, gradients, optimizer state."""

    def __init__(
        self,
        log: MemoryLog,
        storages: StorageTracker,
        model: nn.Module | None,
        optimizers: Sequence[torch.optim.Optimizer],
    ) -> None:
        self._log = log
        self._storages = storages
        self._model = model
        self._optimizers = tuple(optimizers)
        # Without the model nothing says which optimized tensors are its own.
        self._optimized_role = OPTIMIZED if model is None else MASTER
        self.module_of: dict[int, str] = {}

    def boundary(self, *, first: bool) -> None:
        """Claim everything at a step boundary; the first scan also notes what was there before."""
        for module_name, module in self._named_modules():
            for parameter in module._parameters.values():
                self._claim(parameter, WEIGHT, first, module_name)
            for buffer in module._buffers.values():
                self._claim(buffer, BUFFER, first, module_name)
        self.gradients(*self._optimizers, first=first)
        self.states(*self._optimizers, first=first)
        if first:
            for tensor in collected_tensors():
                with suppress(Exception):  # somebody's subclass may refuse to be asked
                    self._storages.see(tensor, before_window=True)

    def adopt(self, model: nn.Module | None, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Model and optimizers become known within the window."""
        self._model, self._optimizers = model, tuple(optimizers)
        self._optimized_role = OPTIMIZED if model is None else MASTER

    def registered(self, tensor: torch.Tensor, *, is_buffer: bool) -> None:
        """A module that need not be the model's got a parameter or a buffer."""
        self._claim(tensor, BUFFER if is_buffer else WEIGHT, first=False)

    def forget(self) -> None:
        """Let go of model and optimizer.

        A collective under way has captured the thread's hooks, and with them this object; a reference back to
        the model, which holds the collective, would be a cycle that Python cannot see through.
        """
        self._model = None
        self._optimizers = ()

    def gradients(self, *optimizers: torch.optim.Optimizer, first: bool = False) -> None:
        """Claim what is the ``.grad`` of a module's parameter or of a tensor that is optimized."""
        for _, module in self._named_modules():
            for parameter in module._parameters.values():
                if parameter is not None and parameter.grad is not None:
                    self._claim(parameter.grad, GRADIENT, first)
        for tensor in _optimized(optimizers):
            if tensor.grad is not None:
                self._claim(tensor.grad, GRADIENT, first)

    def states(self, *optimizers: torch.optim.Optimizer, first: bool = False) -> None:
        """Claim the states, and the tensors that are optimized: masters, beside the model's own."""
        for optimizer in optimizers:
            for state in list(optimizer.state.values()):
                for tensor in nested_tensors(state):
                    self._claim(tensor, STATE, first)
        for tensor in _optimized(optimizers):
            self._claim(tensor, self._optimized_role, first)

    def gathered(self, module: nn.Module) -> None:
        """Within a step: parameters that no scan at a boundary has found are gathered for this use."""
        for parameter in module._parameters.values():
            if parameter is None:
                continue
            for tensor in plain_tensors(parameter):
                entry = self._storages.see(tensor)
                entry.holds_parameter = True
                if WEIGHT not in entry.claimed:
                    self._storages.claim(entry, GATHERED)

    def _claim(self, tensor: torch.Tensor | None, role: Role, first: bool, module: str | None = None) -> None:
        if tensor is None:
            return
        for plain in plain_tensors(tensor):
            entry = self._storages.see(plain, before_window=first)
            if role is WEIGHT:
                entry.holds_parameter = True
            self._storages.claim(entry, role)
            if module is not None and entry.generation >= 0:
                self.module_of.setdefault(entry.generation, module)

    def _named_modules(self) -> list[tuple[str, nn.Module]]:
        return list(self._model.named_modules()) if self._model is not None else []


def _optimized(optimizers: Sequence[torch.optim.Optimizer]) -> list[torch.Tensor]:
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return [tensor for group in groups for tensor in group["params"]]
