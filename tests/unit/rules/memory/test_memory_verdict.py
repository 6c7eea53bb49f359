"""A run of which only the memory is known gets a verdict about its peak; time comes first where it is known."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.analyses import Scenario
from tests.support.peaks import MIB, gpu, memory_run, tenants, with_rank
from tests.support.rule_runs import claim, run_of
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Confidence
from zprof.model.memory import AllocatorCounters, Basis, Memory
from zprof.model.report import Report
from zprof.model.report import VerdictStatus as Status
from zprof.rules.diagnose import diagnose
from zprof.rules.rule import list_untested
from zprof.rules.verdict import judge_peak

LARGE_BUFFERS = tenants(buffers=80)


def guessed() -> RunAnalysis:
    return with_rank(memory_run(LARGE_BUFFERS), basis_bytes={Basis.RULE: 130 * MIB})


def few_ranks() -> RunAnalysis:
    return replace(memory_run(), run=replace(memory_run().run, ranks_loaded=(0, 1)))


def retrying() -> RunAnalysis:
    """Nobody knows what retries cost."""
    run = gpu(reserved_bytes=70 * MIB, split_bytes=0)
    counter = AllocatorCounters(
        rank=0, device="cuda:0", peak_allocated_bytes=1, peak_reserved_bytes=1, retries=9, ooms=0
    )
    return replace(run, memory=replace(run.memory, counters=(counter,)))


@pytest.mark.parametrize(
    ("run", "status", "words"),
    [
        (memory_run, Status.OK, ("66.0 MiB", "rank 0", "30.3 %")),
        (lambda: memory_run(LARGE_BUFFERS), Status.RISK, ("130.0 MiB", "61.5 %")),
        (guessed, Status.OK, ("ZP201",)),
        (few_ranks, Status.INCONCLUSIVE, ("2 of 4 ranks",)),
        (retrying, Status.RISK, ()),
        (lambda: replace(memory_run(), memory=Memory()), Status.INCONCLUSIVE, ()),
    ],
    ids=["healthy", "buffers", "a guess", "few ranks", "retries", "nothing"],
)
def test_the_peak_decides(run: Callable[[], RunAnalysis], status: Status, words: tuple[str, ...]) -> None:
    verdict = diagnose(run()).verdict
    assert verdict.status is status
    assert all(word in verdict.sentence for word in words)


@pytest.mark.parametrize(
    ("freed", "untagged", "sure", "status"),
    [
        (6 * MIB, 0, Confidence.MEDIUM, Status.RISK),
        (6 * MIB - 1, 0, Confidence.HIGH, Status.OK),
        (60 * MIB, 0, Confidence.LOW, Status.OK),
        (0, 6 * MIB, Confidence.HIGH, Status.INCONCLUSIVE),
        (0, 6 * MIB - 1, Confidence.HIGH, Status.OK),
    ],
)
def test_a_tenth_of_the_peak_matters(freed: int, untagged: int, sure: Confidence, status: Status) -> None:
    """Of 60 MiB, freed by a finding or without a known owner."""
    run = with_rank(memory_run(tenants(activations=14)), untagged_bytes=untagged)
    finding = claim(Cause.BUFFERS_DOMINATE, confidence=sure, frees=freed)
    assert judge_peak(run.memory, [finding])[0] is status


def timed(plan: Scenario) -> Report:
    memory = memory_run(LARGE_BUFFERS)
    return diagnose(replace(run_of(plan), memory=memory.memory, training=memory.training))


def test_time_comes_before_memory() -> None:
    healthy, slow = timed(Scenario(ranks=4)), timed(Scenario(ranks=4, prefetch=False, bytes_per_s=180e6))
    assert [finding.cause for finding in healthy.findings] == [Cause.BUFFERS_DOMINATE]
    assert healthy.verdict.status is Status.OK
    assert [finding.cause for finding in slow.findings] == [Cause.NO_PREFETCH, Cause.BUFFERS_DOMINATE]


GPU_CAUSES = {Cause.FRAGMENTATION, Cause.OUTSIDE_ALLOCATOR, Cause.ALLOCATOR_RETRIES}
STAGE_CAUSES = {Cause.BUFFERS_DOMINATE, Cause.REPLICATED_STATE, Cause.WRONG_STAGE}


def untested(run: RunAnalysis) -> list[set[Cause]]:
    """Return the causes that each gap names."""
    return [set(list_untested(list(Cause), [gap])) for gap in diagnose(run).gaps]


def test_rules_without_the_same_input_are_one_gap() -> None:
    unknown = replace(memory_run().training, stage=None)
    assert GPU_CAUSES in untested(memory_run(device="cuda:0"))
    assert STAGE_CAUSES in untested(memory_run(LARGE_BUFFERS, facts=unknown))
    assert not any(causes & (GPU_CAUSES | STAGE_CAUSES) for causes in untested(memory_run()))
