"""The seam between the engine and the network: asynchronous collectives, each with a handle to wait for."""

from collections.abc import Mapping
from typing import Protocol

import torch


class Handle(Protocol):
    """A collective under way."""

    def wait(self) -> None:
        """Block until the result is there; later calls do nothing.

        Raises:
            RuntimeError: the collective failed, for example because a peer is gone.
        """


class Comm(Protocol):
    """What the engine asks of a network.  All ranks must make the same calls in the same order.

    A tensor that was handed over may be neither read nor written before its handle was waited for.
    ``unit`` names what the bytes belong to.
    """

    @property
    def rank(self) -> int:
        """Of this process in the group."""

    @property
    def world_size(self) -> int:
        """Ranks in the group."""

    @property
    def moved(self) -> Mapping[str, int]:
        """Bytes that this rank has moved so far, by kind, as a ring would."""

    def all_gather(self, out: torch.Tensor, shard: torch.Tensor, unit: str) -> Handle:
        """Put every rank's ``shard`` into ``out``, in rank order; it may be this rank's slice of ``out``."""

    def reduce_scatter(self, out: torch.Tensor, full: torch.Tensor, unit: str) -> Handle:
        """Sum ``full`` over the ranks and keep this rank's slice in ``out``, which may lie in ``full``."""

    def all_reduce(self, tensor: torch.Tensor, unit: str) -> Handle:
        """Sum ``tensor`` over the ranks, in place."""

    def broadcast(self, tensor: torch.Tensor, unit: str) -> Handle:
        """Overwrite ``tensor`` with rank 0's."""

    def close(self) -> None:
        """End what the transport started; nothing may be launched afterwards."""
