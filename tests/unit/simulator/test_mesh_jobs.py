"""Jobs of several dimensions: the physics of their pipelines, what their faults cost, and their truth."""

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zprof.analysis.time.analyse import analyse_time
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.model.gaps import GapKind
from zprof.model.time import WindowPolicy
from zprof.run.reader import load
from zprof.simulator.ground_truth import step_time_ns
from zprof.simulator.job import Job
from zprof.simulator.ledger import StepTruth
from zprof.simulator.mesh.draw import draw_mesh_job
from zprof.simulator.mesh.faults import (
    MESH_CAUSES,
    change,
    find_culprits,
    plant_mesh_cause,
    remove_mesh_cause,
)
from zprof.simulator.mesh.layout import Degrees, Framework, Schedule
from zprof.simulator.mesh.ledger import list_bubbles
from zprof.simulator.mesh.regular import make_mesh_job, plant_mesh
from zprof.simulator.mesh.truth import MeshTruth, measure_mesh_gain, write_mesh_job
from zprof.simulator.run import run_job

STAGES = Degrees(pipeline=4)
IN_WHICH = {
    "sequence_length_imbalance": Degrees(data=4, tensor=2),
    "expert_imbalance": Degrees(data=4, expert=4),
    "exposed_dispatch": Degrees(data=4, expert=2),
    "exposed_replica_all_reduce": Degrees(replica=2, data=2),
    "exposed_context_exchange": Degrees(context=4),
    "exposed_tensor_parallel": Degrees(pipeline=2, tensor=2),
    "straggler_rank": Degrees(pipeline=2, tensor=2),
}
WRITTEN: dict[str, dict[str, Any]] = {
    "pipeline": {"degrees": Degrees(pipeline=2, data=2, tensor=2)},
    "interleaved": {
        "degrees": Degrees(pipeline=2, context=2), "schedule": "interleaved", "framework": "torch",
    },
    "zero_bubble": {"degrees": Degrees(pipeline=3), "schedule": "zero_bubble", "micro_batches": 5},
    "experts": {"degrees": Degrees(data=4, expert=2), "routing_skew": 0.2, "framework": "deepspeed"},
    "hybrid": {"degrees": Degrees(replica=2, data=2), "ranks_per_node": 2, "layer_params": 4 << 20},
    "gathered": {
        "degrees": Degrees(context=2, tensor=2), "ring_attention": False, "sequence_parallel": False,
    },
    "amd": {"degrees": Degrees(pipeline=2, context=2), "vendor": "amd"},
}  # fmt: skip


def find_bubble(schedule: Schedule, virtual: int, *, batched: bool = False, ranks: int = 4) -> list[float]:
    """Return the share of the bubble in the second step by rank; stages are equal, messages small."""
    job = make_mesh_job(
        degrees=Degrees(pipeline=ranks), schedule=schedule, virtual=virtual, micro_batches=2 * ranks,
        stage_layers=4 // virtual, activation_elements=1 << 14, alpha_ns=3_000, batched_messages=batched,
    )  # fmt: skip
    found = [bubble for bubble in list_bubbles(run_job(job)) if bubble.step == 1]
    assert len(found) == ranks
    return [bubble.bubble_ns / (bubble.end_ns - bubble.begin_ns) for bubble in found]


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize(("schedule", "virtual"), [("1f1b", 1), ("gpipe", 1), ("interleaved", 2)])
def test_the_bubble_is_that_of_the_formula(schedule: Schedule, virtual: int, batched: bool) -> None:
    ahead = 3 / virtual
    for share in find_bubble(schedule, virtual, batched=batched):
        assert share == pytest.approx(ahead / (8 + ahead), rel=0.01)


def test_a_split_backward_pass_fills_a_part_of_the_bubble() -> None:
    # without warm-up: F + B - W of 3 units per micro-batch, where 1F1B has F + B of 3
    for share in find_bubble("zero_bubble", 1):
        assert 0.5 * 3 / 11 < share < 0.7 * 3 / 11


