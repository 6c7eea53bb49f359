"""Bytes of an element on the wire, as FSDP2's mixed precision casts it or DDP's hooks leave it."""

from typing import Any

from torch import nn


def communication_bytes(model: nn.Module, parameter_bytes: int | None) -> int | None:
    """The size that all collectives of the model's wrappers have; None where they differ or are not known."""
    sizes = {size for module in model.modules() for size in _sizes(module, parameter_bytes)}
    return sizes.pop() if len(sizes) == 1 else parameter_bytes if not sizes else None


def _sizes(module: Any, parameter_bytes: int | None) -> list[int | None]:
    names = {kind.__name__ for kind in type(module).__mro__}
    if "DistributedDataParallel" in names:
        return [None if getattr(module, "_comm_hooks", None) else parameter_bytes]
    if "FSDPModule" in names:
        policy = getattr(module._get_fsdp_state(), "_mp_policy", None)
        gathered = _bytes(getattr(policy, "param_dtype", None), parameter_bytes)
        return [gathered, _bytes(getattr(policy, "reduce_dtype", None), gathered)]
    return []


def _bytes(dtype: Any, otherwise: int | None) -> int | None:
    return otherwise if dtype is None else int(dtype.itemsize)
