"""The truth of a simulation, against the written traces and an interval oracle of its own."""

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from zprof.model.errors import BadInput
from zprof.model.time import LateReason
from zprof.simulator.plan import Allocator, Compute, Host, HostDelay, Network, Offload, Plan, Vendor, Window
from zprof.simulator.simulate import simulate
from zprof.simulator.truth.model import StepTruth, Truth, read_truth
from zprof.simulator.truth.sweep import Blocked, Running, StepSums, Sweep

Spans = list[tuple[int, int]]
SMALL = Compute(forward_ns=200_000, backward_ns=400_000, optimizer_ns=100_000, forward_kernels=2)
SLOW = Network(beta_bytes_per_s=15e9, per_kind_streams=True)
PLANS = {
    "plain": Plan(ranks=3, units=3, steps=2, compute=SMALL),
    "exposed": Plan(ranks=4, units=3, steps=2, compute=SMALL, network=SLOW, speed={1: 0.7}),
    "buckets": Plan(ranks=2, stage=2, units=3, steps=2, network=SLOW, bucket_bytes=1 << 23),
    "offload": Plan(ranks=2, units=2, steps=2, offload=Offload(enabled=True)),
    "hsdp": Plan(ranks=8, shard=2, tensor=2, units=2, steps=2, network=SLOW, compute=SMALL),
    "amd": Plan(ranks=2, units=3, steps=2, vendor=Vendor.AMD, network=SLOW, prefetch=0),
    "gloo": Plan(ranks=3, units=3, steps=2, vendor=Vendor.GLOO, network=SLOW, speed={2: 0.6}),
    "pipelined": Plan(ranks=2, units=2, stage=1, steps=3, hide_optimizer_gather=True, network=SLOW),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Truth, Path]]:
    """By name, the truth of a plan and the folder of its traces: several tests read the same ones."""

    @cache
    def simulated(name: str) -> tuple[Truth, Path]:
        folder = tmp_path_factory.mktemp("traces")
        return simulate(PLANS[name], folder), folder

    return simulated


def events(folder: Path, rank: int) -> list[dict[str, Any]]:
    document = json.loads(gzip.decompress((folder / f"rank{rank}.json.gz").read_bytes()))
    base = document["baseTimeNanoseconds"]
    found = [event for event in document["traceEvents"] if event["ph"] == "X"]
    for event in found:
        event["begin"] = base + round(event["ts"] * 1000)
        event["end"] = event["begin"] + round(event["dur"] * 1000)
    return found


def covered(spans: Spans, begin: int, end: int) -> Spans:
    """The union of spans within bounds, by one pass over them in order."""
    merged: Spans = []
    for first, last in sorted((max(a, begin), min(b, end)) for a, b in spans):
        if first >= last:
            continue
        if merged and first <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], last)
        else:
            merged.append((first, last))
    return merged


def total(spans: Spans) -> int:
    return sum(end - begin for begin, end in spans)


def both(first: Spans, second: Spans, step: StepTruth) -> int:
    bounds = step.begin_ns, step.end_ns
    one, two = covered(first, *bounds), covered(second, *bounds)
    return total(one) + total(two) - total(covered(first + second, *bounds))


def spans(found: list[dict[str, Any]], *categories: str, name: str = "") -> Spans:
    return [(e["begin"], e["end"]) for e in found if e.get("cat") in categories and name in e["name"]]


@pytest.mark.parametrize("name", [name for name, plan in PLANS.items() if plan.vendor is not Vendor.GLOO])
def test_unions_are_those_of_the_written_device_events(
    name: str, written: Callable[[str], tuple[Truth, Path]]
) -> None:
    truth, folder = written(name)
    traces = [events(folder, rank) for rank in range(truth.ranks)]
    for step in truth.per_step:
        found = traces[step.rank]
        kernels = spans(found, "kernel")
        running = spans(found, "kernel", name="nccl")
        compute = [span for span in kernels if span not in set(running)]
        copies = spans(found, "gpu_memcpy")
        bounds = step.begin_ns, step.end_ns
        assert step.compute_ns == total(covered(compute, *bounds))
        assert step.collective_ns == total(covered(running, *bounds))
        assert step.overlapped_ns == both(running, compute, step)
        exposed = step.exposed_wait_ns + step.exposed_transfer_ns
        assert exposed == step.collective_ns - step.overlapped_ns
        alone = total(covered(compute + running + copies, *bounds)) - total(
            covered(compute + running, *bounds)
        )
        assert step.exposed_memcpy_ns == alone
        assert step.wall_ns == step.compute_ns + exposed + step.exposed_memcpy_ns + step.idle_ns


