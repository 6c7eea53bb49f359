"""init_spike: more before the first step than in any step, on the same rank and device."""

import pytest
from msgspec.structs import replace

from tests.support.peaks import FACTS, MIB, memory_run, rank_memory, tenants, with_rank
from tests.support.rule_runs import Run, found, judged
from zprof.analysis.analysis import RunAnalysis
from zprof.causes.init_spike import CAUSE as init_spike
from zprof.model.memory import AllocatorCounters, RankMemory
from zprof.model.tenants import Tenant

NOTHING = dict.fromkeys(tenants(), 0)
COUNTER = AllocatorCounters(
    rank=0, device="cpu", peak_allocated_bytes=100 * MIB, peak_reserved_bytes=None, retries=0, ooms=0
)


def start(mib: float, rank: int = 0, device: str = "cpu") -> RankMemory:
    return rank_memory(NOTHING | {Tenant.PARAMETERS: round(mib * MIB)}, rank=rank, device=device)


def started(*mib: float, **more: object) -> RunAnalysis:
    """Each rank holds so much before its first step, and 66 MiB in its steps."""
    return memory_run(init=tuple(start(size, rank) for rank, size in enumerate(mib)), **more)  # type: ignore[arg-type]


def tiny(mib: float) -> RunAnalysis:
    """The steps hold 5 MiB."""
    return memory_run(NOTHING | {Tenant.PARAMETERS: 5 * MIB}, init=(start(mib),))


def snapshot() -> RunAnalysis:
    return replace(memory_run(), run=replace(memory_run().run, source="snapshot"))


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: started(66 * 1.101), "high"),
        (lambda: memory_run(tenants(activations=14), init=(start(66),)), "high"),
        (lambda: tiny(6), "high"),
        (lambda: started(50), None),
        (lambda: memory_run(device="cuda:0", init=(start(500),)), None),  # another device
        # the allocator's maximum says that something was higher; what was watched is believed before it
        (lambda: memory_run(counters=(COUNTER,)), "low"),
        (lambda: started(50, counters=(COUNTER,)), None),
        (lambda: with_rank(memory_run(counters=(COUNTER,)), lower_bound=True), "gap"),
        (memory_run, "gap"),
        (lambda: memory_run(facts=replace(FACTS, engine="reference")), None),
        (snapshot, None),
        (lambda: memory_run(per_rank=()), None),
    ],
)
def test_thresholds(run: Run, expected: str | None) -> None:
    assert judged(init_spike, run()) == expected


def test_a_whole_model_on_every_rank_or_on_the_one_that_loads() -> None:
    every, one = found(init_spike, started(100, 100, 100, 100)), found(init_spike, started(10, 100, 10, 10))
    assert (every.id, every.saving_bytes) == ("ZP208", (17 * MIB, 34 * MIB))
    assert ("broadcast" in every.fix, "broadcast" in one.fix) == (False, True)
    assert {fact.rank for fact in one.evidence} >= {1}


def test_the_largest_rank_bounds_what_a_spike_on_another_one_frees() -> None:
    run = started(10, 100)
    first, second, *others = run.memory.per_rank
    lower = (first, replace(second, peak_bytes=40 * MIB), *others)
    run = replace(run, memory=replace(run.memory, per_rank=lower))
    assert found(init_spike, run).saving_bytes == (17 * MIB, 34 * MIB)
