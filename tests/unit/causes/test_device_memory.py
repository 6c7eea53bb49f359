"""fragmentation and outside_allocator: memory of a GPU that holds no tensors."""

import pytest
from msgspec.structs import replace

from tests.support.peaks import GIB, MIB, gpu, memory_run, tenants, with_rank
from tests.support.rule_runs import Run, found, judged
from zprof.analysis.analysis import RunAnalysis
from zprof.causes.fragmentation import CAUSE as fragmentation
from zprof.causes.outside_allocator import CAUSE as outside_allocator
from zprof.model.findings import Severity


def reserved(
    split: float, awaiting: float = 0, free: float = 0, *, of: float = 100, **more: int
) -> RunAnalysis:
    """MiB of split blocks, of blocks that await a stream, and of free segments, of what is reserved."""
    names = ("reserved_bytes", "split_bytes", "awaiting_free_bytes", "free_segments_bytes")
    sizes = {name: round(mib * MIB) for name, mib in zip(names, (of, split, awaiting, free), strict=True)}
    return gpu(**(sizes | more))


def at_another_moment() -> RunAnalysis:
    analysis = reserved(50)
    looks = tuple(replace(look, moment="allocated peak") for look in analysis.memory.devices)
    return replace(analysis, memory=replace(analysis.memory, devices=looks))


def unused() -> RunAnalysis:
    """Only what is reserved is known: an upper bound."""
    return with_rank(memory_run(tenants(), device="cuda:0"), reserved_unused_bytes=20 * MIB)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: reserved(10), "high"),  # a tenth of what is reserved
        (lambda: reserved(1, free=30), None),
        (unused, "low"),
        (lambda: memory_run(device="cuda:0"), "gap"),
        (lambda: gpu(reserved_bytes=None, split_bytes=None), "gap"),
        (at_another_moment, "gap"),
        (memory_run, None),  # a CPU
    ],
)
def test_fragmentation(run: Run, expected: str | None) -> None:
    assert judged(fragmentation, run()) == expected


@pytest.mark.parametrize(
    ("run", "saving_mib"),
    [(lambda: reserved(20, 4, 9), (12, 24)), (unused, (0, 20))],
    ids=["split", "unused"],
)
def test_half_to_all_of_it_can_be_freed(run: Run, saving_mib: tuple[int, int]) -> None:
    finding = found(fragmentation, run())
    assert (finding.id, finding.saving_bytes) == ("ZP202", tuple(mib * MIB for mib in saving_mib))


def test_severity_is_a_share_of_the_device_if_that_is_known() -> None:
    assert found(fragmentation, reserved(20)).severity is Severity.HIGH
    assert found(fragmentation, reserved(20, device_total_bytes=80 * GIB)).severity is Severity.LOW


@pytest.mark.parametrize(
    ("split", "awaiting", "fixes"),
    [(20, 4, "expandable_segments"), (2, 20, "RECORD_STREAMS"), (5, 15, "both"), (15, 5, "both")],
)
def test_each_kind_from_a_quarter_on_has_its_fix(split: int, awaiting: int, fixes: str) -> None:
    fix = found(fragmentation, reserved(split, awaiting, of=200)).fix
    for name in ("expandable_segments", "RECORD_STREAMS"):
        assert (name in fix) is (fixes in (name, "both"))


TOTAL = {"device_total": 80, "device_used": 40, "process": 20}


def used(**gib: float) -> RunAnalysis:
    """GiB that are not the allocator's, of a device of 80 GiB, unless it is stated."""
    sizes = gib if "device_used" in gib else TOTAL | gib
    return gpu(**{f"{name}_bytes": int(size * GIB) for name, size in sizes.items()})


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: used(other_processes=7), None),  # a tenth of the device
        (lambda: used(other_processes=8), "high"),
        (lambda: used(context=9), "medium"),
        # without the size of the device a quarter of what is used, and two GiB
        (lambda: used(device_used=40, collectives=10), "high"),
        (lambda: used(device_used=4, collectives=1.9), None),
        (gpu, "gap"),
        (lambda: memory_run(device="cuda:0"), "gap"),
        (memory_run, None),  # a CPU
        # a container: most of the device is in use, and nobody says by whom
        (lambda: used(device_total=80, device_used=70), "gap"),
        (used, "gap"),
        (lambda: used(other_processes=0), None),
    ],
)
def test_outside_allocator(run: Run, expected: str | None) -> None:
    assert judged(outside_allocator, run()) == expected


PROCESSES, GROUPS, CONTEXT = "nvidia-smi", "new_group", "CUDA_MODULE_LOADING"


@pytest.mark.parametrize(
    ("gib", "saving_gib", "fixes"),
    [
        ({"context": 1, "collectives": 2, "other_processes": 10}, (10, 11), {PROCESSES}),
        ({"context": 1, "collectives": 9, "other_processes": 0}, (0, 4.5), {GROUPS}),
        ({"other_processes": 3, "collectives": 9}, None, {PROCESSES, GROUPS}),  # a quarter of it
        ({"other_processes": 9, "collectives": 3}, None, {PROCESSES, GROUPS}),
        ({"context": 9}, (0, 0), {CONTEXT}),  # frees nothing for sure
        ({"context": 9, "collectives": 8}, None, {CONTEXT, GROUPS}),
        ({"context": 1, "other_processes": 8}, None, {PROCESSES}),
    ],
)
def test_each_part_has_its_fix_and_saving(
    gib: dict[str, float], saving_gib: tuple[float, float] | None, fixes: set[str]
) -> None:
    finding = found(outside_allocator, used(**gib))
    assert finding.id == "ZP209"
    assert {name for name in (PROCESSES, GROUPS, CONTEXT) if name in finding.fix} == fixes
    assert saving_gib is None or finding.saving_bytes == tuple(int(size * GIB) for size in saving_gib)
