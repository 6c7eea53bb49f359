"""Device counters in a recording: from its start to its end, in their table, and never in training's way."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fake_cuda import FakeCuda
from tests.support.fake_nvml import MIB, FakeGpu, FakeNvml
from zprof.collectors.devices.cuda import DeviceIdentity
from zprof.collectors.devices.watch import DeviceWatch, NoDevices
from zprof.collectors.recorder import Recorder
from zprof.collectors.schedule import Schedule
from zprof.model.gaps import Gap
from zprof.model.training import TrainingFacts
from zprof.run.reader import Run

SCHEDULE = Schedule(skip=3, memory=0, time=0)
UNKNOWN_POWER = FakeNvml.NVMLError(FakeNvml.NVML_ERROR_NOT_SUPPORTED)


class Broken(NoDevices):
    """Raises at one place."""

    def __init__(self, where: str) -> None:
        setattr(self, where, self._fail)
        self._where = where

    def _fail(self) -> None:
        raise RuntimeError(f"planted fault in {self._where}")


class Calls(NoDevices):
    def __init__(self) -> None:
        self.made: list[str] = []

    def start(self) -> None:
        self.made.append("start")

    def step(self) -> None:
        self.made.append("step")

    def stop(self) -> None:
        self.made.append("stop")

    def gaps(self) -> list[Gap]:
        self.made.append("gaps")
        return []


def train(path: Path, devices: NoDevices | DeviceWatch) -> Run:
    with Recorder(path, SCHEDULE, TrainingFacts, {}, devices=devices) as recording:
        for _ in range(SCHEDULE.total):
            recording.step()
    return Run(path)


def said(event: threading.Event) -> Callable[[], int]:
    def answer() -> int:
        event.set()
        return 50

    return answer


def test_counters_are_watched_from_the_start_to_the_end(tmp_path: Path) -> None:
    calls = Calls()
    train(tmp_path, calls)
    assert calls.made == ["start", "step", "step", "step", "stop", "gaps"]


def test_samples_and_gaps_are_in_the_run(tmp_path: Path) -> None:
    sampled = threading.Event()
    gpu = FakeGpu(
        answers={"nvmlDeviceGetPowerUsage": UNKNOWN_POWER, "nvmlDeviceGetTemperature": said(sampled)}
    )
    cuda = FakeCuda({1: DeviceIdentity(uuid=gpu.uuid, bus_id=None)}, reserved=7 * MIB)
    devices = DeviceWatch(cuda=cuda, load=lambda: FakeNvml([gpu]), driver=lambda: True)
    devices.start()
    assert sampled.wait(60)
    run = train(tmp_path, devices)
    rows = run.frame(0, "device")
    assert set(rows["device"]) == {"cuda:1"}
    assert set(rows["reason"]) == {"period"}
    assert set(rows["process_bytes"]) == {900 * MIB}
    assert set(rows["reserved_bytes"]) == {7 * MIB}
    assert rows["power_watts"].isna().all()
    assert [gap.what for gap in run.gaps()] == ["counters of cuda:1: power"]


def test_without_a_gpu_there_is_no_table_and_no_gap(tmp_path: Path) -> None:
    run = train(tmp_path, DeviceWatch(cuda=FakeCuda(built=False, used=False)))
    assert not run.has_table(0, "device")
    assert not run.gaps()


@pytest.mark.parametrize("where", ["start", "step", "stop", "columns"])
def test_a_fault_of_the_counters_leaves_the_run_whole(tmp_path: Path, where: str) -> None:
    run = train(tmp_path, Broken(where))
    assert run.rank_manifests[0].status == "complete"
    assert {gap.reason for gap in run.gaps()} == {f"planted fault in {where}"}
    assert run.has_table(0, "samples")
