"""What NVML answers, and each way in which it does not: one gap with a remedy, the columns stay unknown."""

import os
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from tests.support.fake_cuda import FakeCuda
from tests.support.fake_nvml import MIB, FakeGpu, FakeNvml, own_process
from zprof.collectors.devices.cuda import DeviceIdentity
from zprof.collectors.devices.probe import DeviceProbe
from zprof.collectors.devices.sampler import DeviceRow
from zprof.run.schema import DEVICE

IDENTITY = DeviceIdentity(uuid="11111111-aaaa", bus_id="00000000:01:00.0")
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
    return FakeNvml.NVMLError(getattr(FakeNvml, f"NVML_ERROR_{name}"))


def probe(
    nvml: FakeNvml, reserved: int | None = 800 * MIB, identity: DeviceIdentity = IDENTITY
) -> DeviceProbe:
    return DeviceProbe(nvml, FakeCuda({3: identity}, reserved=reserved), 3)


def refused(answers: dict[str, Any]) -> tuple[dict[str, Any], DeviceProbe]:
    refusing = probe(FakeNvml([FakeGpu(answers=answers)]))
    return refusing.read(), refusing


def test_the_stand_in_has_no_name_that_the_real_module_lacks() -> None:
    names = [name for name in dir(FakeNvml) if name.lower().startswith("nvml")]
    names += [name for name in FakeGpu().answers if name != "field"]
    assert not [name for name in names if not hasattr(pynvml, name)]
    codes = [name for name in names if name.startswith("NVML_") or name == "nvmlMemory_v2"]
    assert all(getattr(pynvml, name) == getattr(FakeNvml, name) for name in codes)
    real = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    assert (str(real), real.value) == (str(error("NOT_SUPPORTED")), 3)


def test_a_row_has_the_columns_of_the_table() -> None:
    assert {field.name for field in fields(DeviceRow)} == set(DEVICE.names)


def test_a_healthy_device_answers_in_the_units_of_the_columns() -> None:
    healthy = probe(FakeNvml([FakeGpu()]))
    assert healthy.read() == HEALTHY
    assert healthy.gaps() == []
    assert healthy.device == "cuda:3"


def test_only_what_is_asked_for_is_read() -> None:
    nvml = FakeNvml([FakeGpu()])
    assert probe(nvml).read({"memory of this process"}) == {
        "reserved_bytes": 800 * MIB,
        "process_bytes": 900 * MIB,
    }
    assert nvml.calls == ["nvmlDeviceGetHandleByUUID", "nvmlDeviceGetComputeRunningProcesses"]


@pytest.mark.parametrize(
    ("function", "columns", "named"),
    [
        ("nvmlDeviceGetComputeRunningProcesses", {"process_bytes"}, "memory of this process"),
        ("nvmlDeviceGetMemoryInfo", {"used_bytes", "total_bytes"}, "memory of the device"),
        ("nvmlDeviceGetUtilizationRates", {"busy_ratio", "memory_busy_ratio"}, "utilisation"),
        ("nvmlDeviceGetClockInfo", {"sm_clock_hz", "memory_clock_hz"}, "clocks"),
        ("nvmlDeviceGetPowerUsage", {"power_watts"}, "power"),
        ("nvmlDeviceGetTemperature", {"temperature_celsius"}, "temperature"),
    ],
)
@pytest.mark.parametrize("why", ["NOT_SUPPORTED", "NO_PERMISSION", "FUNCTION_NOT_FOUND"])
def test_what_is_refused_for_good_is_unknown_and_never_asked_again(
    function: str, columns: set[str], named: str, why: str
) -> None:
    nvml = FakeNvml([FakeGpu(answers={function: error(why)})])
    refusing = probe(nvml)
    expected = {column: value for column, value in HEALTHY.items() if column not in columns}
    assert refusing.read() == expected
    asked = nvml.calls.count(function)
    assert columns.isdisjoint(refusing.read())
    assert nvml.calls.count(function) == asked
    (gap,) = refusing.gaps()
    assert gap.what == f"counters of cuda:3: {named}"
    assert str(error(why)) in gap.reason
    assert gap.remedy


