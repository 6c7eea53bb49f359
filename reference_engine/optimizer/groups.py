"""Resolve parameter groups as torch's optimizers take them: parameters with hyperparameters of their own.

    zero(model, config, groups=[{"params": decayed}, {"params": biases, "weight_decay": 0.0, "lr": 1e-4}])

The config supplies what a group leaves out.  Groups decide which parameters share a flat unit, so their
membership is fixed from ``zero()`` on; their hyperparameters are not.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from zprof.reference_engine.config import ZeroConfig

#: Options of torch.optim.AdamW that the engine's update does not support.
_UNSUPPORTED_OPTIONS = ("amsgrad", "maximize", "capturable", "differentiable")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterGroups:
    """The hyperparameters of each group, and the group of each trainable parameter."""

    numbers: tuple[Mapping[str, Any], ...]
    index: Mapping[nn.Parameter, int]


def resolve_groups(
    model: nn.Module, groups: Iterable[Mapping[str, Any]] | None, config: ZeroConfig
) -> ParameterGroups:
    """Return the parameter groups of a model; without ``groups``, all parameters form one.

    Frozen parameters need no group, and are left out if they are named in one.

    Raises:
        ValueError: the one-line message names the parameter or the option, and what to do.
    """
    named = {parameter: name for name, parameter in model.named_parameters()}
    defaults = {
        "lr": config.learning_rate,
        "betas": config.betas,
        "eps": config.eps,
        "weight_decay": config.weight_decay,
    }
    if groups is None:
        trainable = (parameter for parameter in named if parameter.requires_grad)
        return ParameterGroups(numbers=(defaults,), index=dict.fromkeys(trainable, 0))
    numbers: list[Mapping[str, Any]] = []
    found: dict[nn.Parameter, int] = {}
    for index, group in enumerate(groups):
        if not isinstance(group, Mapping) or "params" not in group:
            raise ValueError(f"groups[{index}] is no dictionary with params; pass {{'params': [...]}}")
        own = {key: value for key, value in group.items() if key != "params"}
        numbers.append({**defaults, **own, "betas": tuple(own.get("betas", defaults["betas"]))})
        _check_hyperparameters(index, numbers[-1])
        for parameter in _list_parameters(index, group["params"]):
            if parameter not in named:
                shape = tuple(parameter.shape)
                raise ValueError(f"groups[{index}] has a parameter of shape {shape} that is not in the model")
            if parameter in found:
                first = found[parameter]
                where = f"twice in groups[{index}]" if first == index else f"in groups[{first}] and [{index}]"
                raise ValueError(f"parameter {named[parameter]} is {where}; name it once")
            found[parameter] = index
    missing = [
        name for parameter, name in named.items() if parameter.requires_grad and parameter not in found
    ]
    if missing:
        rest = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise ValueError(
            f"parameter {missing[0]} is in no group{rest}; put it in one, or freeze it with "
            "requires_grad_(False)"
        )
    trained = {parameter: index for parameter, index in found.items() if parameter.requires_grad}
    return ParameterGroups(numbers=tuple(numbers), index=trained)


def _list_parameters(index: int, params: Any) -> list[nn.Parameter]:
    """Return the parameters in ``params``: one, several, or (name, parameter) pairs, as torch takes them."""
    several = [params] if isinstance(params, torch.Tensor) else list(params)
    found: list[nn.Parameter] = []
    for one in several:
        parameter = one[1] if isinstance(one, tuple) and len(one) == 2 else one
        if not isinstance(parameter, nn.Parameter):
            kind = type(parameter).__name__
            raise ValueError(f"groups[{index}] has a {kind} in params; it must be a parameter")
        found.append(parameter)
    return found


def _check_hyperparameters(index: int, numbers: Mapping[str, Any]) -> None:
    for name in ("lr", "eps", "weight_decay"):
        if not numbers[name] >= 0:
            raise ValueError(f"{name} of groups[{index}] is {numbers[name]!r}; it must be 0 or more")
    if len(numbers["betas"]) != 2 or not all(0 <= beta < 1 for beta in numbers["betas"]):
        raise ValueError(
            f"betas of groups[{index}] is {numbers['betas']!r}; it must be two numbers in [0, 1)"
        )
    for name in _UNSUPPORTED_OPTIONS:
        if numbers.get(name):
            raise ValueError(f"groups[{index}] asks for {name}, which the engine does not have; leave it out")
