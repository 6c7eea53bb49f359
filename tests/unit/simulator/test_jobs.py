"""Hold the independent simulator to CUDA's and NCCL's rules, and its truth to its own counterfactuals."""

import gzip
import json
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from zprof.simulator.jobs import (
    CAUSES,
    SHAPES,
    Job,
    draw_job,
    gain_ns,
    remove,
    run_job,
    step_time_ns,
    write_job,
)
from zprof.simulator.jobs.faults import draw_candidate
from zprof.simulator.jobs.job import hash_key

SAMPLES = (
    (3, None, "healthy"),
    (4, None, "inference"),
    (5, "sharding_spans_nodes", "training"),
    (6, "checkpoint_regathers", "training"),
    (7, "compute_blocks_comm", "training"),
    (8, "comm_slows_compute+accumulation_regathers", "training"),
    (9, "unhidden_optimizer_gather", "training"),
)


def read_trace(path: Path) -> dict:
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def read_traces(folder: Path) -> list[dict]:
    return [read_trace(path) for path in sorted(folder.glob("rank*.json*"))]


def cheap_job(cause: str | None, shape: str = "training", **wanted: object) -> Job:
    """Return the first small job whose dialect is as wanted."""
    for seed in range(200):
        job = draw_candidate(seed, cause, shape, 0)
        small = job.world * job.steps * job.count_kernels() < 4_000
        if small and all(getattr(job.dialect, key) == value for key, value in wanted.items()):
            return job
    raise AssertionError("no such job among 200")


@pytest.mark.parametrize(("seed", "fault", "shape"), SAMPLES)
def test_streams_and_communicators_run_in_order(seed, fault, shape):
    schedule = run_job(draw_job(seed, fault, shape))
    for rank in schedule.ranks:
        lanes = defaultdict(list)
        for task in rank.tasks:
            assert task.start >= task.avail
            lanes["stream", task.stream.name].append(task)
            if task.cat == "collective":
                lanes["communicator", task.kind].append(task)
        for tasks in lanes.values():
            assert all(one.end <= other.start for one, other in pairwise(tasks))
    for operation in schedule.collectives:
        assert sorted(operation.tasks) == list(operation.members)
        assert len({task.info for task in operation.tasks.values()}) == 1
        assert min(t.end for t in operation.tasks.values()) > max(t.start for t in operation.tasks.values())


def test_same_seed_gives_same_bytes(tmp_path):
    for shape in SHAPES:
        for name in ("one", "two"):
            write_job(cheap_job(None, shape), tmp_path / shape / name)
        one, two = (sorted((tmp_path / shape / name).iterdir()) for name in ("one", "two"))
        assert [p.name for p in one] == [p.name for p in two]
        assert [p.read_bytes() for p in one] == [p.read_bytes() for p in two]


#: One of a rank, one of the engine's settings and one of the network; the others are as slow as these.
QUICK_CAUSES = ("data_loader", "no_prefetch", "low_bus_bandwidth")


@pytest.mark.parametrize(
    "cause",
    [pytest.param(cause, marks=[] if cause in QUICK_CAUSES else pytest.mark.slow) for cause in CAUSES],
)
def test_removing_a_planted_cause_wins_time(cause):
    job = draw_job(1, cause)
    assert job.faults == (cause,)
    assert gain_ns(job, cause) > 0
    fixed = remove(job, cause)
    assert remove(fixed, cause) == fixed
    assert gain_ns(fixed, cause) == 0


@pytest.mark.parametrize("shape", ["training", "inference"])
def test_any_cause_can_be_asked_for_in_any_job(shape):
    for seed in range(12):
        job = draw_candidate(seed, None, shape, 0)
        for cause in CAUSES:
            fixed = remove(job, cause)
            assert fixed is None or remove(fixed, cause) == fixed
            if fixed == job:
                assert gain_ns(job, cause) == 0


