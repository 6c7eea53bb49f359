"""What holds of every simulated job: nobody leaves before all came, streams run in order, links take time."""

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zprof.simulator import operations as p
from zprof.simulator.faults import remove
from zprof.simulator.ground_truth import draw_job
from zprof.simulator.job import VENDORS, Job, Pace
from zprof.simulator.ledger import count_parameter_bytes, find_waits, measure_length, measure_steps, unite
from zprof.simulator.regular import make_job, plant
from zprof.simulator.run import run_job
from zprof.simulator.state import Rank, Schedule, Task


@st.composite
def regular_jobs(draw: st.DrawFn) -> Job:
    """Small regular jobs of every kind."""
    shard, tensor, replicas = (draw(st.sampled_from((1, 2, 3))) for _ in range(3))
    ranks = shard * tensor * replicas
    job = make_job(
        seed=draw(st.integers(0, 1000)),
        vendor=draw(st.sampled_from(VENDORS)),
        ranks=ranks,
        shard_size=shard,
        tensor_size=tensor,
        steps=2,
        stage=draw(st.integers(0, 3)),
        units=draw(st.integers(1, 4)),
        unit_params=draw(st.integers(1024, 3_000_000)),
        forward_ns=300_000,
        backward_ns=600_000,
        bus=draw(st.sampled_from((5.0, 50.0, 500.0))),
        alpha_ns=draw(st.integers(1_000, 200_000)),
        prefetch=draw(st.sampled_from(("on", "backward_off", "off"))),
        limiter=draw(st.sampled_from((0, 1, 2))),
        micro_batches=draw(st.integers(1, 2)),
        sync_every_micro_batch=draw(st.booleans()),
        reshard_after_forward=draw(st.booleans()),
        checkpointing=draw(st.booleans()),
        blocking=draw(st.sampled_from(("none", "step", "micro", "unit"))),
        names_collectives=draw(st.booleans()),
    )
    late = Pace(gpu=draw(st.floats(0.5, 2.0)), stall_ns=draw(st.integers(0, 2_000_000)))
    gpu = replace(job.gpu, comm_slowdown=draw(st.sampled_from((1.0, 1.5))))
    host = replace(job.host, queue_depth=draw(st.sampled_from((3, 1022))))
    return replace(job, ranks=(late, *job.ranks[1:]), gpu=gpu, host=host)


@settings(max_examples=40)
@given(regular_jobs())
def test_work_of_regular_jobs_runs_in_order(job: Job) -> None:
    check_order(run_job(job))


@pytest.mark.parametrize(
    ("seed", "fault", "shape"),
    [
        (3, None, "healthy"),
        (6, "checkpoint_regathers", "training"),
        pytest.param(4, None, "inference", marks=pytest.mark.slow),
        pytest.param(5, "sharding_spans_nodes", "training", marks=pytest.mark.slow),
        pytest.param(8, "comm_slows_compute+accumulation_regathers", "training", marks=pytest.mark.slow),
        pytest.param(9, "unhidden_optimizer_gather", "training", marks=pytest.mark.slow),
    ],
)
def test_work_of_drawn_jobs_runs_in_order(seed: int, fault: str | None, shape: str) -> None:
    check_order(run_job(draw_job(seed, fault, shape)))


def check_order(schedule: Schedule) -> None:
    """After its launch and all before on its stream and in its group; a collective, after all have come."""
    for rank in schedule.ranks:
        lanes = defaultdict(list)
        for task in rank.tasks:
            assert task.avail <= task.start < task.end
            assert task.stream is not None
            lanes["stream", task.stream.name].append(task)
            if task.cat == "collective":
                lanes["communicator", task.kind].append(task)
        for tasks in lanes.values():
            assert all(one.end <= other.start for one, other in pairwise(tasks))
    for operation in schedule.collectives:
        assert sorted(operation.tasks) == list(operation.members)
        assert len({task.info for task in operation.tasks.values()}) == 1
        last = max(task.start for task in operation.tasks.values())
        assert min(task.end for task in operation.tasks.values()) > last == operation.arrived


QUIET: dict[str, Any] = {"ranks": 2, "units": 2, "steps": 2, "noise": 0.0, "clip": False, "blocking": "none"}