def test_all_that_is_refused_for_one_reason_is_one_gap() -> None:
    answers = {name: error("NOT_SUPPORTED") for name in ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetClockInfo")}
    _, refusing = refused(answers)
    (gap,) = refusing.gaps()
    assert gap.what == "counters of cuda:3: clocks, power"


def test_older_names_are_tried() -> None:
    values, probed = refused({"nvmlDeviceGetCurrentClocksEventReasons": error("FUNCTION_NOT_FOUND")})
    assert values["throttle_reasons"] == 4
    assert probed.gaps() == []


def test_what_fails_now_and_then_is_asked_again() -> None:
    gpu = FakeGpu(answers={"nvmlDeviceGetPowerUsage": error("TIMEOUT")})
    patient = probe(FakeNvml([gpu]))
    assert "power_watts" not in patient.read()
    (gap,) = patient.gaps()
    assert "Timeout" in gap.reason
    gpu.answers["nvmlDeviceGetPowerUsage"] = 1000
    assert patient.read()["power_watts"] == 1.0
    assert patient.gaps() == []


@pytest.mark.parametrize("others", [[], [SimpleNamespace(pid=os.getpid() + 1, usedGpuMemory=5 * MIB)]])
def test_a_process_that_the_container_hides_is_unknown_not_zero(others: list[Any]) -> None:
    values, probed = refused({"nvmlDeviceGetComputeRunningProcesses": others})
    assert "process_bytes" not in values
    (gap,) = probed.gaps()
    assert f"process {os.getpid()}" in gap.reason
    assert "--pid=host" in gap.remedy


def test_a_stranger_under_our_process_id_is_not_taken_for_us() -> None:
    values, probed = refused({"nvmlDeviceGetComputeRunningProcesses": [own_process(799 * MIB)]})
    assert "process_bytes" not in values
    (gap,) = probed.gaps()
    assert "another process" in gap.reason


def test_a_driver_that_does_not_count_by_process_is_a_gap() -> None:
    values, probed = refused({"nvmlDeviceGetComputeRunningProcesses": [own_process(None)]})
    assert "process_bytes" not in values
    (gap,) = probed.gaps()
    assert "WDDM" in gap.reason


def test_the_parts_of_one_process_are_added() -> None:
    values, _ = refused(
        {"nvmlDeviceGetComputeRunningProcesses": [own_process(600 * MIB), own_process(300 * MIB)]}
    )
    assert values["process_bytes"] == 900 * MIB


def test_nvmls_largest_number_is_no_value() -> None:
    huge = SimpleNamespace(used=2**64 - 1, total=16000 * MIB)
    values, probed = refused({"nvmlDeviceGetMemoryInfo": huge})
    assert not {"used_bytes", "total_bytes"} & set(values)
    assert len(probed.gaps()) == 1


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
    (gap,) = losing.gaps()
    assert (gap.what, gap.reason) == ("counters of cuda:3: all of them", "NVML says: GPU is lost")


def test_devices_are_found_by_uuid_not_by_index() -> None:
    other = FakeGpu(uuid="2222", answers={"nvmlDeviceGetTemperature": 99})
    assert probe(FakeNvml([other, FakeGpu()])).read()["temperature_celsius"] == 61.0


def test_a_mig_instance_is_found_by_its_own_uuid() -> None:
    whole = FakeGpu(uuid="2222", answers={"nvmlDeviceGetTemperature": 99, "nvmlDeviceGetMigMode": [1, 1]})
    instance = FakeGpu(prefix="MIG-", bus_id="none")
    assert probe(FakeNvml([whole, instance])).read()["temperature_celsius"] == 61.0


def test_the_whole_gpu_is_not_taken_for_its_instance() -> None:
    whole = FakeGpu(uuid="2222", answers={"nvmlDeviceGetMigMode": [1, 1]})
    hidden = probe(FakeNvml([whole]))
    assert hidden.read() == {"reserved_bytes": 800 * MIB}
    (gap,) = hidden.gaps()
    assert "MIG instance" in gap.reason


def test_without_a_uuid_the_pci_address_finds_it() -> None:
    identity = DeviceIdentity(uuid=None, bus_id="00000000:01:00.0")
    assert probe(FakeNvml([FakeGpu()]), identity=identity).read() == HEALTHY


def test_a_device_that_nvml_does_not_show_is_a_gap() -> None:
    unknown = probe(FakeNvml([]))
    assert unknown.read() == {"reserved_bytes": 800 * MIB}
    (gap,) = unknown.gaps()
    assert "nvidia-smi -L" in gap.remedy


def test_links_are_rates_of_counters_and_unknown_at_first_and_after_a_wrap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_ns = 0
    monkeypatch.setattr("zprof.collectors.devices.probe.time.monotonic_ns", lambda: now_ns)
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


def test_a_gpu_without_nvlink_has_no_rate_and_one_gap() -> None:
    values, probed = refused({"field": {138: error("NOT_SUPPORTED"), 139: error("NOT_SUPPORTED")}})
    assert not any("nvlink" in column for column in values)
    (gap,) = probed.gaps()
    assert gap.what == "counters of cuda:3: NVLink throughput"


def test_an_answer_that_makes_no_sense_is_a_gap() -> None:
    values, probed = refused({"nvmlDeviceGetPowerUsage": "a lot"})
    assert "power_watts" not in values
    (gap,) = probed.gaps()
    assert gap.what == "counters of cuda:3: power"
