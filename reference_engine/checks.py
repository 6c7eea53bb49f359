"""Reject models that the engine cannot train before zero() changes them, and unsupported changes after it."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from zprof.reference_engine.flat_unit import FlatUnit
from zprof.reference_engine.hooks import EngineHook, UntracedHook, is_in_backward
from zprof.reference_engine.unit_split import NEVER_CALLED
from zprof.reference_engine.weight_edits import EditSample


def check_model(model: nn.Module, unit_modules: Iterable[nn.Module] | None) -> None:
    """Check that the engine supports the model.

    Raises:
        ValueError: it does not; the one-line message names the parameter or module and the fix.
    """
    _check_modules(model)
    parameters = dict(model.named_parameters())
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise ValueError("the model has no trainable parameters; there is nothing to optimize")
    for name, parameter in parameters.items():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ValueError(f"parameter {name} is uninitialized; run the lazy module once before zero()")
        if parameter.device.type == "meta":
            raise ValueError(f"parameter {name} is on the meta device; materialize it before zero()")
        if not issubclass(type(parameter), nn.Parameter):
            kind = type(parameter).__name__
            raise ValueError(
                f"parameter {name} is a {kind}; parameters must be plain tensors, not sharded yet"
            )
        if parameter.is_inference():
            raise ValueError(
                f"parameter {name} was created in inference mode; create the model outside of it"
            )
        if not parameter.dtype.is_floating_point:
            raise ValueError(f"parameter {name} is {parameter.dtype}; parameters must be floating point")
        if parameter.untyped_storage().nbytes() == 0 and parameter.numel() > 0:
            raise ValueError(f"parameter {name} has no memory; the model is already in a ZeRO engine")
    _check_memory(parameters)
    devices = sorted({str(parameter.device) for parameter in parameters.values()})
    if len(devices) > 1:
        raise ValueError(f"parameters are on several devices ({', '.join(devices)}); move the model to one")
    inside = set(model.modules())
    if any(module not in inside for module in unit_modules or ()):
        raise ValueError("a unit is not a module of the model; take units from model.modules()")
    for module in unit_modules or ():
        if isinstance(module, NEVER_CALLED):
            raise ValueError(
                f"a unit is a {type(module).__name__}, which has no forward; choose the modules inside it"
            )


def check_not_wrapped(model: nn.Module) -> None:
    """Check that no existing engine has wrapped a part of the model.

    Raises:
        ValueError: one has; the one-line message names the module or parameter.
    """
    for name, module in model.named_modules():
        hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
        if any(isinstance(hook, EngineHook) and hook.alive for hook in hooks):
            raise ValueError(
                f"module {name or 'root'} is already in a ZeRO engine; call zero() once per model"
            )
    for name, parameter in model.named_parameters():
        hooks = list((parameter._post_accumulate_grad_hooks or {}).values())
        if any(isinstance(hook, EngineHook) and hook.alive for hook in hooks):
            raise ValueError(f"parameter {name} is already in a ZeRO engine; call zero() once per model")


def _check_modules(model: nn.Module) -> None:
    check_not_wrapped(model)
    for name, module in model.named_modules():
        if getattr(module, "sparse", False):
            raise ValueError(
                f"module {name} has sparse gradients, which are not supported; set sparse to False"
            )
        if isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel):
            raise ValueError(
                f"module {name or 'root'} is a {type(module).__name__}, which reduces gradients itself; "
                "give zero() the module inside it"
            )


def _check_memory(parameters: dict[str, nn.Parameter]) -> None:
    spans = sorted(
        (*_compute_span(parameter), name) for name, parameter in parameters.items() if parameter.numel()
    )
    for (_, end, first), (start, _, second) in pairwise(spans):
        if start < end:
            raise ValueError(
                f"parameters {first} and {second} share memory but are separate parameters; "
                "use one nn.Parameter to tie them, or copy one"
            )


def _compute_span(parameter: nn.Parameter) -> tuple[int, int]:
    last_offset = sum(
        (size - 1) * stride for size, stride in zip(parameter.shape, parameter.stride(), strict=True)
    )
    return parameter.data_ptr(), parameter.data_ptr() + (last_offset + 1) * parameter.element_size()


class ModelGuard:
    """Checks the parameters before every training forward; takes about 1 us per module.

    It also compares the sample of 16-bit parameters, whose result the optimizer's step uses.
    """

    def __init__(self, model: nn.Module, units: Sequence[FlatUnit], edits: EditSample | None) -> None:
        """Register a hook on the model."""
        self._edits = edits
        self._trainable = {id(parameter): unit.trainable for unit in units for parameter in unit.parameters}
        model.register_forward_pre_hook(UntracedHook(self._before_forward), prepend=True)

    def _before_forward(self, model: nn.Module, arguments: tuple[Any, ...]) -> None:
        if not torch.is_grad_enabled() or is_in_backward():
            return
        known = self._trainable
        with torch._C.DisableTorchFunctionSubclass():
            for module in model.modules():
                for parameter in module._parameters.values():
                    if parameter is not None and known.get(id(parameter)) is not parameter.requires_grad:
                        self._raise_changed(model, parameter)
        if self._edits is not None:
            self._edits.compare()

    def _raise_changed(self, model: nn.Module, parameter: nn.Parameter) -> None:
        name = next(name for name, other in model.named_parameters() if other is parameter)
        if id(parameter) not in self._trainable:
            raise RuntimeError(
                f"parameter {name} is not in the engine: change the model before zero(), not after"
            )
        change = "unfrozen" if parameter.requires_grad else "frozen"
        raise RuntimeError(f"parameter {name} was {change} while in the engine: do that before zero()")
