"""Model parallelism, partitioned checkpoints and pipelines: volumes, bubbles and what they cost."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zprof.model.job import Batch, Degrees, Job, Residual, Shape, Unit
from zprof.model.plan import Axis, LinkTraffic, PlannedStep, Scheme
from zprof.planner.hardware import V100
from zprof.planner.step.ledger import plan_step
from zprof.planner.step.parallelism import block_traffic, gpipe_flow, pipedream_flow, transfer_ns
from zprof.planner.step.traffic import plan_traffic

SHAPE = Shape(layers=16, hidden=8192)
TENSOR = 32 * 1024 * 8192


def job(mp: int = 1, pp: int = 1, dp: int = 1, **changes: object) -> Job:
    elements = 12 * SHAPE.hidden**2 // mp
    made = Job(
        parameters=16 * elements * mp,
        shape=SHAPE,
        units=tuple(Unit(name=f"b{i}", elements=elements) for i in range(16)),
        degrees=Degrees(dp=dp, mp=mp, pp=pp),
        batch=Batch(samples=32, sequence=1024),
        residual=Residual(checkpointing=True),
        hardware=V100,
    )
    return replace(made, **changes)


def step(made: Job, scheme: Scheme) -> PlannedStep:
    found = plan_step(made, scheme)
    assert found is not None
    return found


def along(made: Job, scheme: Scheme, axis: Axis) -> LinkTraffic:
    [found] = [link for link in plan_traffic(made, scheme) if link.axis is axis]
    return found


@pytest.mark.parametrize(("checkpointing", "times"), [(True, 12), (False, 8)])
def test_megatron_moves_so_many_tensors_a_block(checkpointing: bool, times: int) -> None:
    found = block_traffic(job(mp=16, residual=Residual(checkpointing=checkpointing)))
    assert found is not None
    assert found.elements == times * TENSOR


def test_partitioned_checkpoints_add_a_twelfth() -> None:
    plain = along(job(mp=16), Scheme.MODEL_PARALLEL, Axis.MODEL)
    split = along(
        job(mp=16, residual=Residual(checkpointing=True, partition=True)), Scheme.MODEL_PARALLEL, Axis.MODEL
    )
    assert 12 * (split.elements - plain.elements) == plain.elements
    assert plain.elements == 16 * 12 * TENSOR
    assert plain.bytes == 2 * plain.elements
    assert plain.ring_bytes == plain.bytes * 15 // 16
    assert plain.link == "intra"


def test_without_checkpoints_there_is_nothing_to_partition() -> None:
    found = block_traffic(job(mp=16, residual=Residual(partition=True, offload=True)))
    assert found is not None
    assert (found.elements, found.host_bytes) == (8 * TENSOR, 0)


def test_model_parallel_collectives_are_all_exposed() -> None:
    made = job(mp=16, residual=Residual(checkpointing=True, partition=True))
    found, link = step(made, Scheme.MODEL_PARALLEL), along(made, Scheme.MODEL_PARALLEL, Axis.MODEL)
    assert found.exposed_transfer_ns == found.collective_ns == link.time_ns
    ring = 13 * TENSOR * 2 * 16 * (15 / 16) / 130e9
    hops = 16 * (6 * 30 + 15) * 2_000 / 1e9
    assert found.collective_ns / 1e9 == pytest.approx(ring + hops)


def test_units_may_be_parts_of_a_block() -> None:
    made = job(mp=16)
    parts = tuple(Unit(name=f"u{i}", elements=unit.elements // 4) for unit in made.units for i in range(4))
    whole, split = step(made, Scheme.MODEL_PARALLEL), step(replace(made, units=parts), Scheme.MODEL_PARALLEL)
    assert split.exposed_transfer_ns == pytest.approx(whole.exposed_transfer_ns, rel=1e-6)


def test_checkpoints_on_the_host_go_out_and_in() -> None:
    made = job(mp=16, residual=Residual(checkpointing=True, partition=True, offload=True))
    link = along(made, Scheme.ZERO_2, Axis.HOST)
    assert link.bytes == 2 * 16 * TENSOR * 2 // 16
    assert link.link == "pcie"
    assert link.time_ns is not None
    assert link.time_ns / 1e9 == pytest.approx(link.bytes / V100.host_bytes_per_s)
    assert step(made, Scheme.ZERO_2).exposed_memcpy_ns == 0  # less than a block's compute
    slow = replace(V100, host_bytes_per_s=1e8)
    found = step(replace(made, hardware=slow), Scheme.ZERO_2)
    within = step(replace(made, residual=Residual(checkpointing=True, partition=True)), Scheme.ZERO_2)
    assert found.exposed_memcpy_ns == pytest.approx(
        link.bytes / 1e8 * 1e9 - within.compute_ns - within.exposed_transfer_ns, rel=1e-6
    )


@given(st.integers(1, 64), st.integers(1, 200), st.integers(1, 1000), st.integers(1, 1000))
def test_bubble_of_gpipe(stages: int, count: int, forward: int, backward: int) -> None:
    flow = gpipe_flow(
        stages=stages, micro_batches=count, forward_ns=forward, backward_ns=backward, transfer=0
    )
    whole = count * (forward + backward) + flow.idle_ns
    assert flow.exposed_ns == 0
    assert flow.idle_ns / whole == pytest.approx((stages - 1) / (count + stages - 1))


def by_events(stages: int, count: int, lengths: tuple[int, ...], transfer: int) -> int:
    """Micro-batches through the stages, each transfer on a link of its own."""
    end = 0
    for length in lengths:
        free, links = [end] * stages, [end] * stages
        for _ in range(count):
            ready = end
            for stage in range(stages):
                free[stage] = max(free[stage], ready) + length
                if stage < stages - 1:
                    links[stage] = max(links[stage], free[stage]) + transfer
                    ready = links[stage]
        end = free[-1]
    return end


@settings(max_examples=60)
@given(st.integers(2, 6), st.integers(1, 8), st.integers(1, 100), st.integers(1, 100), st.integers(0, 200))
def test_gpipe_by_events(stages: int, count: int, forward: int, backward: int, transfer: int) -> None:
    flow = gpipe_flow(
        stages=stages,
        micro_batches=count,
        forward_ns=forward,
        backward_ns=backward,
        transfer=transfer,
    )
    wall = count * (forward + backward) + flow.idle_ns + flow.exposed_ns
    assert wall == by_events(stages, count, (forward, backward), transfer)
    assert flow.moved_ns == 2 * count * transfer >= flow.exposed_ns


def test_gpipe_step() -> None:
    made = job(pp=4, batch=Batch(samples=32, sequence=1024, micro_batches=8))
    found = step(made, Scheme.GPIPE)
    transfer = transfer_ns(made, V100, TENSOR)
    bubble = found.idle_ns - 2 * 2 * transfer
    assert bubble / (bubble + found.compute_ns) == pytest.approx(3 / 11)
    assert transfer / 1e9 == pytest.approx(2e-6 + 2 * TENSOR / 130e9)
    assert found.exposed_transfer_ns == 2 * transfer
    whole = step(job(batch=made.batch), Scheme.DATA_PARALLEL)
    assert found.compute_ns * 4 == whole.compute_ns


@pytest.mark.parametrize("scheme", [Scheme.GPIPE, Scheme.PIPEDREAM])
@pytest.mark.parametrize("count", [1, 8])
def test_collectives_of_a_pipeline_are_what_its_links_move(scheme: Scheme, count: int) -> None:
    made = job(pp=8, dp=2, batch=Batch(samples=32, sequence=1024, micro_batches=count))
    assert step(made, scheme).collective_ns == sum(link.time_ns or 0 for link in plan_traffic(made, scheme))


def test_the_stage_with_most_sets_the_pace() -> None:
    found = step(job(pp=3), Scheme.GPIPE)
    assert found.compute_ns == pytest.approx(step(job(), Scheme.DATA_PARALLEL).compute_ns * 6 / 16, rel=1e-9)


def test_pipedream_has_no_bubble_and_reduces_more_often() -> None:
    made = job(pp=4, dp=4, batch=Batch(samples=32, sequence=1024, micro_batches=8))
    flush, steady = step(made, Scheme.GPIPE), step(made, Scheme.PIPEDREAM)
    assert steady.idle_ns == 0 < flush.idle_ns
    assert steady.wall_ns < flush.wall_ns
    data = [along(made, scheme, Axis.DATA).elements for scheme in (Scheme.GPIPE, Scheme.PIPEDREAM)]
    assert data == [2 * made.parameters // 4, 16 * made.parameters // 4]


def test_pipedream_waits_for_a_slow_link() -> None:
    flow = pipedream_flow(micro_batches=5, forward_ns=10, backward_ns=20, transfer=25)
    assert (flow.idle_ns, flow.exposed_ns, flow.moved_ns) == (0, 100, 250)


def test_reductions_of_pipedream_run_beside_its_transfers() -> None:
    """Where two transfers are longer than a micro-batch with its reductions, they alone set the pace."""
    units = tuple(Unit(name=f"b{i}", elements=1000) for i in range(16))
    made = job(pp=4, dp=4, units=units, parameters=16_000)
    made = replace(made, batch=Batch(samples=32, sequence=1024, micro_batches=8))
    alone = replace(made, degrees=Degrees(pp=4))
    assert step(made, Scheme.PIPEDREAM).collective_ns > step(alone, Scheme.PIPEDREAM).collective_ns
    assert step(made, Scheme.PIPEDREAM).wall_ns == 2 * 8 * transfer_ns(made, V100, TENSOR)


def test_what_passes_between_stages() -> None:
    made = job(pp=4, batch=Batch(samples=32, sequence=1024, micro_batches=8))
    link = along(made, Scheme.GPIPE, Axis.PIPELINE)
    assert (link.elements, link.bytes, link.link) == (2 * 8 * TENSOR, 4 * 8 * TENSOR, "intra")
    assert along(job(pp=4, dp=8), Scheme.GPIPE, Axis.PIPELINE).link == "inter"
