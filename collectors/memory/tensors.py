"""Finds the plain tensors that hold bytes: in tensor subclasses (DTensor) and in an optimizer's state."""

import gc
from collections.abc import Iterable, Iterator
from typing import Any

import torch

_MAX_DEPTH = 4


def plain_tensors(tensor: Any) -> Iterator[torch.Tensor]:
    """The tensor itself, or the inner ones of a subclass that wraps others; none for one without memory."""
    if not isinstance(tensor, torch.Tensor):
        return  # a subclass may name other parts too: DTensor its device mesh
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None:
        for name in flatten()[0]:
            yield from plain_tensors(getattr(tensor, name))
    elif _has_storage(tensor):
        yield tensor


def nested_tensors(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Plain tensors in nested dicts, lists and tuples."""
    if isinstance(value, torch.Tensor):
        yield from plain_tensors(value)
    elif depth < _MAX_DEPTH and isinstance(value, dict):
        for item in list(value.values()):
            yield from nested_tensors(item, depth + 1)
    elif depth < _MAX_DEPTH and isinstance(value, list | tuple):
        for item in value:
            yield from nested_tensors(item, depth + 1)


def collected_tensors() -> Iterable[torch.Tensor]:
    """Every plain tensor that a Python object of this process holds."""
    for value in gc.get_objects():
        # type(), not isinstance(): a lazy proxy must not be woken by a look at its class.
        if issubclass(type(value), torch.Tensor):
            yield from plain_tensors(value)


def _has_storage(tensor: torch.Tensor) -> bool:
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        return False
    return not isinstance(tensor, torch._subclasses.FakeTensor) and not torch._is_functional_tensor(tensor)
