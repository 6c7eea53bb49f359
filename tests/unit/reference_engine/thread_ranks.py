"""Several ranks as threads of one process, with a network whose sums are the same on all of them.

A result is there only when it was waited for; until then the tensor holds NaN, so that whoever reads it early
is seen.
"""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from zprof.reference_engine.comm import Handle

_TIMEOUT_S = 30.0
T = TypeVar("T")


class _Exchange:
    """What the ranks put in, by number of the collective."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._condition = threading.Condition()
        self._given: dict[int, dict[int, tuple[str, torch.Tensor]]] = {}

    def give(self, number: int, rank: int, name: str, tensor: torch.Tensor) -> None:
        with self._condition:
            self._given.setdefault(number, {})[rank] = (name, tensor.detach().clone())
            self._condition.notify_all()

    def take(self, number: int) -> list[torch.Tensor]:
        with self._condition:
            complete = self._condition.wait_for(
                lambda: len(self._given.get(number, {})) == self.ranks, _TIMEOUT_S
            )
            assert complete, f"collective {number} is missing ranks: {self._given.get(number, {}).keys()}"
            names, tensors = zip(*(self._given[number][rank] for rank in range(self.ranks)), strict=True)
        assert len(set(names)) == 1, f"ranks made different collectives: {names}"
        return list(tensors)


class _Handle:
    def __init__(self, deliver: Callable[[], Any]) -> None:
        self._deliver: Callable[[], Any] | None = deliver

    def wait(self) -> None:
        if self._deliver is not None:
            deliver, self._deliver = self._deliver, None
            with torch.no_grad():
                deliver()


class ThreadComm:
    """One rank's end of the network.  ``moved`` counts elements of the full tensor, not bytes of a ring."""

    def __init__(self, exchange: _Exchange, rank: int) -> None:
        self.rank = rank
        self.world_size = exchange.ranks
        self.moved: Counter[str] = Counter()
        self.launched: list[tuple[str, str]] = []
        self._exchange = exchange

    def all_gather(self, out: torch.Tensor, shard: torch.Tensor, unit: str) -> Handle:
        assert out.is_contiguous()
        assert shard.is_contiguous()
        assert out.numel() == shard.numel() * self.world_size
        return self._start("all_gather", unit, shard, out, lambda parts: torch.cat(parts))

    def all_reduce(self, tensor: torch.Tensor, unit: str) -> Handle:
        assert tensor.is_contiguous()
        return self._start("all_reduce", unit, tensor, tensor, lambda parts: torch.stack(parts).sum(0))

    def reduce_scatter(self, out: torch.Tensor, full: torch.Tensor, unit: str) -> Handle:
        raise NotImplementedError

    def broadcast(self, tensor: torch.Tensor, unit: str) -> Handle:
        return self._start("broadcast", unit, tensor, tensor, lambda parts: parts[0])

    def close(self) -> None:
        pass

    def _start(
        self,
        kind: str,
        unit: str,
        given: torch.Tensor,
        out: torch.Tensor,
        combine: Callable[[list[torch.Tensor]], torch.Tensor],
    ) -> Handle:
        number = len(self.launched)
        self.launched.append((kind, unit))
        self.moved[kind] += out.numel()
        self._exchange.give(number, self.rank, f"{kind} {unit}", given)
        with torch.no_grad():
            out.fill_(torch.nan if out.is_floating_point() else -1)
        return _Handle(lambda: out.copy_(combine(self._exchange.take(number)).view_as(out)))


def on_ranks(ranks: int, work: Callable[[ThreadComm], T]) -> list[T]:
    """What ``work`` returns on each rank; the first error of a rank is raised here."""
    exchange = _Exchange(ranks)
    results: list[Any] = [None] * ranks
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = work(ThreadComm(exchange, rank))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
