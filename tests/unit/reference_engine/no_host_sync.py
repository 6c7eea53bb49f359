"""Fails where the host reads a tensor: on a GPU it would wait there for all that was launched."""

from types import TracebackType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

READS = {"_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select", "tolist"}


class NoHostSync(TorchDispatchMode):
    """``with NoHostSync():`` around code that must not wait.

    Operators are seen here; ``Tensor.tolist`` and ``numpy`` read memory past them, and are closed meanwhile.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket.__name__ not in READS, f"the host reads a tensor: {func}"
        return func(*args, **(kwargs or {}))

    def __enter__(self) -> Any:
        self._open = {name: getattr(torch.Tensor, name) for name in ("tolist", "numpy", "cpu")}
        for name in self._open:
            setattr(torch.Tensor, name, _refuse)
        return super().__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for name, method in self._open.items():
            setattr(torch.Tensor, name, method)
        super().__exit__(kind, error, traceback)


def _refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("the host reads a tensor")
