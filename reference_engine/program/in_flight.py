"""A transport that knows what is in flight, so that a host can wait for all of it at once."""

from collections.abc import Mapping
from typing import Any

import torch

from zprof.reference_engine.comm import Comm, Handle


class InFlightComm:
    """Another transport's collectives; see :class:`~zprof.reference_engine.comm.base.Comm`."""

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self._in_flight: list[Handle] = []

    @property
    def rank(self) -> int:
        """Of this process in the group."""
        return self._comm.rank

    @property
    def world_size(self) -> int:
        """Ranks in the group."""
        return self._comm.world_size

    @property
    def moved(self) -> Mapping[str, int]:
        """Bytes that this rank has moved so far."""
        return self._comm.moved

    @property
    def process_group(self) -> Any:
        """The transport's group, where it has one."""
        return getattr(self._comm, "process_group", None)

    def all_gather(self, out: torch.Tensor, shard: torch.Tensor, unit: str) -> Handle:
        """See the transport."""
        return self._keep(self._comm.all_gather(out, shard, unit))

    def reduce_scatter(self, out: torch.Tensor, full: torch.Tensor, unit: str) -> Handle:
        """See the transport."""
        return self._keep(self._comm.reduce_scatter(out, full, unit))

    def all_reduce(self, tensor: torch.Tensor, unit: str) -> Handle:
        """See the transport."""
        return self._keep(self._comm.all_reduce(tensor, unit))

    def broadcast(self, tensor: torch.Tensor, unit: str) -> Handle:
        """See the transport."""
        return self._keep(self._comm.broadcast(tensor, unit))

    def wait_all(self) -> None:
        """Block until everything that was launched so far is complete."""
        in_flight, self._in_flight = self._in_flight, []
        for handle in in_flight:
            handle.wait()

    def close(self) -> None:
        """See the transport."""
        self._in_flight.clear()
        self._comm.close()

    def _keep(self, handle: Handle) -> Handle:
        self._in_flight.append(handle)
        return handle
