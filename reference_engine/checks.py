"""What the engine cannot work with, said before anything is changed."""

from collections.abc import Iterable

from torch import nn


def check_model(model: nn.Module, unit_modules: Iterable[nn.Module] | None) -> None:
    """Refuse a model that would fail later.

    Raises:
        ValueError: one line that names the parameter or module, and what to do.
    """
    parameters = dict(model.named_parameters())
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise ValueError("the model has no trainable parameters; there is nothing to optimize")
    for name, parameter in parameters.items():
        _check_parameter(name, parameter)
    devices = sorted({str(parameter.device) for parameter in parameters.values()})
    if len(devices) > 1:
        raise ValueError(f"parameters are on several devices ({', '.join(devices)}); move the model to one")
    for name, module in model.named_modules():
        if getattr(module, "sparse", False):
            raise ValueError(
                f"module {name} makes sparse gradients, which have no flat form; set it to False"
            )
    inside = set(model.modules())
    if any(module not in inside for module in unit_modules or ()):
        raise ValueError("a unit is not a module of the model; take units from model.modules()")


def _check_parameter(name: str, parameter: nn.Parameter) -> None:
    if isinstance(parameter, nn.parameter.UninitializedParameter):
        raise ValueError(f"parameter {name} has no shape yet; run the lazy module once before zero()")
    if parameter.device.type == "meta":
        raise ValueError(f"parameter {name} is on the meta device; give it values before zero()")
    if not parameter.dtype.is_floating_point:
        raise ValueError(f"parameter {name} is {parameter.dtype}; parameters must be floating point")
    if parameter.untyped_storage().nbytes() == 0 and parameter.numel() > 0:
        raise ValueError(f"parameter {name} has no memory; the model is already in a ZeRO engine")