@pytest.mark.parametrize(
    ("prefetch", "exposed"),
    [
        # Two gathers of the forward, one of the backward that queues behind a reduction, the last reduction.
        ("off", 5),
        # The first gather and the last reduction: the thread of the group moves the others beside compute.
        ("on", 2),
    ],
)
def test_a_step_of_gloo_waits_for_as_many_messages_as_one_counts_by_hand(prefetch: str, exposed: int) -> None:
    """Two ranks, two layers, the last of them kept: three gathers and two reductions of equal size."""
    job = make_job(vendor="gloo", bus=10.0, prefetch=prefetch, **QUIET)
    schedule = run_job(job)
    message_ns = 16 * 2**20 * 2 / 2 / 10.0 + 15_000
    for rank in schedule.ranks:
        step = measure_steps(schedule, rank)[1]
        waited = step.exposed_wait_ns + step.exposed_transfer_ns
        assert waited == pytest.approx(exposed * message_ns, rel=0.05)
        assert step.compute_ns == pytest.approx(2 * 6_000_000, rel=0.05)


def test_a_rank_of_gloo_computes_or_waits_and_does_both_by_itself() -> None:
    """Its main thread; a wait ends once the collective has, and none is left open."""
    schedule = run_job(make_job(vendor="gloo", bus=10.0, **QUIET))
    for rank in schedule.ranks:
        compute = unite((task.start, task.end) for task in rank.tasks if task.cat == "kernel")
        waits = find_waits(rank)
        both = unite([(int(start), int(end)) for spans in (compute, waits) for start, end in spans])
        assert measure_length(both) == measure_length(compute) + measure_length(waits)
        ends = np.array([task.end for task in rank.tasks if task.cat == "collective"])
        long = waits[waits[:, 1] - waits[:, 0] > 50_000]
        assert (np.abs(long[:, 1:] - ends).min(axis=1) < 40_000).all()


MEGA: dict[str, Any] = {"units": 1, "unit_params": 1_000_000, "alpha_ns": 10_000, "bus": 1.0, **QUIET}


@pytest.mark.parametrize(
    ("ranks", "per_node", "inter_bus", "slow", "took_ns"),
    [
        (2, 2, 0.1, 1.0, 1_000_000),
        (2, 2, 0.1, 0.5, 2_000_000),  # as fast as the slowest link
        (4, 2, 0.1, 1.0, 15_000_000),
        (4, 4, 0.1, 1.0, 1_500_000),
    ],
)
def test_a_transfer_takes_as_long_as_its_links(
    ranks: int, per_node: int, inter_bus: float, slow: float, took_ns: int
) -> None:
    job = make_job(**MEGA | {"ranks": ranks, "units": 1})
    cluster = replace(job.cluster, ranks_per_node=per_node, inter_bus=inter_bus)
    job = replace(job, cluster=cluster, ranks=(Pace(link=slow), *job.ranks[1:]))
    gathers = [each for each in run_job(job).collectives if list_kinds(each.tasks[0]) == "all_gather"]
    assert [each.tasks[0].end - each.arrived for each in gathers] == pytest.approx(
        [took_ns] * len(gathers), rel=0.06
    )


def list_kinds(task: Task) -> str:
    return str(task.info[0])


def test_work_beside_a_collective_is_slower_for_as_long_as_it_runs() -> None:
    """A collective holds its part of a device from when its stream is free, a gap before it starts."""
    job = make_job(bus=10.0, **QUIET)
    slow = run_job(replace(job, gpu=replace(job.gpu, comm_slowdown=2.0)))
    for rank, alone in zip(slow.ranks, run_job(job).ranks, strict=True):
        running = unite((task.start, task.end) for task in rank.tasks if task.cat == "collective")
        beside_ns = 0
        for task, other in zip(list_kernels(rank), list_kernels(alone), strict=True):
            span = unite([(task.start, task.end)])
            beside = measure_length(span) + measure_length(running)
            beside -= measure_length(unite([(int(a), int(b)) for each in (span, running) for a, b in each]))
            assert task.end - task.start - beside / 2 == pytest.approx(
                other.end - other.start, abs=job.gpu.gap_ns
            )
            beside_ns += beside
        assert beside_ns > 1_000_000


