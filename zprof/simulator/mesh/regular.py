"""Make regular jobs of several dimensions (equal stages, little noise), and plant a cause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from zprof.simulator.draw import make_rng
from zprof.simulator.ground_truth import step_time_ns
from zprof.simulator.job import HEALTHY, RANKS_PER_HOST, Job, Start, Vendor
from zprof.simulator.mesh.faults import ENOUGH_MICRO_BATCHES, plant_mesh_cause, remove_mesh_cause
from zprof.simulator.mesh.layout import DataMode, Degrees, Framework, Parallelism, Schedule
from zprof.simulator.mesh.truth import measure_mesh_gain
from zprof.simulator.regular import make_job
from zprof.simulator.run import run_job

_CLEAR_RATIO: Final = 0.15
"""What a cause of strength 1 costs, as a share of the step."""
_ATTEMPTS: Final = 6


def make_mesh_job(
    *,
    degrees: Degrees,
    seed: int = 0,
    vendor: Vendor = "nvidia",
    steps: int = 2,
    schedule: Schedule = "1f1b",
    framework: Framework = "megatron",
    virtual: int | None = None,
    micro_batches: int | None = None,
    stage_layers: int = 2,
    layers: tuple[int, ...] = (),
    data_mode: DataMode | None = None,
    attention_ns: int = 700_000,
    dense_ns: int = 900_000,
    ranks_per_node: int = RANKS_PER_HOST,
    intra_bus: float = 300.0,
    inter_bus: float = 40.0,
    alpha_ns: int = 12_000,
    starts: tuple[Start, ...] = (),
    **settings: Any,
) -> Job:
    """Return a healthy job of equal stages.

    Args:
        degrees: Sizes of the dimensions.
        seed: Seed of the noise.
        vendor: Vendor whose profiler writes the traces; not "gloo".
        steps: Recorded steps.
        schedule: Order of the passes of a pipeline.
        framework: Who names the process groups.
        virtual: Stages per rank: 2 if the schedule is interleaved, else 1.
        micro_batches: Micro-batches per step: four per pipeline rank, else 2.
        stage_layers: Layers of each stage.
        layers: Layers of each stage, if they differ.
        data_mode: Who shards over the data group: FSDP without a pipeline, else a distributed optimizer.
        attention_ns: Forward time of a layer's attention part.
        dense_ns: Forward time of a layer's feed-forward part.
        ranks_per_node: Ranks that share a fast link.
        intra_bus: Bus bandwidth within a node, in bytes per ns.
        inter_bus: Bus bandwidth between nodes.
        alpha_ns: Latency within a node; twice as long between nodes.
        starts: Clocks of the ranks.
        settings: Other fields of `Parallelism`.

    Raises:
        ValueError: The dimensions, the schedule or the vendor do not fit.
    """
    count = degrees.pipeline
    virtual = virtual or (2 if schedule == "interleaved" else 1)
    if micro_batches is None:
        micro_batches = ENOUGH_MICRO_BATCHES * count if count > 1 else 2
    check_mesh(degrees, schedule, virtual, micro_batches, vendor)
    stages = count * virtual
    if "batched_messages" not in settings:
        settings["batched_messages"] = uses_batches(framework, schedule)
    parallel = Parallelism(
        degrees=degrees,
        framework=framework,
        schedule=schedule,
        virtual=virtual,
        layers=layers or (stage_layers,) * stages,
        data_mode=data_mode or ("distributed" if count > 1 else "fsdp"),
        attention_ns=attention_ns,
        dense_ns=dense_ns,
        **settings,
    )
    job = make_job(
        seed=seed, vendor=vendor, ranks=degrees.world, steps=steps, bus=intra_bus, alpha_ns=alpha_ns
    )
    cluster = replace(
        job.cluster, ranks_per_node=min(ranks_per_node, degrees.world), inter_bus=inter_bus,
        inter_alpha_ns=2 * alpha_ns,
    )  # fmt: skip
    return replace(
        job, engine=framework, blocks=(), micro_batches=micro_batches, parallel=parallel, cluster=cluster,
        dialect=replace(job.dialect, annotations="none"), starts=starts or job.starts,
    )  # fmt: skip


def uses_batches(framework: Framework, schedule: Schedule) -> bool:
    """Return True if sends and receives are batched: by torch always, by Megatron-Core without overlap.

    DeepSpeed's pipeline engine calls send and receive one by one.
    """
    return framework == "torch" or (framework == "megatron" and schedule in ("1f1b", "gpipe"))


def check_mesh(
    degrees: Degrees, schedule: Schedule, virtual: int, micro_batches: int, vendor: Vendor
) -> None:
    """Check that dimensions and schedule fit.

    Raises:
        ValueError: They do not.
    """
    if vendor == "gloo":
        raise ValueError("a job of several dimensions needs devices: vendor nvidia or amd")
    if degrees.data % degrees.expert:
        raise ValueError(f"expert={degrees.expert} must divide data={degrees.data}")
    if degrees.pipeline == 1 and schedule == "interleaved":
        raise ValueError("an interleaved schedule needs a pipeline of 2 ranks or more")
    if (virtual > 1) != (schedule == "interleaved"):
        raise ValueError("only the interleaved schedule has several stages per rank, and it has 2 or more")
    if virtual > 1 and micro_batches % degrees.pipeline:
        raise ValueError(f"an interleaved schedule needs a multiple of {degrees.pipeline} micro-batches")


def plant_mesh(job: Job, cause: str, strength: float = 1.0) -> Job:
    """Return the job with a cause whose removal gains about 15 % of the step, times `strength`.

    Raises:
        ValueError: The cause is unknown or cannot occur in such a job, or the strength is not above 0 or
            exceeds 100.
    """
    if not 0 < strength <= 100:
        raise ValueError(f"strength must be above 0 and at most 100, not {strength}")
    if cause in HEALTHY:
        return job
    target, dial = min(0.45, _CLEAR_RATIO * strength), strength
    best: tuple[float, Job] | None = None
    last = job
    for _ in range(_ATTEMPTS):
        planted = plant_mesh_cause(job, cause, make_rng(job.seed, "mesh", cause), dial)
        small = shrink_mesh(planted)
        schedule = run_job(small, record=False)
        gain = measure_mesh_gain(small, cause, schedule)
        share = (gain[0] if gain else 0) / step_time_ns(schedule)
        error = abs(share - target)
        if best is None or error < best[0]:
            best = error, planted
        if error < 0.1 * target or planted == last:
            break
        last = planted
        dial *= min(4.0, max(0.25, target / max(share, 0.01)))
    assert best is not None
    if remove_mesh_cause(best[1], cause) in (None, best[1]):
        raise ValueError(f"{cause} cannot occur in a job of these dimensions")
    return best[1]


def shrink_mesh(job: Job) -> Job:
    """Return the job with two steps, which is enough to measure the cost of a cause."""
    return replace(job, steps=min(job.steps, 2))
