"""NVML's answers in the units of the columns; each way in which it does not answer is one gap."""

import os
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from tests.support.fake_cuda import FakeCuda
from tests.support.fake_nvml import MIB, FakeGpu, FakeNvml, own_process
from zprof.collectors.record.devices.nvml import DeviceIdentity
from zprof.collectors.record.devices.probe import DeviceProbe

IDENTITY = DeviceIdentity(uuid="11111111-aaaa", bus_id="00000000:01:00.0")
PROCESSES = "nvmlDeviceGetComputeRunningProcesses"
HEALTHY = {
    "reserved_bytes": 800 * MIB,
    "process_bytes": 900 * MIB,
    "used_bytes": 2000 * MIB,
    "total_bytes": 16000 * MIB,
    "busy_ratio": 0.75,
    "memory_busy_ratio": 0.4,
    "sm_clock_hz": 1_500_000_000,
    "memory_clock_hz": 1_500_000_000,
    "throttle_reasons": 4,
    "power_watts": 250.5,
    "temperature_celsius": 61.0,
}


def error(name: str) -> Exception:
    return pynvml.NVMLError(getattr(pynvml, f"NVML_ERROR_{name}"))


def probe(nvml: FakeNvml, identity: DeviceIdentity = IDENTITY) -> DeviceProbe:
    return DeviceProbe(nvml, FakeCuda({3: identity}, reserved=800 * MIB), 3)


@pytest.mark.parametrize("why", ["NOT_SUPPORTED", "NO_PERMISSION", "FUNCTION_NOT_FOUND"])
@pytest.mark.parametrize(
    ("function", "columns"),
    [
        (PROCESSES, {"process_bytes"}),
        ("nvmlDeviceGetMemoryInfo", {"used_bytes", "total_bytes"}),
        ("nvmlDeviceGetUtilizationRates", {"busy_ratio", "memory_busy_ratio"}),
        ("nvmlDeviceGetClockInfo", {"sm_clock_hz", "memory_clock_hz"}),
        ("nvmlDeviceGetPowerUsage", {"power_watts"}),
        ("nvmlDeviceGetTemperature", {"temperature_celsius"}),
    ],
)
def test_a_query_refused_for_good_is_unknown_and_never_made_again(
    function: str, columns: set[str], why: str
) -> None:
    nvml = FakeNvml([FakeGpu(answers={function: error(why)})])
    refusing = probe(nvml)
    known = {column: value for column, value in HEALTHY.items() if column not in columns}
    assert refusing.read() == known
    asked = nvml.calls.count(function)
    assert columns.isdisjoint(refusing.read())
    assert nvml.calls.count(function) == asked
    assert len(refusing.gaps()) == 1


def test_a_query_that_failed_once_is_made_again() -> None:
    gpu = FakeGpu(answers={"nvmlDeviceGetPowerUsage": error("TIMEOUT")})
    patient = probe(FakeNvml([gpu]))
    assert "power_watts" not in patient.read()
    assert len(patient.gaps()) == 1
    gpu.answers["nvmlDeviceGetPowerUsage"] = 1000
    assert patient.read()["power_watts"] == 1.0
    assert patient.gaps() == []


def processes(*used_bytes: int | None) -> dict[str, Any]:
    return {PROCESSES: [own_process(used) for used in used_bytes]}


@pytest.mark.parametrize(
    ("answers", "changed", "gaps"),
    [
        ({}, {}, 0),
        ({"nvmlDeviceGetCurrentClocksEventReasons": error("FUNCTION_NOT_FOUND")}, {}, 0),  # its older name
        (processes(600 * MIB, 300 * MIB), {"process_bytes": 900 * MIB}, 0),  # parts of one process
        ({PROCESSES: []}, {"process_bytes": None}, 1),  # hidden by a container
        ({PROCESSES: [SimpleNamespace(pid=os.getpid() + 1, usedGpuMemory=5)]}, {"process_bytes": None}, 1),
        (processes(799 * MIB), {"process_bytes": None}, 1),  # less than torch has: another process
        (processes(800 * MIB), {"process_bytes": 800 * MIB}, 0),
        (processes(None), {"process_bytes": None}, 1),
        (
            {"nvmlDeviceGetMemoryInfo": SimpleNamespace(used=2**64 - 1, total=16000 * MIB)},
            {"used_bytes": None, "total_bytes": None},
            1,
        ),
        ({"nvmlDeviceGetPowerUsage": "a lot"}, {"power_watts": None}, 1),
        ({"field": {138: error("NOT_SUPPORTED"), 139: error("NOT_SUPPORTED")}}, {}, 1),  # no NVLink
    ],
)
def test_answers_of_a_device(answers: dict[str, Any], changed: dict[str, int | None], gaps: int) -> None:
    probed = probe(FakeNvml([FakeGpu(answers=answers)]))
    values = HEALTHY | changed
    assert probed.read() == {column: value for column, value in values.items() if value is not None}
    assert len(probed.gaps()) == gaps


def test_a_lost_gpu_is_one_gap_and_is_left_alone() -> None:
    gpu = FakeGpu()
    nvml = FakeNvml([gpu])
    losing = probe(nvml)
    losing.read()
    gpu.answers |= {name: error("GPU_IS_LOST") for name in gpu.answers if name.startswith("nvml")}
    losing.read()
    before = len(nvml.calls)
    assert losing.read() == {"reserved_bytes": 800 * MIB}
    assert len(nvml.calls) == before
    assert len(losing.gaps()) == 1


UUID = "11111111-aaaa"
HOT = {"nvmlDeviceGetTemperature": 99}
MIG = {"nvmlDeviceGetMigMode": [1, 1]}


@pytest.mark.parametrize(
    ("gpus", "uuid", "found"),
    [
        ([FakeGpu(uuid="2222", answers=HOT), FakeGpu()], UUID, True),  # by UUID, not by index
        (
            [FakeGpu(uuid="2222", answers=HOT | MIG), FakeGpu(prefix="MIG-", bus_id="x")],
            "11111111-aaaa",
            True,
        ),
        ([FakeGpu(uuid="2222", answers=MIG)], UUID, False),  # the whole GPU is not its instance
        ([FakeGpu()], None, True),  # by its PCI address
        ([], UUID, False),
    ],
)
def test_the_device_that_nvml_reads_is_torchs(gpus: list[FakeGpu], uuid: str | None, found: bool) -> None:
    probed = probe(FakeNvml(gpus), DeviceIdentity(uuid=uuid, bus_id="00000000:01:00.0"))
    assert probed.read() == (HEALTHY if found else {"reserved_bytes": 800 * MIB})
    assert len(probed.gaps()) == (not found)


def test_links_are_rates_of_counters_and_unknown_at_first_and_after_a_wrap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_ns = 0
    monkeypatch.setattr("zprof.collectors.record.devices.probe.time.monotonic_ns", lambda: now_ns)
    gpu = FakeGpu(answers={"field": {138: 1000, 139: 50, 197: 7000, 198: 10}})
    links = probe(FakeNvml([gpu]))
    assert not any("per_s" in column for column in links.read())
    now_ns, gpu.answers["field"] = 500_000_000, {138: 1500, 139: 50, 197: 8000, 198: 4}
    rates = {column: value for column, value in links.read().items() if "per_s" in column}
    assert rates == {
        "nvlink_sent_bytes_per_s": 1000 * 1024,
        "nvlink_received_bytes_per_s": 0,
        "pcie_sent_bytes_per_s": 2000,
        "pcie_received_bytes_per_s": None,
    }
