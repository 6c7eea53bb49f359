"""Find at step boundaries which storages the module and the optimizer own, and end claims on released ones
(a ``.grad`` set to None, a deleted state).

A module's parameter counts as ``parameters`` only if it exists at a step boundary: memory that an engine
gathers for a forward or backward pass is a communication buffer, even if a parameter is a view of it.
"""

import time
import weakref
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from zprof.collectors.record.engines.deepspeed import (
    BUCKET,
    find_engines,
    get_shard,
    iter_buckets,
    iter_held_tensors,
)
from zprof.collectors.record.memory.log import MemoryLog, StorageRole
from zprof.collectors.record.memory.storages import (
    GATHERED,
    Storage,
    StorageTracker,
    find_live_tensors,
    find_nested_tensors,
    find_plain_tensors,
)
from zprof.collectors.record.torch_private import current_graph_task_id
from zprof.model.tenants import Tenant

Life = tuple[Storage, int]
WEIGHT = StorageRole(Tenant.PARAMETERS, "weight", "scan")
BUFFER = StorageRole(Tenant.PARAMETERS, "buffer", "scan")
STATE = StorageRole(Tenant.OPTIMIZER_STATE, "state", "optimizer")
OPTIMIZED = StorageRole(Tenant.PARAMETERS, "weight", "optimizer")
MASTER = StorageRole(Tenant.OPTIMIZER_STATE, "master", "optimizer")
GRADIENT = StorageRole(Tenant.GRADIENTS, "grad", "scan")
UNREDUCED = StorageRole(Tenant.GRADIENTS, "unreduced", "hook")


class Holdings:
    """Track storage lifetimes by holder, for one tenant. Entries are weak references."""

    def __init__(self, log: MemoryLog, tenant: Tenant) -> None:
        self._log = log
        self._tenant = tenant
        self._held: dict[Hashable, Sequence[Life]] = {}
        self._holders: dict[int, int] = {}
        self._lost: set[int] = set()

    def has_lost(self, generation: int) -> bool:
        """Return True if this lifetime has lost its tenant before; then a new claim is not backdated to its
        birth.
        """
        return generation in self._lost

    def set_held(self, holder: Hashable, entries: Iterable[Storage]) -> None:
        """Replace the storages held by ``holder`` with ``entries``."""
        lives = [(entry, entry.generation) for entry in entries if entry.generation >= 0]
        for _, generation in lives:
            self._holders[generation] = self._holders.get(generation, 0) + 1
        for life in self._held.pop(holder, ()):
            self._release(*life)
        if lives:
            self._held[holder] = lives

    def release_others(self, holders: set[Hashable]) -> None:
        """Release the storages of all other holders."""
        for holder in [holder for holder in self._held if holder not in holders]:
            self.set_held(holder, ())

    def _release(self, entry: Storage, generation: int) -> None:
        remaining = self._holders.get(generation, 1) - 1
        if remaining:
            self._holders[generation] = remaining
            return
        self._holders.pop(generation, None)
        if entry() is None or entry.generation != generation:
            return  # the memory was freed, and the claim ended with it
        entry.claimed = [role for role in entry.claimed if role.tenant is not self._tenant]
        self._lost.add(generation)
        self._log.drop_rows.append((generation, time.time_ns(), self._tenant))