def test_unions_are_those_of_the_written_events_of_gloo(
    written: Callable[[str], tuple[Truth, Path]],
) -> None:
    truth, folder = written("gloo")
    traces = [events(folder, rank) for rank in range(truth.ranks)]
    for step in truth.per_step:
        found = traces[step.rank]
        running = spans(found, "user_annotation", name="gloo:")
        waits = spans(found, "user_annotation", name="zprof::wait")
        bounds = step.begin_ns, step.end_ns
        assert step.collective_ns == total(covered(running, *bounds))
        assert step.exposed_wait_ns + step.exposed_transfer_ns == both(running, waits, step)
        assert step.exposed_wait_ns + step.exposed_transfer_ns > 0


@pytest.mark.parametrize("name", PLANS)
def test_waits_and_transfers_follow_from_when_the_others_came(
    name: str, written: Callable[[str], tuple[Truth, Path]]
) -> None:
    truth, _ = written(name)
    starts: dict[tuple[object, ...], dict[int, int]] = {}
    for row in truth.collectives:
        starts.setdefault((row.ranks, row.sequence), {})[row.rank] = row.start_ns
    for row in truth.collectives:
        group = starts[row.ranks, row.sequence]
        assert set(group) == set(row.ranks)
        last = max(group.values())
        assert group[row.late_rank] == last
        assert row.wait_ns == last - row.start_ns
        assert row.wait_ns + row.transfer_ns == row.end_ns - row.start_ns
        assert row.lead_ns == last - sorted(group.values())[-2]


@pytest.mark.parametrize("name", PLANS)
def test_exposed_parts_of_collectives_sum_to_those_of_steps(
    name: str, written: Callable[[str], tuple[Truth, Path]]
) -> None:
    truth, _ = written(name)
    for rank in range(truth.ranks):
        steps = [step for step in truth.per_step if step.rank == rank]
        rows = [row for row in truth.collectives if row.rank == rank]
        assert sum(row.exposed_wait_ns for row in rows) == sum(step.exposed_wait_ns for step in steps)
        assert sum(row.exposed_transfer_ns for row in rows) == sum(s.exposed_transfer_ns for s in steps)
        for row in rows:
            assert row.exposed_wait_ns <= row.wait_ns
            assert row.exposed_transfer_ns <= row.transfer_ns


def test_device_steps_follow_each_other_and_hold_all_work(tmp_path: Path) -> None:
    plan = replace(PLANS["exposed"], steps=3, host=Host(sync_each_step=False, run_ahead=200))
    truth = simulate(plan, tmp_path)
    for rank in range(truth.ranks):
        found = events(tmp_path, rank)
        calls = {e["args"]["correlation"]: e["begin"] for e in found if e["cat"] == "cuda_runtime"}
        work = [e for e in found if e["cat"] in ("kernel", "gpu_memcpy")]
        ends = [(calls[e["args"]["correlation"]], e["end"]) for e in work]
        for step in (step for step in truth.per_step if step.rank == rank):
            before = [end for launch, end in ends if launch < step.host_begin_ns]
            within = [end for launch, end in ends if launch < step.host_end_ns]
            assert step.begin_ns == max([step.host_begin_ns, *before])
            assert step.end_ns == max([step.host_end_ns, *within]) > step.host_end_ns
            assert all(launch != step.host_end_ns for launch, _ in ends)