def list_kernels(rank: Rank) -> list[Task]:
    return [task for task in rank.tasks if task.cat == "kernel"]


def test_a_host_waits_where_it_syncs_and_runs_no_further_ahead_than_it_may() -> None:
    job = make_job(ranks=2, units=3, steps=2, blocking="step")
    job = replace(job, host=replace(job.host, queue_depth=3))
    for rank in run_job(job).ranks:
        launches = sorted((task.avail - job.host.latency_ns, task.end) for task in rank.tasks)
        for number, (launch, _) in enumerate(launches):
            assert sum(end > launch for _, end in launches[:number]) <= 3
        syncs = [row for row in rank.host_rows if row[1] == "cudaStreamSynchronize"]
        assert len(syncs) == job.steps
        for row in syncs:
            start, returned = int(row[3]), int(row[3]) + int(row[4])
            mine = [t for t in rank.tasks if t.stream and t.stream.name == p.COMPUTE and t.avail < start]
            assert mine
            assert max(task.end for task in mine) < returned


#: The terms of a step that a cause takes most of its time in, on a device.
TERMS = {
    "straggler_rank": {"exposed_wait"},
    "rotating_straggler": {"exposed_wait"},
    "latency_bound_collectives": {"exposed_transfer"},
    "units_too_small": {"exposed_transfer"},
    "single_unit": {"exposed_transfer"},
    "no_prefetch": {"exposed_transfer"},
    "rate_limited_prefetch": {"exposed_transfer"},
    "cpu_bound_launch": {"exposed_transfer", "idle"},
    "allocator_retries": {"idle"},
    "comm_slows_compute": {"compute"},
    "compute_blocks_comm": {"exposed_transfer"},
    "low_bus_bandwidth": {"exposed_transfer"},
    "sharding_spans_nodes": {"exposed_transfer"},
    "fp32_reduce": {"exposed_transfer"},
    "fp32_gather": {"exposed_transfer"},
    "accumulation_syncs": {"exposed_transfer"},
    "accumulation_regathers": {"exposed_transfer"},
    "needless_reshard_after_forward": {"exposed_transfer"},
    "last_unit_regathered": {"exposed_transfer"},
    "checkpoint_regathers": {"exposed_transfer"},
    "offload_on_critical_path": {"exposed_memcpy"},
    "blocking_sync": {"exposed_transfer", "idle"},
    "data_loader": {"idle"},
    "unhidden_optimizer_gather": {"exposed_transfer", "compute"},
    "copy_overhead": {"compute"},
    "uneven_shapes": {"compute"},
    "lost_compute_efficiency": {"compute"},
}


@pytest.mark.parametrize("cause", TERMS)
def test_a_cause_shows_in_its_term_until_it_is_fixed(cause: str) -> None:
    before, after = (mean_step(job) for job in plant_and_fix(cause))
    cost_ns = before["wall"] - after["wall"]
    assert cost_ns > 0.04 * before["wall"]
    assert sum(before[term] - after[term] for term in TERMS[cause]) > 0.6 * cost_ns


@pytest.mark.parametrize(
    "cause",
    ["fp32_gather", "fp32_reduce", "accumulation_syncs", "accumulation_regathers", "checkpoint_regathers",
     "needless_reshard_after_forward", "uneven_shapes"],
)  # fmt: skip
def test_a_cause_moves_more_bytes(cause: str) -> None:
    before, after = (count_parameter_bytes(run_job(job)) for job in plant_and_fix(cause))
    assert before > 1.3 * after


def plant_and_fix(cause: str) -> tuple[Job, Job]:
    """Return the job with a cause, and the same without it."""
    planted = plant(make_job(seed=1, units=4), cause)
    fixed = remove(planted, cause)
    assert fixed is not None
    return planted, fixed


def mean_step(job: Job) -> dict[str, float]:
    """Return the terms of a step, in ns: means over ranks and steps after the first."""
    schedule = run_job(job)
    steps = [step for rank in schedule.ranks for step in measure_steps(schedule, rank) if step.step]
    names = ("wall", "compute", "exposed_wait", "exposed_transfer", "exposed_memcpy", "idle")
    return {name: sum(getattr(step, f"{name}_ns") for step in steps) / len(steps) for name in names}
