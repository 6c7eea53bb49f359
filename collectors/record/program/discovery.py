"""Find the models and optimizers that a program trains among the live Python objects.

A model is an ``nn.Module`` that no other module contains and that holds optimized parameters: the wrapper
(DDP, a compiled module, a LightningModule), not the wrapped module.
"""

import gc
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from msgspec import Struct
from torch import nn

from zprof.collectors.record.engines import deepspeed

Optimizer = torch.optim.Optimizer


class Trained(Struct, frozen=True, kw_only=True):
    """Models, by the number of optimized elements (largest first), and optimizers.

    ``by_size``: no module holds the optimized tensors (an engine optimizes copies), so the largest one is
    used.
    """

    models: tuple[nn.Module, ...]
    optimizers: tuple[Optimizer, ...]
    by_size: bool = False

    def model(self) -> nn.Module | None:
        """Return the model; several models become children of one module, named after their classes."""
        if len(self.models) < 2:
            return self.models[0] if self.models else None
        container = nn.Module()
        for model in self.models:  # set directly, so that no registration hook of the program runs
            name = unused_name = type(model).__name__
            number = 2
            while unused_name in container._modules:
                unused_name, number = f"{name}{number}", number + 1
            container._modules[unused_name] = model
        return container


def find_trained(stepped: Sequence[Optimizer]) -> Trained:
    """Return the models and optimizers of a program whose optimizers in ``stepped`` have stepped.

    An engine of DeepSpeed is the model itself, and knows its optimizer.
    """
    if engines := deepspeed.find_live_engines():
        return Trained(
            models=tuple(sorted(engines, key=_count_elements, reverse=True)),
            optimizers=tuple(each for engine in engines for each in deepspeed.list_optimizers(engine)),
        )
    # Live optimizers with states that did not step are wrapped by optimizers that did.
    live = find_live_optimizers()
    stepped_ids = {id(optimizer) for optimizer in stepped}
    optimizers = (
        *stepped,
        *(other for other in live if id(other) not in stepped_ids and getattr(other, "state", None)),
    )
    wanted_ids = {id(tensor) for optimizer in optimizers for tensor in list_optimized(optimizer)}
    modules = list(_find_live(nn.Module))
    contained = {id(child) for module in modules for child in module._modules.values()}
    roots = [module for module in modules if id(module) not in contained]
    sizes = [(_count_elements(root, wanted_ids), root) for root in roots]
    by_size = not any(size for size, _ in sizes)
    if by_size:
        sizes = sorted(((_count_elements(root), root) for root in roots), key=_get_size)[-1:]
    models = [root for size, root in sorted(sizes, key=_get_size, reverse=True) if size]
    return Trained(models=tuple(models), optimizers=tuple(optimizers), by_size=by_size and bool(models))


def find_live_optimizers() -> Iterator[Optimizer]:
    """Return all live optimizers."""
    return _find_live(Optimizer)


def find_idle_optimizers(stepped: Sequence[Optimizer]) -> list[Optimizer]:
    """Return the optimizers that have not stepped and whose tensors belong to no stepped optimizer."""
    stepped_ids = {id(tensor) for optimizer in stepped for tensor in list_optimized(optimizer)}
    return [
        optimizer
        for optimizer in find_live_optimizers()
        if (own := list_optimized(optimizer)) and not any(id(tensor) in stepped_ids for tensor in own)
    ]


def list_optimized(optimizer: Any) -> list[torch.Tensor]:
    """List the tensors that an optimizer updates; empty for a wrapper without param groups."""
    groups = getattr(optimizer, "param_groups", None) or []
    return [tensor for group in groups for tensor in group["params"]]


def _count_elements(root: nn.Module, wanted_ids: set[int] | None = None) -> int:
    """Count the elements of the parameters in ``wanted_ids``, or of all that require gradients if None."""
    return sum(
        parameter.numel()
        for parameter in root.parameters()
        if (id(parameter) in wanted_ids if wanted_ids is not None else parameter.requires_grad)
    )


def _get_size(entry: tuple[int, nn.Module]) -> int:
    return entry[0]


def _find_live(kind: type) -> Iterator[Any]:
    # type(), not isinstance(): access to its ``__class__`` would materialize a lazy proxy.
    # An object whose ``__init__`` has not run yet has no attributes.
    return (
        value
        for value in gc.get_objects()
        if issubclass(type(value), kind) and bool(getattr(value, "__dict__", None))
    )
