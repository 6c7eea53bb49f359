"""Find what a program trains among the live Python objects: its models and its optimizers.

A model is an ``nn.Module`` that no other module contains and that holds optimized parameters: the wrapper
(DDP, a compiled module, a LightningModule), not what it wraps.
"""

import gc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Optimizer = torch.optim.Optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Models, by the number of optimized elements (largest first), and optimizers.

    ``by_size``: no module holds the optimized tensors (an engine optimizes copies), so the largest was taken.
    """

    models: tuple[nn.Module, ...]
    optimizers: tuple[Optimizer, ...]
    by_size: bool = False

    def model(self) -> nn.Module | None:
        """Return the model; several as children of one module, named by their class."""
        if len(self.models) < 2:
            return self.models[0] if self.models else None
        together = nn.Module()
        for model in self.models:  # written directly, so that no registration hook of the program runs
            together._modules[_make_free_name(type(model).__name__, together._modules)] = model
        return together


def find_trained(stepped: Sequence[Optimizer]) -> Trained:
    """Return the models and optimizers of a program whose optimizers in ``stepped`` have stepped."""
    optimizers = (*stepped, *_find_related(stepped, find_live_optimizers()))
    wanted = {id(tensor) for optimizer in optimizers for tensor in list_optimized(optimizer)}
    roots = list(_find_roots(list(_find_live(nn.Module))))
    sizes = [(_count_elements(root, wanted), root) for root in roots]
    by_size = not any(size for size, _ in sizes)
    if by_size:
        sizes = sorted(((_count_elements(root, None), root) for root in roots), key=_get_size)[-1:]
    found = [root for size, root in sorted(sizes, key=_get_size, reverse=True) if size]
    return Trained(models=tuple(found), optimizers=tuple(optimizers), by_size=by_size and bool(found))


def find_live_optimizers() -> Iterator[Optimizer]:
    """Return all live optimizers, whether they step or not."""
    return _find_live(Optimizer)


def find_idle_optimizers(stepped: Sequence[Optimizer]) -> list[Optimizer]:
    """Return the optimizers that have tensors of their own and have not stepped yet."""
    known = {id(tensor) for optimizer in stepped for tensor in list_optimized(optimizer)}
    return [
        optimizer
        for optimizer in find_live_optimizers()
        if (own := list_optimized(optimizer)) and not any(id(tensor) in known for tensor in own)
    ]


def list_optimized(optimizer: Any) -> list[torch.Tensor]:
    """Return the tensors that an optimizer optimizes; none for a wrapper without param groups."""
    groups = getattr(optimizer, "param_groups", None) or []
    return [tensor for group in groups for tensor in group["params"]]


def _find_related(stepped: Sequence[Optimizer], live: Iterable[Optimizer]) -> Iterator[Optimizer]:
    """Return live optimizers with states that did not step: they are inside those that stepped."""
    known = {id(optimizer) for optimizer in stepped}
    return (other for other in live if id(other) not in known and getattr(other, "state", None))


def _find_roots(modules: Sequence[nn.Module]) -> Iterator[nn.Module]:
    contained = {id(child) for module in modules for child in module._modules.values()}
    return (module for module in modules if id(module) not in contained)


def _count_elements(root: nn.Module, wanted: set[int] | None) -> int:
    """Return the elements of the parameters in ``wanted``, or of all that require gradients if None."""
    return sum(
        parameter.numel()
        for parameter in root.parameters()
        if (id(parameter) in wanted if wanted is not None else parameter.requires_grad)
    )


def _get_size(sized: tuple[int, nn.Module]) -> int:
    return sized[0]


def _find_live(kind: type) -> Iterator[Any]:
    # type(), not isinstance(): access to its ``__class__`` would materialize a lazy proxy.
    return (found for found in gc.get_objects() if issubclass(type(found), kind) and _is_made(found))


def _is_made(found: Any) -> bool:
    """Return False for an object whose ``__init__`` has not run yet."""
    return bool(getattr(found, "__dict__", None))


def _make_free_name(name: str, taken: Any) -> str:
    number = 2
    free = name
    while free in taken:
        free, number = f"{name}{number}", number + 1
    return free
