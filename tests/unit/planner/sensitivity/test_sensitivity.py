"""What ZeRO-3 of a model of 1e12 parameters on 1024 devices answers, and the series behind it."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.planned_jobs import trillion
from zprof.model.job import Batch, Degrees, ElementBytes, Hardware, Job, Overlap, Residual, Shape
from zprof.model.plan import Scheme
from zprof.planner.hardware import A100, H100, PRESETS, V100
from zprof.planner.sensitivity.break_even import KEPT_RATIO, find_min_tokens, kept_speed_ratio
from zprof.planner.sensitivity.conditions import split_units, with_bandwidth, with_tokens
from zprof.planner.sensitivity.series import analyze_sensitivity
from zprof.planner.step.ledger import plan_step, plan_step_of_stack
from zprof.planner.step.unit_times import Stack, stack_units

SHAPE = Shape(layers=128, hidden=25600)


def open_question(hardware: Hardware | None = None, tokens: int | None = None) -> Job:
    """1e12 parameters flat on 1024 devices."""
    batch = Batch() if tokens is None else Batch(samples=1, sequence=tokens)
    return replace(trillion(V100, 512), hardware=hardware, batch=batch, shape=SHAPE)


def stack(job: Job) -> Stack:
    found = stack_units(job)
    assert found is not None
    return found


def test_break_even_of_each_kind() -> None:
    found = analyze_sensitivity(open_question()).break_even
    table = {(row.hardware, row.bandwidth_ratio): round(row.forward_tokens) for row in found}
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
    assert all(row.backward_tokens == pytest.approx(row.forward_tokens * 2 / 3) for row in found)
    plain = analyze_sensitivity(replace(open_question(), residual=Residual())).break_even
    assert all(row.backward_tokens == pytest.approx(row.forward_tokens) for row in plain)


def test_the_backward_gathers_and_reduces_each_in_its_own_type() -> None:
    wide = replace(
        open_question(H100), element_bytes=ElementBytes(gathered=2, reduced=4), residual=Residual()
    )
    [whole, *_] = analyze_sensitivity(wide).break_even
    assert whole.backward_tokens == pytest.approx(whole.forward_tokens * (2 + 4) / (2 * 2))


def test_stages_of_a_pipeline_are_data_parallel_ranks_of_zero() -> None:
    """ZeRO-3 has no stages: what is stated as 8 x 4 devices is 32 ranks, in the points as in the answers."""
    stated = replace(open_question(H100, 512), degrees=Degrees(dp=8, pp=4))
    flat = replace(stated, degrees=Degrees(dp=32))
    assert analyze_sensitivity(stated) == analyze_sensitivity(flat)


@pytest.mark.parametrize(("hardware", "about"), [(V100, 750), (A100, 1400), (H100, 2200)])
def test_tokens_from_which_it_holds_at_half_the_bandwidth(hardware: Hardware, about: int) -> None:
    found = analyze_sensitivity(open_question(hardware)).break_even
    [half] = [row for row in found if row.bandwidth_ratio == 0.5]
    assert half.kept_ratio == KEPT_RATIO
    assert half.holds_from_tokens == pytest.approx(about, rel=0.02)


@settings(max_examples=20)
@given(st.sampled_from(list(PRESETS.values())), st.floats(0.1, 1.0), st.sampled_from((8, 32, 1024)))
def test_it_holds_from_there_on_and_not_before(hardware: Hardware, ratio: float, dp: int) -> None:
    job = with_bandwidth(replace(open_question(hardware), degrees=Degrees(dp=dp)), ratio)
    units = stack(job)
    tokens = find_min_tokens(job, units)
    assert tokens is not None
    at, later, before = (
        kept_speed_ratio(with_tokens(job, count), units) for count in (tokens, 3 * tokens, tokens - 1)
    )
    assert at is not None
    assert later is not None
    assert before is not None
    assert before < KEPT_RATIO <= at <= later


def test_it_is_asked_of_what_data_parallelism_moves_not_of_model_parallelism() -> None:
    """All-reduces of model parallelism are exposed at any number of tokens."""
    job = replace(open_question(V100), degrees=Degrees(dp=64, mp=16))
    tokens = find_min_tokens(job, stack(job))
    assert tokens is not None
    found = plan_step(with_tokens(job, tokens), Scheme.ZERO_3)
    assert found is not None
    assert found.efficiency_ratio < KEPT_RATIO


def test_series_hold_the_table_of_1t() -> None:
    found = analyze_sensitivity(replace(open_question(H100, 512), overlap=Overlap(keep_last=True)))
    steps = {(point.tokens, point.bandwidth_ratio): f"{point.wall_ns / 1e9:.1f}" for point in found.tokens}
    for tokens, printed in {
        512: ("18.0", "23.5", "34.7"),
        1024: ("21.7", "23.6", "34.8"),
        2048: ("41.8", "41.8", "43.0"),
    }.items():
        assert tuple(steps[tokens, ratio] for ratio in (1.0, 0.75, 0.5)) == printed
    assert [f"{point.wall_ns / 1e9:.1f}" for point in found.bandwidth] == ["18.0", "23.5", "34.7"]
    assert [f"{point.wall_ns / 1e9:.1f}" for point in found.latency] == ["17.7", "18.0", "19.9", "22.4"]
    assert [point.latency_ns for point in found.latency] == [5_000, 10_000, 50_000, 100_000]


def test_world_from_one_node_to_1024_devices() -> None:
    found = analyze_sensitivity(open_question(V100, 512)).world
    assert [point.devices for point in found] == [16, 32, 64, 128, 256, 512, 1024]
    assert found[-1].state_bytes == 128 * 12 * 25600**2 * 16 // 1024
    assert all(point.compute_ns == found[0].compute_ns for point in found)
    assert [point.exposed_ns for point in found] == sorted(point.exposed_ns for point in found)


def test_world_at_a_given_model_parallel_degree() -> None:
    job = replace(open_question(H100, 512), degrees=Degrees(dp=300, mp=16))
    found = analyze_sensitivity(job).world
    assert [point.devices for point in found] == [16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 4800]


def test_without_a_batch_series_stand_below_the_break_even() -> None:
    for hardware, tokens in ((V100, 256), (A100, 512), (H100, 1024)):
        assert {point.tokens for point in analyze_sensitivity(open_question(hardware)).bandwidth} == {tokens}


def test_without_hardware_there_are_answers_and_no_series() -> None:
    found = analyze_sensitivity(open_question())
    each = [
        f"{row.holds_from_tokens:,} ({row.hardware})"
        for row in found.break_even
        if row.bandwidth_ratio == 0.5
    ]
    assert [row.hardware for row in found.break_even[::3]] == ["v100", "a100", "h100"]
    assert f"from {each[0]}, {each[1]} or {each[2]} tokens" in found.answers[0]
    assert len(found.answers) == 1 + 3 * 4
    series = (found.bandwidth, found.latency, found.tokens, found.world, found.speed_up)
    assert series == ((), (), (), (), ())


def test_kinds_of_which_one_node_is_enough_are_not_put_side_by_side() -> None:
    found = analyze_sensitivity(replace(open_question(), degrees=Degrees(dp=8)))
    assert not any("at half the bandwidth" in sentence for sentence in found.answers)


def test_without_units_there_is_the_break_even_alone() -> None:
    found = analyze_sensitivity(Job(parameters=10**12, degrees=Degrees(dp=1024), hardware=V100))
    assert [round(row.forward_tokens) for row in found.break_even] == [375, 500, 750]
    assert {row.holds_from_tokens for row in found.break_even} == {None}
    assert found.answers[0] == (
        "v100, 1,024 devices: at half the bandwidth ZeRO-3 hides its gathers from 750 tokens of a device in "
        "a micro-batch on; what the whole step keeps needs the model's shape."
    )
    assert found.tokens == ()


def test_one_rank_has_nothing_to_hide() -> None:
    found = analyze_sensitivity(replace(open_question(V100, 512), degrees=Degrees()))
    assert found.break_even == ()
    assert "moves nothing" in found.answers[0]


def test_answers_for_1t_on_v100() -> None:
    job = replace(open_question(V100, 256), overlap=Overlap(keep_last=True))
    assert analyze_sensitivity(job).answers == (
        "v100, 1,024 devices: at half the bandwidth ZeRO-3 keeps 99 % of its speed from 738 tokens of a "
        "device in a micro-batch on. With 256 tokens it keeps 45 %.",
        "v100, 1,024 devices: ZeRO-3 needs 15.7 GB of states and 31.5 GB of gathered units, of 32.0 GB on a "
        "device: does not fit, 15.2 GB short.",
        "v100, 1,024 devices: compute hides a unit's gather from 375 (at 100 % of the bandwidth), 500 (at "
        "75 % of the bandwidth) or 750 (at 50 % of the bandwidth) tokens of a device in a micro-batch on.",
        "v100, 1,024 devices, 256 tokens: 100 µs a hop between nodes instead of 10 µs makes a step of 61.9 s "
        "one of 63.8 s; with units a quarter as large, 64.3 s one of 73.2 s.",
    )


def test_one_node_has_no_network() -> None:
    found = analyze_sensitivity(replace(open_question(V100, 512), degrees=Degrees(dp=16)))
    assert found.answers[0] == (
        "v100, 16 devices: ZeRO-3 stays within a node, so that the network between nodes does not matter. "
        "Compute hides a unit's gather from 288 tokens of a device in a micro-batch on, and the step keeps "
        "99 % of its speed from 265 on."
    )
    assert len({point.wall_ns for point in (*found.bandwidth, *found.latency)}) == 1


def test_speed_up_is_said_in_a_sentence() -> None:
    found = analyze_sensitivity(open_question(H100, 1024))
    assert [row.devices for row in found.speed_up] == [512, 1024]
    few, many = (f"{row.samples:,}" for row in found.speed_up)
    assert few != many
    assert found.answers[-1] == (
        "With the most samples of a micro-batch that fit (at most: a part of the memory is not known), "
        f"{few} on 512 devices and {many} on 1,024, a device's throughput changes by 1.00 (not super-linear)"
        f": 1.00 with {few} on both, times 1.00 by {many} instead. What kernels gain from larger matrices is "
        "not in it; the table of world sizes keeps the job's own batch."
    )


def test_a_network_at_a_share_is_a_share_of_what_the_group_got() -> None:
    """The H100's bus is slower than its cards: half is half of the bus."""
    half = with_bandwidth(open_question(H100), 0.5).hardware
    assert half is not None
    assert half.node_bytes_per_s == 180e9
    split = with_bandwidth(replace(open_question(V100), degrees=Degrees(dp=64, mp=16)), 0.5).hardware
    assert split is not None
    assert split.node_bytes_per_s == 50e9
    alone = replace(open_question(H100), degrees=Degrees(dp=8))
    assert with_bandwidth(alone, 0.5) == alone


def test_units_in_parts_are_the_same_model() -> None:
    job = open_question(V100, 512)
    whole, parts = stack(job), split_units(stack(job), 4)
    assert (parts.blocks, parts.elements) == (4 * whole.blocks, whole.elements)
    steps = [plan_step_of_stack(job, Scheme.ZERO_3, units) for units in (whole, parts)]
    assert steps[0] is not None
    assert steps[1] is not None
    assert steps[1].compute_ns == pytest.approx(steps[0].compute_ns)


def test_a_hundred_thousand_layers_are_one_run_of_units() -> None:
    job = open_question(V100, 512)
    many = replace(job, units=job.units[:1] * 100_000, parameters=100_000 * job.units[0].elements)
    runs = stack(many).runs
    assert [run.count for run in runs] == [100_000]
    assert analyze_sensitivity(many).world
