"""Each cause does to a step what its name says, against the healthy plan that it is made from."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from zprof.model.errors import BadInput
from zprof.simulator.causes import PRESETS, Cause, choose_victim, plant
from zprof.simulator.fixes import plant_and_fix
from zprof.simulator.plan import Plan, Vendor
from zprof.simulator.simulate import simulate

BASE = Plan(units=4, steps=2)
TERMS = ("wall", "compute", "exposed_wait", "exposed_transfer", "exposed_memcpy", "idle", "count", "bytes")


@dataclass(frozen=True)
class Ledger:
    wall: float
    compute: float
    exposed_wait: float
    exposed_transfer: float
    exposed_memcpy: float
    idle: float
    count: float
    bytes: float


def ledger(plan: Plan, folder: Path) -> Ledger:
    truth = simulate(plan, folder)
    steps = [step for step in truth.per_step if step.step == 1]
    sums = {name: sum(getattr(step, f"{name}_ns") for step in steps) / len(steps) for name in TERMS[:6]}
    return Ledger(**sums, count=len(truth.collectives), bytes=truth.step_bytes)


def grows(name: str, share: float) -> Callable[[Ledger, Ledger], bool]:
    """The term grows by at least this share of the healthy step."""
    return lambda healthy, sick: getattr(sick, name) - getattr(healthy, name) > share * healthy.wall


def times(name: str, factor: float) -> Callable[[Ledger, Ledger], bool]:
    return lambda healthy, sick: (
        getattr(sick, name) == pytest.approx(factor * getattr(healthy, name), rel=0.02)
    )


#: What grows, and against which healthy plan.
EFFECTS: dict[Cause, tuple[Callable[[Ledger, Ledger], bool], Cause]] = {
    Cause.STRAGGLER_RANK: (grows("exposed_wait", 0.05), Cause.NONE),
    Cause.ROTATING_STRAGGLER: (grows("exposed_wait", 0.05), Cause.NONE),
    Cause.LATENCY_BOUND_COLLECTIVES: (grows("exposed_transfer", 0.05), Cause.NONE),
    Cause.UNITS_TOO_SMALL: (grows("exposed_transfer", 0.05), Cause.NONE),
    Cause.SINGLE_UNIT: (grows("exposed_transfer", 0.1), Cause.TIGHT),
    Cause.NO_PREFETCH: (grows("exposed_transfer", 0.2), Cause.TIGHT),
    Cause.RATE_LIMITED_PREFETCH: (grows("idle", 0.03), Cause.NONE),
    Cause.CPU_BOUND_LAUNCH: (grows("idle", 0.1), Cause.NONE),
    Cause.ALLOCATOR_RETRIES: (grows("idle", 0.05), Cause.NONE),
    Cause.COMM_SLOWS_COMPUTE: (grows("compute", 0.05), Cause.TIGHT),
    Cause.COMPUTE_BLOCKS_COMM: (grows("exposed_transfer", 0.05), Cause.TIGHT),
    Cause.LOW_BUS_BANDWIDTH: (grows("exposed_transfer", 0.2), Cause.NONE),
    Cause.SHARDING_SPANS_NODES: (grows("exposed_transfer", 0.2), Cause.NONE),
    Cause.FP32_REDUCE: (grows("exposed_transfer", 0.1), Cause.TIGHT),
    Cause.FP32_GATHER: (grows("exposed_transfer", 0.1), Cause.TIGHT),
    Cause.ACCUMULATION_SYNCS: (grows("exposed_transfer", 0.1), Cause.TIGHT),
    Cause.ACCUMULATION_REGATHERS: (times("bytes", 3.0), Cause.TIGHT),
    Cause.NEEDLESS_RESHARD_AFTER_FORWARD: (grows("exposed_transfer", 0.1), Cause.TIGHT),
    Cause.LAST_UNIT_REGATHERED: (grows("exposed_transfer", 0.02), Cause.NONE),
    Cause.CHECKPOINT_REGATHERS: (times("bytes", 4 / 3), Cause.TIGHT),
    Cause.OFFLOAD_ON_CRITICAL_PATH: (grows("exposed_memcpy", 0.02), Cause.NONE),
    Cause.BLOCKING_SYNC: (grows("idle", 0.03), Cause.NONE),
    Cause.DATA_LOADER: (grows("idle", 0.2), Cause.NONE),
    Cause.UNHIDDEN_OPTIMIZER_GATHER: (grows("exposed_transfer", 0.1), Cause.TIGHT),
    Cause.COPY_OVERHEAD: (grows("compute", 0.1), Cause.NONE),
    Cause.UNEVEN_SHAPES: (times("bytes", 1.15), Cause.NONE),
    Cause.LOST_COMPUTE_EFFICIENCY: (grows("compute", 0.2), Cause.NONE),
}


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> dict[Cause, Ledger]:
    names = {name for _, name in EFFECTS.values()}
    return {name: ledger(plant(BASE, name), tmp_path_factory.mktemp("healthy")) for name in names}


@pytest.mark.parametrize("cause", EFFECTS)
def test_a_cause_shows_where_it_should(cause: Cause, healthy: dict[Cause, Ledger], tmp_path: Path) -> None:
    effect, without = EFFECTS[cause]
    before, after = healthy[without], ledger(plant(BASE, cause), tmp_path)
    assert effect(before, after), f"{before} -> {after}"
    assert not effect(before, before)


@pytest.mark.parametrize(
    "cause", [Cause.STRAGGLER_RANK, Cause.LOW_BUS_BANDWIDTH, Cause.DATA_LOADER, Cause.CPU_BOUND_LAUNCH]
)
def test_more_strength_is_worse(cause: Cause, tmp_path: Path) -> None:
    walls = [ledger(plant(BASE, cause, strength), tmp_path).wall for strength in (0.5, 1, 2)]
    assert walls[0] < walls[1] < walls[2]


def test_every_cause_is_planted_somewhere_and_runs_on_every_vendor(tmp_path: Path) -> None:
    assert set(PRESETS) == set(Cause)
    assert set(EFFECTS) == set(Cause) - {Cause.NONE, Cause.TIGHT, Cause.MEASUREMENT_ARTIFACT}
    for cause in Cause:
        vendor = list(Vendor)[zlib.crc32(cause.encode()) % 3]
        plan = plant(replace(BASE, vendor=vendor, units=2, steps=1, ranks=2), cause)
        truth = simulate(plan, tmp_path)
        assert truth.cause == cause


def test_small_units_are_called_parts_of_their_blocks() -> None:
    healthy = replace(BASE, units=2)
    small = plant(healthy, Cause.UNITS_TOO_SMALL, 0.625)
    names = [small.unit_name(unit) for unit in range(small.units)]
    assert names[:2] == ["layers.0.attn.wq", "layers.0.attn.wk"]
    assert names[9:11] == ["layers.0.experts.1", "layers.1.attn.wq"]
    assert len(set(names)) == 2 * 10
    cure = plant_and_fix(healthy, Cause.UNITS_TOO_SMALL, 0.625)
    assert [cure.unit_name(unit) for unit in range(cure.units)] == ["layers.0", "layers.1"]


def test_the_straggler_is_the_rank_that_the_seed_names(tmp_path: Path) -> None:
    for seed in (0, 2):
        plan = plant(replace(BASE, seed=seed), Cause.STRAGGLER_RANK)
        late = [row.late_rank for row in simulate(plan, tmp_path).collectives if row.lead_ns > 500_000]
        assert late
        assert set(late) == {choose_victim(plan)}


def test_recordings_of_an_artifact_open_at_different_times(tmp_path: Path) -> None:
    truth = simulate(plant(BASE, Cause.MEASUREMENT_ARTIFACT), tmp_path)
    assert len({rank.opens_ns for rank in truth.per_rank}) == truth.ranks
    waits = [row.wait_ns for row in truth.collectives if row.step == 0]
    later = [row.wait_ns for row in truth.collectives if row.step > 0]
    assert max(waits) > 5 * max(later)


def test_a_strength_that_makes_no_sense_is_refused() -> None:
    for strength in (0.0, -1.0, 1e6, float("nan")):
        with pytest.raises(BadInput, match="strength"):
            plant(BASE, Cause.STRAGGLER_RANK, strength)


WRONG: tuple[dict[str, Any], ...] = (
    {"ranks": 0},
    {"ranks": 1025},
    {"stage": 4},
    {"units": 0},
    {"units_per_block": 0},
    {"prefetch": -1},
    {"tensor": 3},
    {"speed": {0: 0.0}},
    {"missing": (0, 1, 2, 3)},
    {"vendor": "gloo"},
    {"bucket_bytes": 1},
)


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_plans_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=next(iter(wrong))):
        Plan(**wrong)
