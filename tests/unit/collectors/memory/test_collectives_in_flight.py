"""Work objects: the profiler's end waits for collectives under way, and their deaths close scratch memory."""

import time
import weakref
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch

from zprof.collectors.memory import collective_works
from zprof.collectors.memory.allocator_events import Allocation, close_collective_scratch
from zprof.collectors.memory.hooks import Hooks
from zprof.collectors.memory.log import Birth, MemoryLog
from zprof.collectors.memory.owners import OwnerScanner
from zprof.collectors.memory.phases import PhaseTracker
from zprof.collectors.memory.saved_tensors import PackWatch
from zprof.collectors.memory.storages import StorageTracker
from zprof.model.training import Phase


class FakeWork:
    """Counts who waits for it; may fail."""

    def __init__(self, *, fails: bool = False) -> None:
        self.waits = 0
        self.fails = fails

    def wait(self, timeout: timedelta) -> None:
        assert timeout > timedelta(0)
        self.waits += 1
        if self.fails:
            raise RuntimeError("Operation timed out!")


@pytest.fixture
def patch() -> Iterator[collective_works.WorkPatch]:
    log = MemoryLog()
    log.active = True
    hooks = hooks_of(log)
    hooks.install(None)
    yield collective_works.WorkPatch(log, hooks)
    hooks.remove()


def hooks_of(log: MemoryLog) -> Hooks:
    phases = PhaseTracker(log)
    storages = StorageTracker(log, phases)
    return Hooks(log, storages, phases, OwnerScanner(log, storages, None, ()), PackWatch(phases))


def saved_tensor_hooks() -> object:
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def test_a_work_does_not_capture_our_saved_tensor_hooks(patch: collective_works.WorkPatch) -> None:
    seen: list[object] = []
    ours = saved_tensor_hooks()
    assert ours is not None
    patch._wrap(lambda: seen.append(saved_tensor_hooks()))()
    assert seen == [None]
    assert saved_tensor_hooks() == ours


def test_our_hooks_are_back_after_a_launch_that_fails(patch: collective_works.WorkPatch) -> None:
    ours = saved_tensor_hooks()
    with pytest.raises(ZeroDivisionError):
        patch._wrap(lambda: 1 / 0)()
    assert saved_tensor_hooks() == ours


def test_hooks_of_the_program_stay_during_a_launch(patch: collective_works.WorkPatch) -> None:
    seen: list[object] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.detach(), lambda tensor: tensor):
        theirs = saved_tensor_hooks()
        patch._wrap(lambda: seen.append(saved_tensor_hooks()))()
    assert seen == [theirs]


def test_settling_waits_for_every_work_that_lives(patch: collective_works.WorkPatch) -> None:
    made = [FakeWork() for _ in range(3)]
    for work in made:
        patch._wrap(lambda work=work: work)()
    first = made.pop(0)
    del work
    gone = weakref.ref(made.pop())
    patch.settle()
    assert first.waits == 1
    assert made[0].waits == 1
    assert gone() is None


def test_a_work_that_fails_does_not_keep_the_others_from_being_waited_for(
    patch: collective_works.WorkPatch,
) -> None:
    made = [FakeWork(fails=True), FakeWork()]
    for work in made:
        patch._wrap(lambda work=work: work)()
    with pytest.raises(RuntimeError, match="timed out"):
        patch.settle()
    assert made[1].waits == 1


def test_the_death_of_a_work_is_noted_with_its_launch(patch: collective_works.WorkPatch) -> None:
    made = [FakeWork()]
    begin_ns = time.time_ns()
    patch._wrap(lambda: made[0])()
    assert patch.works == []
    made.clear()
    (work,) = patch.works
    assert begin_ns <= work.launch_begin_ns <= work.launch_end_ns <= work.dead_ns


def scratch(operator: str | None = "c10d::_reduce_scatter_base_", freed_ns: int | None = None) -> Allocation:
    return Allocation(0x40, 8, "cpu", 150, freed_ns, operator, 1)


def birth(time_ns: int) -> Birth:
    device: Any = "cpu"
    return Birth(0, time_ns, 0x40, 8, device, None, Phase.BACKWARD, None, False, False)


def freed(block: Allocation, births: tuple[Birth, ...] = ()) -> int | None:
    close_collective_scratch([block], [collective_works.CollectiveWork(100, 200, 900)], births)
    return block.freed_ns


def test_scratch_of_a_collective_ends_with_its_work() -> None:
    assert freed(scratch()) == 900


def test_a_free_that_was_seen_stands() -> None:
    assert freed(scratch(freed_ns=300)) == 300


def test_other_memory_of_that_time_is_left_alone() -> None:
    assert freed(scratch("aten::empty")) is None
    assert freed(scratch(None)) is None


def test_scratch_that_came_into_sight_ends_with_its_storage() -> None:
    assert freed(scratch(), (birth(500),)) is None
    assert freed(scratch(), (birth(1000),)) == 900
