"""Each cause does to a step what its name says, against the healthy plan that it is made from."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.simulated_fixes import plant_and_fix
from zprof.base.errors import BadInput
from zprof.simulator.causes import NONE, TIGHT, choose_affected_rank, plant
from zprof.simulator.plan import SimulationPlan
from zprof.simulator.simulate import simulate

BASE = SimulationPlan(units=4, steps=2, ranks=3)

#: The term that grows, by which share of the healthy step at least, and the healthy plan.
GROWS = {
    "straggler_rank": ("exposed_wait", 0.05, NONE),
    "rotating_straggler": ("exposed_wait", 0.05, NONE),
    "latency_bound_collectives": ("exposed_transfer", 0.05, NONE),
    "units_too_small": ("exposed_transfer", 0.05, NONE),
    "single_unit": ("exposed_transfer", 0.1, TIGHT),
    "no_prefetch": ("exposed_transfer", 0.2, TIGHT),
    "rate_limited_prefetch": ("idle", 0.03, NONE),
    "cpu_bound_launch": ("idle", 0.1, NONE),
    "allocator_retries": ("idle", 0.05, NONE),
    "comm_slows_compute": ("compute", 0.05, TIGHT),
    "compute_blocks_comm": ("exposed_transfer", 0.05, TIGHT),
    "low_bus_bandwidth": ("exposed_transfer", 0.2, NONE),
    "sharding_spans_nodes": ("exposed_transfer", 0.2, NONE),
    "fp32_reduce": ("exposed_transfer", 0.1, TIGHT),
    "fp32_gather": ("exposed_transfer", 0.1, TIGHT),
    "accumulation_syncs": ("exposed_transfer", 0.1, TIGHT),
    "needless_reshard_after_forward": ("exposed_transfer", 0.1, TIGHT),
    "last_unit_regathered": ("exposed_transfer", 0.02, NONE),
    "offload_on_critical_path": ("exposed_memcpy", 0.02, NONE),
    "blocking_sync": ("idle", 0.03, NONE),
    "data_loader": ("idle", 0.2, NONE),
    "unhidden_optimizer_gather": ("exposed_transfer", 0.1, TIGHT),
    "copy_overhead": ("compute", 0.1, NONE),
    "lost_compute_efficiency": ("compute", 0.2, NONE),
}
#: How many times as many bytes a step moves.
MOVES = {
    "accumulation_regathers": (3.0, TIGHT),
    "checkpoint_regathers": (4 / 3, TIGHT),
    "uneven_shapes": (1.15, NONE),
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
    cause: str, healthy: dict[str, dict[str, float]], tmp_path: Path
) -> None:
    term, share, without = GROWS[cause]
    before, after = healthy[without], ledger(plant(BASE, cause), tmp_path)
    assert after[term] - before[term] > share * before["wall"]
    assert ledger(plant_and_fix(BASE, cause), tmp_path)["wall"] < after["wall"]


@pytest.mark.parametrize("cause", MOVES)
def test_a_cause_moves_more_bytes(cause: str, tmp_path: Path) -> None:
    times, without = MOVES[cause]
    before, after = (simulate(plant(BASE, each), tmp_path).step_bytes for each in (without, cause))
    assert after == pytest.approx(times * before, rel=0.02)


@pytest.mark.parametrize("cause", ["straggler_rank", "low_bus_bandwidth", "data_loader"])
def test_more_strength_is_worse(cause: str, tmp_path: Path) -> None:
    walls = [ledger(plant(BASE, cause, strength), tmp_path)["wall"] for strength in (0.5, 1, 2)]
    assert walls[0] < walls[1] < walls[2]


@pytest.mark.parametrize("seed", [0, 2])
def test_the_straggler_is_the_rank_that_the_seed_names(seed: int, tmp_path: Path) -> None:
    plan = plant(replace(BASE, seed=seed), "straggler_rank")
    rows = simulate(plan, tmp_path).collectives
    assert {row.late_rank for row in rows if row.lead_ns > 500_000} == {choose_affected_rank(plan)}


@pytest.mark.parametrize("strength", [0.0, -1.0, 1e6, float("nan")])
def test_a_strength_that_makes_no_sense_is_refused(strength: float) -> None:
    with pytest.raises(BadInput, match="strength"):
        plant(BASE, "straggler_rank", strength)
