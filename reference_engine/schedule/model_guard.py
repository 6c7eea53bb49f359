"""Parameters that came, were frozen or unfrozen after zero(): refused, for nobody trains them as expected."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from zprof.reference_engine.schedule.backward_pass import in_backward
from zprof.reference_engine.schedule.hooks import ModuleHook
from zprof.reference_engine.units.flat_unit import FlatUnit


class ModelGuard:
    """Looks before every forward that will be trained; about 1 us a module."""

    def __init__(self, model: nn.Module, units: Sequence[FlatUnit]) -> None:
        """Hook the model."""
        self._trainable = {id(parameter): unit.trainable for unit in units for parameter in unit.parameters}
        model.register_forward_pre_hook(ModuleHook(self._before_forward), prepend=True)

    def _before_forward(self, model: nn.Module, arguments: tuple[Any, ...]) -> None:
        if not torch.is_grad_enabled() or in_backward():
            return
        known = self._trainable
        with torch._C.DisableTorchFunctionSubclass():
            for module in model.modules():
                for parameter in module._parameters.values():
                    if parameter is not None and known.get(id(parameter)) is not parameter.requires_grad:
                        self._refuse(model, parameter)

    def _refuse(self, model: nn.Module, parameter: nn.Parameter) -> None:
        name = next(name for name, other in model.named_parameters() if other is parameter)
        if id(parameter) not in self._trainable:
            raise RuntimeError(
                f"parameter {name} is not in the engine: change the model before zero(), not after"
            )
        change = "unfrozen" if parameter.requires_grad else "frozen"
        raise RuntimeError(f"parameter {name} was {change} while in the engine: do that before zero()")
