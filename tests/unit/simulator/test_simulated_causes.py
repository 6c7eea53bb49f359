"""Each cause does to a step what its name says, against the healthy plan that it is made from."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.simulated_fixes import plant_and_fix
from zprof.model.errors import BadInput
from zprof.model.findings import Cause
from zprof.simulator.causes import NONE, TIGHT, choose_affected_rank, plant
from zprof.simulator.plan import SimulationPlan
from zprof.simulator.simulate import simulate

BASE = SimulationPlan(units=4, steps=2, ranks=3)

#: The term that grows, by which share of the healthy step at least, and the healthy plan.
GROWS = {
    Cause.STRAGGLER_RANK: ("exposed_wait", 0.05, NONE),
    Cause.ROTATING_STRAGGLER: ("exposed_wait", 0.05, NONE),
    Cause.LATENCY_BOUND_COLLECTIVES: ("exposed_transfer", 0.05, NONE),
    Cause.UNITS_TOO_SMALL: ("exposed_transfer", 0.05, NONE),
    Cause.SINGLE_UNIT: ("exposed_transfer", 0.1, TIGHT),
    Cause.NO_PREFETCH: ("exposed_transfer", 0.2, TIGHT),
    Cause.RATE_LIMITED_PREFETCH: ("idle", 0.03, NONE),
    Cause.CPU_BOUND_LAUNCH: ("idle", 0.1, NONE),
    Cause.ALLOCATOR_RETRIES: ("idle", 0.05, NONE),
    Cause.COMM_SLOWS_COMPUTE: ("compute", 0.05, TIGHT),
    Cause.COMPUTE_BLOCKS_COMM: ("exposed_transfer", 0.05, TIGHT),
    Cause.LOW_BUS_BANDWIDTH: ("exposed_transfer", 0.2, NONE),
    Cause.SHARDING_SPANS_NODES: ("exposed_transfer", 0.2, NONE),
    Cause.FP32_REDUCE: ("exposed_transfer", 0.1, TIGHT),
    Cause.FP32_GATHER: ("exposed_transfer", 0.1, TIGHT),
    Cause.ACCUMULATION_SYNCS: ("exposed_transfer", 0.1, TIGHT),
    Cause.NEEDLESS_RESHARD_AFTER_FORWARD: ("exposed_transfer", 0.1, TIGHT),
    Cause.LAST_UNIT_REGATHERED: ("exposed_transfer", 0.02, NONE),
    Cause.OFFLOAD_ON_CRITICAL_PATH: ("exposed_memcpy", 0.02, NONE),
    Cause.BLOCKING_SYNC: ("idle", 0.03, NONE),
    Cause.DATA_LOADER: ("idle", 0.2, NONE),
    Cause.UNHIDDEN_OPTIMIZER_GATHER: ("exposed_transfer", 0.1, TIGHT),
    Cause.COPY_OVERHEAD: ("compute", 0.1, NONE),
    Cause.LOST_COMPUTE_EFFICIENCY: ("compute", 0.2, NONE),
}
#: How many times as many bytes a step moves.
MOVES = {
    Cause.ACCUMULATION_REGATHERS: (3.0, TIGHT),
    Cause.CHECKPOINT_REGATHERS: (4 / 3, TIGHT),
    Cause.UNEVEN_SHAPES: (1.15, NONE),
}


def ledger(plan: SimulationPlan, folder: Path) -> dict[str, float]:
    """The mean over the ranks of each term of the second step, in ns."""
    steps = [step for step in simulate(plan, folder).per_step if step.step == 1]
    names = ("wall", "compute", "exposed_wait", "exposed_transfer", "exposed_memcpy", "idle")
    return {name: sum(getattr(step, f"{name}_ns") for step in steps) / len(steps) for name in names}


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    folder = tmp_path_factory.mktemp("healthy")
    return {name: ledger(plant(BASE, name), folder) for name in (NONE, TIGHT)}


@pytest.mark.parametrize("cause", GROWS)
def test_a_cause_shows_in_its_term_until_it_is_fixed(
    cause: Cause, healthy: dict[str, dict[str, float]], tmp_path: Path
) -> None:
    term, share, without = GROWS[cause]
    before, after = healthy[without], ledger(plant(BASE, cause), tmp_path)
    assert after[term] - before[term] > share * before["wall"]
    assert ledger(plant_and_fix(BASE, cause), tmp_path)["wall"] < after["wall"]


@pytest.mark.parametrize("cause", MOVES)
def test_a_cause_moves_more_bytes(cause: Cause, tmp_path: Path) -> None:
    times, without = MOVES[cause]
    before, after = (simulate(plant(BASE, each), tmp_path).step_bytes for each in (without, cause))
    assert after == pytest.approx(times * before, rel=0.02)


@pytest.mark.parametrize("cause", [Cause.STRAGGLER_RANK, Cause.LOW_BUS_BANDWIDTH, Cause.DATA_LOADER])
def test_more_strength_is_worse(cause: Cause, tmp_path: Path) -> None:
    walls = [ledger(plant(BASE, cause, strength), tmp_path)["wall"] for strength in (0.5, 1, 2)]
    assert walls[0] < walls[1] < walls[2]


@pytest.mark.parametrize("seed", [0, 2])
def test_the_straggler_is_the_rank_that_the_seed_names(seed: int, tmp_path: Path) -> None:
    plan = plant(replace(BASE, seed=seed), Cause.STRAGGLER_RANK)
    rows = simulate(plan, tmp_path).collectives
    assert {row.late_rank for row in rows if row.lead_ns > 500_000} == {choose_affected_rank(plan)}


@pytest.mark.parametrize("strength", [0.0, -1.0, 1e6, float("nan")])
def test_a_strength_that_makes_no_sense_is_refused(strength: float) -> None:
    with pytest.raises(BadInput, match="strength"):
        plant(BASE, Cause.STRAGGLER_RANK, strength)
