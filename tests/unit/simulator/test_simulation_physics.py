"""What must hold of every schedule: nobody leaves before all came, streams run in order."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zprof.simulator.engine.network import Contention
from zprof.simulator.engine.schedule import Line, Schedule
from zprof.simulator.plan import (
    Compute,
    DType,
    Gathering,
    Host,
    HostDelay,
    Limiter,
    Network,
    Plan,
    Precision,
    Vendor,
)
from zprof.simulator.program.instructions import Collective, Copy, Kernel, Sync
from zprof.simulator.simulate import run_plan

SMALL = Compute(forward_ns=300_000, backward_ns=600_000, optimizer_ns=200_000, forward_kernels=2)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Small plans of every kind."""
    shard, tensor, replicas = (draw(st.sampled_from((1, 2, 3))) for _ in range(3))
    ranks = shard * tensor * replicas
    network = Network(
        alpha_ns=draw(st.integers(1_000, 200_000)),
        beta_bytes_per_s=draw(st.sampled_from((5e9, 50e9, 500e9))),
        per_kind_streams=draw(st.booleans()),
    )
    gathering = Gathering(
        reshard_after_forward=draw(st.booleans()),
        recompute=draw(st.booleans()),
        limiter=draw(st.sampled_from(Limiter)),
    )
    return Plan(
        ranks=ranks,
        shard=shard,
        tensor=tensor,
        steps=2,
        units=draw(st.integers(1, 4)),
        unit_elements=draw(st.integers(1, 3_000_000)),
        stage=draw(st.integers(0, 3)),
        vendor=draw(st.sampled_from(Vendor)),
        prefetch=draw(st.integers(0, 3)),
        micro_batches=draw(st.integers(1, 2)),
        reduce_each=draw(st.booleans()),
        seed=draw(st.integers(0, 1000)),
        network=network,
        gathering=gathering,
        compute=replace(SMALL, slowdown=draw(st.sampled_from((1.0, 1.5)))),
        host=Host(run_ahead=draw(st.integers(1, 30)), sync_each_step=draw(st.booleans())),
        speed={0: draw(st.floats(0.3, 2.0))},
        delays=(HostDelay(rank=ranks - 1, ns=draw(st.integers(0, 2_000_000))),),
    )


def collectives(schedule: Schedule) -> list[Line]:
    return [line for line in schedule.lines if isinstance(line.instruction, Collective)]


@settings(max_examples=40)
@given(plans())
def test_nobody_leaves_a_collective_before_all_are_there(plan: Plan) -> None:
    for line in collectives(run_plan(plan)):
        assert line.groups is not None
        assert line.arrival is not None
        for members in line.groups.members:
            last = line.begin[members].max()
            assert (line.arrival[members] == last).all()
            assert (line.end[members] > last).all()
            spread = plan.network.spread_ns
            assert line.end[members].max() - line.end[members].min() <= spread


@settings(max_examples=40)
@given(plans())
def test_streams_run_in_order_and_nothing_begins_before_it_is_launched(plan: Plan) -> None:
    schedule = run_plan(plan)
    lanes: dict[str, np.ndarray] = {}
    host = np.zeros(plan.ranks, dtype=np.int64)
    for line in schedule.lines:
        assert (line.host_begin >= host).all()
        assert (line.host_end >= line.host_begin).all()
        host = line.host_end
        if isinstance(line.instruction, Kernel | Copy | Collective):
            assert (line.begin >= line.launch).all()
            assert (line.end > line.begin).all()
            assert (line.begin >= lanes.get(line.lane, line.begin)).all()
            lanes[line.lane] = line.end


@settings(max_examples=25)
@given(plans())
def test_work_waits_for_what_it_depends_on(plan: Plan) -> None:
    done: dict[str, np.ndarray] = {}
    for line in run_plan(plan).lines:
        instruction = line.instruction
        if isinstance(instruction, Kernel | Copy | Collective):
            for key in instruction.after:
                assert key not in done or (line.begin >= done[key]).all(), key
            done[instruction.key] = line.end


def step_bytes(plan: Plan) -> int:
    moved = 0
    for line in collectives(run_plan(plan)):
        collective = line.instruction
        assert isinstance(collective, Collective)
        if line.step == 0 and collective.elements > 1:
            moved += collective.bytes * (2 if collective.kind == "all_reduce" else 1)
    return moved


