"""The truth of a simulated job, against the written traces and an interval oracle of its own."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from zprof.simulator.faults import remove
from zprof.simulator.ground_truth import Truth, write_job
from zprof.simulator.job import VENDORS, Job, Pace, Start
from zprof.simulator.ledger import StepTruth, count_parameter_bytes, list_collectives
from zprof.simulator.regular import make_job, plant
from zprof.simulator.run import run_job

Spans = list[tuple[int, int]]
SLOW = {"units": 3, "steps": 2, "bus": 15.0, "forward_ns": 400_000, "backward_ns": 800_000}
EXPOSED = make_job(ranks=4, **SLOW)
DEVICES = {
    "exposed": replace(EXPOSED, ranks=(Pace(), Pace(gpu=1.4), Pace(), Pace())),
    "buckets": make_job(ranks=2, stage=2, reduce_bucket=2, **SLOW),
    "offload": make_job(ranks=2, offload_ns_per_param=0.05, **SLOW),
    "hsdp": make_job(ranks=8, shard_size=2, tensor_size=2, **SLOW),
    "amd": make_job(vendor="amd", ranks=2, prefetch="off", **SLOW),
    "pipelined": make_job(ranks=2, stage=1, optimizer_gather="hidden", **SLOW),
    "clocks": replace(EXPOSED, starts=(Start(), *(Start(clock_offset_ns=7_000_000, skew_ns=90_000),) * 3)),
}
GLOO = make_job(vendor="gloo", ranks=3, **SLOW)


def write(job: Job, folder: Path) -> tuple[Truth, list[list[dict[str, Any]]]]:
    truth = write_job(job, folder)
    return truth, [read_events(folder, job, rank) for rank in range(job.world)]


def read_events(folder: Path, job: Job, rank: int) -> list[dict[str, Any]]:
    """Return a rank's events, with times on the true clock."""
    document = json.loads(gzip.decompress((folder / f"rank{rank}.json.gz").read_bytes()))
    base = document["baseTimeNanoseconds"] - job.starts[rank].clock_offset_ns
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


def check_collectives(truth: Truth) -> None:
    """Waits and transfers follow from when the others came."""
    starts: dict[tuple[object, ...], dict[int, int]] = {}
    for row in truth.collectives:
        starts.setdefault((row.ranks, row.number), {})[row.rank] = row.start_ns
    for row in truth.collectives:
        group = starts[row.ranks, row.number]
        assert set(group) == set(row.ranks)
        last = max(group.values())
        assert group[row.late_rank] == last
        assert row.wait_ns == last - row.start_ns
        assert row.wait_ns + row.transfer_ns == row.end_ns - row.start_ns
        assert row.lead_ns == last - sorted(group.values())[-2]


def test_device_steps_follow_each_other_and_hold_all_work(tmp_path: Path) -> None:
    truth, traces = write(make_job(ranks=4, blocking="none", **SLOW | {"steps": 3}), tmp_path)
    for step in truth.per_step:
        found = traces[step.rank]
        marks = next(e for e in found if e["name"] == f"ProfilerStep#{3 + step.step}")
        calls = {e["args"]["correlation"]: e["end"] for e in found if e["cat"] == "cuda_runtime"}
        work = [e for e in found if e["cat"] in ("kernel", "gpu_memcpy")]
        ends = [(calls[e["args"]["correlation"]], e["end"]) for e in work]
        before = [end for launch, end in ends if launch < marks["begin"]]
        within = [end for launch, end in ends if launch < marks["end"]]
        assert step.begin_ns == max([marks["begin"], *before])
        assert step.end_ns == max([marks["end"], *within]) > marks["end"]


@pytest.mark.parametrize("vendor", VENDORS)
@pytest.mark.parametrize(
    "pace", [Pace(gpu=1.4), Pace(stall_ns=6_000_000, stall_block=1), Pace(data_ns=6_000_000)]
)
def test_the_rank_that_was_made_late_is_late(vendor: str, pace: Pace) -> None:
    job = make_job(vendor=vendor, units=4, ranks=3)  # type: ignore[arg-type]
    rows = list_collectives(run_job(replace(job, ranks=(Pace(), pace, Pace()))))
    late = [row.late_rank for row in rows if row.rank == 0 and row.lead_ns > 300_000]
    assert len(late) >= job.steps
    assert set(late) == {1}


PSI = 3 * (1 << 20) * 2
TWICE = {"micro_batches": 3, "regather_every_micro_batch": True}


@pytest.mark.parametrize(
    ("changes", "times"),
    [
        *(({"stage": stage, "reduce_bucket": bucket}, 2) for stage in (0, 1, 2) for bucket in (1, 8)),
        ({}, 3),
        (TWICE, 7),
        (TWICE | {"sync_every_micro_batch": True}, 9),
        ({"reshard_after_forward": False}, 2),
        ({"checkpointing": True, "checkpoint_regather": True}, 4),
        ({"reduce_itemsize": 4}, 4),
    ],
)
def test_a_step_moves_as_many_times_its_parameters(changes: dict[str, Any], times: int) -> None:
    job = make_job(ranks=4, units=3, unit_params=1 << 20, last_unit_kept=False, **changes)
    moved = count_parameter_bytes(run_job(job))
    whole = {"zero1": 3, "ddp": 2}.get(job.engine, times)  # an all-reduce where ZeRO-1 could reduce-scatter
    assert moved == pytest.approx(whole * PSI, rel=1e-3)


@pytest.mark.parametrize("cause", ["straggler_rank", "data_loader", "no_prefetch"])
def test_more_strength_costs_more(cause: str) -> None:
    job = make_job(ranks=3, units=4)
    costs = []
    for strength in (0.3, 1.0, 2.0):
        planted = plant(job, cause, strength)
        fixed = remove(planted, cause)
        assert fixed is not None
        ends = [run_job(each, record=False).step_ends()[0] for each in (planted, fixed)]
        costs.append((ends[0][-1] - ends[1][-1]) / ends[0][-1])
    assert costs[0] < costs[1] < costs[2]


@pytest.mark.parametrize("strength", [0.0, -1.0, 1e6, float("nan")])
def test_a_strength_that_makes_no_sense_is_refused(strength: float) -> None:
    with pytest.raises(ValueError, match="strength"):
        plant(EXPOSED, "straggler_rank", strength)
