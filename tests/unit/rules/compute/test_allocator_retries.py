"""allocator_retries: retries of cudaMalloc are told by their rate, frees in steps by what they cost."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.analyses import MS
from tests.support.host_steps import hosts, with_rows
from tests.support.peaks import memory_run
from tests.support.rule_runs import GAP, Answer, found, judged, values
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Confidence, Severity
from zprof.model.memory import AllocatorCounters
from zprof.rules.compute.allocator_retries import allocator_retries

HIGH, MEDIUM, LOW = Confidence.HIGH, Confidence.MEDIUM, Confidence.LOW
#: Frees and allocations of the device's memory in a step.
CALLS = {"gives": 4, "takes": 4, "allocator_ns": 2 * MS}


def counted(
    *retries: int | None, ooms: int | None = 0, device: str = "cuda:0", steps: int = 20
) -> RunAnalysis:
    counters = tuple(
        AllocatorCounters(
            rank=rank, device=device, peak_allocated_bytes=1, peak_reserved_bytes=1, retries=count, ooms=ooms
        )
        for rank, count in enumerate(retries)
    )
    analysis = memory_run(device="cuda:0", counters=counters)
    return replace(analysis, run=replace(analysis.run, steps=tuple(range(steps)), memory_steps=()))


@pytest.mark.parametrize(
    ("retries", "steps", "weight"),
    [
        (1, 20, (Severity.LOW, LOW)),
        (2, 20, (Severity.MEDIUM, HIGH)),
        (19, 20, (Severity.MEDIUM, HIGH)),
        (20, 20, (Severity.HIGH, HIGH)),
        (9, 100, (Severity.LOW, LOW)),
        (10, 100, (Severity.MEDIUM, HIGH)),
    ],
)
def test_the_rate_of_retries_decides(retries: int, steps: int, weight: tuple[Severity, Confidence]) -> None:
    finding = found(allocator_retries, counted(retries, steps=steps))
    assert (finding.severity, finding.confidence) == weight


def test_the_worst_rank_is_named_and_survived_errors_are_severe() -> None:
    finding = found(allocator_retries, counted(3, 46))
    assert (finding.id, finding.saving_ns, finding.saving_bytes) == ("ZP501", (0, 0), None)
    assert {fact.rank for fact in finding.evidence} == {1, None}
    assert values(finding, "count") == [46, 0, 20]
    assert found(allocator_retries, counted(0, ooms=1)).severity is Severity.HIGH


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: counted(0, 0), None),
        (lambda: counted(None, ooms=None), GAP),
        (lambda: memory_run(device="cuda:0"), GAP),
        (memory_run, None),  # a CPU
        (lambda: counted(5, device="cpu"), GAP),
        (lambda: hosts(), None),
        (lambda: hosts(on_device=False, **CALLS), None),
        (lambda: hosts(**CALLS | {"allocator_ns": MS}), HIGH),  # 1 % of the step
        (lambda: hosts(**CALLS | {"allocator_ns": MS - 1}), MEDIUM),
        (lambda: hosts(**CALLS | {"allocator_ns": MS, "gives": 0}), LOW),  # the cache only grows
        (lambda: hosts(**CALLS | {"allocator_ns": MS - 1, "gives": 0}), None),
        (lambda: with_rows(hosts(), hosts().host["step"] < 3, **CALLS), HIGH),
        (lambda: with_rows(hosts(), hosts().host["step"] < 2, **CALLS), LOW),  # warm-up
        (lambda: with_rows(hosts(steps=7), hosts(steps=7).host["step"] < 3, **CALLS), LOW),
        (lambda: hosts(steps=1, **CALLS), LOW),
    ],
)
def test_thresholds(run: Callable[[], RunAnalysis], expected: Answer) -> None:
    assert judged(allocator_retries, run()) == expected


def test_frees_in_steps_are_priced_on_the_rank_that_loses_most() -> None:
    finding = found(allocator_retries, with_rows(hosts(), hosts().host["rank"] == 3, **CALLS))
    assert {fact.rank for fact in finding.evidence} == {3}
    assert (finding.confidence, finding.severity) == (HIGH, Severity.LOW)
    assert finding.saving_ns == (1.4 * MS, pytest.approx(2.3 * MS, abs=1))
