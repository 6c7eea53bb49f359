"""A network in one process: it delivers a result only when it is waited for, and garbage before that."""

from collections import Counter
from collections.abc import Callable

import torch

from zprof.reference_engine.comm.collective import Handle


class FakeHandle:
    def __init__(self, name: str, comm: "FakeComm", deliver: Callable[[], None]) -> None:
        self.name = name
        self._comm = comm
        self._deliver: Callable[[], None] | None = deliver

    def wait(self) -> None:
        if self._deliver is not None:
            deliver, self._deliver = self._deliver, None
            self._comm.events.append(f"wait {self.name}")
            deliver()


class FakeComm:
    """Rank 0 of ``world_size`` ranks; what the others would send is zeros (gather) or nothing (reduce)."""

    def __init__(self, world_size: int = 1) -> None:
        self.rank = 0
        self.world_size = world_size
        self.moved: Counter[str] = Counter()
        self.events: list[str] = []

    def all_gather(self, out: torch.Tensor, shard: torch.Tensor, unit: str) -> Handle:
        assert out.numel() == shard.numel() * self.world_size
        own = shard.clone()
        rest = out[shard.numel() :].clone() if shard.data_ptr() == out.data_ptr() else None
        out.fill_(torch.nan)

        def deliver() -> None:
            out[shard.numel() :] = 0 if rest is None else rest
            out[: shard.numel()] = own

        return self._launch("all_gather", unit, deliver)

    def reduce_scatter(self, out: torch.Tensor, full: torch.Tensor, unit: str) -> Handle:
        assert full.numel() == out.numel() * self.world_size
        mine = full[: out.numel()].clone()
        out.fill_(torch.nan)
        return self._launch("reduce_scatter", unit, lambda: out.copy_(mine))

    def all_reduce(self, tensor: torch.Tensor, unit: str) -> Handle:
        value = tensor.clone()
        tensor.fill_(torch.nan)
        return self._launch("all_reduce", unit, lambda: tensor.copy_(value))

    def broadcast(self, tensor: torch.Tensor, unit: str) -> Handle:
        return self._launch("broadcast", unit, lambda: None)

    def close(self) -> None:
        pass

    def take_events(self) -> list[str]:
        """Launches and waits since the last call, as ``launch all_gather blocks.0``."""
        events, self.events = self.events, []
        return events

    def launches(self, kind: str) -> list[str]:
        """Units of the launches of one kind since the last :meth:`take_events`."""
        prefix = f"launch {kind} "
        return [event.removeprefix(prefix) for event in self.events if event.startswith(prefix)]

    def _launch(self, kind: str, unit: str, deliver: Callable[[], None]) -> Handle:
        self.events.append(f"launch {kind} {unit}")
        return FakeHandle(f"{kind} {unit}", self, deliver)