def test_what_is_waited_for_is_what_holds_up_and_else_the_first_to_start() -> None:
    collectives = [
        Running(begin_ns=0, arrival_ns=50, end_ns=100),
        Running(begin_ns=20, arrival_ns=20, end_ns=80),
    ]
    found = {}
    for awaited in ((), (1,), (0, 1)):
        step = StepSums(begin_ns=0, end_ns=200)
        sweep = Sweep(collectives, [step])
        sweep.over([(0, 30), (90, 200)], [], [Blocked(begin_ns=30, end_ns=90, awaited=awaited)])
        found[awaited] = (*sweep.sums.wait_ns, *sweep.sums.transfer_ns, step.ambiguous_ns)
        assert step.wait_ns + step.transfer_ns == 60
    # 30 to 90 is blocked: the first waits until 50, the second moves data until 80
    assert found == {(): (20, 0, 40, 0, 20), (1,): (0, 0, 10, 50, 20), (0, 1): (20, 0, 40, 0, 20)}


def exposed(truth: Truth) -> int:
    return sum(step.exposed_transfer_ns for step in truth.per_step)


def test_prefetching_hides_transfers(tmp_path: Path) -> None:
    plan = Plan(ranks=4, units=6, network=Network(beta_bytes_per_s=20e9))
    shown = [exposed(simulate(replace(plan, prefetch=depth), tmp_path)) for depth in (0, 1, 2)]
    assert shown[0] > 3 * shown[1]
    assert shown[1] >= shown[2]


LATE = {
    "slow": (Plan(units=4, speed={2: 0.8}), 2, LateReason.COMPUTE),
    "host": (Plan(units=4, delays=(HostDelay(rank=1, ns=6_000_000),)), 1, LateReason.HOST),
    "data": (Plan(units=4, delays=(HostDelay(rank=3, ns=6_000_000, data=True),)), 3, LateReason.DATA),
    "allocator": (
        Plan(units=4, allocator=Allocator(retries_per_step=3, ranks=(0,))),
        0,
        LateReason.ALLOCATOR,
    ),
    "gloo": (Plan(units=4, vendor=Vendor.GLOO, speed={2: 0.8}), 2, LateReason.COMPUTE),
}


@pytest.mark.parametrize("name", LATE)
def test_the_rank_that_was_made_late_is_late_for_that_reason(name: str, tmp_path: Path) -> None:
    plan, rank, reason = LATE[name]
    rows = simulate(plan, tmp_path).collectives
    late = [row for row in rows if row.rank == 0 and row.lead_ns > 100_000]
    assert len(late) >= plan.steps
    assert {(row.late_rank, row.reason) for row in late} == {(rank, reason)}


def test_a_stall_rotates_over_the_ranks(tmp_path: Path) -> None:
    plan = Plan(units=2, steps=4, delays=(HostDelay(rank=1, ns=9_000_000, rotating=True),))
    rows = simulate(plan, tmp_path).collectives
    late = {(row.step, row.late_rank) for row in rows if row.lead_ns > 5_000_000}
    assert late == {(0, 1), (1, 2), (2, 3), (3, 0)}


def test_a_truth_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    plan = replace(PLANS["hsdp"], offsets_ns={1: -7}, drift_ppb={2: 900}, missing=(3,))
    truth = simulate(plan, tmp_path)
    assert read_truth(tmp_path) == truth
    assert truth.per_rank[3].file is None
    assert not any(row.recorded for row in truth.collectives if row.rank == 3)


def test_what_is_no_truth_is_refused(tmp_path: Path) -> None:
    for text in ("", "[]", "{}", '{"schema": "zprof.simulation/1"}', '{"schema": "zprof.simulation/9"}'):
        (tmp_path / "truth.json").write_text(text)
        with pytest.raises(BadInput):
            read_truth(tmp_path)


def test_late_windows_and_drops_are_in_the_truth(tmp_path: Path) -> None:
    plan = Plan(ranks=2, units=2, drops=((1, 4),), windows={0: Window(opens_late_ns=1_500_000)})
    truth = simulate(plan, tmp_path)
    lost = [[row.sequence for row in truth.collectives if row.rank == r and not row.recorded] for r in (0, 1)]
    assert lost[1] == [4]
    assert lost[0] == [row.sequence for row in truth.collectives
                       if row.rank == 0 and row.start_ns < truth.per_rank[0].opens_ns]  # fmt: skip
    assert truth.per_rank[1].dropped == 1
