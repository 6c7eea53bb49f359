"""Super-linear speed-up taken apart: 6e10 parameters on 64 to 400 devices (table 6 of the paper)."""

from dataclasses import replace

import pytest

from zprof.model.job import Batch, Degrees, Job, Residual, Shape, Unit
from zprof.model.plan import Scheme
from zprof.planner.gpt_units import with_units
from zprof.planner.hardware import H100, V100
from zprof.planner.memory.states import total_state_bytes
from zprof.planner.model_shapes import find_preset
from zprof.planner.plan import plan
from zprof.planner.sensitivity.answers import speed_up_sentences
from zprof.planner.sensitivity.series import analyze_sensitivity
from zprof.planner.sensitivity.speed_up import (
    MaxSamples,
    compute_speed_up,
    find_max_samples,
    micro_batch_activation_bytes,
)
from zprof.planner.step.ledger import plan_step_of_stack
from zprof.planner.step.unit_times import Stack, stack_units

BLOCK = 12 * 8192**2
DEGREES = (4, 8, 16, 25)


def sixty_billion(dp: int = 4) -> Job:
    return Job(
        parameters=75 * BLOCK,
        shape=Shape(layers=75, hidden=8192),
        units=tuple(Unit(name=f"b{i}", elements=BLOCK // 16) for i in range(75)),
        degrees=Degrees(dp=dp, mp=16),
        batch=Batch(samples=16, sequence=1024),
        residual=Residual(checkpointing=True, partition=True),
        hardware=V100,
    )


def stack() -> Stack:
    found = stack_units(sixty_billion())
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("dp", "samples", "states", "checkpoints"),
    [(4, 16, "20.76", "1.26"), (8, 48, "14.16", "3.77"), (16, 48, "10.85", "3.77"), (25, 64, "9.66", "5.03")],
)
def test_states_shrink_and_checkpoints_grow(dp: int, samples: int, states: str, checkpoints: str) -> None:
    job = sixty_billion(dp)
    kept = micro_batch_activation_bytes(job, samples)
    assert kept is not None
    assert f"{total_state_bytes(job, Scheme.ZERO_2) / 1e9:.2f}" == states
    assert f"{kept / 1e9:.2f}" == checkpoints
    assert samples <= find_max_samples(job, Scheme.ZERO_2).count


def test_the_speed_up_is_the_larger_batch() -> None:
    found = compute_speed_up(sixty_billion(), stack(), DEGREES, Scheme.ZERO_2)
    assert [row.devices for row in found] == [64, 128, 256, 400]
    assert found[0].whole_ratio == found[0].equal_batch_ratio == found[0].larger_batch_ratio == 1.0
    for row in found:
        assert row.whole_ratio == pytest.approx(row.equal_batch_ratio * row.larger_batch_ratio)
        assert row.equal_batch_ratio <= 1.0  # sharding over more ranks moves no less
    samples = [row.samples for row in found]
    wholes = [row.whole_ratio for row in found]
    assert samples == sorted(set(samples))
    assert wholes == sorted(set(wholes))
    assert found[-1].larger_batch_ratio > 1.0


def test_where_the_network_decides_the_larger_batch_is_super_linear() -> None:
    slow = replace(V100, node_bytes_per_s=10e9, memory_bytes=15_500_000_000)
    job = replace(sixty_billion(), hardware=slow)
    found = compute_speed_up(job, stack(), DEGREES)
    assert found[-1].whole_ratio > 1.5
    assert found[-1].equal_batch_ratio < 1.0
    [sentence] = speed_up_sentences(found)
    assert f"{found[-1].whole_ratio:.2f} (super-linear)" in sentence


def test_each_factor_is_a_quotient_of_throughputs() -> None:
    first, *_, last = compute_speed_up(sixty_billion(), stack(), DEGREES, Scheme.ZERO_2)

    def throughput(dp: int, samples: int) -> float:
        job = sixty_billion(dp)
        step = plan_step_of_stack(
            replace(job, batch=Batch(samples=samples, sequence=1024)), Scheme.ZERO_2, stack()
        )
        assert step is not None
        return samples / step.wall_ns

    start = throughput(4, first.samples)
    assert last.whole_ratio == pytest.approx(throughput(25, last.samples) / start)
    assert last.equal_batch_ratio == pytest.approx(throughput(25, first.samples) / start)


def test_a_world_in_which_nothing_fits_is_left_out() -> None:
    small = replace(sixty_billion(), hardware=replace(V100, memory_bytes=15 * 10**9))
    assert [row.devices for row in compute_speed_up(small, stack(), DEGREES, Scheme.ZERO_2)] == [
        128,
        256,
        400,
    ]


def test_gathered_units_take_their_place_in_stage_3() -> None:
    job = sixty_billion(25)
    sample = micro_batch_activation_bytes(job, 1)
    assert sample is not None
    sample += 2 * (8192 * 1024 + 11 * 8192 * 1024 // 16)  # the block that is computed again
    left = V100.memory_bytes - total_state_bytes(job, Scheme.ZERO_3) - 2 * 2 * BLOCK // 16
    assert find_max_samples(job, Scheme.ZERO_3) == MaxSamples(count=left // sample, at_most=True)


@pytest.mark.parametrize("dp", [8, 64, 1024])
@pytest.mark.parametrize(
    ("mp", "residual"),
    [
        (1, Residual(checkpointing=True)),
        (1, Residual()),
        (8, Residual(checkpointing=True, partition=True, offload=True)),
    ],
)
def test_the_samples_fit_by_the_plan_and_one_more_does_not(dp: int, mp: int, residual: Residual) -> None:
    named = find_preset("7.5b")
    job = Job(
        parameters=named.parameters,
        shape=named.shape,
        degrees=Degrees(dp=dp, mp=mp),
        batch=Batch(samples=1, sequence=1024),
        residual=residual,
        hardware=H100,
    )
    found = find_max_samples(job, Scheme.ZERO_3)
    assert not found.at_most
    assert found.count >= 1

    def fits(samples: int) -> bool | None:
        there = replace(job, batch=Batch(samples=samples, sequence=1024))
        return plan(there, schemes=[Scheme.ZERO_3]).rows[0].fits

    assert fits(found.count)
    assert not fits(found.count + 1)


def test_the_speed_up_of_a_named_model_is_no_upper_bound() -> None:
    named = find_preset("7.5b")
    job = Job(
        parameters=named.parameters,
        shape=named.shape,
        degrees=Degrees(dp=64),
        batch=Batch(samples=1, sequence=1024),
        residual=Residual(checkpointing=True),
        hardware=H100,
    )
    found = analyze_sensitivity(job).speed_up
    assert len(found) > 2
    assert not any(row.at_most for row in found)
    [stated] = [row for row in found if row.devices == 64]
    assert stated.samples == find_max_samples(job, Scheme.ZERO_3).count


def test_samples_whose_checkpoints_are_elsewhere_still_need_a_block_s_work() -> None:
    job = replace(sixty_billion(), residual=Residual(checkpointing=True, partition=True, offload=True))
    found = find_max_samples(job, Scheme.ZERO_3)
    assert found.at_most
    assert found.count < 1000


def test_units_of_the_job_s_own_do_not_say_their_bytes_at_another_batch() -> None:
    named = find_preset("7.5b")
    job = Job(
        parameters=named.parameters,
        shape=named.shape,
        degrees=Degrees(dp=64),
        batch=Batch(samples=1, sequence=1024),
        hardware=H100,
    )
    assert find_max_samples(with_units(job), Scheme.ZERO_3).at_most


@pytest.mark.parametrize(
    ("residual", "elements"),
    [
        (Residual(checkpointing=True), 75 * 8192 * 1024),
        (Residual(checkpointing=True, partition=True), 75 * 8192 * 1024 // 16),
        (Residual(checkpointing=True, partition=True, offload=True), 0),
        (Residual(), 75 * (8192 * 1024 + 11 * 8192 * 1024 // 16)),
    ],
)
def test_what_a_sample_keeps(residual: Residual, elements: int) -> None:
    assert micro_batch_activation_bytes(replace(sixty_billion(), residual=residual), 1) == 2 * elements


def test_unknown_shape_is_no_speed_up() -> None:
    assert compute_speed_up(replace(sixty_billion(), shape=None), stack(), DEGREES) == ()