@pytest.mark.parametrize("cause", MESH_CAUSES)
def test_a_cause_costs_the_difference_between_two_simulations(cause: str) -> None:
    healthy = make_mesh_job(degrees=IN_WHICH.get(cause, STAGES), layer_params=4 << 20)
    planted = plant_mesh(healthy, cause)
    fixed = remove_mesh_cause(planted, cause)
    assert fixed is not None
    assert planted.faults == (cause,)
    with_ns, without_ns = (step_time_ns(run_job(job)) for job in (planted, fixed))
    assert measure_mesh_gain(planted, cause) is not None
    assert 0.07 < (with_ns - without_ns) / with_ns < 0.3
    assert (measure_mesh_gain(planted, cause) or (0, 0))[0] == with_ns - without_ns


def test_the_truth_names_the_ranks_that_are_the_cause() -> None:
    job = make_mesh_job(degrees=Degrees(pipeline=2, data=2, expert=2, tensor=2), stage_layers=4)
    slow = {rank: replace(job.ranks[0], gpu=1.2) for rank in range(4, 8)}
    jobs = {
        "slow_stage": replace(job, ranks=tuple(slow.get(rank, own) for rank, own in enumerate(job.ranks))),
        "straggler_rank": replace(job, ranks=(*job.ranks[:5], slow[5], *job.ranks[6:])),
        "stage_imbalance": change(job, layers=(3, 5)),
        "unbalanced_recompute": change(job, recompute=(1.0, 0.0)),
        "expert_imbalance": change(job, expert_loads=(0.6, 1.4)),
        "sequence_length_imbalance": change(job, attention_factors=((1.3,) * 8, (0.7,) * 8)),
        "exposed_dispatch": change(job, link_factors=(("expert", 0.1),)),
    }
    culprits = {cause: find_culprits(planted, cause) for cause, planted in jobs.items()}
    assert culprits == {
        "slow_stage": (4, 5, 6, 7), "straggler_rank": (5,), "stage_imbalance": (4, 5, 6, 7),
        "unbalanced_recompute": (0, 1, 2, 3), "expert_imbalance": (2, 3, 6, 7),
        "sequence_length_imbalance": (0, 1, 4, 5), "exposed_dispatch": (),
    }  # fmt: skip


def test_a_cause_that_cannot_occur_is_refused() -> None:
    for cause in MESH_CAUSES:
        with pytest.raises(ValueError, match=cause):
            plant_mesh(make_mesh_job(degrees=Degrees()), cause)


@pytest.mark.parametrize("cause", ["stage_imbalance", "unbalanced_recompute", "sequence_length_imbalance"])
def test_balancing_keeps_the_work(cause: str) -> None:
    job = make_mesh_job(degrees=Degrees(pipeline=2, data=2), stage_layers=4)
    for seed in range(3):
        planted = plant_mesh_cause(job, cause, np.random.default_rng(seed), 1.0)
        fixed = remove_mesh_cause(planted, cause)
        assert fixed is not None
        assert sum_compute(fixed) == pytest.approx(sum_compute(planted), rel=0.02)


def sum_compute(job: Job) -> int:
    tasks = [task for rank in run_job(job).ranks for task in rank.tasks]
    return sum(task.end - task.start for task in tasks if task.cat == "kernel")


@pytest.mark.parametrize("cause", MESH_CAUSES)
def test_a_drawn_cause_matters(cause: str) -> None:
    job = draw_mesh_job(32, cause)
    gain = measure_mesh_gain(job, cause)
    assert job.faults == (cause,)
    assert gain is not None
    assert 0.03 <= gain[0] / step_time_ns(run_job(job, record=False)) <= 0.45


def test_drawn_jobs_are_given_by_their_seed() -> None:
    jobs = [draw_mesh_job(seed) for seed in (1, 2, 1)]
    assert jobs[0] == jobs[2] != jobs[1]
    both = draw_mesh_job(1, "expert_imbalance+exposed_dispatch")
    assert both.faults == ("expert_imbalance", "exposed_dispatch")