def test_removal_leaves_all_other_draws_alone():
    job = cheap_job("data_loader")
    fixed = remove(job, "data_loader")
    works = []
    for variant in (job, fixed):
        ranks = run_job(replace(variant, gpu=replace(variant.gpu, comm_slowdown=1.0))).ranks
        works.append([[(t.kind, t.end - t.start) for t in r.tasks if t.cat == "kernel"] for r in ranks])
    assert works[0] == works[1]


def test_two_causes_gain_more_together_than_alone():
    job = draw_job(2, "data_loader+lost_compute_efficiency")
    both = remove(remove(job, "data_loader"), "lost_compute_efficiency")
    gain = step_time_ns(run_job(job)) - step_time_ns(run_job(both))
    assert gain > max(gain_ns(job, cause) for cause in job.faults) > 0


def test_causes_that_exclude_each_other_are_refused():
    with pytest.raises(ValueError, match="units_too_small"):
        draw_job(1, "units_too_small+single_unit")
    with pytest.raises(ValueError, match="engine"):
        draw_job(1, "copy_overhead+unhidden_optimizer_gather")
    with pytest.raises(ValueError, match="unknown cause"):
        draw_job(1, "gremlins")


def test_kernels_are_linked_to_their_launches(tmp_path):
    write_job(cheap_job(None, era="new"), tmp_path)
    for trace in read_traces(tmp_path):
        events = trace["traceEvents"]
        calls = [e for e in events if e.get("cat") == "cuda_runtime"]
        assert len({e["args"]["correlation"] for e in calls}) == len(calls)
        launches = {e["args"]["correlation"]: e for e in calls}
        work = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy")]
        operators = {e["args"]["External id"] for e in events if e.get("cat") == "cpu_op"}
        for event in work:
            launch = launches[event["args"]["correlation"]]
            assert launch["ts"] < event["ts"]
            assert launch["args"]["External id"] == event["args"]["External id"]
            assert event["cat"] == "gpu_memcpy" or event["args"]["External id"] in operators
        flows = Counter((e["id"], e["ph"]) for e in events if e.get("cat") == "ac2g")
        assert flows == Counter((e["args"]["correlation"], ph) for e in work for ph in "sf")


def test_host_rows_of_a_thread_nest(tmp_path):
    write_job(cheap_job("straggler_rank", era="new", profiler_step=True), tmp_path)
    for trace in read_traces(tmp_path):
        threads = defaultdict(list)
        for event in trace["traceEvents"]:
            if event.get("cat") in ("cpu_op", "user_annotation", "python_function", "cuda_runtime"):
                threads[event["tid"]].append((event["ts"], -event["dur"]))
        assert len(threads) == 2
        for rows in threads.values():
            open_ends: list[float] = []
            for start, negative in sorted(rows):
                while open_ends and open_ends[-1] <= start + 0.002:
                    open_ends.pop()
                assert not open_ends or start - negative <= open_ends[-1] + 0.002
                open_ends.append(start - negative)


def test_recomputation_runs_inside_backward_on_the_autograd_thread(tmp_path):
    for cause, recomputes in (("checkpoint_regathers", True), ("fp32_reduce", False)):
        job = cheap_job(cause, era="new")
        job = job if recomputes else replace(job, checkpointing=False)
        write_job(job, tmp_path / cause)
        events = read_traces(tmp_path / cause)[0]["traceEvents"]
        threads = [e for e in events if e["name"] == "thread_name" and e["tid"] > 1000]
        (autograd,) = (e["tid"] for e in threads if "pt_autograd_0" in e["args"]["name"])
        operators = {(e["name"], e["tid"] == autograd) for e in events if e.get("cat") == "cpu_op"}
        backward = {inside for name, inside in operators if name.endswith("MmBackward0")}
        assert backward == {True}
        assert ("aten::_scaled_dot_product_flash_attention", False) in operators
        assert (("aten::_scaled_dot_product_flash_attention", True) in operators) == recomputes


