"""init_spike: more before the first step than in any step, on the same rank and device."""

from dataclasses import replace

import pytest

from tests.support.peaks import FACTS, MIB, memory_run, rank_memory, tenants
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Confidence, Finding
from zprof.model.gaps import Gap
from zprof.model.memory import AllocatorCounters, RankMemory
from zprof.rules.memory.init_spike import init_spike

#: The steps' peak.
PEAK = 66


def start(mib: float, rank: int = 0, device: str = "cpu") -> RankMemory:
    held = tenants(parameters=mib, gradients=0, optimizer=0, activations=0, temporary=0, buffers=0)
    return rank_memory(held, rank=rank, device=device)


def counter(mib: float, device: str = "cpu") -> AllocatorCounters:
    return AllocatorCounters(
        rank=0,
        device=device,
        peak_allocated_bytes=int(mib * MIB),
        peak_reserved_bytes=None,
        retries=0,
        ooms=0,
    )


def found(analysis: RunAnalysis) -> Finding:
    answer = init_spike(analysis, None)
    assert isinstance(answer, Finding), answer
    return answer


def test_a_whole_model_on_every_rank() -> None:
    finding = found(memory_run(init=tuple(start(100, rank) for rank in range(4))))
    assert finding.id == "ZP208"
    assert finding.confidence is Confidence.HIGH
    assert "rank 0 (4 of 4 ranks) holds 100.0 MiB before its first step" in finding.sentence
    assert "most of it parameters" in finding.sentence
    assert finding.saving_bytes == (17 * MIB, 34 * MIB)
    assert "meta" in finding.fix
    assert "broadcast" not in finding.fix


def test_one_rank_that_loads() -> None:
    finding = found(memory_run(init=(start(10), start(100, 1), start(10, 2), start(10, 3))))
    assert "rank 1 (1 of 4 ranks)" in finding.sentence
    assert "broadcast" in finding.fix


@pytest.mark.parametrize(("mib", "fires"), [(PEAK * 1.099, False), (PEAK * 1.101, True)])
def test_the_boundary_is_a_tenth_above_the_steps(mib: float, *, fires: bool) -> None:
    assert isinstance(init_spike(memory_run(init=(start(mib),)), None), Finding) == fires


def test_another_device_is_no_spike() -> None:
    assert init_spike(memory_run(device="cuda:0", init=(start(500, device="cpu"),)), None) is None


def test_the_allocator_s_maximum_says_that_something_was_higher() -> None:
    finding = found(memory_run(counters=(counter(100),)))
    assert finding.confidence is Confidence.LOW
    assert "outside of the watched steps" in finding.sentence
    # What was watched is believed before it.
    assert init_spike(memory_run(counters=(counter(100),), init=(start(50),)), None) is None


def test_steps_that_were_not_seen_whole_may_have_reached_the_maximum_themselves() -> None:
    run = memory_run(counters=(counter(100),))
    seen_in_part = tuple(replace(entry, lower_bound=True) for entry in run.memory.per_rank)
    run = replace(run, memory=replace(run.memory, per_rank=seen_in_part))
    assert isinstance(init_spike(run, None), Gap)


def test_a_start_that_was_not_watched_is_not_tested() -> None:
    gap = init_spike(memory_run(), None)
    assert isinstance(gap, Gap)
    assert "zprof record" in gap.remedy
    assert init_spike(memory_run(facts=replace(FACTS, engine="reference")), None) is None
    snapshot = memory_run()
    assert init_spike(replace(snapshot, run=replace(snapshot.run, source="snapshot")), None) is None
    assert init_spike(memory_run(per_rank=()), None) is None


def test_a_low_start_is_healthy() -> None:
    assert init_spike(memory_run(init=(start(50),)), None) is None


@pytest.mark.parametrize(("mib", "fires"), [(5.9, False), (6, True), (6.1, True)])
def test_less_than_a_mebibyte_is_no_spike(mib: float, *, fires: bool) -> None:
    tiny = tenants(parameters=5, gradients=0, optimizer=0, activations=0, temporary=0, buffers=0)
    assert isinstance(init_spike(memory_run(tiny, init=(start(mib),)), None), Finding) == fires


def test_a_tenth_above_the_steps_is_a_spike() -> None:
    assert isinstance(init_spike(memory_run(tenants(activations=14), init=(start(66),)), None), Finding)


def test_one_rank_alone_is_not_one_of_many() -> None:
    assert found(memory_run(ranks=1, init=(start(100),))).sentence.startswith("rank 0 holds")
