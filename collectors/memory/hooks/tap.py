"""Sees every operator: notes the storages it returns, and the operands of collectives.

A dispatch mode without ``ignore_compile_internals`` silently turns torch.compile into eager code.
"""

from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils._python_dispatch import TorchDispatchMode

from zprof.collectors.memory.hooks.packing import PackWatch
from zprof.collectors.memory.lives.compiler import leave_alone
from zprof.collectors.memory.lives.log import SAVED, MemoryLog, Role
from zprof.collectors.memory.lives.storages import StorageTracker
from zprof.collectors.memory.lives.tensors import PLAIN
from zprof.model.tenants import Tenant

_Tensor = torch.Tensor
#: Of a subclass that has none of its own: torch asks it all the same below some calls (``.data``).
_NO_DISPATCH = torch._C._disabled_torch_dispatch_impl
#: What torch itself traces with: nothing of it holds bytes, and these must not be asked to go first.
_TRACED = (FakeTensor, FunctionalTensor)
_COLLECTIVE_NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")


class OperatorTap(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Passes every operator on, and notes what it returned."""

    supports_higher_order_operators = True

    def __init__(self, log: MemoryLog, storages: StorageTracker, packs: PackWatch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._log = log
        self._storages = storages
        self._packs = packs
        self._see = storages.see
        self._kinds: dict[Any, tuple[Any, Role | None]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Without torch's own wrapper, which says the same to the compiler half a microsecond slower."""
        return not leave_alone(cls.__torch_dispatch__.__code__)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let compiled code run as it is."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator; a tensor subclass (DTensor) goes first, its inner operators come here again."""
        if types:
            for kind in types:
                if kind not in PLAIN and kind.__torch_dispatch__ is not _NO_DISPATCH:
                    return func(*args, **(kwargs or {})) if _is_traced(types) else NotImplemented
        result = func(*args, **kwargs) if kwargs else func(*args)
        if self._log.active:
            try:
                allocator, role = self._kinds.get(func) or self._learn(func)
                if type(result) is _Tensor:
                    self._see(result, allocator)
                elif result is not None:
                    self._see_all((result,), allocator)
                if role is not None:
                    self._claim_operands((args, kwargs, result), role)
                elif self._packs.depth:
                    self._claim_operands(result, SAVED)
            except Exception as error:  # a fault of ours must never reach the training loop
                self._log.fail(f"operator {func}", error)
        return result

    def _learn(self, func: Any) -> tuple[Any, Role | None]:
        kind = self._kinds[func] = _kind(func)
        return kind

    def _see_all(self, values: Any, allocator: Any) -> None:
        for value in values:
            if type(value) is torch.Tensor:
                self._see(value, allocator)
            elif isinstance(value, tuple | list):
                self._see_all(value, allocator)

    def _claim_operands(self, value: Any, role: Role) -> None:
        if type(value) in PLAIN:
            entry = self._see(value)
            # An activation that is reduced in place was an activation until then.
            self._storages.claim(entry, role, backdated=not entry.claimed)
        elif isinstance(value, tuple | list):
            for item in value:
                self._claim_operands(item, role)
        elif isinstance(value, dict):
            self._claim_operands(tuple(value.values()), role)


def _is_traced(types: Any) -> bool:
    return any(issubclass(kind, _TRACED) for kind in types)


def _kind(func: Any) -> tuple[Any, Role | None]:
    """Operator to name as allocator (None where it may return what it was given), role of its operands."""
    if isinstance(func, HigherOrderOperator):  # it has no schema, and calls operators of its own
        return None, None
    aliases = any(returned.alias_info is not None for returned in func._schema.returns)
    if func.namespace not in _COLLECTIVE_NAMESPACES:
        return (None if aliases else func), None
    name = func._schema.name.split("::")[1].strip("_")
    return None, Role(Tenant.COMMUNICATION_BUFFERS, name, "c10d")
