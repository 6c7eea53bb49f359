"""Plant causes of slowness in a job, and remove them: each is one physical change of the job's fields.

`remove` works on any job, planted or not. It returns the job itself if there is nothing to remove, and None
if the cause cannot occur in such a job.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from zprof.simulator.draw import Rng, draw_dialect, draw_healthy, make_rng, slim
from zprof.simulator.job import (
    CAUSES,
    SHAPES,
    Block,
    Engine,
    Job,
    Kernel,
    Rotating,
    Shape,
    hash_key,
)

_SHARDED: Final[tuple[Engine, ...]] = ("fsdp2", "fsdp1", "zero3")
_REPLICATED: Final[tuple[Engine, ...]] = ("zero2", "zero1")
ENGINES: Final[dict[str, tuple[Engine, ...]]] = {
    "unhidden_optimizer_gather": _REPLICATED,
    "copy_overhead": ("fsdp2",),
    "first_gather_exposed": ("fsdp2",),
    "rate_limited_prefetch": ("fsdp1", "zero3"),
} | dict.fromkeys(
    ("units_too_small", "single_unit", "no_prefetch", "fp32_gather", "accumulation_regathers",
     "needless_reshard_after_forward", "last_unit_regathered", "checkpoint_regathers", "compute_blocks_comm",
     "sharding_spans_nodes"),
    _SHARDED,
)  # fmt: skip


# --- plant


def draw_share(rng: Rng) -> float:
    """Draw the share of the step that a cause may cost before overlap: log-uniform from 4 to 45 %."""
    return float(np.exp(rng.uniform(np.log(0.04), np.log(0.45))))


def scale_compute(job: Job, factor: float) -> Job:
    """Change the batch: all block kernels take `factor` times as long; parameters stay."""

    def scale(block: Block) -> Block:
        return replace(
            block,
            forward=tuple(Kernel(kind=k.kind, ns=max(2_000, int(k.ns * factor))) for k in block.forward),
            backward=tuple(Kernel(kind=k.kind, ns=max(2_000, int(k.ns * factor))) for k in block.backward),
        )

    return replace(job, blocks=tuple(scale(block) for block in job.blocks))


def gather_time_ns(job: Job) -> float:
    """Return the time to gather all parameters once, without latency."""
    cluster = job.cluster
    bus = (
        min(cluster.inter_bus, cluster.intra_bus) if job.spans_nodes else cluster.intra_bus
    ) * cluster.bandwidth_factor
    return job.params * job.gather_itemsize * (job.shard_size - 1) / job.shard_size / bus


def squeeze(job: Job, rng: Rng, low: float, high: float) -> Job:
    """Scale the batch until gathers take `low` to `high` of a forward pass, so communication matters."""
    forward = sum(k.ns for b in job.blocks for k in b.forward)
    return scale_compute(job, gather_time_ns(job) / float(rng.uniform(low, high)) / forward)


def plant_straggler(job: Job, rng: Rng) -> Job:
    """Slow one rank: GPU clock, host, or longer sequences (attention)."""
    rank = int(rng.integers(job.world))
    kind = str(rng.choice(["gpu", "host", "attention"], p=[0.5, 0.2, 0.3]))
    share = draw_share(rng)
    pace = job.ranks[rank]
    if kind == "gpu":
        pace = replace(pace, gpu=1 + share)
    elif kind == "attention":
        pace = replace(pace, attention=1 + 4.5 * share)
    else:
        busy = job.count_kernels() * (job.host.python_ns + job.host.launch_ns)
        pace = replace(pace, host=max(1.5, job.estimate_compute_ns() * (1 + 1.3 * share) / busy))
    return replace(job, ranks=(*job.ranks[:rank], pace, *job.ranks[rank + 1 :]))


def plant_rotating(job: Job, rng: Rng) -> Job:
    """Let a different rank stall in each step: on the host, or with more work."""
    share = draw_share(rng)
    if rng.random() < 0.5:
        return replace(job, rotating=Rotating(gpu_factor=1 + share))
    inner = int(rng.integers(0, len(job.blocks)))
    job = replace(job, blocking="step") if job.blocking == "none" else job
    return replace(job, rotating=Rotating(host_ns=int(share * job.estimate_compute_ns() * 1.2), point=inner))


def plant_latency(job: Job, rng: Rng) -> Job:
    """Give a small model a slow network: hundreds of microseconds per operation."""
    blocks = tuple(replace(b, params=max(4096, b.params // 12)) for b in job.blocks)
    job = squeeze(replace(job, blocks=blocks), rng, 0.3, 0.9)
    share = draw_share(rng)
    operations = 3 * len(job.blocks) * job.gather_pieces + 1
    extra = int(np.clip(1.6 * share * job.estimate_compute_ns() / operations * 3, 120_000, 1_500_000))
    return replace(job, cluster=replace(job.cluster, extra_alpha_ns=extra))


def plant_small_units(job: Job, rng: Rng) -> Job:
    """Wrap every few modules of a block separately."""
    pieces = int(rng.integers(4, 9))
    while job.world * job.steps * len(job.blocks) * pieces > 900 and len(job.blocks) > 6:
        job = replace(job, blocks=job.blocks[:-2] + job.blocks[-1:])
    alpha = int(rng.integers(20_000, 90_000))
    cluster = replace(
        job.cluster, intra_alpha_ns=alpha, inter_alpha_ns=max(job.cluster.inter_alpha_ns, alpha)
    )
    return squeeze(
        replace(job, wrapping="fine", fine_pieces=pieces, cluster=cluster, gather_pieces=1), rng, 0.3, 1.2
    )


def plant_single_unit(job: Job, rng: Rng) -> Job:
    """Wrap only the whole model."""
    return squeeze(replace(job, wrapping="single", root_unit=True), rng, 0.05, 0.6)


def plant_no_prefetch(job: Job, rng: Rng) -> Job:
    """Issue each gather when its unit is needed."""
    mode = "off" if rng.random() < 0.7 else "backward_off"
    job = replace(job, explicit_forward_prefetch=False, reshard_after_forward=True, prefetch=mode)  # type: ignore[arg-type]
    return squeeze(job, rng, 0.06, 0.8)


def plant_first_gather(job: Job, rng: Rng) -> Job:
    """Copy a large batch to the device before the first gather, and make the first unit large."""
    first = job.blocks[0]
    grown = replace(first, params=int(first.params * rng.uniform(4, 10)))
    job = replace(job, blocks=(grown, *job.blocks[1:]), root_unit=True, wrapping="block")
    job = squeeze(job, rng, 0.2, 0.7)
    share = draw_share(rng) / 2
    return replace(job, batch_copy_ns=int(max(400_000, share * job.estimate_compute_ns())))


def plant_limiter(job: Job, rng: Rng) -> Job:
    """Block the host before each gather until the previous unit has been computed."""
    return squeeze(replace(job, limiter=1, explicit_forward_prefetch=False), rng, 0.08, 0.7)


def plant_slow_host(job: Job, rng: Rng) -> Job:
    """Shrink the kernels until the host cannot launch fast enough."""
    share = draw_share(rng)
    issue = job.count_kernels() * (job.host.python_ns * 0.9 + job.host.launch_ns)
    issue += (4 * len(job.blocks)) * (job.host.hook_ns + job.host.collective_ns) * job.micro_batches
    if job.engine == "inference":
        return scale_compute(job, 0.5)
    job = scale_compute(job, issue / (1 + 1.5 * share) / job.estimate_compute_ns())
    factor = job.estimate_compute_ns() * 0.35 / max(1.0, gather_time_ns(job))
    if factor < 1:
        job = replace(
            job, blocks=tuple(replace(b, params=max(4096, int(b.params * factor))) for b in job.blocks)
        )
    return job


def plant_retries(job: Job, rng: Rng) -> Job:
    """Let the caching allocator run out of memory: cudaFree and cudaMalloc within the step."""
    count = 2 * int(rng.integers(1, 5))
    share = draw_share(rng)
    places = 3 * job.micro_batches
    return replace(
        job, retries=count, retry_ns=max(200_000, int(share * job.estimate_compute_ns() / count / places))
    )


def plant_interference(job: Job, rng: Rng) -> Job:
    """Let NCCL kernels take SMs and bandwidth from concurrent kernels."""
    job = squeeze(job, rng, 0.4, 0.95)
    return replace(job, gpu=replace(job.gpu, comm_slowdown=float(rng.uniform(1.15, 1.9))))


def plant_blocked_comm(job: Job, rng: Rng) -> Job:
    """Let full-device kernels keep NCCL kernels from starting."""
    job = squeeze(job, rng, 0.3, 0.95)
    return replace(job, gpu=replace(job.gpu, starve=float(rng.uniform(0.3, 0.95))))


def plant_slow_links(job: Job, rng: Rng) -> Job:
    """Slow all links relative to an earlier run on this cluster."""
    job = squeeze(job, rng, 0.3, 0.8)
    return replace(job, cluster=replace(job.cluster, bandwidth_factor=float(rng.uniform(0.2, 0.65))))


def plant_node_span(job: Job, rng: Rng) -> Job:
    """Shard over all ranks of two nodes instead of within each."""
    world = max(4, job.world)
    if world != job.world:
        job = replace(job, world=world, ranks=job.ranks * 2, starts=job.starts * 2)
    cluster = replace(
        job.cluster,
        ranks_per_node=world // 2,
        inter_bus=job.cluster.intra_bus * float(rng.uniform(0.04, 0.25)),
    )
    return squeeze(replace(job, cluster=cluster, shard_size=world, reshard_after_forward=True), rng, 0.5, 1.6)


def plant_fp32_reduce(job: Job, rng: Rng) -> Job:
    """Reduce gradients in fp32."""
    return squeeze(replace(job, reduce_itemsize=4), rng, 0.4, 1.6)


def plant_fp32_gather(job: Job, rng: Rng) -> Job:
    """Gather parameters in fp32."""
    return replace(squeeze(replace(job, gather_itemsize=2), rng, 0.3, 1.1), gather_itemsize=4)


def plant_accumulation_syncs(job: Job, rng: Rng) -> Job:
    """Reduce in every micro-batch."""
    job = replace(job, micro_batches=max(2, job.micro_batches), sync_every_micro_batch=True)
    return squeeze(job, rng, 0.6, 2.0)


def plant_accumulation_regathers(job: Job, rng: Rng) -> Job:
    """Gather again in every micro-batch."""
    job = replace(job, micro_batches=max(2, job.micro_batches), regather_every_micro_batch=True)
    return squeeze(job, rng, 0.5, 1.8)


def plant_reshard(job: Job, rng: Rng) -> Job:
    """Drop parameters after the forward pass although they would fit."""
    return squeeze(replace(job, reshard_after_forward=True), rng, 0.5, 1.8)


def plant_last_unit(job: Job, rng: Rng) -> Job:
    """Drop the last unit after the forward pass and gather it again immediately."""
    job = replace(job, reshard_after_forward=True, last_unit_kept=False, root_unit=False, wrapping="block")
    keep = int(rng.integers(4, 9))
    return squeeze(replace(job, blocks=job.blocks[: keep - 1] + job.blocks[-1:]), rng, 0.3, 1.2)


def plant_checkpoint_regathers(job: Job, rng: Rng) -> Job:
    """Put checkpoints around sharded units: recomputation gathers a third time."""
    job = replace(job, checkpointing=True, checkpoint_regather=True, reshard_after_forward=True)
    return squeeze(job, rng, 0.3, 1.4)


def plant_offload(job: Job, rng: Rng) -> Job:
    """Step on the CPU: copies out, CPU Adam, copies back."""
    share = draw_share(rng)
    shard = job.params / job.shard_size
    copies = 6 * shard / job.host.pcie_rate
    job = scale_compute(job, max(0.3, copies / share / 1.5 / job.estimate_compute_ns()))
    return replace(
        job, offload_ns_per_param=float(max(0.02, 0.7 * share * job.estimate_compute_ns() / shard))
    )


def plant_blocking(job: Job, rng: Rng) -> Job:
    """Read a scalar back in each micro-batch or at every other unit."""
    share = draw_share(rng)
    kernels = job.count_kernels() * (job.host.python_ns + job.host.launch_ns)
    job = scale_compute(job, max(0.1, kernels / job.estimate_compute_ns() / max(0.25, 1 - 2 * share)))
    return replace(job, blocking="unit" if rng.random() < 0.75 else "micro", micro_batches=job.micro_batches)


def plant_data_loader(job: Job, rng: Rng) -> Job:
    """Wait for the data loader at the start of each step; the host must not be able to run ahead."""
    blocking = "step" if job.blocking == "none" else job.blocking
    return replace(job, blocking=blocking, data_ns=int(draw_share(rng) * job.estimate_compute_ns()))


def plant_optimizer_gather(job: Job, rng: Rng) -> Job:
    """Gather new parameters after the optimizer step without overlap."""
    return squeeze(replace(job, optimizer_gather="exposed"), rng, 0.2, 1.5)


def plant_copies(job: Job, rng: Rng) -> Job:
    """Make the copies around gathers slow: strided layouts, many small parameters."""
    share = draw_share(rng)
    once = 2 * job.params * job.gather_itemsize / job.gpu.memory_rate
    return replace(job, copy_factor=float(np.clip(share * job.estimate_compute_ns() / (2 * once), 2.0, 40.0)))


def plant_padding(job: Job, rng: Rng) -> Job:
    """Pad shards: dimensions that are not divisible by the number of ranks."""
    return squeeze(replace(job, padding=float(rng.uniform(0.15, 1.0))), rng, 0.5, 1.6)


def plant_slow_compute(job: Job, rng: Rng) -> Job:
    """Slow all kernels relative to an earlier run."""
    return replace(job, gpu=replace(job.gpu, factor=1 + 1.4 * draw_share(rng)))


def plant_artifact(job: Job, rng: Rng) -> Job:
    """Open the ranks' windows far apart, or let the profiler's start block some ranks."""
    late = rng.random() < 0.6
    scale = float(rng.uniform(2e8, 1.5e9))
    starts = tuple(
        replace(s, skew_ns=int(rng.uniform(0, scale)) if late else s.skew_ns,
                stall_ns=0 if late else int(rng.uniform(0.2, 1) * scale))
        for s in job.starts
    )  # fmt: skip
    return replace(job, starts=starts)


PLANTS: Final[dict[str, Callable[[Job, Rng], Job]]] = {
    "straggler_rank": plant_straggler,
    "rotating_straggler": plant_rotating,
    "latency_bound_collectives": plant_latency,
    "units_too_small": plant_small_units,
    "single_unit": plant_single_unit,
    "no_prefetch": plant_no_prefetch,
    "rate_limited_prefetch": plant_limiter,
    "cpu_bound_launch": plant_slow_host,
    "allocator_retries": plant_retries,
    "comm_slows_compute": plant_interference,
    "compute_blocks_comm": plant_blocked_comm,
    "low_bus_bandwidth": plant_slow_links,
    "sharding_spans_nodes": plant_node_span,
    "fp32_reduce": plant_fp32_reduce,
    "fp32_gather": plant_fp32_gather,
    "accumulation_syncs": plant_accumulation_syncs,
    "accumulation_regathers": plant_accumulation_regathers,
    "needless_reshard_after_forward": plant_reshard,
    "last_unit_regathered": plant_last_unit,
    "checkpoint_regathers": plant_checkpoint_regathers,
    "offload_on_critical_path": plant_offload,
    "blocking_sync": plant_blocking,
    "data_loader": plant_data_loader,
    "unhidden_optimizer_gather": plant_optimizer_gather,
    "copy_overhead": plant_copies,
    "uneven_shapes": plant_padding,
    "lost_compute_efficiency": plant_slow_compute,
    "measurement_artifact": plant_artifact,
    "first_gather_exposed": plant_first_gather,
}


def draw_candidate(seed: int, fault: str | None, shape: str, attempt: int) -> Job:
    """Draw a job with planted causes (two are joined by "+"); attempts give other jobs for the same seed."""
    if shape not in SHAPES:
        raise ValueError(f"unknown shape {shape!r}: one of {', '.join(SHAPES)}")
    kind: Shape = next(s for s in SHAPES if s == shape)
    faults = tuple(fault.split("+")) if fault else ()
    for name in faults:
        if name not in CAUSES:
            raise ValueError(f"unknown cause {name!r}: one of {', '.join(CAUSES)}")
    key = hash_key(seed, fault or "", shape, attempt) >> 1
    engines = [ENGINES[name] for name in faults if name in ENGINES]
    allowed = tuple(e for e in engines[0] if all(e in other for other in engines)) if engines else ()
    if engines and not allowed:
        raise ValueError(f"no engine can have both {' and '.join(faults)}")
    job = draw_healthy(seed, key, kind, allowed)
    job = replace(job, faults=faults)
    rng = make_rng(key, "plant")
    for name in faults:
        job = PLANTS[name](job, rng)
    if job.dialect.annotations == "none" and job.engine == "fsdp2":
        job = replace(job, dialect=draw_dialect(rng, job.engine, kind))
    for name in faults:
        if remove(job, name) in (None, job):
            raise ValueError(f"{name} cannot be planted together with the others of {fault}")
    return slim(job)


# --- remove


def remove_straggler(job: Job) -> Job:
    """Give the slow ranks the median pace of all ranks."""

    def cap(values: list[float]) -> list[float]:
        middle = sorted(values)[(len(values) - 1) // 2]
        return [min(v, middle) for v in values]

    columns = [cap([getattr(pace, name) for pace in job.ranks]) for name in ("gpu", "host", "attention")]
    ranks = tuple(
        replace(pace, gpu=g, host=h, attention=a) for pace, g, h, a in zip(job.ranks, *columns, strict=True)
    )
    return replace(job, ranks=ranks)


def remove_artifact(job: Job) -> Job:
    """Open all windows together, without blocking at their start."""
    return replace(job, starts=tuple(replace(s, skew_ns=0, stall_ns=0, lazy_ns=0) for s in job.starts))


def remove_node_span(job: Job) -> Job | None:
    """Shard within a node, and reduce across nodes (HSDP)."""
    if (
        not job.sharded_parameters
        or job.cluster.ranks_per_node == job.world
        or job.cluster.ranks_per_node == 1
    ):
        return None
    return replace(job, shard_size=min(job.shard_size, job.cluster.ranks_per_node))


def _sharded(change: Callable[[Job], Job]) -> Callable[[Job], Job | None]:
    return lambda job: change(job) if job.sharded_parameters else None


def _trained(change: Callable[[Job], Job]) -> Callable[[Job], Job | None]:
    return lambda job: change(job) if job.engine != "inference" else None


def _communicates(change: Callable[[Job], Job]) -> Callable[[Job], Job | None]:
    return lambda job: change(job) if job.engine != "inference" or job.tensor_parallel else None


def _accumulates(change: Callable[[Job], Job], sharded: bool) -> Callable[[Job], Job | None]:
    def apply(job: Job) -> Job | None:
        if job.micro_batches < 2 or job.engine == "inference" or (sharded and not job.sharded_parameters):
            return None
        return change(job)

    return apply


REMOVALS: Final[dict[str, Callable[[Job], Job | None]]] = {
    "straggler_rank": remove_straggler,
    "rotating_straggler": lambda job: replace(job, rotating=Rotating()),
    "latency_bound_collectives": _communicates(
        lambda job: replace(job, cluster=replace(job.cluster, extra_alpha_ns=0))
    ),
    "units_too_small": _sharded(
        lambda job: replace(
            job, wrapping="block" if job.wrapping == "fine" else job.wrapping, gather_pieces=1
        )
    ),
    "single_unit": _sharded(lambda job: replace(job, wrapping="block") if job.wrapping == "single" else job),
    "no_prefetch": _sharded(lambda job: replace(job, prefetch="on")),
    "first_gather_exposed": _sharded(lambda job: replace(job, unshard_early=True)),
    "rate_limited_prefetch": _sharded(lambda job: replace(job, limiter=0)),
    "cpu_bound_launch": lambda job: replace(
        job,
        host=replace(
            job.host,
            python_ns=min(job.host.python_ns, job.host.quick_ns),
            hook_ns=min(job.host.hook_ns, 15_000),
            collective_ns=min(job.host.collective_ns, 25_000),
        ),
    ),
    "allocator_retries": _trained(lambda job: replace(job, retries=0, retry_ns=0)),
    "comm_slows_compute": _communicates(lambda job: replace(job, gpu=replace(job.gpu, comm_slowdown=1.0))),
    "compute_blocks_comm": _communicates(lambda job: replace(job, gpu=replace(job.gpu, starve=0.0))),
    "low_bus_bandwidth": _communicates(
        lambda job: replace(job, cluster=replace(job.cluster, bandwidth_factor=1.0))
    ),
    "sharding_spans_nodes": remove_node_span,
    "fp32_reduce": _trained(lambda job: replace(job, reduce_itemsize=2)),
    "fp32_gather": _trained(lambda job: replace(job, gather_itemsize=2)),
    "accumulation_syncs": _accumulates(lambda job: replace(job, sync_every_micro_batch=False), False),
    "accumulation_regathers": _accumulates(lambda job: replace(job, regather_every_micro_batch=False), True),
    "needless_reshard_after_forward": _sharded(lambda job: replace(job, reshard_after_forward=False)),
    "last_unit_regathered": _sharded(lambda job: replace(job, last_unit_kept=True)),
    "checkpoint_regathers": _sharded(lambda job: replace(job, checkpoint_regather=False)),
    "offload_on_critical_path": _trained(lambda job: replace(job, offload_ns_per_param=0.0)),
    "blocking_sync": _trained(lambda job: replace(job, blocking="none")),
    "data_loader": lambda job: replace(job, data_ns=min(job.data_ns, job.quick_data_ns)),
    "unhidden_optimizer_gather": lambda job: (
        replace(job, optimizer_gather="hidden") if job.engine in _REPLICATED else None
    ),
    "copy_overhead": lambda job: replace(job, copy_factor=0.0) if job.engine == "fsdp2" else None,
    "uneven_shapes": _trained(lambda job: replace(job, padding=0.0)),
    "lost_compute_efficiency": lambda job: replace(job, gpu=replace(job.gpu, factor=1.0)),
    "measurement_artifact": remove_artifact,
}


def remove(job: Job, cause: str) -> Job | None:
    """Return the same job without a cause, or None if the cause cannot occur in it."""
    if cause not in REMOVALS:
        raise ValueError(f"unknown cause {cause!r}: one of {', '.join(CAUSES)}")
    return REMOVALS[cause](job)