class OwnerScanner:
    """Claim storages for the persistent tenants: parameters, gradients, optimizer state."""

    _ENGINE = "engine"

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
        self.engines: Sequence[Any] = find_engines(model)
        # Without the model, its parameters cannot be distinguished from an optimizer's master weights.
        self._optimized_role = OPTIMIZED if model is None else MASTER
        self._parameters = Holdings(log, Tenant.PARAMETERS)
        self._gradients = Holdings(log, Tenant.GRADIENTS)
        self._states = Holdings(log, Tenant.OPTIMIZER_STATE)
        self._tensors_with_grad: dict[int, weakref.ref[torch.Tensor]] = {}
        self.module_names: dict[int, str] = {}
        self.empty_parameters: list[weakref.ref[nn.Parameter]] = []

    def scan_boundary(self, *, first: bool) -> None:
        """Claim everything at a step boundary; the first scan also records tensors from before the window."""
        for module_name, module in self._named_modules():
            for name, parameter in module._parameters.items():
                self._hold_parameter(module_name, module, name, parameter, first)
            self._hold_buffers(module_name, module, first)
        self.claim_gradients(*self._optimizers, first=first)
        self.after_optimizer(*self._optimizers, first=first)
        self.claim_engine_tensors(first=first)
        if first:
            for tensor in find_live_tensors(self._record_missed):
                try:
                    self._track_existing(tensor)
                except Exception as error:  # a third-party subclass may raise on access
                    self._record_missed(error)

    def begin_forward(self) -> None:
        """Release the gradients and states dropped since the last scan, when the model is called."""
        if current_graph_task_id() != -1:
            return  # called within a backward, to recompute
        for key, reference in list(self._tensors_with_grad.items()):
            tensor = reference()
            if tensor is None or tensor.grad is None:
                self._gradients.set_held(key, ())
                del self._tensors_with_grad[key]
            else:
                self._hold_gradient(tensor)
        for optimizer in self._optimizers:
            if not optimizer.state:
                self._states.set_held(id(optimizer), ())

    def before_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Claim the gradients, which are complete now.

        For an optimizer that steps within the backward pass (such as a per-parameter optimizer), the model is
        not scanned: that would happen once per parameter.
        """
        if current_graph_task_id() != -1:
            for tensor in _list_optimized([optimizer]):
                self._hold_gradient(tensor)
            return
        self.claim_gradients(optimizer)
        for module_name, module in self._named_modules():
            self._hold_buffers(module_name, module)
        # The slots of parameters and buffers: their tensors may change, as engines gather into them.
        self._parameters.release_others(
            {
                (id(module), name)
                for _, module in self._named_modules()
                for slots in (module._parameters, module._buffers)
                for name, tensor in slots.items()
                if tensor is not None
            }
        )

    def adopt(self, model: nn.Module | None, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Set the model and optimizers within the window."""
        self._model, self._optimizers = model, tuple(optimizers)
        self.engines = find_engines(model)
        self._optimized_role = OPTIMIZED if model is None else MASTER

    def on_registered(self, tensor: torch.Tensor, *, is_buffer: bool) -> None:
        """Claim a new parameter or buffer of a module, which may be outside the model."""
        for entry in self._claim(tensor, BUFFER if is_buffer else WEIGHT, first=False):
            entry.holds_parameter = entry.holds_parameter or not is_buffer

    def forget(self) -> None:
        """Drop the references to the model and the optimizers.

        A pending collective has captured the thread's hooks, and with them this object; a reference back to
        the model, which holds the collective, would be a cycle invisible to Python's garbage collector.
        """
        self._model = None
        self._optimizers = ()
        self.engines = ()

    def claim_engine_tensors(self, *, first: bool = False) -> None:
        """Claim what DeepSpeed's engines hold outside of modules, gradients and optimizer states."""
        gradients: list[Storage] = []
        for engine in self.engines:
            for role, tensor in iter_held_tensors(engine):
                if role.tenant is Tenant.GRADIENTS:
                    gradients += self._claim(tensor, role, first, self._gradients)
                else:
                    self._claim(tensor, role, first)
        if self.engines:
            self._gradients.set_held(self._ENGINE, gradients)

    def claim_buckets(self) -> None:
        """Claim the engines' gradient buckets, in the backward pass."""
        for engine in self.engines:
            for bucket in iter_buckets(engine):
                self._claim(bucket, BUCKET, first=False)

    def claim_gradients(self, *optimizers: torch.optim.Optimizer, first: bool = False) -> None:
        """Claim the ``.grad`` of every module's parameters and of the optimized tensors."""
        owners: dict[int, torch.Tensor] = {id(tensor): tensor for tensor in _list_optimized(optimizers)}
        for _, module in self._named_modules():
            for parameter in module._parameters.values():
                if parameter is not None:
                    owners[id(parameter)] = parameter
        for owner in owners.values():
            self._hold_gradient(owner, first)

    def after_optimizer(self, *optimizers: torch.optim.Optimizer, first: bool = False) -> None:
        """Claim the states, and all optimized tensors as master weights (without a model, as parameters).

        The model's own parameters are among them: their claim as parameters takes precedence in analysis.
        """
        for optimizer in optimizers:
            tensors = [
                tensor for state in list(optimizer.state.values()) for tensor in find_nested_tensors(state)
            ]
            entries = [
                entry for tensor in tensors for entry in self._claim(tensor, STATE, first, self._states)
            ]
            self._states.set_held(id(optimizer), entries)
        for tensor in _list_optimized(optimizers):
            self._claim(tensor, self._optimized_role, first)

    def on_module_called(self, module: nn.Module) -> None:
        """Claim the parameters that no boundary scan has found: they are gathered for this forward."""
        for parameter in module._parameters.values():
            if parameter is not None:
                self._claim_gathered(parameter)

    def _claim_gathered(self, parameter: nn.Parameter, *, first: bool = False) -> None:
        for tensor in find_plain_tensors(parameter):
            entry = self._storages.track(tensor, before_window=first)
            entry.holds_parameter = True
            if WEIGHT not in entry.claimed:
                self._storages.claim(entry, GATHERED)

    def _hold_gradient(self, owner: torch.Tensor, first: bool = False) -> None:
        key, gradient = id(owner), owner.grad
        if gradient is not None:
            self._gradients.set_held(key, self._claim(gradient, GRADIENT, first, self._gradients))
            self._tensors_with_grad[key] = weakref.ref(owner)
        elif self._tensors_with_grad.pop(key, None) is not None:
            self._gradients.set_held(key, ())

    def _hold_parameter(
        self, module_name: str, module: nn.Module, name: str, parameter: nn.Parameter | None, first: bool
    ) -> None:
        if parameter is None:
            return
        shard = get_shard(parameter)
        entries = self._claim(parameter if shard is None else shard, WEIGHT, first, self._parameters)
        for entry in entries:
            entry.holds_parameter = True
        if shard is not None:  # a parameter that its engine keeps gathered, beside its shard
            self._claim_gathered(parameter, first=first)
        self._name_storages(entries, module_name)
        self._parameters.set_held((id(module), name), entries)

    def _hold_buffers(self, module_name: str, module: nn.Module, first: bool = False) -> None:
        for name, buffer in module._buffers.items():
            if buffer is not None:
                entries = self._claim(buffer, BUFFER, first, self._parameters)
                self._name_storages(entries, module_name)
                self._parameters.set_held((id(module), name), entries)

    def _claim(
        self, tensor: torch.Tensor, role: StorageRole, first: bool, holdings: Holdings | None = None
    ) -> list[Storage]:
        entries = [self._storages.track(plain, before_window=first) for plain in find_plain_tensors(tensor)]
        for entry in entries:
            if role in entry.claimed:
                continue
            if holdings is not None and holdings.has_lost(entry.generation):
                # Claim without backdating to birth: gradients from the start of the backward (DDP's
                # buckets), others from now.
                entry.claimed.append(role)
                time_ns = self._log.get_backward_start_ns() if role is GRADIENT else None
                self._log.claim_rows.append((entry.generation, time_ns or time.time_ns(), role, False))
            else:
                self._storages.claim(entry, role)
        return entries

    def _name_storages(self, entries: Sequence[Storage], module: str) -> None:
        for entry in entries:
            if entry.generation >= 0:
                self.module_names.setdefault(entry.generation, module)

    def _record_missed(self, error: Exception) -> None:
        self._log.record_missed("tensors allocated before the window", error)

    def _track_existing(self, tensor: torch.Tensor) -> None:
        """Record a tensor from before the window; an empty parameter gets its memory when it is gathered."""
        entry = self._storages.track(tensor, before_window=True)
        if entry.bytes == 0 and isinstance(tensor, nn.Parameter):
            entry.holds_parameter = True
            self.empty_parameters.append(weakref.ref(tensor))

    def _named_modules(self) -> list[tuple[str, nn.Module]]:
        return list(self._model.named_modules()) if self._model is not None else []


def _list_optimized(optimizers: Sequence[torch.optim.Optimizer]) -> list[torch.Tensor]:
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return [tensor for group in groups for tensor in group["params"]]