@pytest.mark.parametrize("seed", [41, 42])
def test_drawn_jobs_are_read(seed: int, tmp_path: Path) -> None:
    job = draw_mesh_job(seed)
    truth = write_mesh_job(job, tmp_path / "traces")
    check_roles(truth)
    import_paths([tmp_path / "traces"], tmp_path / "run.zprof")
    found = analyse_time(load(tmp_path / "run.zprof"), WindowPolicy.STEP)
    assert {gap.kind for gap in found.gaps} <= {GapKind.VOLUME}
    assert found.collectives.to_frame()["matched"].all()


@pytest.mark.parametrize("name", WRITTEN)
def test_the_truth_is_that_of_the_written_kernels_and_zprof_reads_them(name: str, tmp_path: Path) -> None:
    job = make_mesh_job(**WRITTEN[name], batched_messages=False)
    truth = write_mesh_job(job, tmp_path / "traces")
    kernels = [read_kernels(tmp_path / "traces", job, rank) for rank in range(job.world)]
    check_exposed_times(truth, kernels)
    check_roles(truth)

    import_paths([tmp_path / "traces"], tmp_path / "run.zprof")
    found = analyse_time(load(tmp_path / "run.zprof"), WindowPolicy.STEP)
    assert {gap.kind for gap in found.gaps} <= {GapKind.VOLUME}
    rows = found.collectives.to_frame()
    assert rows["matched"].all()
    assert len(rows) == sum(kernel["is_message"] for own in kernels for kernel in own)


@pytest.mark.parametrize("name", ["pipeline", "interleaved", "amd"])
def test_the_messages_of_a_batch_are_paired(name: str, tmp_path: Path) -> None:
    job = make_mesh_job(**WRITTEN[name], batched_messages=True)
    truth = write_mesh_job(job, tmp_path / "traces")
    check_roles(truth)
    import_paths([tmp_path / "traces"], tmp_path / "run.zprof")
    found = analyse_time(load(tmp_path / "run.zprof"), WindowPolicy.STEP)
    assert {gap.kind for gap in found.gaps} <= {GapKind.VOLUME}
    rows = found.collectives.to_frame()
    assert rows["matched"].all()
    for rank in range(job.world):
        for kind in ("send", "recv"):
            own = rows[(rows["rank"] == rank) & (rows["kind"] == kind)]
            true = [entry for entry in truth.collectives if (entry.rank, entry.kind) == (rank, kind)]
            assert len(own) == len(true) > 0
            assert own["wait_ns"].sum() == pytest.approx(sum(entry.wait_ns for entry in true), rel=0.01)
            assert own["transfer_ns"].sum() == pytest.approx(sum(e.transfer_ns for e in true), rel=0.05)


def read_kernels(folder: Path, job: Job, rank: int) -> list[dict[str, Any]]:
    """Return the kernels of a rank on the true clock; `key` names a collective or message."""
    document = json.loads(gzip.decompress((folder / f"rank{rank}.json.gz").read_bytes()))
    base = document["baseTimeNanoseconds"] - job.starts[rank].clock_offset_ns
    found = []
    for event in document["traceEvents"]:
        if event.get("cat") != "kernel":
            continue
        begin, args = base + round(event["ts"] * 1000), event["args"]
        kind, ends = args.get("Collective name"), (rank, args.get("Dst Rank"))
        if kind == "recv":
            kind, ends = "send", (args["Src Rank"], rank)
        key = (args.get("Process Group Ranks"), kind, args.get("Seq"), ends if kind == "send" else ())
        end = base + round((event["ts"] + event["dur"]) * 1000)
        found.append({"begin": begin, "end": end, "key": key, "is_message": kind is not None})
    return sorted(found, key=lambda kernel: kernel["begin"])


