"""Resolve parameter groups as torch's optimizers take them: parameters with their own hyperparameters.

    zero(model, config, groups=[{"params": decayed}, {"params": biases, "weight_decay": 0.0, "lr": 1e-4}])

The config has the defaults.  Groups determine which parameters share a flat unit, so ``zero()`` fixes their
members; hyperparameters may change later.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from zprof.reference_engine.config import ZeroConfig

#: Options of torch.optim.AdamW that the engine's update does not support.
_UNSUPPORTED_OPTIONS = ("amsgrad", "maximize", "capturable", "differentiable")


def resolve_groups(
    model: nn.Module, groups: Iterable[Mapping[str, Any]] | None, config: ZeroConfig
) -> tuple[Sequence[Mapping[str, Any]], Mapping[nn.Parameter, int]]:
    """Return the hyperparameters of each group, and the group index of each trainable parameter.

    Without ``groups``, all parameters form one group.

    Frozen parameters need no group, and are ignored in groups.

    Raises:
        ValueError: the groups are invalid; the one-line message names the parameter or option and the fix.
    """
    name_by_parameter = {parameter: name for name, parameter in model.named_parameters()}
    defaults = {
        "lr": config.learning_rate,
        "betas": config.betas,
        "eps": config.eps,
        "weight_decay": config.weight_decay,
    }
    if groups is None:
        trainable = (parameter for parameter in name_by_parameter if parameter.requires_grad)
        return [defaults], dict.fromkeys(trainable, 0)
    hyperparameters: list[Mapping[str, Any]] = []
    group_by_parameter: dict[nn.Parameter, int] = {}
    for index, group in enumerate(groups):
        if not isinstance(group, Mapping) or "params" not in group:
            raise ValueError(f"groups[{index}] is not a dict with params; pass {{'params': [...]}}")
        options = {key: value for key, value in group.items() if key != "params"}
        hyperparameters.append(
            {**defaults, **options, "betas": tuple(options.get("betas", defaults["betas"]))}
        )
        _check_hyperparameters(index, hyperparameters[-1])
        for parameter in _list_parameters(index, group["params"]):
            if parameter not in name_by_parameter:
                shape = tuple(parameter.shape)
                raise ValueError(f"groups[{index}] has a parameter of shape {shape} that is not in the model")
            if parameter in group_by_parameter:
                first = group_by_parameter[parameter]
                location = (
                    f"twice in groups[{index}]" if first == index else f"in groups[{first}] and [{index}]"
                )
                raise ValueError(f"parameter {name_by_parameter[parameter]} is {location}; list it once")
            group_by_parameter[parameter] = index
    missing = [
        name
        for parameter, name in name_by_parameter.items()
        if parameter.requires_grad and parameter not in group_by_parameter
    ]
    if missing:
        rest = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise ValueError(
            f"parameter {missing[0]} is in no group{rest}; put it in one, or freeze it with "
            "requires_grad_(False)"
        )
    trained = {parameter: index for parameter, index in group_by_parameter.items() if parameter.requires_grad}
    return hyperparameters, trained


def _list_parameters(index: int, params: Any) -> list[nn.Parameter]:
    """List the parameters in ``params``: one, several, or (name, parameter) pairs, as in torch."""
    items = [params] if isinstance(params, torch.Tensor) else list(params)
    parameters: list[nn.Parameter] = []
    for item in items:
        parameter = item[1] if isinstance(item, tuple) and len(item) == 2 else item
        if not isinstance(parameter, nn.Parameter):
            kind = type(parameter).__name__
            raise ValueError(f"groups[{index}] has a {kind} in params; it must be a parameter")
        parameters.append(parameter)
    return parameters


def _check_hyperparameters(index: int, hyperparameters: Mapping[str, Any]) -> None:
    for name in ("lr", "eps", "weight_decay"):
        if not hyperparameters[name] >= 0:
            raise ValueError(f"{name} of groups[{index}] is {hyperparameters[name]!r}; it must be 0 or more")
    if len(hyperparameters["betas"]) != 2 or not all(0 <= beta < 1 for beta in hyperparameters["betas"]):
        raise ValueError(
            f"betas of groups[{index}] is {hyperparameters['betas']!r}; it must be two numbers in [0, 1)"
        )
    for name in _UNSUPPORTED_OPTIONS:
        if hyperparameters.get(name):
            raise ValueError(f"groups[{index}] sets {name}, which is not supported; leave it out")
