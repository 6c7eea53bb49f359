"""Failed allocations of simulated snapshots: what was requested, what was free, and if that was enough."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.snapshot_truth.allocator import Allocator
from benchmarks.snapshot_truth.segments import FREE, MIB
from benchmarks.snapshot_truth.write_snapshot import snapshot_of
from tests.support.snapshot_histories import MAIN, at, trained, written
from tests.support.snapshots import random_history
from zprof.analysis.memory.snapshot import analyse_snapshot_rank
from zprof.collectors.read.snapshot.convert import convert_snapshot
from zprof.model.endings import OutOfMemory
from zprof.model.tenants import Tenant

ASKED = [at("/home/user/model.py", "attention"), MAIN]


def failures(path: Path, allocator: Allocator, change: Any = None) -> tuple[OutOfMemory, ...]:
    snapshot = snapshot_of(allocator)
    for entry in snapshot["device_traces"][allocator.device]:
        if entry["action"] == "oom":
            entry["frames"] = ASKED
            if change:
                change(entry)
    return analyse_snapshot_rank(written(path, convert_snapshot(snapshot).tables()), 0).out_of_memory


def fragmented(
    free_pieces: int = 10, *, expandable: bool = False, pool: tuple[int, int] = (0, 0)
) -> Allocator:
    """Return 40 blocks of 3 MiB, of which every other one is free up to a number."""
    allocator = Allocator(expandable=expandable)
    allocator.begin_history()
    blocks = [allocator.alloc(3 * MIB, pool=pool) for _ in range(40)]
    for block in blocks[:20:2]:
        allocator.free(block)
    allocator.tick(1)
    return allocator


def free_bytes(allocator: Allocator) -> int:
    return sum(b.size for segment in allocator.segments for b in segment.blocks() if b.state == FREE)


def largest_free(allocator: Allocator) -> int:
    """Return the largest free piece of the common pool."""
    common = [segment for segment in allocator.segments if segment.pool == (0, 0)]
    return max((b.size for segment in common for b in segment.blocks() if b.state == FREE), default=0)


@pytest.mark.parametrize(
    ("requested", "device_free", "fits", "limited"),
    [
        (20, 1, True, False),  # 10 pieces of 3 MiB, and the rest of the last segment
        (200, 1, False, False),
        (20, 400, True, True),  # the driver had room: a limit
        (200, 400, None, True),
    ],
)
def test_free_memory_in_one_piece_may_be_enough(
    tmp_path: Path, requested: int, device_free: int, fits: bool | None, limited: bool
) -> None:
    allocator = fragmented()
    allocator.oom(requested * MIB, device_free * MIB)
    (failure,) = failures(tmp_path, allocator)
    assert (failure.would_fit_defragmented, failure.is_limited) == (fits, limited)
    assert failure.requested_bytes == requested * MIB
    assert failure.driver_bytes == requested * MIB
    assert failure.device_free_bytes == device_free * MIB
    assert failure.live_bytes == 30 * 3 * MIB
    assert (failure.split_bytes or 0) + (failure.free_segments_bytes or 0) == free_bytes(allocator)
    missing = requested * MIB - free_bytes(allocator) - device_free * MIB
    assert failure.short_bytes == (None if fits is None else max(0, missing))
    assert failure.largest_free_bytes == largest_free(allocator)
    assert failure.outside_allocator_bytes is None
    assert failure.stack == ("/home/user/model.py:7 attention", "/home/user/train.py:7 main")


@pytest.mark.parametrize(
    ("requested", "expandable", "driver_mib"),
    [
        (1000, False, 2),
        (3 * MIB, False, 20),
        (11 * MIB, False, 12),
        (50 * MIB, True, 60),
        (3 * MIB, True, 20),
    ],
)
def test_the_driver_is_asked_for_a_segment(
    tmp_path: Path, requested: int, expandable: bool, driver_mib: int
) -> None:
    allocator = fragmented(expandable=expandable)
    allocator.oom(requested, 0)
    (failure,) = failures(tmp_path, allocator)
    assert (failure.driver_bytes, failure.expandable) == (driver_mib * MIB, expandable)


@pytest.mark.parametrize(("asking", "fits"), [((0, 0), False), ((0, 1), True)])
def test_a_private_pool_gives_to_its_own_requests_only(
    tmp_path: Path, asking: tuple[int, int], fits: bool
) -> None:
    allocator = fragmented(pool=(0, 1))
    allocator.oom(20 * MIB, 0)
    (failure,) = failures(tmp_path, allocator, lambda entry: entry.update(pool_id=asking))
    assert failure.would_fit_defragmented is fits
    assert failure.pool == ("0,1" if fits else "")
    assert failure.private_pools_bytes == free_bytes(allocator)


def test_what_the_file_does_not_say_is_unknown(tmp_path: Path) -> None:
    allocator = fragmented()
    allocator.oom(200 * MIB, 0)
    (failure,) = failures(tmp_path, allocator, lambda entry: (entry.pop("device_free"), entry.pop("pool_id")))
    assert (failure.device_free_bytes, failure.would_fit_defragmented) == (None, None)
    allocator.segments.clear()
    (failure,) = failures(tmp_path / "without", allocator)
    assert (failure.reserved_bytes, failure.largest_free_bytes, failure.short_bytes) == (None, None, None)


def test_only_the_last_of_many_failures_are_described(tmp_path: Path) -> None:
    allocator = fragmented()
    for request in range(20):
        allocator.tick(1)
        allocator.oom((request + 1) * MIB, 0)
    found = failures(tmp_path, allocator)
    assert [failure.requested_bytes // MIB for failure in found] == list(range(13, 21))


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000))
def test_the_terms_are_those_of_the_allocator(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    allocator = random_history(seed, 40)
    allocator.begin_history()
    allocator.alloc(MIB)
    allocator.tick(1)
    allocator.oom(1 << 40, device_free=0)
    failure = failures(tmp_path_factory.mktemp("oom"), allocator)[-1]
    truth = allocator.state()
    assert failure.live_bytes == truth.requested_bytes
    assert failure.allocated_bytes == truth.allocated_bytes
    assert failure.reserved_bytes == truth.reserved_bytes
    assert failure.live_bytes == sum(failure.tenants.values()) + failure.untagged_bytes
    common = [segment for segment in allocator.segments if segment.pool == (0, 0)]
    free = sum(b.size for segment in common for b in segment.blocks() if b.state == FREE)
    assert failure.short_bytes == (1 << 40) - free
    assert failure.largest_free_bytes == largest_free(allocator)


def test_a_failure_before_any_block_is_kept_and_the_rank_has_a_gap(tmp_path: Path) -> None:
    allocator = Allocator()
    allocator.begin_history()
    for _ in range(2):
        allocator.oom(80 * MIB, 70 * MIB)
        allocator.tick(3)
    result = analyse_snapshot_rank(
        written(tmp_path / "a", convert_snapshot(snapshot_of(allocator)).tables()), 0
    )
    assert [(f.requested_bytes, f.live_bytes, f.time_ns) for f in result.out_of_memory] == [
        (80 * MIB, 0, 0),
        (80 * MIB, 0, 3000),
    ]
    assert not result.per_rank
    assert len(result.gaps) == 1
    other = Allocator(device=1)
    other.begin_history()
    other.alloc(MIB)
    tables = convert_snapshot(snapshot_of(allocator, other)).tables()
    result = analyse_snapshot_rank(written(tmp_path / "b", tables), 0)
    assert [f.device for f in result.out_of_memory] == ["cuda:0", "cuda:0"]
    assert [rank.device for rank in result.per_rank] == ["cuda:1"]


def test_owners_at_the_failure_have_their_basis(tmp_path: Path) -> None:
    program = trained(2)
    program.forward()
    program.allocator.oom(80 << 30, MIB)
    (failure,) = failures(tmp_path / "trained", program.allocator)
    assert not failure.unknown_tenants or all(not failure.tenants.get(t) for t in failure.unknown_tenants)
    assert 0 < sum(failure.confidence_bytes.values()) == failure.live_bytes - failure.untagged_bytes
    (bare,) = failures(tmp_path / "bare", out_of_memory_without_stacks())
    assert set(bare.unknown_tenants) == set(Tenant)
    assert not bare.inferred_tenants


def out_of_memory_without_stacks() -> Allocator:
    allocator = Allocator()
    allocator.begin_history()
    allocator.alloc(MIB)
    allocator.oom(80 * MIB, 0)
    return allocator
