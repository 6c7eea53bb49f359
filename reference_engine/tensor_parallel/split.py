"""Which part of a parameter a rank keeps."""

import torch
from torch import nn

from zprof.reference_engine.comm import Comm

SPLIT_MARK = "tensor_parallel_split"
"""The attribute of a parameter whose elements differ from rank to rank; others are equal on all ranks."""


def share_of(size: int, mp: Comm, what: str) -> int:
    """One rank's part of ``size`` elements.

    Raises:
        ValueError: the ranks do not divide ``size``; one line that names it.
    """
    if size % mp.world_size:
        raise ValueError(
            f"{what} is {size}; it must be a multiple of the {mp.world_size} model-parallel ranks"
        )
    return size // mp.world_size


def own_part(whole: torch.Tensor, mp: Comm, *, dim: int, parts: int = 1) -> nn.Parameter:
    """This rank's slice of a parameter along ``dim``, in memory of its own, marked as split.

    ``parts`` is how many matrices lie behind each other along ``dim``; each is split by itself.
    """
    share = whole.shape[dim] // parts // mp.world_size
    separate = torch.unflatten(whole.detach(), dim, (parts, mp.world_size, share))
    own = separate.select(dim + 1, mp.rank).flatten(dim, dim + 1)
    part = nn.Parameter(own.clone(memory_format=torch.contiguous_format), whole.requires_grad)
    setattr(part, SPLIT_MARK, True)
    return part
