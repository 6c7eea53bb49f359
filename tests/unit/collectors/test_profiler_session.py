"""Torch has one profiler session: ours never starts over the program's, and gives way to it."""

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch.autograd import profiler as autograd_profiler
from torch.profiler import profile, record_function

from zprof.collectors.kineto.collector import KinetoCollector
from zprof.collectors.memory.collector import MemoryCollector
from zprof.collectors.profiler_session import BUSY, TAKEN, is_profiler_running

Make = Callable[[], KinetoCollector | MemoryCollector]
both = pytest.mark.parametrize(
    "make", [KinetoCollector, lambda: MemoryCollector(torch.nn.Linear(4, 4), None)], ids=["time", "memory"]
)


def work() -> None:
    with record_function("work"):  # not counted by operators: a dispatch mode shows each of them twice
        torch.ones(8)


def seen(program: profile) -> int:
    return sum(event.count for event in program.key_averages() if event.key == "work")


def everywhere() -> profile:
    config = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    return profile(experimental_config=config)


@pytest.mark.parametrize("session", [profile, everywhere], ids=["one thread", "all threads"])
def test_time_is_not_recorded_over_a_running_profiler(session: Callable[[], profile]) -> None:
    collector = KinetoCollector()
    with session() as program:
        with pytest.raises(RuntimeError, match=BUSY):
            collector.start()
        work()
        collector.stop()
        work()
    assert seen(program) == 2
    assert collector.tables() == {}


def test_memory_is_recorded_from_storages_alone_within_a_running_profiler() -> None:
    collector = MemoryCollector(torch.nn.Linear(4, 4), None)
    with profile() as program:
        collector.start()
        work()
        collector.stop()
        work()
    assert seen(program) == 2
    assert "storage" in collector.tables()["alloc"]["source"]
    assert "profiler" not in collector.tables()["alloc"]["source"]
    assert [(gap.what, gap.reason) for gap in collector.gaps()] == [("memory: allocator events", BUSY)]


@both
@pytest.mark.parametrize("ends_within", [True, False])
def test_ours_gives_way_to_a_profiler_that_starts_within_the_window(make: Make, ends_within: bool) -> None:
    collector, program = make(), profile()
    collector.start()
    work()
    program.start()
    work()
    if ends_within:
        program.stop()
    collector.stop()
    if not ends_within:
        work()
        program.stop()
    assert seen(program) == (1 if ends_within else 2)
    tables = collector.tables()
    assert "events" not in tables
    assert any(TAKEN in gap.reason for gap in collector.gaps())
    assert not is_profiler_running()


@both
def test_a_profiler_in_its_warm_up_survives_a_window_that_opens_before_it_records(make: Make) -> None:
    collector = make()
    with profile(schedule=torch.profiler.schedule(wait=0, warmup=1, active=1)) as program:
        collector.start()
        program.step()
        work()
        collector.stop()
    assert seen(program) == 1


@both
def test_torchs_profiler_is_left_as_it_was(make: Make) -> None:
    names = ("_prepare_trace", "_start_trace")
    before = [getattr(autograd_profiler.profile, name) for name in names]
    collector = make()
    collector.start()
    assert [getattr(autograd_profiler.profile, name) for name in names] != before
    collector.stop()
    assert [getattr(autograd_profiler.profile, name) for name in names] == before
    with profile() as program:
        work()
    assert seen(program) == 1


def test_two_recorders_of_time_leave_the_first_whole() -> None:
    first, second = KinetoCollector(), KinetoCollector()
    first.start()
    with pytest.raises(RuntimeError, match=BUSY):
        second.start()
    second.stop()
    work()
    first.stop()
    assert "work" in first.tables()["events"]["name"].to_pylist()


def test_the_profiler_writes_nothing_of_its_own() -> None:
    """A process of its own: the profiler reads its log level once."""
    program = (
        "import torch\n"
        "from zprof.collectors.memory.collector import MemoryCollector\n"
        "import os\n"
        "collector = MemoryCollector(torch.nn.Linear(4, 4), None)\n"
        "collector.start(); torch.ones(8); collector.stop()\n"
        "assert 'KINETO_LOG_LEVEL' not in os.environ\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
