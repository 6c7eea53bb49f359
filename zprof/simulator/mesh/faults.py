"""Plant causes of slowness in jobs of several dimensions, and remove them: each changes a few fields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from zprof.simulator.job import Job
from zprof.simulator.mesh.layout import Parallelism

Rng = np.random.Generator

MESH_CAUSES: Final[tuple[str, ...]] = (
    "slow_stage", "stage_imbalance", "micro_batches_too_few", "sequence_length_imbalance",
    "expert_imbalance", "exposed_dispatch", "exposed_replica_all_reduce", "exposed_context_exchange",
    "exposed_tensor_parallel", "unbalanced_recompute", "straggler_rank",
)  # fmt: skip
"""The last one is also a cause of jobs of one dimension: here, one rank of a stage is slow."""
_SLOW_LINKS: Final = {
    "exposed_dispatch": "expert", "exposed_replica_all_reduce": "replica",
    "exposed_context_exchange": "context", "exposed_tensor_parallel": "tensor",
}  # fmt: skip
"""Causes in which the groups of a role have a slow link."""
ENOUGH_MICRO_BATCHES: Final = 4
"""Micro-batches per stage of a pipeline with few bubbles."""


def get_parallel(job: Job) -> Parallelism:
    """Return how a job is divided."""
    assert job.parallel is not None
    return job.parallel


def change(job: Job, **fields: object) -> Job:
    """Return the job with other fields of its `parallel`."""
    return replace(job, parallel=replace(get_parallel(job), **fields))  # type: ignore[arg-type]


def can_have(job: Job, cause: str) -> bool:
    """Return True if a cause can occur in such a job.

    Raises:
        ValueError: The cause is unknown.
    """
    if cause not in MESH_CAUSES:
        raise ValueError(f"unknown cause {cause!r} of a mesh: one of none, {', '.join(MESH_CAUSES)}")
    degrees, parallel = get_parallel(job).degrees, get_parallel(job)
    has_pipeline = degrees.pipeline > 1
    return {
        "slow_stage": has_pipeline,
        "stage_imbalance": has_pipeline and (min(parallel.layers) > 1 or parallel.stages > 2),
        "micro_batches_too_few": has_pipeline,
        "sequence_length_imbalance": degrees.data * degrees.replica > 1,
        "expert_imbalance": degrees.expert > 1,
        "exposed_dispatch": degrees.expert > 1,
        "exposed_replica_all_reduce": degrees.replica > 1,
        "exposed_context_exchange": degrees.context > 1,
        "exposed_tensor_parallel": degrees.tensor > 1,
        "unbalanced_recompute": has_pipeline,
        "straggler_rank": job.world > degrees.pipeline,
    }[cause]


def plant_mesh_cause(job: Job, cause: str, rng: Rng, strength: float) -> Job:
    """Return the job with a cause, `strength` 1 for one that costs about 15 % of the step.

    Raises:
        ValueError: The cause is unknown or cannot occur in such a job.
    """
    if not can_have(job, cause):
        raise ValueError(f"{cause} cannot occur in a job of these dimensions")
    job = replace(job, faults=(*job.faults, cause))
    if cause in _SLOW_LINKS:
        role = _SLOW_LINKS[cause]
        factors = dict(get_parallel(job).link_factors) | {role: 1 / (1 + 9 * strength)}
        return change(job, link_factors=tuple(factors.items()))
    return _PLANTS[cause](job, rng, strength)


def _plant_slow_stage(job: Job, rng: Rng, strength: float) -> Job:
    degrees = get_parallel(job).degrees
    stage = int(rng.integers(degrees.pipeline))
    slow = 1 + 0.25 * strength
    ranks = tuple(
        replace(pace, gpu=pace.gpu * slow) if degrees.locate(rank)["pipeline"] == stage else pace
        for rank, pace in enumerate(job.ranks)
    )
    return replace(job, ranks=ranks)


def _plant_straggler(job: Job, rng: Rng, strength: float) -> Job:
    slow = int(rng.integers(job.world))
    ranks = tuple(
        replace(pace, gpu=pace.gpu * (1 + 0.25 * strength)) if rank == slow else pace
        for rank, pace in enumerate(job.ranks)
    )
    return replace(job, ranks=ranks)


def _plant_stage_imbalance(job: Job, rng: Rng, strength: float) -> Job:
    """Give the last stage the head of a large vocabulary, or more layers."""
    parallel = get_parallel(job)
    layers = list(parallel.layers)
    stage_ns = (parallel.attention_ns + parallel.dense_ns) * layers[-1]
    if rng.random() < 0.5 or min(layers) < 2:
        return change(job, head_ns=parallel.head_ns + int(stage_ns * 0.3 * strength))
    moved = max(1, round(0.3 * strength * layers[-1]))
    for number in range(moved):
        giver = number % (len(layers) - 1)
        if layers[giver] > 1:
            layers[giver] -= 1
            layers[-1] += 1
    return change(job, layers=tuple(layers))


def _plant_few_micro_batches(job: Job, rng: Rng, strength: float) -> Job:
    """Put the same tokens into as few micro-batches as the schedule allows."""
    ranks = get_parallel(job).degrees.pipeline
    few = ranks if get_parallel(job).virtual > 1 else max(1, round(ranks / (0.5 + 0.5 * strength)))
    return split_batch(job, few)


def split_batch(job: Job, micro_batches: int) -> Job:
    """Return the job with the same tokens per step in another number of micro-batches."""
    parallel, ratio = get_parallel(job), job.micro_batches / micro_batches
    return replace(
        change(
            job,
            attention_ns=int(parallel.attention_ns * ratio),
            dense_ns=int(parallel.dense_ns * ratio),
            head_ns=int(parallel.head_ns * ratio),
            activation_elements=max(1024, int(parallel.activation_elements * ratio)),
            attention_factors=tuple(row[:1] * micro_batches for row in parallel.attention_factors),
        ),
        micro_batches=micro_batches,
    )


def _plant_long_sequences(job: Job, rng: Rng, strength: float) -> Job:
    """Draw the time of attention of each replica and micro-batch: it grows with the square of the length."""
    degrees = get_parallel(job).degrees
    count = degrees.data * degrees.replica
    drawn = np.exp(rng.normal(0, 0.45 * strength, (count, job.micro_batches)))
    drawn[int(rng.integers(count))] *= 1 + 0.5 * strength
    rows = tuple(tuple(row) for row in (drawn / drawn.mean()).tolist())
    return change(job, attention_factors=rows)


def _plant_hot_expert(job: Job, rng: Rng, strength: float) -> Job:
    """Route more tokens to the experts of one rank."""
    size = get_parallel(job).degrees.expert
    loads = np.ones(size)
    loads[int(rng.integers(size))] = 1 + 0.7 * strength
    return change(job, expert_loads=tuple((loads / loads.mean()).tolist()))


def _plant_recompute(job: Job, rng: Rng, strength: float) -> Job:
    """Compute the layers of one stage again in the backward pass."""
    stages = get_parallel(job).stages
    shares = [0.0] * stages
    shares[int(rng.integers(stages))] = min(1.0, 0.8 * strength)
    return change(job, recompute=tuple(shares))


_PLANTS: Final[dict[str, Callable[[Job, Rng, float], Job]]] = {
    "slow_stage": _plant_slow_stage,
    "stage_imbalance": _plant_stage_imbalance,
    "micro_batches_too_few": _plant_few_micro_batches,
    "sequence_length_imbalance": _plant_long_sequences,
    "expert_imbalance": _plant_hot_expert,
    "unbalanced_recompute": _plant_recompute,
    "straggler_rank": _plant_straggler,
}


def remove_mesh_cause(job: Job, cause: str) -> Job | None:
    """Return the same job without a cause, or None if it cannot occur in such a job.

    What is removed is the imbalance, not the work: layers, head, tokens, sequences and recomputation are the
    same in total, and evenly spread. Too few micro-batches become four per stage, with the same tokens.
    """
    if not can_have(job, cause):
        return None
    parallel = get_parallel(job)
    if cause in _SLOW_LINKS:
        kept = tuple(pair for pair in parallel.link_factors if pair[0] != _SLOW_LINKS[cause])
        return change(job, link_factors=kept)
    if cause == "slow_stage":
        return _speed_up_stages(job)
    if cause == "straggler_rank":
        usual = float(np.median([pace.gpu for pace in job.ranks]))
        return replace(job, ranks=tuple(replace(pace, gpu=min(pace.gpu, usual)) for pace in job.ranks))
    if cause == "stage_imbalance":
        even, more = divmod(sum(parallel.layers), parallel.stages)
        layers = tuple(even + (stage < more) for stage in range(parallel.stages))
        return change(job, layers=layers, spreads_head=True)
    if cause == "micro_batches_too_few":
        enough = ENOUGH_MICRO_BATCHES * parallel.degrees.pipeline
        return split_batch(job, enough) if job.micro_batches < enough else job
    if cause == "sequence_length_imbalance":
        return change(job, attention_factors=())
    if cause == "expert_imbalance":
        return change(job, expert_loads=(), routing_skew=0.0)
    count = sum(
        share * layers
        for share, layers in zip(parallel.recompute, parallel.layers, strict=bool(parallel.recompute))
    )
    share = count / sum(parallel.layers)
    return change(job, recompute=(share,) * parallel.stages if share else ())


def _speed_up_stages(job: Job) -> Job:
    """Give slow stages the median pace of the median stage; ranks differ within a stage as before."""
    degrees = get_parallel(job).degrees
    stages = [degrees.locate(rank)["pipeline"] for rank in range(job.world)]
    paces = [
        float(np.median([pace.gpu for pace, own in zip(job.ranks, stages, strict=True) if own == stage]))
        for stage in range(degrees.pipeline)
    ]
    usual = sorted(paces)[(len(paces) - 1) // 2]
    ranks = tuple(
        replace(pace, gpu=pace.gpu * min(1.0, usual / paces[stage]))
        for pace, stage in zip(job.ranks, stages, strict=True)
    )
    return replace(job, ranks=ranks)


def find_culprits(job: Job, cause: str) -> tuple[int, ...]:
    """Return the ranks with the slow or the most work; none if all ranks of a role share the cause."""
    parallel = get_parallel(job)
    degrees = parallel.degrees
    places = [degrees.locate(rank) for rank in range(job.world)]
    if cause == "straggler_rank":
        return (max(range(job.world), key=lambda rank: job.ranks[rank].gpu),)
    if cause in ("slow_stage", "stage_imbalance", "unbalanced_recompute"):
        work = [0.0] * degrees.pipeline
        for stage, layers in enumerate(parallel.layers):
            work[stage % degrees.pipeline] += parallel.recompute_share(stage) * layers
        if cause == "slow_stage":
            work = [job.ranks[[p["pipeline"] for p in places].index(s)].gpu for s in range(degrees.pipeline)]
        slow = degrees.pipeline - 1 if cause == "stage_imbalance" else int(np.argmax(work))
        return tuple(rank for rank, place in enumerate(places) if place["pipeline"] == slow)
    if cause == "expert_imbalance":
        hot = int(np.argmax(parallel.expert_loads))
        return tuple(rank for rank, place in enumerate(places) if place["data"] % degrees.expert == hot)
    if cause == "sequence_length_imbalance":
        longest = int(np.argmax([sum(row) for row in parallel.attention_factors]))
        return tuple(
            rank
            for rank, place in enumerate(places)
            if place["data"] + place["replica"] * degrees.data == longest
        )
    return ()
