"""Install the hooks of one window: modules, gradients, optimizer steps, and what autograd saves for the
backward pass.
"""

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from zprof.collectors.memory.log import SAVED, MemoryLog, Role
from zprof.collectors.memory.owners import UNREDUCED
from zprof.collectors.memory.phases import PhaseTracker
from zprof.collectors.memory.saved_tensors import AnyPack, PackedTensor, PackWatch, SavedTensors
from zprof.collectors.memory.storages import PLAIN, StorageTracker, find_nested_tensors, find_plain_tensors
from zprof.collectors.torch_private import DisableTorchDispatch, skip_in_compiler
from zprof.model.gaps import Gap, GapKind
from zprof.model.training import Phase


class OwnerScans(Protocol):
    """Scans of owners that the hooks trigger at points of the step."""

    absent: list[weakref.ref[nn.Parameter]]

    def begin_forward(self) -> None:
        """Handle the call of the model."""

    def gathered(self, module: nn.Module) -> None:
        """Handle the call of a module: its parameters are materialized."""

    def before_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Handle the start of an optimizer step: gradients are complete."""

    def states(self, optimizer: torch.optim.Optimizer) -> None:
        """Handle the end of an optimizer step."""


class Hooks:
    """Installs and removes the hooks. None of them changes tensors or control flow."""

    def __init__(
        self,
        log: MemoryLog,
        storages: StorageTracker,
        phases: PhaseTracker,
        scanner: OwnerScans,
        packs: PackWatch,
    ) -> None:
        self._log, self._storages, self._phases, self._scanner = log, storages, phases, scanner
        self._packs = packs
        self._handles: list[Any] = []
        self._hooked: dict[int, weakref.ref[nn.Parameter]] = {}
        self._saving: SavedTensors | None = None

    def install(self, model: nn.Module | None) -> None:
        """Hook all modules that are not compiled, all optimizers, and autograd's saving."""
        if model is not None:
            self._hook_modules("", model)
        for reference in self._scanner.absent:
            self._hook_gradient(reference())
        self._handles.append(register_optimizer_step_pre_hook(self._before_optimizer))
        self._handles.append(register_optimizer_step_post_hook(self._after_optimizer))
        self._saving = SavedTensors(
            self._save, self._watched, partial(self._log.miss, "parameters that custom functions saved")
        )
        self._saving.install()

    def remove(self) -> None:
        """Remove all hooks, in reverse order."""
        self.end_saving()
        while self._handles:
            self._handles.pop().remove()
        self._hooked.clear()

    def suspended_saving(self) -> AbstractContextManager[None]:
        """Return a context without zprof's saved-tensor hooks on this thread, if they are on top."""
        return nullcontext() if self._saving is None else self._saving.suspended()

    def end_saving(self) -> None:
        """Stop recording what autograd saves; what it has saved stays usable."""
        saving, self._saving = self._saving, None
        if saving is not None and not saving.remove():
            self._log.gaps.append(
                Gap(
                    kind=GapKind.MEMORY_PART,
                    what="saved-tensor hooks left in place",
                    reason="the window ended on another thread than its own, or where torch forbids hooks",
                    remedy="make the model on the thread that trains it",
                )
            )

    def _hook_modules(self, name: str, module: nn.Module) -> None:
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            return  # hooks inside compiled code would be traced, and break its graphs
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
        # Wrapped parameters (DTensor) are not leaves of the graph; the gathered ones come later.
        if type(parameter) is nn.Parameter and parameter.requires_grad and parameter.is_leaf:
            self._hooked[id(parameter)] = weakref.ref(parameter)
            self._handles.append(parameter.register_hook(self._gradient))  # type: ignore[no-untyped-call]

    def _enter(self, name: str, module: nn.Module) -> None:
        if self._log.active:
            try:
                if not name:
                    self._scanner.begin_forward()
                self._phases.enter_module(name)
                if module._parameters:
                    self._scanner.gathered(module)
                    self._hook_gradients(module)
            except Exception as error:  # a fault of zprof must never reach the training loop
                self._log.fail("module hook", error)

    def _leave(self, name: str, module: nn.Module) -> None:
        if self._log.active:
            try:
                self._phases.leave_module(name)
            except Exception as error:
                self._log.fail("module hook", error)

    def _gradient(self, gradient: torch.Tensor) -> None:
        self._safely("gradient hook", self._claim, gradient, UNREDUCED)

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._safely("optimizer hook", self._phases.switch, Phase.OPTIMIZER)
        self._safely("optimizer hook", self._scanner.before_optimizer, optimizer)

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._safely("optimizer hook", self._scanner.states, optimizer)
        self._safely("optimizer hook", self._phases.switch, Phase.OTHER)

    def _save(self, tensor: torch.Tensor) -> PackedTensor:
        """Pack a saved tensor. With a graph it is detached: returned as it is, it would form a cycle."""
        if type(tensor) not in PLAIN:
            self._safely("saved tensor", self._claim, tensor, SAVED)
            # A subclass need not share its version counter.
            return (tensor if tensor.is_leaf else tensor.detach()), None
        if self._log.active:
            try:
                self._storages.claim(self._storages.see(tensor), SAVED)
            except Exception as error:  # a fault of zprof must never reach the training loop
                self._log.fail("saved tensor", error)
        if tensor.is_leaf:  # no graph, no cycle; a ``.data`` that is swapped later is seen in the backward
            return tensor, tensor._version
        with DisableTorchDispatch():
            return tensor.detach(), tensor._version

    def _watched(self, pack: AnyPack) -> AnyPack:
        return self._packs.watched(pack, lambda packed: self._safely("pack hook", self._claim_all, packed))

    def _claim_all(self, packed: Any) -> None:
        for plain in find_nested_tensors(packed):
            self._storages.claim(self._storages.see(plain), SAVED)

    def _claim(self, tensor: torch.Tensor, role: Role) -> None:
        for plain in find_plain_tensors(tensor):
            self._storages.claim(self._storages.see(plain), role)

    def _safely(self, what: str, action: Callable[..., None], *args: Any) -> None:
        """Run ``action``: a fault of zprof must never reach the training loop."""
        if self._log.active:
            try:
                action(*args)
            except Exception as error:
                self._log.fail(what, error)


for _ours in (Hooks._save, Hooks._gradient):  # autograd calls them from compiled code too
    skip_in_compiler(_ours.__code__)


_is_compiling = torch.compiler.is_compiling


class ModuleHook:
    """Calls ``action(name, module)`` from a module's forward hook; arguments and result stay unchanged."""

    def __init__(self, name: str, action: Callable[[str, Any], None]) -> None:
        self._name = name
        self._action = action

    def __call__(self, module: Any, *_: Any) -> None:
        """Call the action, except while a graph is traced: it would break the graph or become part of it."""
        if not _is_compiling():
            self._action(self._name, module)

    def __reduce__(self) -> tuple[Any, ...]:
        """Reduce to a callable that does nothing, for copies and files of the module.

        The callable comes from the standard library, so that the file can be loaded without this package.
        """
        return getattr, (nullcontext(), "__exit__")
