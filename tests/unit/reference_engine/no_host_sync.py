"""Fails where the host reads a tensor: on a GPU it would wait there for all that was launched."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

READS = {"_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select", "tolist"}


class NoReads(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket.__name__ not in READS, f"the host reads a tensor: {func}"
        return func(*args, **(kwargs or {}))


@contextmanager
def no_host_sync() -> Iterator[None]:
    """``Tensor.tolist`` and ``numpy`` read memory past operators, and are closed meanwhile."""
    refuse = mock.Mock(side_effect=AssertionError("the host reads a tensor"))
    with mock.patch.multiple(torch.Tensor, tolist=refuse, numpy=refuse, cpu=refuse), NoReads():
        yield