@pytest.mark.parametrize(("stage", "law"), [(0, 2), (1, 2), (2, 2), (3, 3)])
@pytest.mark.parametrize("bucket_bytes", [1 << 20, 3 << 20, 1 << 30])
def test_a_step_moves_what_the_stage_says(stage: int, law: int, bucket_bytes: int) -> None:
    plan = Plan(ranks=4, stage=stage, units=5, unit_elements=1 << 20, bucket_bytes=bucket_bytes)
    assert step_bytes(plan) == law * 5 * (1 << 20) * 2


def test_micro_batches_types_and_recomputation_change_the_volume() -> None:
    plan = Plan(ranks=4, units=3, unit_elements=1 << 20)
    psi = 3 * (1 << 20) * 2
    kept = replace(plan, gathering=Gathering(reshard_after_forward=False))
    again = replace(plan, gathering=Gathering(recompute=True, recompute_gathers=True))
    assert step_bytes(replace(plan, micro_batches=3)) == 7 * psi
    assert step_bytes(replace(plan, micro_batches=3, reduce_each=True)) == 9 * psi
    assert step_bytes(kept) == 2 * psi
    assert step_bytes(again) == 4 * psi
    assert step_bytes(replace(plan, precision=Precision(reduce=DType.FLOAT32))) == 4 * psi


def test_replicas_reduce_their_shards_again_over_the_other_axis() -> None:
    lines = collectives(run_plan(Plan(ranks=8, shard=4, units=2)))
    reduced = [line for line in lines if line.groups is not None and line.groups.name == "2"]
    assert {tuple(row) for line in reduced for row in line.groups.members.tolist()} == {
        (0, 4),
        (1, 5),
        (2, 6),
        (3, 7),
    }
    assert {line.instruction.elements for line in reduced} == {16 * 1024 * 1024 // 4}


def test_a_transfer_takes_alpha_and_its_bytes_at_the_pace_of_the_slowest_link() -> None:
    network = Network(alpha_ns=1_000, beta_bytes_per_s=1e9, links=((1, 0.5),), spread_ns=0)
    plan = Plan(ranks=2, units=1, unit_elements=1_000_000, network=network, compute=SMALL)
    gather = next(line for line in collectives(run_plan(plan)) if line.instruction.kind == "all_gather")
    assert (gather.end - gather.arrival).tolist() == [1_000 + 2_000_000] * 2


def test_a_group_over_hosts_goes_at_the_pace_between_hosts() -> None:
    network = Network(inter_beta_bytes_per_s=1e9, inter_alpha_ns=5_000, spread_ns=0)
    near = Plan(ranks=4, shard=2, ranks_per_host=2, units=1, unit_elements=1_000_000, network=network)
    across = replace(near, ranks_per_host=1)
    times = [
        next(int(line.end[0] - line.arrival[0]) for line in collectives(run_plan(plan)))
        for plan in (near, across)
    ]
    assert times == [20_000 + 10_000, 5_000 + 1_000_000]


def test_work_beside_a_collective_is_slower_for_as_long_as_it_runs() -> None:
    contention = Contention(2.0)
    contention.add(np.array([100, 500]), np.array([300, 900]))
    contention.add(np.array([250, 2_000]), np.array([400, 3_000]))
    ends = contention.end_of(np.array([0, 0]), np.array([400, 500]))
    # rank 0: 100 alone, 300 ns beside collectives do 150, 150 alone; rank 1 is done as the first begins
    assert ends.tolist() == [550, 500]


def test_a_host_that_syncs_waits_for_its_device() -> None:
    schedule = run_plan(Plan(ranks=2))
    for index, line in enumerate(schedule.lines):
        if isinstance(line.instruction, Sync):
            before = [done for done in schedule.lines[:index] if isinstance(done.instruction, Copy)]
            assert (line.host_end > before[-1].end).all()


def test_the_host_runs_no_further_ahead_than_it_may() -> None:
    plan = Plan(ranks=2, host=Host(run_ahead=3))
    kernels = [line for line in run_plan(plan).lines if isinstance(line.instruction, Kernel)]
    for before, line in zip(kernels, kernels[3:], strict=False):
        assert (line.host_begin >= before.end).all()
