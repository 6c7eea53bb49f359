"""The sampler's thread: it samples, ends when told, raises nothing, and leaves a forked child alone."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.fake_cuda import FakeCuda
from tests.support.fake_nvml import MIB, FakeGpu, FakeNvml
from zprof.collectors.devices.cuda import DeviceIdentity
from zprof.collectors.devices.sampler import DeviceSampler, SampleReason, SamplingPace
from zprof.collectors.devices.watch import DeviceWatch

ONE = {0: DeviceIdentity(uuid="11111111-aaaa", bus_id=None)}
PERIOD_NS = 200_000_000


def ends_after(waits: list[float], most: int) -> Callable[[float], bool]:
    """The thread's wait without waiting: it keeps what was asked for, and ends after so many."""

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return len(waits) >= most

    return wait


def sampler(nvml: Any, cuda: FakeCuda, **options: Any) -> DeviceSampler:
    def load() -> Any:
        if isinstance(nvml, Exception):
            raise nvml
        return nvml

    return DeviceSampler(cuda, load, pace=SamplingPace(period_ns=PERIOD_NS), **options)


def ticking(step_ns: int) -> Callable[[], int]:
    now: Iterator[int] = iter(range(0, 10**15, step_ns))
    return lambda: next(now)


def test_each_device_is_sampled_at_each_period() -> None:
    two = ONE | {1: DeviceIdentity(uuid="2222", bus_id=None)}
    sampling = sampler(FakeNvml([FakeGpu(), FakeGpu(uuid="2222")]), FakeCuda(two), clock=ticking(1000))
    waits: list[float] = []
    sampling.run(ends_after(waits, 3))
    columns = sampling.columns()
    assert list(columns["device"]) == ["cuda:0", "cuda:1"] * 3
    assert set(columns["process_bytes"]) == {900 * MIB}
    assert set(columns["reason"]) == {"period"}
    assert set(columns["cost_ns"]) == {1000}
    assert waits == [0.2, 0.2, 0.2]
    assert sampling.gaps() == []


def test_nothing_is_opened_before_the_program_uses_a_gpu() -> None:
    nvml, waits = FakeNvml([FakeGpu()]), []
    cuda = FakeCuda(ONE, used=False)
    sampling = sampler(nvml, cuda)
    sampling.run(ends_after(waits, 5))
    assert (nvml.calls, len(waits)) == ([], 5)


def test_a_slow_driver_is_asked_less_often_and_that_is_said() -> None:
    sampling = sampler(FakeNvml([FakeGpu()]), FakeCuda(ONE), clock=ticking(10_000_000))
    waits: list[float] = []
    sampling.run(ends_after(waits, 20))
    assert min(waits) > 2.9, "each sample takes 30 ms by this clock"
    (gap,) = sampling.gaps()
    assert gap.what == "device samples are sparse"


def test_a_full_log_doubles_the_period() -> None:
    sampling = sampler(FakeNvml([FakeGpu()]), FakeCuda(ONE), clock=ticking(10), most_rows=4)
    waits: list[float] = []
    sampling.run(ends_after(waits, 8))
    assert waits[:4] + waits[4:6] + waits[6:7] == [0.2] * 4 + [0.4] * 2 + [0.8]
    assert len(sampling.columns()["time_ns"]) <= 4


