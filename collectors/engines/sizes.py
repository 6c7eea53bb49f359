"""Sizes of a model's elements that the engines of torch are asked for in the same way."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.parameter import is_lazy

_T = TypeVar("_T")


def list_class_names(value: Any) -> set[str]:
    """Return the names of a value's class and of its base classes."""
    return {kind.__name__ for kind in type(value).__mro__}


def get_common(values: Iterable[_T | None]) -> _T | None:
    """Return the value that all have in common; None if they differ or there is none."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def get_item_bytes(dtype: Any, default_bytes: int | None) -> int | None:
    """Return the bytes of an element of a type; the default if no type is set."""
    return default_bytes if dtype is None else int(dtype.itemsize)


def count_trained_elements(parameters: Sequence[nn.Parameter]) -> int | None:
    """Return the number of elements; None if some are frozen or lazy."""
    if any(is_lazy(parameter) or not parameter.requires_grad for parameter in parameters):
        return None
    return sum(parameter.numel() for parameter in parameters)


def find_element_bytes(parameters: Sequence[nn.Parameter]) -> int | None:
    """Return the bytes per element if all parameters have the same type; lazy parameters have one, too."""
    dtype = get_common(parameter.dtype for parameter in parameters)
    return None if dtype is None else dtype.itemsize


def count_ranks() -> int:
    """Return the number of ranks of the program."""
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def format_dtype(dtype: Any) -> str:
    """Return a type as programs write it, without the package."""
    return str(dtype).removeprefix("torch.")
