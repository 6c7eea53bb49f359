"""A recorded GPU at its two peaks: with a history, with counters alone, and with neither."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from history_tables import entry_times, history
from test_memory_outside import group, sample

from tests.support.snapshots import MIB, Allocator, snapshot_of
from zprof.analysis.memory.history import find_live_blocks
from zprof.analysis.memory.recorded_device import (
    LiveOwners,
    RecordedDevice,
    analyse_recorded_device,
    match_tenants,
)
from zprof.analysis.memory.tables import TENANT_CODES, UNTAGGED
from zprof.collectors.snapshot.convert import convert_snapshot
from zprof.model.memory import DeviceMemory
from zprof.model.tenants import Tenant
from zprof.model.training import TrainingFacts
from zprof.run.manifest import RunManifest
from zprof.run.reader import Run
from zprof.run.schema import TABLES
from zprof.run.writer import RankWriter


def written(path: Path, tables: Mapping[str, Mapping[str, Sequence[Any]]]) -> Run:
    manifest = RunManifest(
        zprof_version="0", created_ns=0, world_size=1, backend="nccl", device="cuda", training=TrainingFacts()
    )
    writer = RankWriter(path / "r.zprof", 0, manifest)
    for name, columns in tables.items():
        writer.write_table(name, columns)
    writer.finish(memory_steps=[0], time_steps=[], gaps=[], status="complete", memory_mode="full")
    return Run(path / "r.zprof")


def columns(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    return {field.name: [row.get(field.name) for row in rows] for field in TABLES[name]}


class Window:
    """Two blocks with owners and one without; one awaits its free, so that more memory has to be reserved."""

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
        live = time_ns < self.reserved_ns
        known = [(self.parameter, 12 * MIB + 512, TENANT_CODES[Tenant.PARAMETERS])]
        last = (
            (self.saved, 30 * MIB, Tenant.ACTIVATIONS) if live else (self.large, 26 * MIB, Tenant.GRADIENTS)
        )
        known += [(last[0], last[1], TENANT_CODES[last[2]])]
        known += [(self.other, 3 * MIB, UNTAGGED)]
        address, size, tenant = (np.array(part, dtype=np.int64) for part in zip(*known, strict=True))
        return LiveOwners(address=address, bytes=size, tenant=tenant)

    def tables(self) -> dict[str, Mapping[str, Sequence[Any]]]:
        tables = convert_snapshot(snapshot_of(self.allocator))
        return {"block": tables.block, "segment": tables.segment, "stack": tables.stack}


def answer(run: Run, window: Window, device: str = "cuda:0") -> RecordedDevice:
    return analyse_recorded_device(run, 0, device, window.peak_ns, window.owners)


def known(leaf: DeviceMemory) -> int:
    terms = (
        leaf.live_bytes,
        leaf.rounding_bytes,
        leaf.awaiting_free_bytes,
        leaf.split_bytes,
        leaf.free_segments_bytes,
        leaf.private_pools_bytes,
    )
    assert all(term is None or term >= 0 for term in terms)
    return sum(term or 0 for term in terms)


def test_the_identity_at_both_peaks_down_to_nvml(tmp_path: Path) -> None:
    window = Window()
    seconds = window.peak_ns / 1e9
    rows = [*group("world", seconds - 3, seconds - 2, (400, 0), (650, 0)), sample(seconds - 1, 700, 10)]
    run = written(tmp_path, {**window.tables(), "device": columns("device", rows)})
    said = answer(run, window)
    first, second = said.devices
    assert [leaf.moment for leaf in said.devices] == ["allocated peak", "reserved peak"]
    assert first.live_bytes == 45 * MIB + 100
    assert first.tenants[Tenant.PARAMETERS] == 12 * MIB + 100  # as asked for: its rounding stands apart
    assert first.tenants[Tenant.ACTIVATIONS] == 30 * MIB
    assert sum(first.tenants.values()) == first.live_bytes - 3 * MIB
    assert first.rounding_bytes == 412
    assert second.awaiting_free_bytes == 30 * MIB
    assert (second.tenants[Tenant.GRADIENTS], second.tenants[Tenant.ACTIVATIONS]) == (26 * MIB, 0)
    for leaf in said.devices:
        assert known(leaf) == leaf.reserved_bytes
        assert leaf.collectives_bytes == 250 * MIB
        assert leaf.context_bytes == (700 - 10 - 250) * MIB
        assert leaf.process_bytes == (leaf.reserved_bytes or 0) + 690 * MIB
        assert leaf.device_used_bytes == (leaf.process_bytes or 0) + (leaf.other_processes_bytes or 0)
    assert (second.reserved_bytes or 0) > (first.reserved_bytes or 0)
    assert said.reserved_unused_bytes == (first.reserved_bytes or 0) - (45 * MIB + 512)
    assert said.non_pytorch_bytes == 690 * MIB
    assert said.gaps == ()


def test_a_block_that_the_recording_does_not_know_has_no_owner() -> None:
    window = Window()
    blocks = history(window.allocator).blocks
    rows, said = find_live_blocks(blocks, window.peak_ns + 1), window.owners(window.peak_ns)
    known = LiveOwners(address=said.address[:2], bytes=said.bytes[:2], tenant=said.tenant[:2])
    held = dict(zip(blocks.address[rows].tolist(), match_tenants(blocks, rows, known).tolist(), strict=True))
    assert held == {
        window.parameter: TENANT_CODES[Tenant.PARAMETERS],
        window.saved: TENANT_CODES[Tenant.ACTIVATIONS],
        window.other: UNTAGGED,
    }


def test_a_history_that_disagrees_with_the_recording_is_a_gap(tmp_path: Path) -> None:
    window = Window()
    run = written(tmp_path, window.tables())
    empty = np.zeros(0, dtype=np.int64)
    said = analyse_recorded_device(
        run, 0, "cuda:0", window.peak_ns, lambda _: LiveOwners(address=empty, bytes=empty, tenant=empty)
    )
    assert any("its events differ" in gap.reason and "MiB" in gap.reason for gap in said.gaps)
    assert set(said.devices[0].tenants.values()) == {0}


def boundary(time_ns: int, **sizes: Any) -> dict[str, Any]:
    counters = {
        "reserved": 60,
        "active": 50,
        "allocated": 45,
        "requested": 44,
        "split": 4,
        "peak_reserved": 60,
    }
    row = {f"{name}_bytes": size * MIB for name, size in (counters | sizes).items() if name != "retries"}
    return {"time_ns": time_ns, "step": 1, "device": "cuda:0", "retries": sizes.get("retries", 0)} | row


def test_without_a_history_counters_of_a_boundary_give_a_coarse_identity(tmp_path: Path) -> None:
    window = Window()
    rows = [boundary(window.peak_ns - 10, requested=40), boundary(window.peak_ns + 10)]
    said = answer(written(tmp_path, {"samples": columns("samples", rows)}), window)
    allocated, reserved = said.devices
    assert (allocated.live_bytes, allocated.reserved_bytes) == (45 * MIB + 512, 60 * MIB)
    assert (allocated.rounding_bytes, allocated.split_bytes, allocated.awaiting_free_bytes) == (
        None,
        None,
        None,
    )
    assert said.reserved_unused_bytes == 60 * MIB - (45 * MIB + 512)
    assert known(reserved) == reserved.reserved_bytes == 60 * MIB
    assert (reserved.live_bytes, reserved.rounding_bytes, reserved.awaiting_free_bytes) == (
        44 * MIB,
        MIB,
        5 * MIB,
    )
    assert (reserved.split_bytes, reserved.free_segments_bytes) == (4 * MIB, 6 * MIB)
    assert reserved.private_pools_bytes is None
    assert any("no history" in gap.reason for gap in said.gaps)


@pytest.mark.parametrize(
    "changes",
    [{"reserved": 58}, {"retries": 1}, {"peak_reserved": 61}],
    ids=["grew", "was flushed", "was higher"],
)
def test_reserved_memory_between_boundaries_that_disagree_is_unknown(
    tmp_path: Path, changes: dict[str, int]
) -> None:
    window = Window()
    rows = [boundary(window.peak_ns - 10), boundary(window.peak_ns + 10, **changes)]
    said = answer(written(tmp_path, {"samples": columns("samples", rows)}), window)
    assert said.devices[0].reserved_bytes is None
    assert said.reserved_unused_bytes is None


def test_counters_that_contradict_each_other_are_not_shown(tmp_path: Path) -> None:
    window = Window()
    rows = [boundary(window.peak_ns + 10, requested=46)]
    said = answer(written(tmp_path, {"samples": columns("samples", rows)}), window)
    assert [leaf.moment for leaf in said.devices] == ["allocated peak"]
    assert any("do not add up" in gap.reason for gap in said.gaps)


def test_with_nothing_the_live_bytes_are_all_that_is_said(tmp_path: Path) -> None:
    window = Window()
    said = answer(written(tmp_path, {}), window)
    assert [leaf.live_bytes for leaf in said.devices] == [45 * MIB + 512]
    assert (said.devices[0].reserved_bytes, said.reserved_unused_bytes, said.non_pytorch_bytes) == (
        None,
        None,
        None,
    )
    assert len(said.gaps) == 2


def test_a_history_that_begins_after_the_peak_is_not_used_for_it(tmp_path: Path) -> None:
    window = Window()
    run = written(tmp_path, window.tables())
    said = analyse_recorded_device(run, 0, "cuda:0", 1_000, window.owners)
    assert said.devices[0].reserved_bytes is None
    assert any("no history" in gap.reason for gap in said.gaps)


def test_the_host_reserves_nothing(tmp_path: Path) -> None:
    window = Window()
    assert answer(written(tmp_path, window.tables()), window, "cpu") == RecordedDevice()
