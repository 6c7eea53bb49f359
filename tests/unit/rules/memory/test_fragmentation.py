"""fragmentation: what is free in segments in use, at the reserved peak of a GPU."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.peaks import GIB, MIB, gpu, memory_run, tenants, with_rank
from tests.support.rule_runs import GAP, Answer, found, judged
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Confidence, Severity
from zprof.rules.memory.fragmentation import fragmentation

HIGH, LOW = Confidence.HIGH, Confidence.LOW


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
        (lambda: reserved(10), HIGH),  # a tenth of what is reserved
        (lambda: reserved(9.9), None),
        (lambda: reserved(1, free=30), None),
        (unused, LOW),
        (lambda: memory_run(device="cuda:0"), GAP),
        (lambda: gpu(reserved_bytes=None, split_bytes=None), GAP),
        (at_another_moment, GAP),
        (memory_run, None),  # a CPU
    ],
)
def test_thresholds(run: Callable[[], RunAnalysis], expected: Answer) -> None:
    assert judged(fragmentation, run()) == expected


@pytest.mark.parametrize(
    ("run", "saving_mib"),
    [(lambda: reserved(20, 4, 9), (12, 24)), (unused, (0, 20))],
    ids=["split", "unused"],
)
def test_half_to_all_of_it_can_be_freed(run: Callable[[], RunAnalysis], saving_mib: tuple[int, int]) -> None:
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
