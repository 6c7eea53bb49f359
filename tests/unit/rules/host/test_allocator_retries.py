"""allocator_retries: any retry of cudaMalloc is said, often ones loudly."""

from dataclasses import replace

import pytest

from tests.support.peaks import memory_run
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Confidence, Finding, Severity
from zprof.model.gaps import Gap
from zprof.model.memory import AllocatorCounters
from zprof.rules.compute.allocator_retries import allocator_retries


def counted(*retries: int | None, ooms: int | None = 0, device: str = "cuda:0") -> RunAnalysis:
    counters = tuple(
        AllocatorCounters(
            rank=rank, device=device, peak_allocated_bytes=1, peak_reserved_bytes=1, retries=count, ooms=ooms
        )
        for rank, count in enumerate(retries)
    )
    analysis = memory_run(device="cuda:0", counters=counters)
    return replace(analysis, run=replace(analysis.run, steps=tuple(range(4, 22)), memory_steps=(2, 3)))


def found(analysis: RunAnalysis) -> Finding:
    answer = allocator_retries(analysis, None)
    assert isinstance(answer, Finding), answer
    return answer


def test_the_worst_rank_is_named_with_its_rate() -> None:
    finding = found(counted(3, 46))
    assert finding.id == "ZP501"
    assert "46 times on rank 1, 2.3 times a step" in finding.sentence
    assert (finding.severity, finding.confidence) == (Severity.HIGH, Confidence.HIGH)
    assert finding.saving_bytes is None
    assert finding.saving_ns == (0, 0)


@pytest.mark.parametrize(
    ("retries", "severity", "confidence"),
    [
        (1, Severity.LOW, Confidence.LOW),
        (2, Severity.MEDIUM, Confidence.HIGH),
        (19, Severity.MEDIUM, Confidence.HIGH),
        (20, Severity.HIGH, Confidence.HIGH),
    ],
)
def test_how_often_decides(retries: int, severity: Severity, confidence: Confidence) -> None:
    """Twenty steps were recorded."""
    finding = found(counted(retries))
    assert (finding.severity, finding.confidence) == (severity, confidence)


def test_survived_errors_are_high_whatever_the_rate() -> None:
    finding = found(counted(0, ooms=1))
    assert "1 out-of-memory error" in finding.sentence
    assert finding.severity is Severity.HIGH


def test_none_is_healthy_and_unknown_is_not_tested() -> None:
    assert allocator_retries(counted(0, 0), None) is None
    assert isinstance(allocator_retries(counted(None, ooms=None), None), Gap)
    assert isinstance(allocator_retries(memory_run(device="cuda:0"), None), Gap)
    assert allocator_retries(memory_run(), None) is None
    assert isinstance(allocator_retries(counted(5, device="cpu"), None), Gap)


@pytest.mark.parametrize(("retries", "confidence"), [(9, Confidence.LOW), (10, Confidence.HIGH)])
def test_one_in_ten_steps_is_no_chance(retries: int, confidence: Confidence) -> None:
    analysis = counted(retries)
    long = replace(analysis, run=replace(analysis.run, steps=tuple(range(100)), memory_steps=()))
    assert found(long).confidence is confidence
