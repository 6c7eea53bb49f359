"""Draw random jobs of several dimensions: sizes, schedules, frameworks, links, hosts and clocks.

Sources of the ranges: Megatron-Core's and torchtitan's published configurations (tensor groups within a node,
pipelines of 2 to 8 ranks, 2 to 4 stages per rank if interleaved, micro-batches of one to eight times the
pipeline's ranks, experts over data ranks); links and hosts as in `zprof/simulator/draw.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np

from zprof.simulator.draw import draw_dialect, draw_host, draw_starts, make_rng
from zprof.simulator.ground_truth import step_time_ns
from zprof.simulator.job import Job, Pace, Start, Vendor, hash_key
from zprof.simulator.mesh.faults import can_have, plant_mesh_cause
from zprof.simulator.mesh.layout import DataMode, Degrees, Framework, Schedule
from zprof.simulator.mesh.regular import make_mesh_job
from zprof.simulator.mesh.truth import measure_mesh_gain
from zprof.simulator.run import run_job

Rng = np.random.Generator

_ATTEMPTS: Final = 24
_SMALLEST, _LARGEST = 0.03, 0.45
"""Shares of the step that a planted cause may cost."""
_KERNEL_BUDGET: Final = 14_000
"""Kernels of layers, of all ranks in two steps: keeps a job at a few seconds."""
_MIN_COMPUTE_NS: Final = 50_000_000
"""Compute of a step at least. Steps of such jobs take longer, so that what a host does once per step, such as
reading the loss, is no visible share of them: it takes a millisecond."""
_SHAPES: Final = (
    {"pipeline": 2, "data": 2}, {"pipeline": 4}, {"pipeline": 4, "data": 2}, {"pipeline": 2, "tensor": 2},
    {"pipeline": 2, "data": 2, "tensor": 2}, {"pipeline": 4, "tensor": 2}, {"pipeline": 4, "tensor": 4},
    {"pipeline": 4, "data": 2, "tensor": 2}, {"pipeline": 8}, {"pipeline": 2, "context": 2},
    {"pipeline": 2, "context": 2, "tensor": 2}, {"pipeline": 2, "data": 4, "expert": 4},
    {"pipeline": 2, "data": 2, "expert": 2}, {"data": 4, "expert": 4}, {"data": 8, "expert": 4},
    {"data": 4, "expert": 2}, {"replica": 2, "data": 2}, {"replica": 2, "data": 4}, {"replica": 4, "data": 2},
    {"replica": 2, "data": 2, "tensor": 2}, {"pipeline": 2, "replica": 2, "data": 2}, {"context": 4},
    {"data": 2, "context": 2}, {"data": 2, "context": 4}, {"context": 2, "tensor": 2},
    {"data": 4, "tensor": 2}, {"data": 2, "tensor": 4}, {"replica": 2, "data": 2, "context": 2},
)  # fmt: skip
"""Dimensions larger than 1 of the jobs that are drawn."""


def draw_mesh_job(seed: int, fault: str | None = None, vendor: Vendor = "nvidia") -> Job:
    """Draw a job. Planted causes (two are joined by "+") are redrawn until each costs 3 to 45 % of the step.

    Raises:
        ValueError: A cause is unknown, or no job can have all of them.
    """
    faults = tuple(fault.split("+")) if fault else ()
    best: tuple[float, Job] | None = None
    for attempt in range(_ATTEMPTS):
        key = hash_key(seed, fault or "", "mesh", attempt) >> 1
        rng = make_rng(key, "mesh")
        job = draw_healthy_mesh(seed, key, rng, faults, vendor)
        if not faults:
            return job
        for cause in faults:
            strength = float(np.exp(rng.uniform(np.log(0.4), np.log(2.5))))
            job = plant_mesh_cause(job, cause, rng, strength)
        schedule = run_job(job, record=False)
        gains = [measure_mesh_gain(job, cause, schedule) for cause in faults]
        shares = [(gain[0] if gain else 0) / step_time_ns(schedule) for gain in gains]
        error = max(_SMALLEST - min(shares), max(shares) - _LARGEST)
        if error <= 0:
            return job
        if best is None or error < best[0]:
            best = error, job
    assert best is not None
    return best[1]


def draw_healthy_mesh(
    seed: int, key: int, rng: Rng, faults: tuple[str, ...] = (), vendor: Vendor = "nvidia"
) -> Job:
    """Draw a job without planted causes, in which `faults` can occur, with realistic imperfections."""
    degrees = _draw_degrees(rng, faults)
    ranks = degrees.pipeline
    schedule, virtual, micro_batches = _draw_schedule(rng, ranks)
    framework: Framework = ("megatron", "torch", "deepspeed")[int(rng.choice(3, p=[0.5, 0.35, 0.15]))]
    modes: tuple[DataMode, ...] = ("distributed", "ddp") if ranks > 1 else ("fsdp", "distributed")
    data_mode = modes[int(rng.choice(2, p=[0.7, 0.3]))]
    stage_layers = int(rng.integers(1, 4)) if virtual > 1 else int(rng.integers(2, 5))
    while (
        stage_layers > 1 and _count_kernels(degrees, virtual * stage_layers, micro_batches) > _KERNEL_BUDGET
    ):
        stage_layers -= 1
    parts_ns = rng.uniform(300_000, 1_800_000, 2)
    passes = 3 * micro_batches * virtual * stage_layers  # a backward pass takes as long as two forward passes
    scale = max(1.0, _MIN_COMPUTE_NS / (passes * parts_ns.sum()))
    attention_ns, dense_ns = (int(value) for value in scale * parts_ns)
    intra, inter = float(rng.uniform(150, 370)), float(rng.uniform(18, 45))
    layer_ns = attention_ns + dense_ns
    settings: dict[str, Any] = {}
    if rng.random() < 0.25:
        settings["recompute"] = (1.0,) * (ranks * virtual)
    job = make_mesh_job(
        degrees=degrees, seed=seed, vendor=vendor, steps=3 if degrees.world < 16 else 2, schedule=schedule,
        framework=framework, virtual=virtual, micro_batches=micro_batches, stage_layers=stage_layers,
        data_mode=data_mode, attention_ns=attention_ns, dense_ns=dense_ns,
        ranks_per_node=_draw_node(rng, degrees), intra_bus=intra, inter_bus=inter,
        alpha_ns=int(rng.integers(8_000, 16_000)),
        # messages of 1 to 5 % of a layer's time on the faster link, gradients of 1 to 6 % of a step's compute
        activation_elements=int(layer_ns * float(rng.uniform(0.01, 0.05)) * intra / 2),
        layer_params=int(layer_ns * micro_batches * float(rng.uniform(0.01, 0.06)) * inter / 2),
        buckets=int(rng.integers(1, 5)), sequence_parallel=bool(rng.random() < 0.7),
        ring_attention=bool(rng.random() < 0.7), routing_skew=float(rng.uniform(0.0, 0.03)),
        head_ns=int(layer_ns * stage_layers * float(rng.uniform(0.0, 0.02))), **settings,
    )  # fmt: skip
    dialect = draw_dialect(rng, "fsdp2", "training")
    dialect = replace(
        dialect, vendor=vendor, era="mid" if dialect.era == "old" else dialect.era, metadata=True,
        profiler_step=True, annotations="none", distributed_info=True, host_names=True, one_nccl_stream=True,
        gz=True,
    )  # fmt: skip
    host = replace(draw_host(rng), python_ns=int(rng.integers(5_000, 12_000)), hiccup_rate=0.0)
    return replace(
        job, key=key, dialect=dialect, host=host, noise=float(rng.uniform(0.002, 0.015)),
        starts=_draw_host_starts(rng, degrees.world, job.cluster.ranks_per_node),
        ranks=tuple(
            Pace(gpu=float(1 + abs(rng.normal(0, 0.003))), host=float(1 + abs(rng.normal(0, 0.02))))
            for _ in range(degrees.world)
        ),
    )  # fmt: skip


def _draw_host_starts(rng: Rng, world: int, per_host: int) -> tuple[Start, ...]:
    """Draw how the ranks enter the window; ranks of a host have one clock, and none stalls."""
    starts = draw_starts(rng, world, skewed=False)
    clocks = [starts[rank // per_host * per_host] for rank in range(world)]
    return tuple(
        replace(start, stall_ns=0, clock_offset_ns=clock.clock_offset_ns, clock_drift=clock.clock_drift)
        for start, clock in zip(starts, clocks, strict=True)
    )


def _draw_degrees(rng: Rng, faults: tuple[str, ...]) -> Degrees:
    """Draw dimensions in which causes can occur."""
    for number in rng.permutation(len(_SHAPES)).tolist():
        degrees = Degrees(**_SHAPES[number])
        if all(can_have(make_mesh_job(degrees=degrees), cause) for cause in faults):
            return degrees
    raise ValueError(f"no job can have {' and '.join(faults)}")


def _draw_schedule(rng: Rng, ranks: int) -> tuple[Schedule, int, int]:
    """Draw schedule, stages per rank and micro-batches; enough of these for a bubble of a fifth or less."""
    if ranks == 1:
        return "1f1b", 1, int(rng.integers(1, 4))
    names: tuple[Schedule, ...] = ("1f1b", "gpipe", "interleaved", "zero_bubble")
    schedule = names[int(rng.choice(4, p=[0.5, 0.1, 0.25, 0.15]))]
    virtual = 2 if schedule == "interleaved" else 1
    micro_batches = ranks * int(rng.integers(3, 5)) if ranks > 2 else 2 * int(rng.integers(3, 7))
    return schedule, virtual, micro_batches


def _count_kernels(degrees: Degrees, layers: int, micro_batches: int) -> int:
    """Return the kernels of two steps of all ranks."""
    return degrees.world * layers * micro_batches * 2 * 20


def _draw_node(rng: Rng, degrees: Degrees) -> int:
    """Draw how many ranks share a node: all of a tensor group, and the shards of a replica."""
    inner = degrees.tensor * degrees.context
    if degrees.replica > 1:
        return inner * degrees.data
    sizes = [size for size in (inner, inner * degrees.data, degrees.world) if size > 1]
    return int(rng.choice(sizes)) if sizes else 1
