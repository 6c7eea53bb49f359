"""Device counters on a real GPU: NVML beside torch's own allocator, and a real group of NCCL."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import zprof
from zprof.collectors.record.devices.nvml import TorchCuda, load_pynvml
from zprof.collectors.record.devices.watch import DeviceRow, DeviceSampler, SamplingPace
from zprof.collectors.record.logs import SampleLog

MIB = 2**20
HIDDEN = "not measured: NVML hides this process (another pid namespace)"
GROUP_PROGRAM = """
import json, torch, torch.distributed as dist
from zprof.collectors.record.devices.watch import DeviceWatch
watch = DeviceWatch()
watch.start()
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
data = torch.ones(2**20, device="cuda")
for _ in range(3):
    dist.all_reduce(data)
torch.cuda.synchronize()
watch.step(), watch.step(), watch.stop()
wrapped = hasattr(torch._C._distributed_c10d.ProcessGroup.allreduce, "__wrapped__")
print(json.dumps({"columns": watch.columns(), "wrapped": wrapped}))
dist.destroy_process_group()
"""


def ends_after(most: int) -> Callable[[float], bool]:
    count = iter(range(1, most + 1))
    return lambda seconds: next(count) >= most


@pytest.fixture
def sampled() -> tuple[DeviceSampler, list[dict[str, Any]]]:
    held = torch.ones(64 * MIB, dtype=torch.uint8, device="cuda")
    sampling = DeviceSampler(TorchCuda(), load_pynvml, pace=SamplingPace())
    sampling.run(ends_after(5))
    columns = sampling.columns()
    del held
    return sampling, [{name: columns[name][at] for name in columns} for at in range(len(columns["time_ns"]))]


def test_a_process_holds_what_torch_reserved_and_the_device_what_processes_hold(
    sampled: tuple[DeviceSampler, list[dict[str, Any]]],
) -> None:
    sampling, rows = sampled
    assert len(rows) == 5
    for row in rows:
        assert row["reserved_bytes"] >= 64 * MIB
        assert row["total_bytes"] >= row["used_bytes"] > 0
    known = [row for row in rows if row["process_bytes"] is not None]
    if not known:
        assert any("memory of this process" in gap.what for gap in sampling.gaps())
        pytest.skip(HIDDEN)
    for row in known:
        assert row["used_bytes"] >= row["process_bytes"] >= row["reserved_bytes"]


def test_what_is_not_in_the_columns_is_in_a_gap(
    sampled: tuple[DeviceSampler, list[dict[str, Any]]],
) -> None:
    sampling, rows = sampled
    said = " ".join(gap.what for gap in sampling.gaps())
    for column, word in {
        "busy_ratio": "utilisation",
        "sm_clock_hz": "clocks",
        "throttle_reasons": "throttle",
        "power_watts": "power",
        "temperature_celsius": "temperature",
        "pcie_sent_bytes_per_s": "PCIe",
        "nvlink_sent_bytes_per_s": "NVLink",
    }.items():
        values = [row[column] for row in rows[1:]]
        assert any(value is not None for value in values) or word in said
        assert all(value is None or value >= 0 for value in values)


def test_the_real_thread_stays_within_its_share() -> None:
    torch.ones(1, device="cuda")
    pace = SamplingPace(period_ns=1_000_000)
    sampling = DeviceSampler(TorchCuda(), load_pynvml, pace=pace)
    begin_ns = time.perf_counter_ns()
    sampling.start()
    while pace.samples < 10 and not sampling.gaps():
        torch.ones(2**20, device="cuda").sum().item()
    sampling.stop()
    assert pace.cost_ns - _last(sampling) <= 0.011 * (time.perf_counter_ns() - begin_ns)


def _last(sampling: DeviceSampler) -> int:
    """What the last sample took: its rest was cut short."""
    return int(sampling.columns()["cost_ns"][-1])


def test_the_allocators_counters_are_in_the_samples() -> None:
    held = torch.ones(8 * MIB, dtype=torch.uint8, device="cuda")
    log = SampleLog()
    log.add(0)
    columns = log.columns()
    at = columns["device"].index(f"cuda:{torch.cuda.current_device()}")
    row = {name: columns[name][at] for name in columns}
    assert row["reserved_bytes"] >= row["active_bytes"] >= row["allocated_bytes"] >= held.nbytes
    assert row["peak_allocated_bytes"] >= row["allocated_bytes"] >= row["requested_bytes"]
    assert row["peak_reserved_bytes"] >= row["reserved_bytes"] >= row["split_bytes"]
    assert (row["retries"], row["ooms"]) >= (0, 0)


def test_the_first_collective_of_a_group_is_between_two_samples() -> None:
    done = subprocess.run(
        [sys.executable, "-c", GROUP_PROGRAM], capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    columns = seen["columns"]
    order = [reason for reason in columns["reason"] if reason != "period"]
    assert order == ["before_group", "after_group"]
    assert not seen["wrapped"]
    before, after = (columns["reason"].index(reason) for reason in order)
    assert columns["group"][before] == columns["group"][after] == "0"
    if columns["process_bytes"][after] is None:
        pytest.skip(HIDDEN)
    outside = [columns["process_bytes"][at] - columns["reserved_bytes"][at] for at in (before, after)]
    assert outside[1] >= outside[0]


def test_a_recording_has_the_table(tmp_path: Path) -> None:
    model = torch.nn.Linear(256, 256, device="cuda")
    with zprof.record(tmp_path, model=model, steps=zprof.steps(skip=1, memory=1, time=0)) as recording:
        for _ in range(2):
            model(torch.ones(4, 256, device="cuda")).sum().backward()
            recording.step()
    run = zprof.load(tmp_path)
    assert run.has_table(0, "device") or run.gaps()
    if run.has_table(0, "device"):
        assert set(run.frame(0, "device").columns) == set(DeviceRow.__struct_fields__)