@pytest.mark.parametrize(
    ("fault", "reason", "remedy"),
    [
        (ImportError("No module named 'pynvml'"), "pynvml cannot be imported", "pip install nvidia-ml-py"),
        (FakeNvml.NVML_ERROR_LIBRARY_NOT_FOUND, "Shared Library Not Found", "NVIDIA_DRIVER_CAPABILITIES"),
        (FakeNvml.NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded", "nvidia-smi"),
        (FakeNvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "version mismatch", "reboot"),
        (FakeNvml.NVML_ERROR_NO_PERMISSION, "Insufficient Permissions", "administrator"),
        (FakeNvml.NVML_ERROR_UNKNOWN, "Unknown Error", "nvidia-smi"),
    ],
)
def test_a_library_that_does_not_open_is_one_gap(fault: Any, reason: str, remedy: str) -> None:
    nvml = fault if isinstance(fault, Exception) else FakeNvml(init_error=FakeNvml.NVMLError(fault))
    sampling = sampler(nvml, FakeCuda(ONE))
    sampling.run(ends_after([], 1))
    (gap,) = sampling.gaps()
    assert gap.what == "device counters"
    assert reason in gap.reason
    assert remedy in gap.remedy
    assert not sampling.columns()["time_ns"]
    assert sampling._opened.is_set(), "or a group's first collective would wait for the library"
    assert not sampling.read_now(0, SampleReason.BEFORE_GROUP, "0", {"memory of this process"})


def test_a_fault_of_ours_ends_the_thread_and_nothing_else() -> None:
    class Broken(FakeCuda):
        def devices(self) -> list[int]:
            raise RuntimeError("planted")

    sampling = sampler(FakeNvml([FakeGpu()]), Broken(ONE))
    sampling.run(ends_after([], 5))
    (gap,) = sampling.gaps()
    assert gap.reason == "planted"


def test_the_real_thread_starts_samples_and_ends() -> None:
    sampled = threading.Event()

    def processes() -> list[Any]:
        sampled.set()
        return []

    gpu = FakeGpu(answers={"nvmlDeviceGetComputeRunningProcesses": processes})
    sampling = sampler(FakeNvml([gpu]), FakeCuda(ONE))
    sampling.start()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "zprof-devices"]
    assert thread.daemon
    assert sampled.wait(60)
    sampling.stop()
    assert not thread.is_alive()
    assert len(sampling.columns()["time_ns"]) >= 1


def test_a_sample_on_demand_waits_for_the_library() -> None:
    sampling = sampler(FakeNvml([FakeGpu()]), FakeCuda(ONE, reserved=5 * MIB))
    sampling.start()
    assert sampling.read_now(0, SampleReason.AFTER_GROUP, "0,1", {"memory of this process"})
    sampling.stop()
    columns = sampling.columns()
    at = list(columns["reason"]).index("after_group")
    assert [columns[name][at] for name in ("group", "process_bytes", "reserved_bytes", "used_bytes")] == [
        "0,1",
        900 * MIB,
        5 * MIB,
        None,
    ]


def test_a_forked_child_does_nothing() -> None:
    sampling = sampler(FakeNvml([FakeGpu()]), FakeCuda(ONE))
    sampling.start()
    child = os.fork()
    if child == 0:
        sampling.stop()
        os._exit(0 if not sampling._end.is_set() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    sampling.stop()


def test_the_process_ends_with_the_sampler_running() -> None:
    program = """
from tests.support.fake_cuda import FakeCuda
from tests.support.fake_nvml import FakeGpu, FakeNvml
from tests.unit.collectors.devices.test_device_sampler import ONE, sampler
sampler(FakeNvml([FakeGpu()]), FakeCuda(ONE)).start()
print("over")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=100
    )
    assert (done.returncode, done.stdout) == (0, "over\n"), done.stderr


def watch(cuda: FakeCuda, *, driver: bool) -> DeviceWatch:
    return DeviceWatch(cuda=cuda, load=lambda: FakeNvml([FakeGpu()]), driver=lambda: driver)


@pytest.mark.parametrize(
    ("built", "driver", "used", "gaps"),
    [(False, False, False, 0), (False, True, False, 0), (True, False, False, 0), (True, False, True, 1)],
)
def test_without_a_gpu_there_is_no_thread_and_no_second_gap(
    built: bool, driver: bool, used: bool, gaps: int
) -> None:
    watching = watch(FakeCuda(ONE, built=built, used=used), driver=driver)
    watching.start()
    assert not [thread for thread in threading.enumerate() if thread.name == "zprof-devices"]
    watching.step()
    watching.stop()
    assert watching.columns() is None
    assert [gap.what for gap in watching.gaps()] == ["device counters"] * gaps


def test_a_gpu_that_the_program_never_used_is_no_gap() -> None:
    watching = watch(FakeCuda(ONE, used=False), driver=True)
    watching.start()
    watching.stop()
    assert (watching.columns(), watching.gaps()) == (None, [])
