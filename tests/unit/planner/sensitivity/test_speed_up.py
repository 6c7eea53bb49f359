"""Super-linear speed-up taken apart: 6e10 parameters on 64 to 400 devices (table 6 of the paper)."""

import pytest
from msgspec.structs import replace

from tests.support.planned_jobs import of_preset
from zprof.model.job import Batch, Degrees, Job, ModelUnit, Residual, Shape
from zprof.model.machines import H100, V100, Hardware
from zprof.model.plan import Scheme
from zprof.planner.gpt_units import with_units
from zprof.planner.plan import plan
from zprof.planner.sensitivity import (
    analyze_sensitivity,
    compute_speed_up,
    find_max_samples,
)
from zprof.planner.unit_times import UnitStack, stack_units

BLOCK = 12 * 8192**2
DEGREES = (4, 8, 16, 25)


def sixty_billion(dp: int = 4, hardware: Hardware = V100, **residual: bool) -> Job:
    return Job(
        parameters=75 * BLOCK,
        shape=Shape(layers=75, hidden=8192),
        units=tuple(ModelUnit(name=f"b{i}", elements=BLOCK // 16) for i in range(75)),
        degrees=Degrees(dp=dp, mp=16),
        batch=Batch(samples=16, sequence=1024),
        residual=Residual(**(residual or {"checkpointing": True, "partition": True})),
        hardware=hardware,
    )


def named(dp: int = 64, mp: int = 1, residual: Residual | None = None) -> Job:
    job = of_preset("7.5b", H100, Degrees(dp=dp, mp=mp))
    return replace(job, residual=residual or job.residual)


def stack() -> UnitStack:
    found = stack_units(sixty_billion())
    assert found is not None
    return found


def test_the_speed_up_is_the_larger_batch() -> None:
    found = compute_speed_up(sixty_billion(), stack(), DEGREES, Scheme.ZERO_2)
    assert [row.devices for row in found] == [64, 128, 256, 400]
    assert found[0].whole_ratio == found[0].equal_batch_ratio == found[0].larger_batch_ratio == 1.0
    for row in found:
        assert row.whole_ratio == pytest.approx(row.equal_batch_ratio * row.larger_batch_ratio)
        assert row.equal_batch_ratio <= 1.0  # sharding over more ranks moves no less
    for series in ([row.samples for row in found], [row.whole_ratio for row in found]):
        assert series == sorted(set(series))


def test_a_world_in_which_nothing_fits_is_left_out() -> None:
    small = sixty_billion(hardware=replace(V100, memory_bytes=15 * 10**9))
    found = compute_speed_up(small, stack(), DEGREES, Scheme.ZERO_2)
    assert [row.devices for row in found] == [128, 256, 400]
    assert compute_speed_up(replace(small, shape=None), stack(), DEGREES) == ()


@pytest.mark.parametrize(
    ("dp", "mp", "residual"),
    [
        (8, 1, Residual(checkpointing=True)),
        (1024, 1, Residual()),
        (64, 8, Residual(checkpointing=True, partition=True, offload=True)),
    ],
)
def test_the_samples_fit_by_the_plan_and_one_more_does_not(dp: int, mp: int, residual: Residual) -> None:
    job = named(dp, mp, residual)
    count, is_upper_bound = find_max_samples(job, Scheme.ZERO_3)
    assert not is_upper_bound
    assert count >= 1
    for samples, fits in ((count, True), (count + 1, False)):
        there = replace(job, batch=Batch(samples=samples, sequence=1024))
        assert plan(there, schemes=[Scheme.ZERO_3]).rows[0].fits is fits


def test_the_samples_of_counted_units_are_an_upper_bound_and_those_of_a_named_model_are_not() -> None:
    found = analyze_sensitivity(named()).speed_up
    assert not any(row.at_most for row in found)
    [stated] = [row for row in found if row.devices == 64]
    assert find_max_samples(named(), Scheme.ZERO_3) == (stated.samples, False)
    assert find_max_samples(with_units(named()), Scheme.ZERO_3)[1]
    # Checkpoints on the host still leave the work of a block.
    away = sixty_billion(checkpointing=True, partition=True, offload=True)
    count, is_upper_bound = find_max_samples(away, Scheme.ZERO_3)
    assert is_upper_bound
    assert count < 1000
