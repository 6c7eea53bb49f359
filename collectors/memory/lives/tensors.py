"""Finds the plain tensors that hold bytes: in tensor subclasses (DTensor) and in an optimizer's state."""

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

#: Types whose tensors hold their bytes themselves.
PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})
_MAX_DEPTH = 4


def plain_tensors(value: Any) -> Sequence[torch.Tensor]:
    """The tensor itself, or the inner ones of a subclass that wraps others; none for one without memory."""
    if type(value) in PLAIN:
        return (value,) if value.layout is torch.strided else _inside(value)
    if not isinstance(value, torch.Tensor):
        return ()  # a subclass may name other parts too: DTensor its device mesh
    flatten = getattr(value, "__tensor_flatten__", None)
    if flatten is not None:
        return [plain for name in flatten()[0] for plain in plain_tensors(getattr(value, name))]
    if isinstance(value, torch._subclasses.FakeTensor) or value.layout is not torch.strided:
        return ()
    return (value,)


def _inside(sparse: torch.Tensor) -> Sequence[torch.Tensor]:
    return (sparse._indices(), sparse._values()) if sparse.layout is torch.sparse_coo else ()


def nested_tensors(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Plain tensors in nested dicts, lists and tuples."""
    if isinstance(value, torch.Tensor):
        yield from plain_tensors(value)
    elif depth < _MAX_DEPTH and isinstance(value, dict):
        for item in list(value.values()):
            # Directly where it can be: hundreds of states are read after each step of an optimizer.
            yield from plain_tensors(item) if type(item) in PLAIN else nested_tensors(item, depth + 1)
    elif depth < _MAX_DEPTH and isinstance(value, list | tuple):
        for item in value:
            yield from nested_tensors(item, depth + 1)


def collected_tensors(refused: Callable[[Exception], None]) -> Iterable[torch.Tensor]:
    """Every plain tensor that a Python object of this process holds.

    ``refused`` gets the error of each subclass that cannot be asked.
    """
    for value in gc.get_objects():
        # type(), not isinstance(): a lazy proxy must not be woken by a look at its class.
        if issubclass(type(value), torch.Tensor):
            try:
                found = plain_tensors(value)
            except Exception as error:  # somebody's subclass may refuse to be asked
                refused(error)
            else:
                yield from found
