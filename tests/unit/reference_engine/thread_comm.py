"""Ranks as threads of one process: real sums over ranks, delivered when waited for, and garbage before."""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch

from zprof.reference_engine.comm.collective import CollectiveType, Handle, get_ring_factor

T = TypeVar("T")
TIMEOUT_S = 60


@dataclass(frozen=True)
class Launched:
    """A collective; elements are those of the full tensor."""

    kind: str
    unit: str
    elements: int
    dtype: torch.dtype


class Meeting:
    """Where ranks put what they bring to their n-th collective."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._brought: dict[int, dict[int, torch.Tensor]] = {}
        self._changed = threading.Condition()
        self._failed = False

    def bring(self, number: int, rank: int, tensor: torch.Tensor) -> None:
        with self._changed:
            self._brought.setdefault(number, {})[rank] = tensor.clone()
            self._changed.notify_all()

    def all_of(self, number: int) -> list[torch.Tensor]:
        with self._changed:
            here = self._brought[number]
            done = self._changed.wait_for(lambda: self._failed or len(here) == self.ranks, TIMEOUT_S)
            if self._failed or not done:
                raise RuntimeError("a peer did not come")
            return [here[rank] for rank in range(self.ranks)]

    def fail(self) -> None:
        with self._changed:
            self._failed = True
            self._changed.notify_all()


class ThreadHandle:
    def __init__(self, deliver: Callable[[], object]) -> None:
        self._deliver: Callable[[], object] | None = deliver

    def wait(self) -> None:
        if self._deliver is not None:
            deliver, self._deliver = self._deliver, None
            deliver()


class ThreadComm:
    """One rank of a meeting."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.rank = rank
        self.world_size = meeting.ranks
        self.moved: Counter[str] = Counter()
        self.launched: list[Launched] = []
        self._meeting = meeting
        self._number = 0

    def all_gather(self, out: torch.Tensor, shard: torch.Tensor, unit: str) -> Handle:
        return self._start(CollectiveType.ALL_GATHER, shard, out, unit, torch.cat)

    def reduce_scatter(self, out: torch.Tensor, full: torch.Tensor, unit: str) -> Handle:
        mine = slice(self.rank * out.numel(), (self.rank + 1) * out.numel())
        if out.untyped_storage().data_ptr() == full.untyped_storage().data_ptr():
            assert out.data_ptr() == full[mine].data_ptr(), "NCCL works in place at the rank's own part only"
        return self._start(CollectiveType.REDUCE_SCATTER, full, out, unit, lambda all_of: _sum(all_of)[mine])

    def all_reduce(self, tensor: torch.Tensor, unit: str) -> Handle:
        return self._start(CollectiveType.ALL_REDUCE, tensor, tensor, unit, _sum)

    def broadcast(self, tensor: torch.Tensor, unit: str) -> Handle:
        return self._start(CollectiveType.BROADCAST, tensor, tensor, unit, lambda all_of: all_of[0])

    def close(self) -> None:
        pass

    def _start(
        self,
        kind: CollectiveType,
        brought: torch.Tensor,
        out: torch.Tensor,
        unit: str,
        combine: Callable[[list[torch.Tensor]], torch.Tensor],
    ) -> Handle:
        full = brought if brought.numel() > out.numel() else out
        self.launched.append(Launched(kind, unit, full.numel(), full.dtype))
        self.moved[kind] += round(full.numel() * full.element_size() * get_ring_factor(kind, self.world_size))
        number, self._number = self._number, self._number + 1
        self._meeting.bring(number, self.rank, brought)
        for tensor in (out, full):
            if tensor.is_floating_point():
                tensor.fill_(torch.nan)
        return ThreadHandle(lambda: out.copy_(combine(self._meeting.all_of(number))))


def on_ranks(ranks: int, run: Callable[[ThreadComm], T]) -> list[T]:
    """What ``run`` returns on every rank."""
    meeting = Meeting(ranks)

    def one(rank: int) -> T:
        try:
            return run(ThreadComm(meeting, rank))
        except BaseException:
            meeting.fail()
            raise

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(one, range(ranks)))


def launches(comm: ThreadComm) -> list[tuple[str, str]]:
    """CollectiveType and unit of every collective that the rank has launched."""
    return [(one.kind, one.unit) for one in comm.launched]


def _sum(tensors: list[torch.Tensor]) -> torch.Tensor:
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total += tensor
    return total
