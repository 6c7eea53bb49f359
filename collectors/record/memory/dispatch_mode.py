"""Intercept every operator to record the storages that it returns and the operands of collectives; patch the
two functions that allocate below the dispatcher (``UntypedStorage.resize_``, ``torch.get_rng_state``).

A dispatch mode without ``ignore_compile_internals`` silently turns torch.compile into eager code.
"""

import functools
from typing import Any

import torch

from zprof.collectors.record.memory.log import SAVED, MemoryLog, StorageRole
from zprof.collectors.record.memory.out_of_memory import mark_as_logged, read_failed_allocation, was_logged
from zprof.collectors.record.memory.saved_tensors import PackHookTracker
from zprof.collectors.record.memory.storages import PLAIN, StorageTracker
from zprof.collectors.record.torch_private import (
    NO_DISPATCH,
    FakeTensor,
    FunctionalTensor,
    HigherOrderOperator,
    TorchDispatchMode,
    skip_in_compiler,
)
from zprof.model.tenants import Tenant

_Tensor = torch.Tensor
#: Tensors used by torch for tracing: they hold no bytes, and their own dispatch must not run first.
_TRACED = (FakeTensor, FunctionalTensor)
_COLLECTIVE_NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")


class OperatorRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Run every operator unchanged and record its results, as a dispatch mode."""

    supports_higher_order_operators = True

    def __init__(self, log: MemoryLog, storages: StorageTracker, pack_hooks: PackHookTracker) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._log = log
        self._storages = storages
        self._pack_hooks = pack_hooks
        self._track = storages.track
        self._classified: dict[Any, tuple[Any, StorageRole | None]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False if the compiler already skips this mode: torch's own wrapper costs 0.5 us per call."""
        return not skip_in_compiler(cls.__torch_dispatch__.__code__)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True, so that compiled code runs unchanged."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator, or let a tensor subclass (DTensor) handle it first; its inner operators are
        dispatched here again.
        """
        if types:
            for kind in types:
                if kind not in PLAIN and kind.__torch_dispatch__ is not NO_DISPATCH:
                    return (
                        func(*args, **(kwargs or {}))
                        if any(issubclass(kind, _TRACED) for kind in types)
                        else NotImplemented
                    )
        try:
            result = func(*args, **kwargs) if kwargs else func(*args)
        except RuntimeError as error:
            self._note_failure(error)
            raise
        if self._log.active:
            try:
                kind = self._classified.get(func)
                if kind is None:
                    kind = self._classified[func] = _classify_operator(func)
                allocator, role = kind
                if type(result) is _Tensor:
                    self._track(result, allocator)
                elif result is not None:
                    self._track_all((result,), allocator)
                if role is not None:
                    self._claim_operands((args, kwargs, result), role)
                elif self._pack_hooks.depth:
                    self._claim_operands(result, SAVED)
            except Exception as error:  # an error in zprof must never reach the training loop
                self._log.fail(f"operator {func}", error)
        return result

    def _note_failure(self, error: RuntimeError) -> None:
        """Log a failed allocation; the error is not kept, nor what its traceback holds."""
        if self._log.active:
            try:
                failure = read_failed_allocation(error)
                if failure is not None and not was_logged(error):
                    self._log.failures.append(failure)
                    mark_as_logged(error)
            except Exception as own_error:  # an error in zprof must never reach the training loop
                self._log.fail("failed allocation", own_error)

    def _track_all(self, values: Any, allocator: Any) -> None:
        for value in values:
            if type(value) is torch.Tensor:
                self._track(value, allocator)
            elif isinstance(value, tuple | list):
                self._track_all(value, allocator)

    def _claim_operands(self, value: Any, role: StorageRole) -> None:
        if type(value) in PLAIN:
            entry = self._track(value)
            # Only an unclaimed storage is backdated: an activation that is reduced in place was an activation
            # until now.
            self._storages.claim(entry, role, backdated=not entry.claimed)
        elif isinstance(value, tuple | list):
            for item in value:
                self._claim_operands(item, role)
        elif isinstance(value, dict):
            self._claim_operands(tuple(value.values()), role)


def _classify_operator(func: Any) -> tuple[Any, StorageRole | None]:
    """Return the operator as allocator (None if it may return its input), and its operands' role."""
    if isinstance(func, HigherOrderOperator):  # it has no schema and calls other operators
        return None, None
    aliases = any(returned.alias_info is not None for returned in func._schema.returns)
    if func.namespace not in _COLLECTIVE_NAMESPACES:
        return (None if aliases else func), None
    name = func._schema.name.split("::")[1].strip("_")
    return None, StorageRole(Tenant.COMMUNICATION_BUFFERS, name, "c10d")


class ResizePatch:
    """Replace ``UntypedStorage.resize_`` on the class while installed."""

    def __init__(self, log: MemoryLog, storages: StorageTracker) -> None:
        self._log = log
        self._storages = storages
        self._patch: Any = None

    def install(self) -> None:
        """Install the method that records resizes."""
        original = torch.UntypedStorage.resize_

        def resize_(storage: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
            result = original(storage, *args, **kwargs)
            if self._log.active:
                try:
                    self._storages.on_resize(storage)
                except Exception as error:  # an error in zprof must never reach the training loop
                    self._log.fail("storage resize", error)
            return result

        self._patch = resize_
        setattr(torch.UntypedStorage, "resize_", resize_)  # noqa: B010, mypy knows it as a method

    def remove(self) -> None:
        """Remove the method: the class inherits the original."""
        if self._patch is not None and torch.UntypedStorage.__dict__.get("resize_") is self._patch:
            del torch.UntypedStorage.resize_
        self._patch = None


class RngStatePatch:
    """Replace ``torch.get_rng_state``, which checkpointing looks up in ``torch``, while installed."""

    def __init__(self, log: MemoryLog, storages: StorageTracker) -> None:
        self._log = log
        self._storages = storages
        self._original: Any = None
        self._patch: Any = None

    def install(self) -> None:
        """Install the function that records the returned state."""
        original = self._original = torch.get_rng_state

        @functools.wraps(original)
        def get_rng_state() -> torch.Tensor:
            state = original()
            if self._log.active:
                try:
                    self._storages.track(state, "get_rng_state")
                except Exception as error:  # an error in zprof must never reach the training loop
                    self._log.fail("random state", error)
            return state

        self._patch = torch.get_rng_state = get_rng_state

    def remove(self) -> None:
        """Restore the original, unless the function has been replaced since."""
        if self._patch is not None and torch.get_rng_state is self._patch:
            torch.get_rng_state = self._original
        self._patch = None
