"""The truth of a simulation, against the written traces and an interval oracle of its own."""

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from zprof.model.time import LateReason
from zprof.simulator.plan import (
    AllocatorRetries,
    ComputeCost,
    HostDelay,
    HostThread,
    Network,
    Offload,
    PartialRecording,
    SimulationPlan,
    Vendor,
)
from zprof.simulator.simulate import simulate
from zprof.simulator.truth.model import GroundTruth, StepTruth
from zprof.simulator.truth.sweep import BlockedSpan, Running, StepSums, Sweep

Spans = list[tuple[int, int]]
Written = tuple[GroundTruth, list[list[dict[str, Any]]]]
SMALL = ComputeCost(forward_ns=200_000, backward_ns=400_000, optimizer_ns=100_000, forward_kernels=2)
SLOW = Network(beta_bytes_per_s=15e9, per_kind_streams=True)
EXPOSED = SimulationPlan(ranks=4, units=3, steps=2, compute=SMALL, network=SLOW, speed={1: 0.7})
DEVICES = {
    "exposed": EXPOSED,
    "buckets": SimulationPlan(ranks=2, stage=2, units=3, steps=2, network=SLOW, bucket_bytes=1 << 23),
    "offload": SimulationPlan(ranks=2, units=2, steps=2, offload=Offload(enabled=True)),
    "hsdp": SimulationPlan(ranks=8, shard=2, tensor=2, units=2, steps=2, network=SLOW, compute=SMALL),
    "amd": SimulationPlan(ranks=2, units=3, steps=2, vendor=Vendor.AMD, network=SLOW, prefetch=0),
    "pipelined": SimulationPlan(ranks=2, units=2, stage=1, steps=3, hide_optimizer_gather=True, network=SLOW),
}
GLOO = SimulationPlan(ranks=3, units=3, steps=2, vendor=Vendor.GLOO, network=SLOW, speed={2: 0.6})


def write(plan: SimulationPlan, folder: Path) -> Written:
    truth = simulate(plan, folder)
    return truth, [events(folder, rank) for rank in range(truth.ranks)]


def events(folder: Path, rank: int) -> list[dict[str, Any]]:
    document = json.loads(gzip.decompress((folder / f"rank{rank}.json.gz").read_bytes()))
    base = document["baseTimeNanoseconds"]
    found = [event for event in document["traceEvents"] if event["ph"] == "X"]
    for event in found:
        event["begin"] = base + round(event["ts"] * 1000)
        event["end"] = event["begin"] + round(event["dur"] * 1000)
    return found


def spans(found: list[dict[str, Any]], category: str, name: str = "") -> Spans:
    return [(e["begin"], e["end"]) for e in found if e["cat"] == category and name in e["name"]]


def covered_ns(spans: Spans, step: StepTruth) -> int:
    """The length of the union of spans within a step, by one pass over them in order."""
    total, until = 0, step.begin_ns
    for first, last in sorted(spans):
        first, last = max(first, until), min(last, step.end_ns)
        if first < last:
            total, until = total + last - first, last
    return total


def overlap_ns(first: Spans, second: Spans, step: StepTruth) -> int:
    return covered_ns(first, step) + covered_ns(second, step) - covered_ns(first + second, step)


@pytest.mark.parametrize("name", DEVICES)
def test_the_terms_of_a_step_are_those_of_the_written_device_events(name: str, tmp_path: Path) -> None:
    truth, traces = write(DEVICES[name], tmp_path)
    check_collectives(truth)
    for step in truth.per_step:
        found = traces[step.rank]
        running, copies = spans(found, "kernel", "nccl"), spans(found, "gpu_memcpy")
        compute = [span for span in spans(found, "kernel") if span not in set(running)]
        assert step.compute_ns == covered_ns(compute, step)
        assert step.collective_ns == covered_ns(running, step)
        assert step.overlapped_ns == overlap_ns(running, compute, step)
        exposed = step.exposed_wait_ns + step.exposed_transfer_ns
        assert exposed == step.collective_ns - step.overlapped_ns
        busy = covered_ns(compute + running, step)
        assert step.exposed_memcpy_ns == covered_ns(compute + running + copies, step) - busy
        assert step.wall_ns == step.compute_ns + exposed + step.exposed_memcpy_ns + step.idle_ns


def test_the_terms_of_a_step_are_those_of_the_written_events_of_gloo(tmp_path: Path) -> None:
    truth, traces = write(GLOO, tmp_path)
    check_collectives(truth)
    for step in truth.per_step:
        running = spans(traces[step.rank], "user_annotation", "gloo:")
        waits = spans(traces[step.rank], "user_annotation", "zprof::wait")
        assert step.collective_ns == covered_ns(running, step)
        assert step.exposed_wait_ns + step.exposed_transfer_ns == overlap_ns(running, waits, step) > 0


