"""Assign every parameter of a model to a unit, which is gathered and reduced as one.

By default each child of every nn.ModuleList is a unit and the rest of the model is the root unit.  A
parameter belongs to the innermost unit that contains it; weights that several units share belong to the root.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn

ROOT = "root"
NEVER_CALLED = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
"""Containers, which have no forward."""


@dataclass(frozen=True, slots=True, eq=False)
class UnitSpec:
    """A module and the parameters that it owns, in the order of the model; the root unit is first."""

    name: str
    module: nn.Module
    parameters: tuple[tuple[str, nn.Parameter], ...]


def find_default_units(model: nn.Module) -> list[nn.Module]:
    """Find the children of every ``nn.ModuleList``, except containers."""
    return [
        child
        for module in model.modules()
        if isinstance(module, nn.ModuleList)
        for child in module.children()
        if not isinstance(child, NEVER_CALLED)
    ]


def resolve_unit_modules(model: nn.Module, units: Iterable[nn.Module | type[nn.Module]]) -> list[nn.Module]:
    """Resolve ``units`` to modules: a class stands for all its instances in the model.

    Raises:
        ValueError: the model has no module of a given class.
    """
    unit_modules: list[nn.Module] = []
    for unit in units:
        if not isinstance(unit, type):
            unit_modules.append(unit)
            continue
        instances = [module for module in model.modules() if isinstance(module, unit)]
        if not instances:
            raise ValueError(f"units contains the class {unit.__name__}, but the model has no such module")
        unit_modules += instances
    return unit_modules


def split_into_units(model: nn.Module, unit_modules: Iterable[nn.Module] | None = None) -> list[UnitSpec]:
    """Assign every parameter of the model to one unit."""
    chosen = set(find_default_units(model) if unit_modules is None else unit_modules) - {model}
    owners: dict[nn.Parameter, set[nn.Module]] = {}
    for parameter, owner in _iter_owners(model, model, chosen):
        owners.setdefault(parameter, set()).add(owner)
    owned: dict[nn.Module, list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in model.named_parameters():
        users = owners[parameter]
        owner = next(iter(users)) if len(users) == 1 else model
        owned.setdefault(owner, []).append((name, parameter))
    units = [(name, module) for name, module in model.named_modules() if module in chosen]
    return [
        UnitSpec(name or ROOT, module, tuple(owned.get(module, ()))) for name, module in [("", model), *units]
    ]


def split_by_dtype(
    parameters: Iterable[tuple[str, nn.Parameter]],
    name: str,
    groups: Mapping[nn.Parameter, int] | None = None,
) -> Iterator[tuple[str, list[tuple[str, nn.Parameter]]]]:
    """Split a unit's parameters into named flat units of one dtype, ``requires_grad`` and group.

    ``groups`` maps each trainable parameter to its group; None puts all into one.
    """
    kinds: dict[tuple[torch.dtype, bool, int], list[tuple[str, nn.Parameter]]] = {}
    for parameter_name, parameter in parameters:
        group = groups[parameter] if groups is not None and parameter.requires_grad else 0
        kind = (parameter.dtype, parameter.requires_grad, group)
        kinds.setdefault(kind, []).append((parameter_name, parameter))
    for (dtype, trainable, group), members in kinds.items():
        suffix = "" if trainable else ".frozen"
        if len({other for other, kind_trainable, _ in kinds if kind_trainable == trainable}) > 1:
            suffix += f".{str(dtype).removeprefix('torch.')}"
        if trainable and len({other for _, kind_trainable, other in kinds if kind_trainable}) > 1:
            suffix += f".group{group}"
        yield name + suffix, members


def _iter_owners(
    module: nn.Module, owner: nn.Module, chosen: set[nn.Module]
) -> Iterator[tuple[nn.Parameter, nn.Module]]:
    for parameter in module.parameters(recurse=False):
        yield parameter, owner
    for child in module.children():
        yield from _iter_owners(child, child if child in chosen else owner, chosen)
