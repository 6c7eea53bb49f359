"""Bytes of an element on the wire, as FSDP2's mixed precision casts it or DDP's hooks leave it."""

from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class WireSizes:
    """Bytes of an element: of a gathered parameter, and of a gradient that is reduced; None is unknown."""

    gathered_bytes: int | None
    reduced_bytes: int | None


def wire_sizes(model: nn.Module, parameter_bytes: int | None) -> WireSizes:
    """The sizes that all wrappers of the model have; None where they differ or are not known."""
    sizes = {size for module in model.modules() for size in _sizes(module, parameter_bytes)}
    sizes = sizes or {(parameter_bytes, parameter_bytes)}
    gathered, reduced = ({size[index] for size in sizes} for index in (0, 1))
    return WireSizes(gathered_bytes=_only(gathered), reduced_bytes=_only(reduced))


def _only(sizes: set[int | None]) -> int | None:
    return next(iter(sizes)) if len(sizes) == 1 else None


def _sizes(module: Any, parameter_bytes: int | None) -> list[tuple[int | None, int | None]]:
    names = {kind.__name__ for kind in type(module).__mro__}
    if "DistributedDataParallel" in names:
        size = None if getattr(module, "_comm_hooks", None) else parameter_bytes
        return [(size, size)]
    if "FSDPModule" in names:
        policy = getattr(module._get_fsdp_state(), "_mp_policy", None)
        gathered = _bytes(getattr(policy, "param_dtype", None), parameter_bytes)
        return [(gathered, _bytes(getattr(policy, "reduce_dtype", None), gathered))]
    return []


def _bytes(dtype: Any, otherwise: int | None) -> int | None:
    return otherwise if dtype is None else int(dtype.itemsize)
