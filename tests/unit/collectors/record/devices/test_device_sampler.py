"""The sampler of device counters: its pace, its bounded log, its thread, and its place in a recording."""

import os
import random
import threading
from itertools import count
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.support.fake_cuda import FakeCuda
from tests.support.fake_nvml import MIB, FakeGpu, FakeNvml
from zprof.collectors.record.devices.nvml import DeviceIdentity
from zprof.collectors.record.devices.watch import (
    DeviceLog,
    DeviceRow,
    Devices,
    DeviceSampler,
    DeviceWatch,
    SampleReason,
    SamplingPace,
)
from zprof.collectors.record.recorder import Recorder
from zprof.collectors.record.schedule import RecordingSchedule
from zprof.model.training import TrainingFacts
from zprof.run.reader import Run

MS = 1_000_000
ONE = {0: DeviceIdentity(uuid="11111111-aaaa", bus_id=None)}


def row(time_ns: int, device: str = "cuda:0") -> DeviceRow:
    return DeviceRow(time_ns=time_ns, device=device, reason=SampleReason.PERIOD, group=None, cost_ns=1)


@pytest.mark.parametrize("seed", range(3))
def test_no_stretch_of_samples_takes_more_than_its_share(seed: int) -> None:
    chance = random.Random(seed)
    pace = SamplingPace(period_ns=200 * MS, max_share=0.01)
    costs = [chance.choice([0, MS, 3 * MS, 50 * MS]) for _ in range(200)]
    rests = [pace.next_pause_ns(cost) for cost in costs]
    for begin in range(0, 200, 7):
        taken, rested = sum(costs[begin:]), sum(rests[begin:])
        assert taken <= 0.01 * (taken + rested) * (1 + 1e-9)


def test_cheap_samples_come_at_the_period_and_many_slow_ones_are_noted() -> None:
    pace = SamplingPace(period_ns=200 * MS)
    assert [pace.next_pause_ns(MS) for _ in range(50)] == [200 * MS] * 50
    assert pace.next_pause_ns(10 * MS) == 990 * MS
    assert not pace.is_sparse
    for _ in range(50):
        pace.next_pause_ns(10 * MS)
    assert pace.is_sparse


def test_a_full_log_keeps_every_second_moment_and_all_rows_of_groups() -> None:
    log = DeviceLog(max_rows=8)
    log.add_group_row(row(3))
    thinned = [log.add_sample([row(time_ns), row(time_ns, "cuda:1")]) for time_ns in range(5)]
    assert thinned == [False] * 4 + [True]
    assert log.columns()["time_ns"] == [0, 0, 2, 2, 3, 4, 4]
    for time_ns in range(5, 500):
        log.add_sample([row(time_ns), row(time_ns, "cuda:1")])
        times = log.columns()["time_ns"]
        assert len(times) <= 8 + 1
        assert times == sorted(times)
    assert log.columns()["time_ns"][0] == 0
    assert 3 in log.columns()["time_ns"]


def sampler(nvml: Any, cuda: FakeCuda, tick_ns: int = 1000, **options: Any) -> DeviceSampler:
    def load() -> Any:
        if isinstance(nvml, Exception):
            raise nvml
        return nvml

    ticks = count(0, tick_ns)
    return DeviceSampler(
        cuda, load, pace=SamplingPace(period_ns=200 * MS), clock=lambda: next(ticks), **options
    )


def run(sampling: DeviceSampler, most: int) -> list[float]:
    """Run the body of the thread without waiting; return the seconds that it would have waited."""
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return len(waits) >= most

    sampling.run(wait)
    return waits


def test_each_device_is_sampled_at_each_period() -> None:
    two = ONE | {1: DeviceIdentity(uuid="2222", bus_id=None)}
    sampling = sampler(FakeNvml([FakeGpu(), FakeGpu(uuid="2222")]), FakeCuda(two))
    assert run(sampling, 3) == [0.2, 0.2, 0.2]
    columns = sampling.columns()
    assert list(columns["device"]) == ["cuda:0", "cuda:1"] * 3
    for name, value in {"process_bytes": 900 * MIB, "reason": "period", "cost_ns": 1000}.items():
        assert set(columns[name]) == {value}
    assert sampling.gaps() == []


