"""The verdict on memory, and what rules about memory share."""

import pytest
from msgspec.structs import replace

from tests.support.analyses import Scenario
from tests.support.peaks import FACTS, MIB, gpu, memory_run, tenants, with_rank
from tests.support.rule_runs import Run, claim, run_of
from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.memory.largest_rank import (
    LargestRank,
    find_largest_rank,
    is_worth,
    limit_confidence,
    read_sharding,
    saved_bytes,
)
from zprof.causes import load_causes
from zprof.diagnosis.diagnose import diagnose
from zprof.diagnosis.verdict import Case, judge_memory
from zprof.model.findings import Confidence
from zprof.model.memory import AllocatorCounters, Basis, Memory
from zprof.model.report import VerdictStatus as Status

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
def test_the_peak_decides(run: Run, status: Status, words: tuple[str, ...]) -> None:
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
    finding = claim("buffers_dominate", confidence=sure, frees=freed)
    case = Case(
        run=run.run, time=run.time, memory=run.memory, causes=load_causes(), findings=[finding]
    )  # fmt: skip
    assert judge_memory(case).status is status


def test_time_comes_before_memory() -> None:
    memory = memory_run(LARGE_BUFFERS, ranks=2)
    slow = run_of(Scenario(prefetch=False, bytes_per_s=180e6, steps=4))
    report = diagnose(replace(slow, memory=memory.memory, training=memory.training))
    assert [finding.cause for finding in report.findings] == ["no_prefetch", "buffers_dominate"]
    assert report.findings[0].sentence in report.verdict.sentence


GPU_CAUSES = {"fragmentation", "outside_allocator", "allocator_retries"}
STAGE_CAUSES = {"buffers_dominate", "replicated_state", "wrong_stage"}


def untested(run: RunAnalysis) -> list[set[str]]:
    """Return the causes that each gap names."""
    return [set(gap.causes) for gap in diagnose(run).gaps]


def test_rules_without_the_same_input_are_one_gap() -> None:
    unknown = replace(memory_run().training, stage=None)
    assert GPU_CAUSES in untested(memory_run(device="cuda:0"))
    assert STAGE_CAUSES in untested(memory_run(LARGE_BUFFERS, facts=unknown))
    assert not any(causes & (GPU_CAUSES | STAGE_CAUSES) for causes in untested(memory_run()))


def big(mib: float = 66, **fields: object) -> LargestRank:
    """A rank with a peak of so much."""
    found = find_largest_rank(with_rank(memory_run(tenants(activations=mib - 46)), **fields))
    assert found is not None
    return found


@pytest.mark.parametrize(("peak_mib", "least_mib"), [(66, 1), (1000, 10)])
def test_a_mebibyte_and_a_hundredth_of_the_peak_are_worth_it(peak_mib: float, least_mib: int) -> None:
    assert is_worth(least_mib * MIB, big(peak_mib))
    assert not is_worth(least_mib * MIB - 1, big(peak_mib))


@pytest.mark.parametrize(
    ("sure", "upper_bound", "guessed_ratio", "limited"),
    [
        (Confidence.HIGH, False, 0.10, Confidence.HIGH),
        (Confidence.HIGH, False, 0.11, Confidence.MEDIUM),
        (Confidence.HIGH, False, 0.50, Confidence.MEDIUM),
        (Confidence.HIGH, False, 0.51, Confidence.LOW),
        (Confidence.HIGH, True, 0.0, Confidence.MEDIUM),
        (Confidence.LOW, True, 0.0, Confidence.LOW),
    ],
)
def test_what_is_guessed_or_a_bound_is_less_sure(
    sure: Confidence, *, upper_bound: bool, guessed_ratio: float, limited: Confidence
) -> None:
    assert limit_confidence(sure, big(upper_bound=upper_bound), guessed_ratio) is limited


@pytest.mark.parametrize(("stage", "mib"), [(0, 0), (1, 16), (2, 16 + 8), (3, 16 + 8 + 8)])
def test_a_stage_saves_three_times_what_four_ranks_keep_of_its_states(stage: int, mib: int) -> None:
    sharding = read_sharding(memory_run(facts=replace(FACTS, stage=stage)))
    assert sharding is not None
    assert saved_bytes(big(), sharding) == 3 * mib * MIB


@pytest.mark.parametrize(
    ("communication", "gradient", "wire"), [(4, 4, 4), (None, 4, 4), (None, 2, 2), (2, 4, 2)]
)
def test_without_one_size_on_the_wire_the_larger_element_counts(
    communication: int | None, gradient: int, wire: int
) -> None:
    """FSDP2 gathers in 16 bit and may reduce in 32."""
    facts = replace(FACTS, communication_bytes=communication, parameter_bytes=2, gradient_bytes=gradient)
    sharding = read_sharding(memory_run(facts=facts))
    assert sharding is not None
    assert sharding.wire_bytes == wire * (FACTS.parameters or 0)