def check_exposed_times(truth: MeshTruth, kernels: list[list[dict[str, Any]]]) -> None:
    """Compare each step with a sweep over the kernels: time without compute is that of the first message."""
    members = defaultdict(list)
    for own in kernels:
        for kernel in own:
            if kernel["is_message"]:
                members[kernel["key"]].append(kernel["begin"])
    arrived = {key: max(begins) for key, begins in members.items()}
    assert min(map(len, members.values())) > 1
    for step in truth.per_step:
        wait = transfer = compute = 0
        for begin, end, running in sweep(kernels[step.rank], step, arrived):
            first = next(iter(running), None)
            if any(not kernel["is_message"] for kernel in running):
                compute += end - begin
            elif first is not None and begin < arrived[first["key"]]:
                wait += end - begin
            elif first is not None:
                transfer += end - begin
        # where a message starts as soon as another ends, the order of equal times is not recorded
        assert step.compute_ns == compute
        assert step.exposed_wait_ns == pytest.approx(wait, abs=100)
        assert step.exposed_transfer_ns == pytest.approx(transfer, abs=100)


def sweep(
    kernels: list[dict[str, Any]], step: StepTruth, arrived: dict[Any, int]
) -> Iterator[tuple[int, int, list[dict[str, Any]]]]:
    """Yield the pieces of a step between any two borders, with the kernels that run, by their starts."""
    inside = [k for k in kernels if k["end"] > step.begin_ns and k["begin"] < step.end_ns]
    borders = {step.begin_ns, step.end_ns}
    for kernel in inside:
        borders |= {kernel["begin"], kernel["end"]}
        borders |= {arrived[kernel["key"]]} if kernel["is_message"] else set()
    ordered = sorted(border for border in borders if step.begin_ns <= border <= step.end_ns)
    running: list[dict[str, Any]] = []
    following = 0
    for begin, end in pairwise(ordered):
        while following < len(inside) and inside[following]["begin"] <= begin:
            running.append(inside[following])
            following += 1
        running = [kernel for kernel in running if kernel["end"] > begin]
        yield begin, end, running


def check_roles(truth: MeshTruth) -> None:
    """Check that the roles share the exposed time of each step, but for gaps between launches."""
    by_step: dict[tuple[int, int], int] = defaultdict(int)
    for row in truth.roles:
        by_step[row.rank, row.step] += row.exposed_wait_ns + row.exposed_transfer_ns
        assert row.role in truth.groups
    for step in truth.per_step:
        exposed = step.exposed_wait_ns + step.exposed_transfer_ns
        assert 0.8 * exposed - 500_000 <= by_step[step.rank, step.step] <= exposed + 5_000


@pytest.mark.parametrize(
    ("framework", "names"),
    [
        ("megatron", {"INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP",
                      "INTER_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP", "PIPELINE_MODEL_PARALLEL_GROUP",
                      "MODEL_PARALLEL_GROUP"}),
        ("torch", {"mesh_dp_shard", "mesh_dp_replicate", "mesh_pp"}),
        ("deepspeed", {"undefined", "default_pg"}),
    ],
)  # fmt: skip
def test_groups_have_the_names_of_the_framework(
    framework: Framework, names: set[str], tmp_path: Path
) -> None:
    degrees = Degrees(pipeline=2, replica=2, data=2)
    job = make_mesh_job(degrees=degrees, framework=framework, steps=1, micro_batches=2, stage_layers=1)
    truth = write_mesh_job(job, tmp_path)
    described: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for rank in truth.ranks:
        document = json.loads(gzip.decompress((tmp_path / f"rank{rank}.json.gz").read_bytes()))
        for event in document["traceEvents"]:
            args = event.get("args", {})
            if "Process Group Description" in args:
                ranks = json.loads(args["Process Group Ranks"])
                assert rank in ranks
                described[args["Process Group Description"]].add(tuple(ranks))
    assert set(described) == names
    groups = {group for rows in described.values() for group in rows}
    assert set(truth.groups["data"]) | set(truth.groups["pipeline"]) <= groups
