"""Parameters whose values are not here say so, instead of letting C++ read memory that is gone.

While a unit is not gathered, its parameters have another Python class, whose ``__torch_function__`` sees
every operation on them; while it is, they have their own, and operations cost nothing more.  What does not
need the values (shape, dtype, ``.grad``, hooks) works at all times.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol
from weakref import ref

import torch
from torch import nn

_NEEDS_NO_VALUES = frozenset(
    (
        *("shape", "dtype", "device", "layout", "ndim", "names", "name", "itemsize", "nbytes", "output_nr"),
        *("grad", "_grad", "grad_fn", "_grad_fn", "requires_grad", "requires_grad_", "retains_grad"),
        *("_version", "_base", "_cdata", "_backward_hooks", "_post_accumulate_grad_hooks"),
        *("register_hook", "register_post_accumulate_grad_hook", "untyped_storage", "data_ptr", "get_device"),
        *("size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset", "element_size"),
        *("__len__", "__hash__", "__dir__"),
    )
)


class Owner(Protocol):
    """The unit of absent parameters."""

    def touched(self, parameter: nn.Parameter) -> None:
        """Make its values be there, or raise an error that says why they cannot be."""


class AbsentParameter(nn.Parameter):
    """A parameter whose values are not here; see :func:`absent_class`."""

    owner: Callable[[], Owner | None]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not _needs_no_values(func):
            for parameter in _absent((args, kwargs or {})):
                _touch(parameter)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Parameter(shape={tuple(self.shape)}, values not gathered)"


def absent_class(owner_of_all: Owner) -> type[AbsentParameter]:
    """The class of one unit's absent parameters; it knows the unit weakly."""

    class AbsentOfUnit(AbsentParameter):
        owner = staticmethod(ref(owner_of_all))

    return AbsentOfUnit


def _touch(parameter: AbsentParameter) -> None:
    owner = type(parameter).owner()
    if owner is None:
        raise RuntimeError(
            "the engine of this parameter is gone: call model.synchronize(), or save, before that"
        )
    owner.touched(parameter)


def _needs_no_values(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    if name in ("__get__", "__set__", "__delete__"):  # of a property
        name = getattr(getattr(func, "__self__", None), "__name__", "")
    return name in _NEEDS_NO_VALUES or name.startswith(("is_", "_is_"))


def _absent(value: Any) -> list[AbsentParameter]:
    if isinstance(value, torch.Tensor):
        return [value] if isinstance(value, AbsentParameter) else []
    if isinstance(value, dict):
        value = tuple(value.values())
    if not isinstance(value, tuple | list):
        return []
    return [parameter for item in value for parameter in _absent(item)]
