"""What must hold of every schedule: nobody leaves before all came, streams run in order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from zprof.simulator.engine.network import Contention
from zprof.simulator.engine.schedule import ExecutedInstruction
from zprof.simulator.plan import (
    ComputeCost,
    DType,
    Gathering,
    HostDelay,
    HostThread,
    Limiter,
    Network,
    Precision,
    SimulationPlan,
    Vendor,
)
from zprof.simulator.program.instructions import CollectiveLaunch, CopyLaunch, KernelLaunch, Sync
from zprof.simulator.simulate import run_plan

SMALL = ComputeCost(forward_ns=300_000, backward_ns=600_000, optimizer_ns=200_000, forward_kernels=2)


@st.composite
def plans(draw: st.DrawFn) -> SimulationPlan:
    """Small plans of every kind."""
    shard, tensor, replicas = (draw(st.sampled_from((1, 2, 3))) for _ in range(3))
    ranks = shard * tensor * replicas
    return SimulationPlan(
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
        network=Network(
            alpha_ns=draw(st.integers(1_000, 200_000)),
            beta_bytes_per_s=draw(st.sampled_from((5e9, 50e9, 500e9))),
            per_kind_streams=draw(st.booleans()),
        ),
        gathering=Gathering(
            reshard_after_forward=draw(st.booleans()),
            recompute=draw(st.booleans()),
            limiter=draw(st.sampled_from(Limiter)),
        ),
        compute=replace(SMALL, slowdown=draw(st.sampled_from((1.0, 1.5)))),
        host=HostThread(run_ahead=draw(st.integers(1, 30)), sync_each_step=draw(st.booleans())),
        speed={0: draw(st.floats(0.3, 2.0))},
        delays=(HostDelay(rank=ranks - 1, ns=draw(st.integers(0, 2_000_000))),),
    )


def collectives(plan: SimulationPlan) -> list[ExecutedInstruction]:
    return [line for line in run_plan(plan).lines if isinstance(line.instruction, CollectiveLaunch)]


@settings(max_examples=40)
@given(plans())
def test_work_runs_in_order_after_its_launch_and_what_it_depends_on(plan: SimulationPlan) -> None:
    """Of a host, of a stream, and of a collective, which starts when its last rank has come."""
    lanes: dict[str, np.ndarray] = {}
    done: dict[str, np.ndarray] = {}
    host = np.zeros(plan.ranks, dtype=np.int64)
    for line in run_plan(plan).lines:
        assert (line.host_begin >= host).all()
        assert (line.host_end >= line.host_begin).all()
        host, instruction = line.host_end, line.instruction
        if not isinstance(instruction, KernelLaunch | CopyLaunch | CollectiveLaunch):
            continue
        assert (line.begin >= line.launch).all()
        assert (line.end > line.begin).all()
        assert (line.begin >= lanes.get(line.lane, line.begin)).all()
        assert all((line.begin >= done.get(key, line.begin)).all() for key in instruction.after)
        lanes[line.lane] = done[instruction.key] = line.end
        if isinstance(instruction, CollectiveLaunch):
            assert line.groups is not None
            assert line.arrival is not None
            for members in line.groups.members:
                last, ends = line.begin[members].max(), line.end[members]
                assert (line.arrival[members] == last).all()
                assert (ends > last).all()
                assert ends.max() - ends.min() <= plan.network.spread_ns


def step_bytes(plan: SimulationPlan) -> int:
    moved = 0
    for line in collectives(plan):
        collective = line.instruction
        assert isinstance(collective, CollectiveLaunch)
        if line.step == 0 and collective.elements > 1:
            moved += collective.bytes * (2 if collective.kind == "all_reduce" else 1)
    return moved


PLAN = SimulationPlan(ranks=4, units=3, unit_elements=1 << 20)
PSI = 3 * (1 << 20) * 2


@pytest.mark.parametrize(
    ("changes", "times"),
    [
        *(({"stage": stage, "bucket_bytes": 3 << 20}, 2) for stage in (0, 1, 2)),
        ({"stage": 2, "bucket_bytes": 1 << 30}, 2),
        ({"stage": 3}, 3),
        ({"micro_batches": 3}, 7),
        ({"micro_batches": 3, "reduce_each": True}, 9),
        ({"gathering": Gathering(reshard_after_forward=False)}, 2),
        ({"gathering": Gathering(recompute=True, recompute_gathers=True)}, 4),
        ({"precision": Precision(reduce=DType.FLOAT32)}, 4),
    ],
)
def test_a_step_moves_as_many_times_its_parameters(changes: dict[str, object], times: int) -> None:
    assert step_bytes(replace(PLAN, **changes)) == times * PSI  # type: ignore[arg-type]


MEGA = SimulationPlan(ranks=2, units=1, unit_elements=1_000_000, compute=SMALL)
INTER = Network(inter_beta_bytes_per_s=1e9, inter_alpha_ns=5_000, spread_ns=0)


@pytest.mark.parametrize(
    ("plan", "took_ns"),
    [
        # Alpha, and the bytes at the pace of the slowest link.
        (
            replace(
                MEGA, network=Network(alpha_ns=1_000, beta_bytes_per_s=1e9, links=((1, 0.5),), spread_ns=0)
            ),
            1_000 + 2_000_000,
        ),
        (replace(MEGA, ranks=4, shard=2, ranks_per_host=2, network=INTER), 20_000 + 10_000),
        (replace(MEGA, ranks=4, shard=2, ranks_per_host=1, network=INTER), 5_000 + 1_000_000),
    ],
)
def test_a_transfer_takes_as_long_as_its_links(plan: SimulationPlan, took_ns: int) -> None:
    gather = next(line for line in collectives(plan) if line.instruction.kind == "all_gather")
    assert gather.arrival is not None
    assert set((gather.end - gather.arrival).tolist()) == {took_ns}


def test_work_beside_a_collective_is_slower_for_as_long_as_it_runs() -> None:
    """Rank 0: 100 alone, 300 beside collectives do 150, 150 alone; rank 1 is done as the first starts.

    Rank 2 is beside one all the time.
    """
    contention = Contention(2.0)
    contention.add(np.array([100, 500, 0]), np.array([300, 900, 1_000]))
    contention.add(np.array([250, 2_000, 900]), np.array([400, 3_000, 1_000]))
    assert contention.get_end(np.array([0, 0, 0]), np.array([400, 500, 100])).tolist() == [550, 500, 200]


def test_a_host_waits_where_it_syncs_and_runs_no_further_ahead_than_it_may() -> None:
    lines = run_plan(SimulationPlan(ranks=2, host=HostThread(run_ahead=3))).lines
    kernels = [line for line in lines if isinstance(line.instruction, KernelLaunch)]
    for before, line in zip(kernels, kernels[3:], strict=False):
        assert (line.host_begin >= before.end).all()
    for index, line in enumerate(lines):
        if isinstance(line.instruction, Sync):
            copies = [done for done in lines[:index] if isinstance(done.instruction, CopyLaunch)]
            assert (line.host_end > copies[-1].end).all()
