"""Install the hooks of one window: modules, gradients, optimizer steps, and tensors that autograd saves for
the backward pass.
"""

import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from zprof.collectors.record.engines.deepspeed import EngineWatch
from zprof.collectors.record.memory.log import SAVED, MemoryLog, StorageRole
from zprof.collectors.record.memory.owners import UNREDUCED
from zprof.collectors.record.memory.phases import PhaseTracker
from zprof.collectors.record.memory.saved_tensors import AnyPack, PackedTensor, PackHookTracker, SavedTensors
from zprof.collectors.record.memory.storages import (
    PLAIN,
    StorageTracker,
    find_nested_tensors,
    find_plain_tensors,
)
from zprof.collectors.record.torch_private import DisableTorchDispatch, skip_in_compiler
from zprof.model.gap_texts import make_gap
from zprof.model.training import Phase


class OwnerScans(Protocol):
    """Owner scans that the hooks trigger during a step."""

    empty_parameters: list[weakref.ref[nn.Parameter]]

    def begin_forward(self) -> None:
        """Handle the call of the model."""

    def on_module_called(self, module: nn.Module) -> None:
        """Handle the call of a module; its parameters are materialized at this point."""

    def before_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Handle the start of an optimizer step: gradients are complete."""

    def after_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Handle the end of an optimizer step."""

    def claim_engine_tensors(self) -> None:
        """Handle the start of an engine's step: its gradients are complete."""

    def claim_buckets(self) -> None:
        """Handle a new gradient: its engine may have allocated a bucket for it."""