def test_metadata_of_collectives_agrees_between_ranks(tmp_path):
    job = cheap_job("fp32_reduce", era="new", metadata=True, sequence=True)
    write_job(job, tmp_path)
    seen = defaultdict(set)
    keys = ("Process Group Name", "Seq", "Process Group Ranks")
    facts = ("Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype")
    members = Counter()
    for trace in read_traces(tmp_path):
        for event in trace["traceEvents"]:
            if event.get("cat") == "kernel" and event["name"].startswith("nccl"):
                place = tuple(event["args"][k] for k in keys)
                seen[place].add(tuple(event["args"][k] for k in facts))
                members[place] += 1
    assert seen
    assert all(len(facts) == 1 for facts in seen.values())
    assert all(members[place] == len(json.loads(place[2])) for place in seen)
    reduced = [f for facts in seen.values() for f in facts if f[0] in ("_reduce_scatter_base", "allreduce")]
    assert {f[4] for f in reduced} == {"Float"}


def test_clocks_of_the_files_are_off_as_the_truth_says(tmp_path):
    job = cheap_job(None, era="new")
    truth = write_job(job, tmp_path)
    schedule = run_job(job)
    for index, trace in enumerate(read_traces(tmp_path)):
        base = trace["baseTimeNanoseconds"]
        first = min(t.start for t in schedule.ranks[index].tasks)
        shown = min(e["ts"] for e in trace["traceEvents"] if e.get("cat") in ("kernel", "gpu_memcpy"))
        zero = 1_428_625_731_000_000 + hash_key(job.key, "window") % 10**12
        offset = base + shown * 1000 - (base + zero + first)
        assert offset == pytest.approx(truth.clock_offsets_ns[index], abs=6_000)


def test_shapes_are_what_they_say(tmp_path):
    job = draw_job(31, None, "partial")
    truth = write_job(job, tmp_path / "partial")
    assert 0 < len(list((tmp_path / "partial").glob("rank*"))) == len(truth.ranks) < job.world

    write_job(cheap_job(None, "several_steps"), tmp_path / "several")
    for trace in read_traces(tmp_path / "several"):
        names = [e["name"] for e in trace["traceEvents"]]
        assert not any(n.startswith("ProfilerStep") for n in names)
        assert names.count("Optimizer.step#AdamW.step") >= 3

    skewed = draw_job(32, None, "skewed")
    assert max(s.skew_ns for s in skewed.starts) > 5_000_000

    job = cheap_job(None, "damaged")
    write_job(job, tmp_path / "damaged")
    rank = run_job(job).ranks[0]
    kernels = [e for e in read_traces(tmp_path / "damaged")[0]["traceEvents"] if e.get("cat") == "kernel"]
    assert 0 < len(kernels) < sum(t.cat != "memcpy" for t in rank.tasks)

    truth = write_job(cheap_job("lost_compute_efficiency"), tmp_path / "slow")
    assert truth.needs_baseline
    assert len(read_traces(tmp_path / "slow" / "baseline")) == len(truth.ranks)


def test_cut_files_are_broken_or_end_early(tmp_path):
    kinds = Counter()
    for seed in range(40):
        job = draw_candidate(seed, None, "cut", 0)
        if job.world * job.steps * job.count_kernels() > 4_000:
            continue
        write_job(job, tmp_path / str(seed))
        ranks = run_job(job).ranks
        found = set()
        for path in (tmp_path / str(seed)).glob("rank*"):
            try:
                events = read_trace(path)["traceEvents"]
            except (json.JSONDecodeError, UnicodeDecodeError, EOFError):
                found.add("broken")
                continue
            index = int(path.name.split(".")[0].removeprefix("rank"))
            shown = sum(e.get("cat") == "kernel" for e in events)
            if shown < sum(t.cat != "memcpy" for t in ranks[index].tasks):
                found.add("early")
        assert len(found) == 1
        kinds.update(found)
        if len(kinds) == 2:
            break
    assert set(kinds) == {"broken", "early"}
