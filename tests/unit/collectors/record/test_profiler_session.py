"""torch has one profiler session: zprof's never starts over the program's, and gives way to it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.autograd import profiler as autograd_profiler
from torch.profiler import profile, record_function

from zprof.collectors.record.kineto import WAIT_RANGE, KinetoCollector
from zprof.collectors.record.memory.collector import MemoryCollector
from zprof.collectors.record.profiler_session import BUSY_MESSAGE
from zprof.collectors.record.torch_private import is_profiler_running
from zprof.model.gap_texts import make_gap

Make = Callable[[], KinetoCollector | MemoryCollector]
Work = torch._C._distributed_c10d.Work
both = pytest.mark.parametrize(
    "make", [KinetoCollector, lambda: MemoryCollector(torch.nn.Linear(4, 4), None)], ids=["time", "memory"]
)


def work() -> None:
    with record_function("work"):  # not counted by operators: a dispatch mode shows each of them twice
        torch.ones(8)


def seen(program: profile) -> int:
    return sum(event.count for event in program.key_averages() if event.key == "work")


def everywhere() -> profile:
    return profile(experimental_config=torch._C._profiler._ExperimentalConfig(profile_all_threads=True))


@pytest.mark.parametrize("session", [profile, everywhere], ids=["one thread", "all threads"])
def test_time_is_not_recorded_over_a_running_profiler(session: Callable[[], profile]) -> None:
    collector = KinetoCollector()
    with session() as program:
        with pytest.raises(RuntimeError, match=BUSY_MESSAGE):
            collector.start()
        work()
        collector.stop()
        work()
    assert (seen(program), collector.tables()) == (2, {})


def test_memory_is_recorded_from_storages_alone_within_a_running_profiler() -> None:
    collector = MemoryCollector(torch.nn.Linear(4, 4), None)
    with profile() as program:
        collector.start()
        work()
        collector.stop()
        work()
    assert seen(program) == 2
    assert set(collector.tables()["alloc"]["source"]) == {"storage"}
    assert [gap.reason for gap in collector.gaps()] == [BUSY_MESSAGE]


@both
@pytest.mark.parametrize("ends_within", [True, False])
def test_zprof_gives_way_to_a_profiler_that_starts_within_the_window(make: Make, ends_within: bool) -> None:
    collector, program = make(), profile()
    collector.start()
    program.start()
    work()
    if ends_within:
        program.stop()
    collector.stop()
    if not ends_within:
        work()
        program.stop()
    assert seen(program) == (1 if ends_within else 2)
    assert "events" not in collector.tables()
    assert any(make_gap("profiler_taken_over").reason in gap.reason for gap in collector.gaps())
    assert not is_profiler_running()


@both
def test_the_profiler_of_torch_is_restored(make: Make) -> None:
    before = dict(vars(autograd_profiler.profile))
    collector = make()
    collector.start()
    assert dict(vars(autograd_profiler.profile)) != before
    collector.stop()
    assert dict(vars(autograd_profiler.profile)) == before


@pytest.fixture
def _lone_group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("_lone_group")
def test_a_wait_for_a_collective_is_a_range_within_the_window() -> None:
    original, tensor = Work.wait, torch.ones(16)
    collector = KinetoCollector()
    collector.start()
    assert dist.all_reduce(tensor, async_op=True).wait()
    dist.all_reduce(tensor)
    collector.stop()
    assert Work.wait is original
    names = collector.tables()["events"]["name"].to_pylist()
    assert (names.count(WAIT_RANGE), names.count("c10d::allreduce_")) == (2, 2)
    assert list(collector.tables()["collectives"]["kind"]) == ["all_reduce", "all_reduce"]
    assert not collector.gaps()