class Hooks:
    """Install and remove the hooks. None of them changes tensors or control flow."""

    def __init__(
        self,
        log: MemoryLog,
        storages: StorageTracker,
        phases: PhaseTracker,
        scanner: OwnerScans,
        pack_hooks: PackHookTracker,
    ) -> None:
        self._log, self._storages, self._phases, self._scanner = log, storages, phases, scanner
        self._pack_hooks = pack_hooks
        self._handles: list[Any] = []
        self._hooked: dict[int, weakref.ref[nn.Parameter]] = {}
        self._saved_tensors: SavedTensors | None = None
        self._has_engines = False
        self._engine_steps = 0  # in progress

    def install(self, model: nn.Module | None) -> None:
        """Hook all modules that are not compiled, all optimizers, and the saving of tensors by autograd."""
        if model is not None:
            self._hook_modules("", model)
        for reference in self._scanner.empty_parameters:
            self._hook_gradient(reference())
        self._handles.append(register_optimizer_step_pre_hook(self._before_optimizer))
        self._handles.append(register_optimizer_step_post_hook(self._after_optimizer))
        self._saved_tensors = SavedTensors(
            self._save,
            self._wrap_pack_hook,
            partial(self._log.record_missed, "parameters saved by custom autograd functions"),
        )
        self._saved_tensors.install()

    def watch_engines(self, engines: Sequence[Any]) -> EngineWatch:
        """Return a watch over the gathers and steps of engines, to install after the hooks."""
        self._has_engines = bool(engines)
        return EngineWatch(
            engines,
            partial(self._run_safely, "gather hook", self._on_gathered),
            partial(self._run_safely, "engine hook", self._before_engine),
            partial(self._run_safely, "engine hook", self._after_engine),
        )

    def remove(self) -> None:
        """Remove all hooks, in reverse order."""
        self.remove_saved_tensor_hooks()
        while self._handles:
            self._handles.pop().remove()
        self._hooked.clear()

    def suspend_saved_tensor_hooks(self) -> AbstractContextManager[None]:
        """Return a context that suspends zprof's saved-tensor hooks on this thread, if they are the innermost
        hooks.
        """
        return nullcontext() if self._saved_tensors is None else self._saved_tensors.suspend()

    def remove_saved_tensor_hooks(self) -> None:
        """Stop recording saved tensors; tensors that are already saved stay usable."""
        saved_tensors, self._saved_tensors = self._saved_tensors, None
        if saved_tensors is not None and not saved_tensors.remove():
            self._log.gaps.append(make_gap("hooks_left"))

    def _hook_modules(self, name: str, module: nn.Module) -> None:
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            return  # hooks inside compiled code would be traced and break its graphs
        self._handles.append(module.register_forward_pre_hook(ModuleHook(name, self._enter)))
        leave = ModuleHook(name, self._leave)
        self._handles.append(module.register_forward_hook(leave, always_call=True))
        self._hook_gradients(module)
        for child_name, child in module.named_children():
            self._hook_modules(f"{name}.{child_name}" if name else child_name, child)

    def _hook_gradients(self, module: nn.Module) -> None:
        for parameter in module._parameters.values():
            self._hook_gradient(parameter)

    def _hook_gradient(self, parameter: nn.Parameter | None) -> None:
        hooked = self._hooked.get(id(parameter))
        if hooked is not None and hooked() is parameter:
            return
        # Wrapped parameters (DTensor) are not leaves of the graph; gathered parameters are hooked later.
        if type(parameter) is nn.Parameter and parameter.requires_grad and parameter.is_leaf:
            self._hooked[id(parameter)] = weakref.ref(parameter)
            self._handles.append(parameter.register_hook(self._on_gradient))  # type: ignore[no-untyped-call]

    def _enter(self, name: str, module: nn.Module) -> None:
        if self._log.active:
            try:
                if not name:
                    self._scanner.begin_forward()
                self._phases.enter_module(name)
                if module._parameters:
                    self._scanner.on_module_called(module)
                    self._hook_gradients(module)
            except Exception as error:  # an error in zprof must never reach the training loop
                self._log.fail("module hook", error)

    def _leave(self, name: str, module: nn.Module) -> None:
        if self._log.active:
            try:
                self._phases.leave_module(name)
            except Exception as error:
                self._log.fail("module hook", error)

    def _on_gradient(self, gradient: torch.Tensor) -> None:
        self._run_safely("gradient hook", self._assign_role, gradient, UNREDUCED)
        if self._has_engines:
            self._run_safely("gradient hook", self._scanner.claim_buckets)

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._run_safely("optimizer hook", self._phases.switch, Phase.OPTIMIZER)
        self._run_safely("optimizer hook", self._scanner.before_optimizer, optimizer)

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._run_safely("optimizer hook", self._scanner.after_optimizer, optimizer)
        if not self._engine_steps:
            self._run_safely("optimizer hook", self._phases.switch, Phase.OTHER)

    def _before_engine(self) -> None:
        self._engine_steps += 1
        self._scanner.claim_engine_tensors()
        self._phases.switch(Phase.OPTIMIZER)

    def _after_engine(self) -> None:
        self._engine_steps -= 1
        self._phases.switch(Phase.OTHER)

    def _on_gathered(self, module: nn.Module) -> None:
        self._scanner.on_module_called(module)
        self._hook_gradients(module)

    def _save(self, tensor: torch.Tensor) -> PackedTensor:
        """Pack a saved tensor. Detach it if it has a graph; returned unchanged, it would form a cycle."""
        if type(tensor) not in PLAIN:
            self._run_safely("saved tensor", self._assign_role, tensor, SAVED)
            # A subclass may not share its version counter with the inner tensor.
            return (tensor if tensor.is_leaf else tensor.detach()), None
        if self._log.active:
            try:
                self._storages.claim(self._storages.track(tensor), SAVED)
            except Exception as error:  # an error in zprof must never reach the training loop
                self._log.fail("saved tensor", error)
        if tensor.is_leaf:  # no graph, no cycle; the backward uses a ``.data`` that is swapped later
            return tensor, tensor._version
        with DisableTorchDispatch():
            return tensor.detach(), tensor._version

    def _wrap_pack_hook(self, pack: AnyPack) -> AnyPack:
        return self._pack_hooks.wrap(
            pack, lambda packed: self._run_safely("pack hook", self._claim_packed, packed)
        )

    def _claim_packed(self, packed: Any) -> None:
        for plain in find_nested_tensors(packed):
            self._storages.claim(self._storages.track(plain), SAVED)

    def _assign_role(self, tensor: torch.Tensor, role: StorageRole) -> None:
        for plain in find_plain_tensors(tensor):
            self._storages.claim(self._storages.track(plain), role)

    def _run_safely(self, what: str, action: Callable[..., None], *args: Any) -> None:
        """Run ``action``; an error in zprof must never reach the training loop."""
        if self._log.active:
            try:
                action(*args)
            except Exception as error:
                self._log.fail(what, error)


for _hook in (Hooks._save, Hooks._on_gradient):  # autograd calls them from compiled code too
    skip_in_compiler(_hook.__code__)


_is_compiling = torch.compiler.is_compiling


class ModuleHook:
    """Call ``action(name, module)`` from a module's forward hook; arguments and result stay unchanged."""

    def __init__(self, name: str, action: Callable[[str, Any], None]) -> None:
        self._name = name
        self._action = action

    def __call__(self, module: Any, *_: Any) -> None:
        """Call the action, except while a graph is traced: it would break the graph or become part of it."""
        if not _is_compiling():
            self._action(self._name, module)

    def __reduce__(self) -> tuple[Any, ...]:
        """Reduce to a callable that does nothing, for when the module is copied or pickled.

        The callable comes from the standard library, so that the file can be loaded without this package.
        """
        return getattr, (nullcontext(), "__exit__")
