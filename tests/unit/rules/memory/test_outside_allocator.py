"""outside_allocator: context, collectives and other processes, on a GPU."""

import pytest

from tests.support.peaks import GIB, gpu, memory_run
from zprof.model.findings import Confidence, Finding
from zprof.model.gaps import Gap
from zprof.rules.memory.outside_allocator import outside_allocator

TOTAL = {"device_total_bytes": 80 * GIB, "device_used_bytes": 40 * GIB, "process_bytes": 20 * GIB}


def answer(**terms: int) -> Finding | Gap | None:
    return outside_allocator(gpu(**terms), None)


def test_another_process_is_named_by_its_bytes() -> None:
    finding = answer(**TOTAL, context_bytes=GIB, collectives_bytes=2 * GIB, other_processes_bytes=10 * GIB)
    assert isinstance(finding, Finding)
    assert finding.id == "ZP209"
    assert finding.confidence is Confidence.HIGH
    assert "most of it other processes (10.0 GiB)" in finding.sentence
    assert finding.saving_bytes == (10 * GIB, 11 * GIB)
    assert "nvidia-smi" in finding.fix
    assert "new_group" not in finding.fix


def test_many_groups_are_named() -> None:
    finding = answer(**TOTAL, context_bytes=GIB, collectives_bytes=9 * GIB, other_processes_bytes=0)
    assert isinstance(finding, Finding)
    assert "new_group" in finding.fix
    assert finding.saving_bytes == (0, int(4.5 * GIB))


def test_a_large_context_frees_nothing_for_sure() -> None:
    finding = answer(**TOTAL, context_bytes=9 * GIB)
    assert isinstance(finding, Finding)
    assert finding.confidence is Confidence.MEDIUM
    assert finding.saving_bytes == (0, 0)


@pytest.mark.parametrize(("gib", "fires"), [(7, False), (8, True)])
def test_the_boundary_is_a_tenth_of_the_device(gib: int, *, fires: bool) -> None:
    assert isinstance(answer(**TOTAL, other_processes_bytes=gib * GIB), Finding) == fires


def test_without_the_device_s_size_a_quarter_of_what_is_used() -> None:
    assert answer(device_used_bytes=40 * GIB, collectives_bytes=9 * GIB) is None
    assert isinstance(answer(device_used_bytes=40 * GIB, collectives_bytes=10 * GIB), Finding)
    assert answer(device_used_bytes=GIB, context_bytes=GIB // 2) is None


def test_a_driver_that_was_not_asked_is_not_tested() -> None:
    assert isinstance(answer(), Gap)
    assert isinstance(outside_allocator(memory_run(device="cuda:0"), None), Gap)
    assert outside_allocator(memory_run(), None) is None


def test_what_nvml_does_not_split_is_not_tested() -> None:
    """A container: most of the device is in use, and nobody says by whom."""
    assert isinstance(answer(device_total_bytes=80 * GIB, device_used_bytes=70 * GIB), Gap)
    assert isinstance(answer(**TOTAL), Gap)
    assert answer(**TOTAL, other_processes_bytes=0) is None


@pytest.mark.parametrize(("gib", "fires"), [(1.9, False), (2.0, True), (2.1, True)])
def test_a_small_use_counts_from_two_gibibytes_on(gib: float, *, fires: bool) -> None:
    finding = answer(device_used_bytes=4 * GIB, collectives_bytes=int(gib * GIB))
    assert isinstance(finding, Finding) == fires


@pytest.mark.parametrize(("others", "collectives"), [(3, 9), (9, 3)])
def test_a_quarter_of_it_has_its_fix(others: int, collectives: int) -> None:
    finding = answer(**TOTAL, other_processes_bytes=others * GIB, collectives_bytes=collectives * GIB)
    assert isinstance(finding, Finding)
    assert "nvidia-smi" in finding.fix
    assert "new_group" in finding.fix


def test_only_a_context_that_is_most_of_it_is_worth_a_word() -> None:
    context = answer(**TOTAL, context_bytes=9 * GIB, collectives_bytes=8 * GIB)
    others = answer(**TOTAL, context_bytes=GIB, other_processes_bytes=8 * GIB)
    assert isinstance(context, Finding)
    assert isinstance(others, Finding)
    assert "CUDA_MODULE_LOADING" in context.fix
    assert "CUDA_MODULE_LOADING" not in others.fix
