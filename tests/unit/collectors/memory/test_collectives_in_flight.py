"""Work objects: the profiler's end waits for collectives under way, and their deaths close scratch memory."""

import time
from typing import Any

import pytest

from zprof.collectors.memory import works
from zprof.collectors.memory.allocator import Allocation, close_collective_scratch
from zprof.collectors.memory.log import Birth, MemoryLog
from zprof.model.phases import Phase


class FakeWork:
    """Completes after a number of looks; -1 never does."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def is_completed(self) -> bool:
        self.looks -= 1
        return self.looks == 0


@pytest.fixture
def patch() -> works.WorkPatch:
    log = MemoryLog()
    log.active = True
    return works.WorkPatch(log)


def test_settling_waits_until_every_work_is_complete(patch: works.WorkPatch) -> None:
    work = FakeWork(looks=4)
    patch._wrap(lambda: work)()
    patch.settle()
    assert work.looks <= 0


def test_settling_gives_up_on_a_work_that_never_completes(
    patch: works.WorkPatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(works, "SETTLE_TIMEOUT_S", 0.01)
    work = FakeWork(looks=-1)
    patch._wrap(lambda: work)()
    with pytest.raises(TimeoutError):
        patch.settle()


def test_the_death_of_a_work_is_noted_with_its_launch(patch: works.WorkPatch) -> None:
    made = [FakeWork(looks=1)]
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
    close_collective_scratch([block], [works.Work(100, 200, 900)], births)
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
