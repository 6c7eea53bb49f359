"""Writes the ledger while a module runs: results of operators, operands of collectives, what autograd saves.

The tap stands on top of FakeTensorMode.  Storages that are resized in place are seen by wrapping
``UntypedStorage.resize_``; pack hooks that the program puts on top of the tap's own are watched, because what
they return is what is kept (activation checkpointing keeps a unit's input that way).
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from zprof.integrations.planning.fake.ledger import Ledger, tensors_of
from zprof.model.tenants import Tenant

_COLLECTIVES = ("c10d", "_c10d_functional")
#: Objects that a pack hook returns hold their tensor at most so deep.
_MOST_DEPTH = 3


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operator that makes or moves bytes."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ledger = ledger

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tensors_of(result):
            self._ledger.see(tensor)
        if getattr(func, "namespace", "") in _COLLECTIVES:
            for tensor in tensors_of((args, kwargs)):
                # What is reduced in place was somebody's until then.
                unclaimed = not self._ledger.see(tensor).claims
                self._ledger.claim(tensor, Tenant.COMMUNICATION_BUFFERS, backdated=unclaimed)
        return result


@contextmanager
def tapped(ledger: Ledger) -> Iterator[None]:
    """Within, everything that runs on this thread is written into the ledger."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch.UntypedStorage, "resize_", _resize(ledger)))
        stack.enter_context(saved_tensors_hooks(_pack(ledger), lambda tensor: tensor))
        native = torch._C._autograd
        push = _push(ledger, native._push_saved_tensors_default_hooks)
        stack.enter_context(mock.patch.object(native, "_push_saved_tensors_default_hooks", push))
        stack.enter_context(_Operators(ledger))
        yield


def _resize(ledger: Ledger) -> Callable[[torch.UntypedStorage, int], Any]:
    original = torch.UntypedStorage.resize_

    def resize(storage: torch.UntypedStorage, size: int) -> Any:
        result = original(storage, size)
        ledger.sized(storage)
        return result

    return resize


def _pack(ledger: Ledger) -> Callable[[torch.Tensor], torch.Tensor]:
    def pack(tensor: torch.Tensor) -> torch.Tensor:
        ledger.claim(tensor, Tenant.ACTIVATIONS)
        return tensor if tensor.is_leaf else tensor.detach()  # with its graph it would be kept by itself

    return pack


def _push(ledger: Ledger, push: Callable[..., None]) -> Callable[..., None]:
    def push_watched(pack: Callable[[Any], Any], unpack: Callable[[Any], Any]) -> None:
        push(_watched(ledger, pack), unpack)

    return push_watched


def _watched(ledger: Ledger, pack: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def watched(tensor: Any) -> Any:
        kept = pack(tensor)
        if (
            torch._C._current_graph_task_id() == -1
        ):  # what a recomputation saves is gone as soon as it is used
            for each in _kept_tensors(kept, _MOST_DEPTH):
                ledger.claim(each, Tenant.ACTIVATIONS)
        return kept

    return watched


def _kept_tensors(value: Any, depth: int) -> Iterator[torch.Tensor]:
    yield from tensors_of(value)
    if depth and hasattr(value, "__dict__") and not isinstance(value, torch.Tensor | type):
        for held in vars(value).values():
            yield from _kept_tensors(held, depth - 1)