@pytest.mark.parametrize(
    ("fault", "remedy"),
    [
        (ImportError("No module named 'pynvml'"), "zprof[record]"),
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "NVIDIA_DRIVER_CAPABILITIES"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "nvidia-smi"),
        (pynvml.NVML_ERROR_UNKNOWN, "nvidia-smi"),
    ],
)
def test_a_library_that_does_not_open_is_one_gap(fault: Any, remedy: str) -> None:
    nvml = fault if isinstance(fault, Exception) else FakeNvml(init_error=pynvml.NVMLError(fault))
    sampling = sampler(nvml, FakeCuda(ONE))
    run(sampling, 1)
    (gap,) = sampling.gaps()
    assert gap.what == "device counters"
    assert remedy in gap.remedy
    assert not sampling.columns()["time_ns"]
    assert not sampling.read_now(0, SampleReason.BEFORE_GROUP, "0", {"memory of this process"})


def test_the_thread_samples_on_demand_ends_when_told_and_is_not_a_childs() -> None:
    sampling = sampler(FakeNvml([FakeGpu()]), FakeCuda(ONE, reserved=5 * MIB))
    sampling.start()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "zprof-devices"]
    assert sampling.read_now(0, SampleReason.AFTER_GROUP, "0,1", {"memory of this process"})
    child = os.fork()
    if child == 0:
        sampling.stop()  # would wait for a thread that the child does not have
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    sampling.stop()
    assert not thread.is_alive()
    columns = sampling.columns()
    at = list(columns["reason"]).index("after_group")
    found = [columns[name][at] for name in ("group", "process_bytes", "reserved_bytes", "used_bytes")]
    assert found == ["0,1", 900 * MIB, 5 * MIB, None]


@pytest.mark.parametrize(
    ("built", "driver", "used", "gaps"),
    [(False, False, False, 0), (False, True, False, 0), (True, False, True, 1), (True, True, False, 0)],
)
def test_without_a_gpu_in_use_there_are_no_rows(built: bool, driver: bool, used: bool, gaps: int) -> None:
    cuda = FakeCuda(ONE, built=built, used=used)
    watching = DeviceWatch(cuda=cuda, load=lambda: FakeNvml([FakeGpu()]), has_driver=lambda: driver)
    watching.start()
    watching.step()
    watching.stop()
    assert watching.columns() is None
    assert [gap.what for gap in watching.gaps()] == ["device counters"] * gaps


def record(path: Path, devices: Devices) -> Run:
    schedule = RecordingSchedule(skip=3, memory=0, time=0)
    with Recorder(path, schedule, TrainingFacts, {}, devices=devices) as recording:
        for _ in range(schedule.total):
            recording.step()
    return Run(path)


def test_samples_and_gaps_are_in_the_run(tmp_path: Path) -> None:
    sampled = threading.Event()

    def temperature() -> int:
        sampled.set()
        return 50

    unknown = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    gpu = FakeGpu(answers={"nvmlDeviceGetPowerUsage": unknown, "nvmlDeviceGetTemperature": temperature})
    cuda = FakeCuda({1: DeviceIdentity(uuid=gpu.uuid, bus_id=None)}, reserved=7 * MIB)
    devices = DeviceWatch(cuda=cuda, load=lambda: FakeNvml([gpu]), has_driver=lambda: True)
    devices.start()
    assert sampled.wait(60)
    run = record(tmp_path, devices)
    rows = run.frame(0, "device")
    assert set(zip(rows["device"], rows["process_bytes"], rows["reserved_bytes"], strict=True)) == {
        ("cuda:1", 900 * MIB, 7 * MIB)
    }
    assert rows["power_watts"].isna().all()
    assert [gap.what for gap in run.gaps()] == ["counters of cuda:1: power"]


@pytest.mark.parametrize("where", ["start", "step", "stop", "columns"])
def test_a_fault_of_the_counters_leaves_the_run_whole(tmp_path: Path, where: str) -> None:
    def fail() -> None:
        raise RuntimeError("planted")

    broken = Devices()
    setattr(broken, where, fail)
    run = record(tmp_path, broken)
    assert run.rank_manifests[0].status == "complete"
    assert {gap.reason for gap in run.gaps()} == {"planted"}
    assert run.has_table(0, "samples")
