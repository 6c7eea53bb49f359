"""What ZeRO-3 of a model of 1e12 parameters on 1024 devices answers, and the series behind it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.planned_jobs import trillion
from zprof.model.job import Batch, Degrees, ElementBytes, Job, Residual, Shape
from zprof.model.machines import H100, MACHINES, V100, Hardware
from zprof.planner.sensitivity import (
    MIN_SPEED_RATIO,
    analyze_sensitivity,
    compute_speed_ratio,
    find_min_tokens,
    with_bandwidth,
    with_tokens,
)
from zprof.planner.unit_times import UnitStack, stack_units

SHAPE = Shape(layers=128, hidden=25600)


def open_question(hardware: Hardware | None = None, tokens: int | None = None) -> Job:
    """1e12 parameters flat on 1024 devices."""
    batch = Batch() if tokens is None else Batch(samples=1, sequence=tokens)
    return replace(trillion(V100, 512), hardware=hardware, batch=batch, shape=SHAPE)


def stack(job: Job) -> UnitStack:
    found = stack_units(job)
    assert found is not None
    return found


def test_break_even_of_each_kind_of_hardware() -> None:
    """T* = b F eta / (2 beta); the whole step keeps its speed at half the bandwidth from about there on."""
    found = analyze_sensitivity(open_question())
    table = {(row.hardware, row.bandwidth_ratio): round(row.forward_tokens) for row in found.break_even}
    assert table == {
        ("v100", 1.0): 375,
        ("v100", 0.75): 500,
        ("v100", 0.5): 750,
        ("a100", 1.0): 702,
        ("a100", 0.75): 936,
        ("a100", 0.5): 1404,
        ("h100", 1.0): 1099,
        ("h100", 0.75): 1465,
        ("h100", 0.5): 2198,
    }
    for row in found.break_even:
        assert row.backward_tokens == pytest.approx(row.forward_tokens * 2 / 3)
        if row.bandwidth_ratio == 0.5:
            assert row.holds_from_tokens == pytest.approx(row.forward_tokens, rel=0.02)
    assert found.answers
    assert (found.bandwidth, found.latency, found.tokens, found.world, found.speed_up) == ((),) * 5


def test_the_backward_gathers_and_reduces_each_in_its_own_type() -> None:
    for sizes, ratio in ((ElementBytes(), 1), (ElementBytes(gathered=2, reduced=4), (2 + 4) / (2 * 2))):
        plain = replace(open_question(H100), element_bytes=sizes, residual=Residual())
        whole = analyze_sensitivity(plain).break_even[0]
        assert whole.backward_tokens == pytest.approx(whole.forward_tokens * ratio)


@settings(max_examples=20)
@given(st.sampled_from(list(MACHINES.values())), st.floats(0.1, 1.0), st.sampled_from((8, 32, 1024)))
def test_the_speed_holds_from_the_fewest_tokens_on_and_not_before(
    hardware: Hardware, ratio: float, dp: int
) -> None:
    job = with_bandwidth(replace(open_question(hardware), degrees=Degrees(dp=dp)), ratio)
    tokens = find_min_tokens(job, stack(job))
    assert tokens is not None
    before, at, later = (
        compute_speed_ratio(with_tokens(job, count), stack(job)) or 0
        for count in (tokens - 1, tokens, 3 * tokens)
    )
    assert before < MIN_SPEED_RATIO <= at <= later


def test_the_world_grows_from_one_node_to_1024_devices_or_the_jobs_own() -> None:
    found = analyze_sensitivity(open_question(V100, 512)).world
    assert [point.devices for point in found] == [16, 32, 64, 128, 256, 512, 1024]
    assert found[-1].state_bytes == 128 * 12 * 25600**2 * 16 // 1024
    assert len({point.compute_ns for point in found}) == 1
    assert [point.exposed_ns for point in found] == sorted(point.exposed_ns for point in found)
    split = replace(open_question(H100, 512), degrees=Degrees(dp=300, mp=16))
    sizes = [point.devices for point in analyze_sensitivity(split).world]
    assert sizes == [16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 4800]


def test_what_is_left_out_where_it_is_unknown_or_nothing_is_moved() -> None:
    no_units = analyze_sensitivity(Job(parameters=10**12, degrees=Degrees(dp=1024), hardware=V100))
    assert [round(row.forward_tokens) for row in no_units.break_even] == [375, 500, 750]
    assert {row.holds_from_tokens for row in no_units.break_even} == {None}
    assert no_units.tokens == ()
    one_rank = analyze_sensitivity(replace(open_question(V100, 512), degrees=Degrees()))
    assert one_rank.break_even == ()
    one_node = analyze_sensitivity(replace(open_question(V100, 512), degrees=Degrees(dp=16)))
    assert len({point.wall_ns for point in (*one_node.bandwidth, *one_node.latency)}) == 1
