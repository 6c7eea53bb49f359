"""Model parallelism, partitioned checkpoints and pipelines: volumes, bubbles and what they cost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.planned_jobs import known_step as step
from zprof.model.job import Batch, Degrees, Job, ModelUnit, Residual, Shape
from zprof.model.machines import V100
from zprof.model.plan import Axis, LinkTraffic, Scheme
from zprof.planner.parallelism import (
    compute_block_traffic,
    compute_gpipe_flow,
    compute_pipedream_flow,
    transfer_ns,
)
from zprof.planner.plan import plan_traffic

SHAPE = Shape(layers=16, hidden=8192)
TENSOR = 32 * 1024 * 8192
SPLIT = Residual(checkpointing=True, partition=True)
EIGHT = Batch(samples=32, sequence=1024, micro_batches=8)


def job(mp: int = 1, pp: int = 1, dp: int = 1, **changes: object) -> Job:
    elements = 12 * SHAPE.hidden**2 // mp
    made = Job(
        parameters=16 * elements * mp,
        shape=SHAPE,
        units=tuple(ModelUnit(name=f"b{i}", elements=elements) for i in range(16)),
        degrees=Degrees(dp=dp, mp=mp, pp=pp),
        batch=Batch(samples=32, sequence=1024),
        residual=Residual(checkpointing=True),
        hardware=V100,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def along(made: Job, scheme: Scheme, axis: Axis) -> LinkTraffic:
    [found] = [link for link in plan_traffic(made, scheme) if link.axis is axis]
    return found


@pytest.mark.parametrize(
    ("residual", "tensors"),
    [(Residual(checkpointing=True), 12), (SPLIT, 13), (Residual(), 8), (Residual(partition=True), 8)],
)
def test_megatron_moves_so_many_tensors_a_block(residual: Residual, tensors: int) -> None:
    made = job(mp=16, residual=residual)
    found = compute_block_traffic(made)
    assert found is not None
    assert (found.elements, found.host_bytes) == (tensors * TENSOR, 0)
    link = along(made, Scheme.MODEL_PARALLEL, Axis.MODEL)
    assert link.elements == 16 * tensors * TENSOR
    assert (link.bytes, link.ring_bytes) == (2 * link.elements, 2 * link.elements * 15 // 16)
    assert link.link == "intra"


def test_model_parallel_collectives_are_all_exposed() -> None:
    made = job(mp=16, residual=SPLIT)
    found, link = step(made, Scheme.MODEL_PARALLEL), along(made, Scheme.MODEL_PARALLEL, Axis.MODEL)
    assert found.exposed_transfer_ns == found.collective_ns == link.time_ns
    ring = 13 * TENSOR * 2 * 16 * (15 / 16) / 130e9
    hops = 16 * (6 * 30 + 15) * 2_000 / 1e9
    assert found.collective_ns / 1e9 == pytest.approx(ring + hops)
    parts = tuple(ModelUnit(name=f"u{i}", elements=made.units[0].elements // 4) for i in range(4 * 16))
    by_parts = step(replace(made, units=parts), Scheme.MODEL_PARALLEL)
    assert by_parts.exposed_transfer_ns == pytest.approx(found.exposed_transfer_ns, rel=1e-6)
    across = replace(made, hardware=replace(V100, devices_per_node=8))
    assert step(across, Scheme.MODEL_PARALLEL).wall_ns > found.wall_ns


def test_checkpoints_on_the_host_go_out_and_in_and_show_where_the_bus_is_slow() -> None:
    made = job(mp=16, residual=replace(SPLIT, offload=True))
    link = along(made, Scheme.ZERO_2, Axis.HOST)
    assert (link.bytes, link.link) == (2 * 16 * TENSOR * 2 // 16, "pcie")
    assert (link.time_ns or 0) / 1e9 == pytest.approx(link.bytes / V100.host_bytes_per_s)
    assert step(made, Scheme.ZERO_2).exposed_memcpy_ns == 0  # less than a block's compute
    slow = step(replace(made, hardware=replace(V100, host_bytes_per_s=1e8)), Scheme.ZERO_2)
    within = step(replace(made, residual=SPLIT), Scheme.ZERO_2)
    shown = link.bytes / 1e8 * 1e9 - within.compute_ns - within.exposed_transfer_ns
    assert slow.exposed_memcpy_ns == pytest.approx(shown, rel=1e-6)


def wall_by_events(stages: int, count: int, lengths: tuple[int, ...], transfer: int) -> int:
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
    """Without transfers the bubble is (stages - 1) / (count + stages - 1) of the step."""
    flows = [
        compute_gpipe_flow(
            stages=stages, micro_batches=count, forward_ns=forward, backward_ns=backward, transfer=each
        )
        for each in (transfer, 0)
    ]
    work = count * (forward + backward)
    assert work + flows[0].idle_ns + flows[0].exposed_ns == wall_by_events(
        stages, count, (forward, backward), transfer
    )
    assert flows[0].moved_ns == 2 * count * transfer >= flows[0].exposed_ns
    share = flows[1].idle_ns / (work + flows[1].idle_ns)
    assert share == pytest.approx((stages - 1) / (count + stages - 1))


def test_a_step_of_gpipe() -> None:
    made = job(pp=4, batch=EIGHT)
    found, transfer = step(made, Scheme.GPIPE), transfer_ns(made, V100, TENSOR)
    assert transfer / 1e9 == pytest.approx(2e-6 + 2 * TENSOR / 130e9)
    assert found.exposed_transfer_ns == 2 * transfer
    bubble = found.idle_ns - 2 * 2 * transfer
    assert bubble / (bubble + found.compute_ns) == pytest.approx(3 / 11)
    whole = step(job(batch=EIGHT), Scheme.DATA_PARALLEL)
    assert found.compute_ns * 4 == whole.compute_ns
    # Of 16 blocks on 3 stages the one with 6 sets the pace.
    alone = step(job(), Scheme.DATA_PARALLEL)
    assert step(job(pp=3), Scheme.GPIPE).compute_ns == pytest.approx(alone.compute_ns * 6 / 16, rel=1e-9)
    link = along(made, Scheme.GPIPE, Axis.PIPELINE)
    assert (link.elements, link.bytes, link.link) == (2 * 8 * TENSOR, 4 * 8 * TENSOR, "intra")
    assert along(job(pp=4, dp=8), Scheme.GPIPE, Axis.PIPELINE).link == "inter"


@pytest.mark.parametrize("scheme", [Scheme.GPIPE, Scheme.PIPEDREAM])
@pytest.mark.parametrize("count", [1, 8])
def test_collectives_of_a_pipeline_are_what_its_links_move(scheme: Scheme, count: int) -> None:
    made = job(pp=8, dp=2, batch=replace(EIGHT, micro_batches=count))
    assert step(made, scheme).collective_ns == sum(link.time_ns or 0 for link in plan_traffic(made, scheme))


def test_pipedream_has_no_bubble_and_reduces_more_often() -> None:
    made = job(pp=4, dp=4, batch=EIGHT)
    flush, steady = step(made, Scheme.GPIPE), step(made, Scheme.PIPEDREAM)
    assert steady.idle_ns == 0 < flush.idle_ns
    assert steady.wall_ns < flush.wall_ns
    data = [along(made, scheme, Axis.DATA).elements for scheme in (Scheme.GPIPE, Scheme.PIPEDREAM)]
    assert data == [2 * made.parameters // 4, 16 * made.parameters // 4]
    slow = compute_pipedream_flow(micro_batches=5, forward_ns=10, backward_ns=20, transfer=25)
    assert (slow.idle_ns, slow.exposed_ns, slow.moved_ns) == (0, 100, 250)