def check_collectives(truth: GroundTruth) -> None:
    """Waits and transfers follow from when the others came; their exposed parts sum to those of steps."""
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
        assert row.exposed_wait_ns <= row.wait_ns
        assert row.exposed_transfer_ns <= row.transfer_ns
    for rank in range(truth.ranks):
        steps = [step for step in truth.per_step if step.rank == rank]
        rows = [row for row in truth.collectives if row.rank == rank]
        for name in ("exposed_wait_ns", "exposed_transfer_ns"):
            assert sum(getattr(row, name) for row in rows) == sum(getattr(step, name) for step in steps)


def test_device_steps_follow_each_other_and_hold_all_work(tmp_path: Path) -> None:
    plan = replace(EXPOSED, steps=3, host=HostThread(sync_each_step=False, run_ahead=200))
    truth, traces = write(plan, tmp_path)
    for step in truth.per_step:
        found = traces[step.rank]
        calls = {e["args"]["correlation"]: e["begin"] for e in found if e["cat"] == "cuda_runtime"}
        work = [e for e in found if e["cat"] in ("kernel", "gpu_memcpy")]
        ends = [(calls[e["args"]["correlation"]], e["end"]) for e in work]
        before = [end for launch, end in ends if launch < step.host_begin_ns]
        within = [end for launch, end in ends if launch < step.host_end_ns]
        assert step.begin_ns == max([step.host_begin_ns, *before])
        assert step.end_ns == max([step.host_end_ns, *within]) > step.host_end_ns


@pytest.mark.parametrize(
    ("awaited", "sums"), [((), (20, 0, 40, 0, 20)), ((1,), (0, 0, 10, 50, 20)), ((0, 1), (20, 0, 40, 0, 20))]
)
def test_what_is_waited_for_is_what_holds_up_and_else_the_first_to_start(
    awaited: tuple[int, ...], sums: tuple[int, ...]
) -> None:
    """30 to 90 is blocked: the first waits until 50, the second moves data until 80."""
    collectives = [
        Running(begin_ns=0, arrival_ns=50, end_ns=100),
        Running(begin_ns=20, arrival_ns=20, end_ns=80),
    ]
    step = StepSums(begin_ns=0, end_ns=200)
    sweep = Sweep(collectives, [step])
    sweep.run([(0, 30), (90, 200)], [], [BlockedSpan(begin_ns=30, end_ns=90, awaited=awaited)])
    assert (*sweep.sums.wait_ns, *sweep.sums.transfer_ns, step.ambiguous_ns) == sums
    assert step.wait_ns + step.transfer_ns == 60


LATE = HostDelay(rank=1, ns=6_000_000)


@pytest.mark.parametrize(
    ("changes", "rank", "reason"),
    [
        ({"speed": {2: 0.8}}, 2, LateReason.COMPUTE),
        ({"speed": {2: 0.8}, "vendor": Vendor.GLOO}, 2, LateReason.COMPUTE),
        ({"delays": (LATE,)}, 1, LateReason.HOST),
        ({"delays": (replace(LATE, data=True),)}, 1, LateReason.DATA),
        ({"allocator": AllocatorRetries(retries_per_step=3, ranks=(0,))}, 0, LateReason.ALLOCATOR),
    ],
)
def test_the_rank_that_was_made_late_is_late_for_that_reason(
    changes: dict[str, Any], rank: int, reason: LateReason, tmp_path: Path
) -> None:
    plan = SimulationPlan(units=4, **changes)
    rows = simulate(plan, tmp_path).collectives
    late = [row for row in rows if row.rank == 0 and row.lead_ns > 100_000]
    assert len(late) >= plan.steps
    assert {(row.late_rank, row.reason) for row in late} == {(rank, reason)}


def test_a_truth_has_what_was_not_recorded_and_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    late = PartialRecording(opens_late_ns=1_500_000)
    plan = replace(DEVICES["hsdp"], offsets_ns={1: -7}, drift_ppb={2: 900}, missing=(3,), drops=((1, 4),))
    truth = simulate(replace(plan, windows={0: late}), tmp_path)
    written = json.loads((tmp_path / "truth.json").read_text())
    for row in written["collectives"]:
        row["ranks"] = written["groups"][row["ranks"]]
    del written["groups"]
    assert msgspec.convert(written, GroundTruth) == truth
    assert truth.per_rank[3].file is None
    lost = {
        rank: [row for row in truth.collectives if row.rank == rank and not row.recorded] for rank in range(4)
    }
    assert not any(row.recorded for row in truth.collectives if row.rank == 3)
    assert truth.per_rank[1].dropped == len(lost[1]) == 1
    opens = truth.per_rank[0].opens_ns
    assert lost[0] == [row for row in truth.collectives if row.rank == 0 and row.start_ns < opens] != []
