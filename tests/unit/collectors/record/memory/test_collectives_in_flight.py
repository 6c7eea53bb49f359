"""Work objects: the window's end waits for those under way, and their deaths end scratch memory."""

import weakref
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from zprof.collectors.record.memory.allocator_events import BlockLifetime, close_collective_scratch
from zprof.collectors.record.memory.collector import MemoryCollector
from zprof.collectors.record.memory.log import Birth
from zprof.collectors.record.memory.work_lifetimes import CollectiveWork
from zprof.model.training import Phase

Group = torch._C._distributed_c10d.ProcessGroup


class FakeWork:
    """Counts who waits for it; may fail."""

    def __init__(self, *, fails: bool = False) -> None:
        self.waits, self.fails = 0, fails

    def wait(self, timeout: timedelta) -> None:
        assert timeout > timedelta(0)
        self.waits += 1
        if self.fails:
            raise RuntimeError("Operation timed out!")


def saved_tensor_hooks() -> object:
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryCollector]:
    """A window in which ``Group.allreduce(launch)`` returns what ``launch`` returns."""
    monkeypatch.setattr(Group, "allreduce", lambda launch: launch())
    collector = MemoryCollector(None, None)
    collector.start()
    yield collector
    collector.stop()


@pytest.mark.usefixtures("collector")
def test_a_work_captures_no_saved_tensor_hooks_of_zprof() -> None:
    ours = saved_tensor_hooks()
    assert ours is not None
    assert Group.allreduce(saved_tensor_hooks) is None
    with pytest.raises(ZeroDivisionError):
        Group.allreduce(lambda: 1 / 0)
    assert saved_tensor_hooks() == ours
    with saved_tensors_hooks(lambda tensor: tensor.detach(), lambda tensor: tensor):
        seen: list[object] = []
        Group.allreduce(lambda: seen.append(saved_tensor_hooks()))
        assert seen == [saved_tensor_hooks()]


def test_the_end_of_the_window_waits_for_every_work_that_lives(collector: MemoryCollector) -> None:
    works = [FakeWork(), FakeWork(fails=True), FakeWork(), FakeWork()]
    for work in works:
        Group.allreduce(lambda work=work: work)
    del work
    gone = weakref.ref(works.pop())
    assert gone() is None
    collector.stop()
    assert [work.waits for work in works] == [1, 1, 1]
    assert [gap.reason for gap in collector.gaps()] == ["Operation timed out!"]


def birth(time_ns: int) -> Birth:
    device: Any = "cpu"
    return Birth(0, time_ns, 0x40, 8, device, None, Phase.BACKWARD, None, False, False)


@pytest.mark.parametrize(
    ("operator", "freed_ns", "births", "want"),
    [
        ("c10d::_reduce_scatter_base_", None, (), 900),  # ends with its work
        ("c10d::_reduce_scatter_base_", 300, (), 300),  # its free was seen
        ("aten::empty", None, (), None),
        (None, None, (), None),
        ("c10d::_reduce_scatter_base_", None, (birth(500),), None),  # ends with its storage
        ("c10d::_reduce_scatter_base_", None, (birth(1000),), 900),  # a later storage at that address
    ],
)
def test_scratch_of_a_collective_ends_with_its_work(
    operator: str | None, freed_ns: int | None, births: tuple[Birth, ...], want: int | None
) -> None:
    block = BlockLifetime(0x40, 8, "cpu", 150, freed_ns, operator, 1)
    close_collective_scratch([block], [CollectiveWork(100, 200, 900)], births)
    assert block.freed_ns == want
