"""A recorded GPU at its two peaks: with a history, with counters alone, and with neither."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.snapshot_truth.allocator import Allocator
from benchmarks.snapshot_truth.segments import MIB
from benchmarks.snapshot_truth.write_snapshot import snapshot_of
from tests.support.snapshot_histories import entry_times, written
from zprof.analysis.memory.device import (
    LiveOwners,
    RecordedDevice,
    analyse_recorded_device,
)
from zprof.analysis.memory.tables import TENANT_CODES, UNTAGGED
from zprof.collectors.read.snapshot.convert import convert_snapshot
from zprof.model.memory import DeviceMemory
from zprof.model.tenants import Tenant
from zprof.run.reader import Run
from zprof.run.schema import TABLES


def columns(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    return {field.name: [row.get(field.name) for row in rows] for field in TABLES[name]}


class Window:
    """Two blocks with owners and one without; one awaits its free, so that more has to be reserved."""

    def __init__(self) -> None:
        self.allocator = Allocator()
        self.allocator.begin_history()
        self.parameter = self.allocator.alloc(12 * MIB + 100)
        self.allocator.tick(100)
        self.saved = self.allocator.alloc(30 * MIB)
        self.allocator.tick(100)
        self.other = self.allocator.alloc(3 * MIB)
        self.peak_ns = self.allocator.now_us * 1000
        self.allocator.tick(100)
        self.allocator.free(self.saved, awaiting=True)
        self.allocator.tick(100)
        self.large = self.allocator.alloc(26 * MIB)
        self.reserved_ns = entry_times(self.allocator)[-1]

    def owners(self, time_ns: int) -> LiveOwners:
        """As a recording of whole blocks: it does not know the third."""
        if time_ns < self.reserved_ns:
            second = (self.saved, 30 * MIB, TENANT_CODES[Tenant.ACTIVATIONS])
        else:
            second = (self.large, 26 * MIB, TENANT_CODES[Tenant.GRADIENTS])
        first = (self.parameter, 12 * MIB + 512, TENANT_CODES[Tenant.PARAMETERS])
        rows = np.array([first, second, (self.other, 3 * MIB, UNTAGGED)], dtype=np.int64)
        return LiveOwners(address=rows[:, 0], bytes=rows[:, 1], tenant=rows[:, 2])

    def tables(self) -> dict[str, Mapping[str, Sequence[Any]]]:
        tables = convert_snapshot(snapshot_of(self.allocator))
        return {"block": tables.block, "segment": tables.segment, "stack": tables.stack}


def answer(run: Run, window: Window, device: str = "cuda:0") -> RecordedDevice:
    return analyse_recorded_device(run, 0, device, window.peak_ns, window.owners)


def known(leaf: DeviceMemory) -> int:
    terms = (
        leaf.live_bytes, leaf.rounding_bytes, leaf.awaiting_free_bytes, leaf.split_bytes,
        leaf.free_segments_bytes, leaf.private_pools_bytes,
    )  # fmt: skip
    assert all(term is None or term >= 0 for term in terms)
    return sum(term or 0 for term in terms)


def nvml(time_ns: int, process: int, reserved: int, **more: Any) -> dict[str, Any]:
    row = {"time_ns": time_ns, "device": "cuda:0", "reason": "period", "cost_ns": 1_000}
    sizes = {"process": process, "reserved": reserved, "used": 9_000, "total": 16_000}
    return row | {f"{name}_bytes": size * MIB for name, size in sizes.items()} | more


def test_the_identity_at_both_peaks_down_to_nvml(tmp_path: Path) -> None:
    window = Window()
    second_ns = 10**9
    rows = [
        nvml(window.peak_ns - 3 * second_ns, 400, 0, reason="before_group", group="world"),
        nvml(window.peak_ns - 2 * second_ns, 650, 0, reason="after_group", group="world"),
        nvml(window.peak_ns - second_ns, 700, 10),
    ]
    found = answer(written(tmp_path, {**window.tables(), "device": columns("device", rows)}), window)
    first, second = found.devices
    assert [leaf.moment for leaf in found.devices] == ["allocated peak", "reserved peak"]
    assert first.live_bytes == 45 * MIB + 100
    assert first.tenants[Tenant.PARAMETERS] == 12 * MIB + 100, "as requested: its rounding is separate"
    assert first.tenants[Tenant.ACTIVATIONS] == 30 * MIB
    assert sum(first.tenants.values()) == first.live_bytes - 3 * MIB
    assert (first.rounding_bytes, second.awaiting_free_bytes) == (412, 30 * MIB)
    assert (second.tenants[Tenant.GRADIENTS], second.tenants[Tenant.ACTIVATIONS]) == (26 * MIB, 0)
    for leaf in found.devices:
        assert known(leaf) == leaf.reserved_bytes
        assert (leaf.collectives_bytes, leaf.context_bytes) == (250 * MIB, (700 - 10 - 250) * MIB)
        assert leaf.process_bytes == (leaf.reserved_bytes or 0) + 690 * MIB
        assert leaf.device_used_bytes == (leaf.process_bytes or 0) + (leaf.other_processes_bytes or 0)
    assert (second.reserved_bytes or 0) > (first.reserved_bytes or 0)
    assert found.reserved_unused_bytes == (first.reserved_bytes or 0) - (45 * MIB + 512)
    assert (found.non_pytorch_bytes, found.gaps) == (690 * MIB, ())


def boundary(time_ns: int, retries: int = 0, **sizes: int) -> dict[str, Any]:
    counters = {
        "reserved": 60, "active": 50, "allocated": 45, "requested": 44, "split": 4, "peak_reserved": 60,
    } | sizes  # fmt: skip
    row = {f"{name}_bytes": size * MIB for name, size in counters.items()}
    return {"time_ns": time_ns, "step": 1, "device": "cuda:0", "retries": retries} | row


def counted(folder: Path, window: Window, *rows: dict[str, Any]) -> RecordedDevice:
    return answer(written(folder, {"samples": columns("samples", rows)}), window)


def test_without_a_history_counters_of_a_boundary_give_a_coarse_identity(tmp_path: Path) -> None:
    window = Window()
    found = counted(
        tmp_path, window, boundary(window.peak_ns - 10, requested=40), boundary(window.peak_ns + 10)
    )
    allocated, reserved = found.devices
    live = 45 * MIB + 512
    assert (allocated.live_bytes, allocated.reserved_bytes) == (live, 60 * MIB)
    assert {allocated.rounding_bytes, allocated.split_bytes, allocated.awaiting_free_bytes} == {None}
    assert found.reserved_unused_bytes == 60 * MIB - live
    assert known(reserved) == reserved.reserved_bytes == 60 * MIB
    assert (reserved.live_bytes, reserved.rounding_bytes) == (44 * MIB, MIB)
    assert (reserved.awaiting_free_bytes, reserved.split_bytes) == (5 * MIB, 4 * MIB)
    assert (reserved.free_segments_bytes, reserved.private_pools_bytes) == (6 * MIB, None)
    assert found.gaps


@pytest.mark.parametrize("changes", [{"reserved": 58}, {"retries": 1}, {"peak_reserved": 61}], ids=str)
def test_reserved_memory_between_boundaries_that_disagree_is_unknown(
    tmp_path: Path, changes: dict[str, int]
) -> None:
    window = Window()
    found = counted(tmp_path, window, boundary(window.peak_ns - 10), boundary(window.peak_ns + 10, **changes))
    assert (found.devices[0].reserved_bytes, found.reserved_unused_bytes) == (None, None)


@pytest.mark.parametrize("late", [False, True], ids=["nothing", "a history that begins after the peak"])
def test_without_history_and_counters_only_live_bytes_are_known(tmp_path: Path, late: bool) -> None:
    window = Window()
    run = written(tmp_path, window.tables() if late else {})
    time_ns = 1_000 if late else window.peak_ns
    found = analyse_recorded_device(run, 0, "cuda:0", time_ns, window.owners)
    assert found.devices[0].live_bytes == 45 * MIB + 512
    assert (found.devices[0].reserved_bytes, found.reserved_unused_bytes) == (None, None)
    assert found.non_pytorch_bytes is None
    assert found.gaps
