"""outside_allocator: context, collectives and other processes on a GPU."""

from collections.abc import Callable

import pytest

from tests.support.peaks import GIB, gpu, memory_run
from tests.support.rule_runs import GAP, Answer, found, judged
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Confidence
from zprof.rules.memory.outside_allocator import outside_allocator

HIGH, MEDIUM = Confidence.HIGH, Confidence.MEDIUM
TOTAL = {"device_total": 80, "device_used": 40, "process": 20}


def used(**gib: float) -> RunAnalysis:
    """GiB that are not the allocator's, of a device of 80 GiB, unless it is stated."""
    sizes = gib if "device_used" in gib else TOTAL | gib
    return gpu(**{f"{name}_bytes": int(size * GIB) for name, size in sizes.items()})


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: used(other_processes=7), None),  # a tenth of the device
        (lambda: used(other_processes=8), HIGH),
        (lambda: used(context=9), MEDIUM),
        # without the size of the device a quarter of what is used, and two GiB
        (lambda: used(device_used=40, collectives=9.9), None),
        (lambda: used(device_used=40, collectives=10), HIGH),
        (lambda: used(device_used=4, collectives=1.9), None),
        (lambda: used(device_used=4, collectives=2), HIGH),
        (gpu, GAP),
        (lambda: memory_run(device="cuda:0"), GAP),
        (memory_run, None),  # a CPU
        # a container: most of the device is in use, and nobody says by whom
        (lambda: used(device_total=80, device_used=70), GAP),
        (used, GAP),
        (lambda: used(other_processes=0), None),
    ],
)
def test_thresholds(run: Callable[[], RunAnalysis], expected: Answer) -> None:
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
