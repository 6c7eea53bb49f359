"""Tensors inside of what a module is given or gives back, and the nodes of autograd that made them."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import Node
from torch.utils._pytree import tree_leaves


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Tensors in nested containers, dataclasses and the attributes of other objects (not of theirs)."""
    if isinstance(value, torch.Tensor):
        yield value
        return
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            for field in dataclasses.fields(leaf):
                yield from tensors_in(getattr(leaf, field.name, None))
        elif hasattr(leaf, "__dict__") and not isinstance(leaf, type | nn.Module):
            yield from _plain_tensors(list(vars(leaf).values()))


def nodes_of(value: Any) -> set[Node]:
    """The nodes through which a gradient comes to the tensors in ``value``.

    A view counts with its base too: after a change in place the view has a new node, and the gradient comes
    by the base's.
    """
    nodes: set[Node] = set()
    for tensor in tensors_in(value):
        if tensor.grad_fn is not None:
            nodes.add(tensor.grad_fn)
        base = tensor._base
        if base is not None and base.grad_fn is not None:
            nodes.add(base.grad_fn)
    return nodes


def _plain_tensors(values: list[Any]) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor))
