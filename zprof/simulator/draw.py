"""Draw random jobs: models, engines, clusters, hosts and trace dialects as in public sources.

Sources of the ranges: transformer shapes of public models (hidden size 1024 to 5120, 12 d^2 parameters per
block, vocabularies of 32k to 128k); nccl-tests bus bandwidths (8xA100 about 230, 8xH100 about 370, PCIe 6 to
24, InfiniBand 10 to 45, Ethernet 1.5 to 8 GB/s); NCCL latencies of 10 to 60 us; device data sheets for memory
rates. The ratio of gather to forward time is lognormal around 0.45: users raise the batch size until memory
is full, and shard if communication is nearly hidden. Host pace and launch gaps are from public Kineto traces:
5 to 13 us per launch, medians of 25 to 210 us between launches under a profiler with shapes, about 1 us
between back-to-back kernels, 9 to 14 us from launch to start on an idle stream, profiler start or stop
blocking for 14 to 90 ms and more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from zprof.simulator import kernels
from zprof.simulator.job import (
    Block,
    Cluster,
    Dialect,
    Engine,
    Gpu,
    Host,
    Job,
    Kernel,
    Pace,
    Shape,
    Start,
    hash_key,
)

Rng = np.random.Generator
_KERNEL_BUDGET: Final = 9_000
"""Compute kernels of all ranks and steps together: keeps a job at about a second."""

_GPUS: Final = (  # name, SMs, bytes, memory rate B/ns, lowest and highest bus bandwidth in a node
    ("NVIDIA A100-SXM4-80GB", 108, 85_031_714_816, 1550.0, 110.0, 230.0),
    ("NVIDIA H100 80GB HBM3", 132, 85_018_279_936, 2500.0, 180.0, 370.0),
    ("NVIDIA L40S", 142, 47_697_362_944, 680.0, 10.0, 24.0),
    ("NVIDIA GeForce RTX 4090", 128, 25_393_692_672, 850.0, 6.0, 18.0),
)


def make_rng(*parts: int | str) -> Rng:
    """Return a generator that depends only on its key."""
    return np.random.Generator(np.random.PCG64(hash_key(*parts)))


def draw_healthy(seed: int, key: int, shape: Shape, engines: tuple[Engine, ...] = ()) -> Job:
    """Draw a job without planted causes, but with realistic imperfections."""
    rng = make_rng(key, "job")
    engine: Engine = "inference"
    if shape != "inference":
        names: tuple[Engine, ...] = engines or ("fsdp2", "fsdp1", "zero3", "zero2", "zero1")
        weights = np.array(
            [{"fsdp2": 50, "fsdp1": 20, "zero3": 12, "zero2": 10, "zero1": 8}.get(n, 1) for n in names]
        )
        engine = names[int(rng.choice(len(names), p=weights / weights.sum()))]
    world = int(rng.choice([2, 4, 8], p=[0.3, 0.45, 0.25]))
    gpu_name, sms, memory, rate, low, high = _GPUS[int(rng.choice(4, p=[0.35, 0.35, 0.15, 0.15]))]
    cluster = _draw_cluster(rng, world, low, high)
    hybrid = engine in ("fsdp2", "fsdp1") and world >= 4 and rng.random() < 0.25
    shard_size = cluster.ranks_per_node if hybrid and cluster.ranks_per_node < world else world
    if hybrid and shard_size == world:
        shard_size = world // 2
    dialect = draw_dialect(rng, engine, shape)
    gather_itemsize = 4 if rng.random() < 0.1 else 2
    blocks = _draw_blocks(rng, engine, cluster, shard_size, gather_itemsize)
    micro = int(rng.choice([1, 2, 3, 4], p=[0.6, 0.2, 0.1, 0.1]))
    host = draw_host(rng)
    job = Job(
        seed=seed, key=key, shape=shape, faults=(), engine=engine, world=world,
        steps=int(rng.integers(3, 6)), micro_batches=micro, blocks=blocks, cluster=cluster,
        gpu=Gpu(name=gpu_name, sms=sms, memory_bytes=memory, memory_rate=rate * float(rng.uniform(0.8, 0.95)),
                gap_ns=int(rng.integers(700, 1400)), comm_slowdown=1.0 + float(rng.uniform(0.0, 0.06))),
        host=host,
        ranks=tuple(Pace(gpu=float(1 + abs(rng.normal(0, 0.004))), host=float(1 + abs(rng.normal(0, 0.02))))
                    for _ in range(world)),
        starts=draw_starts(rng, world, skewed=shape == "skewed"),
        dialect=dialect, noise=float(rng.uniform(0.002, 0.02)), shard_size=shard_size,
        root_unit=engine in ("fsdp2", "fsdp1") and bool(rng.random() < 0.6),
        gather_pieces=int(rng.integers(2, 5)) if engine == "zero3" else (2 if rng.random() < 0.12 else 1),
        reduce_bucket=int(rng.integers(1, 4)) if engine not in ("fsdp2", "fsdp1") else 1,
        gather_itemsize=gather_itemsize, reduce_itemsize=4 if rng.random() < 0.35 else 2,
        padding=float(rng.uniform(0, 0.004)),
        reshard_after_forward=bool(rng.random() < 0.7), last_unit_kept=bool(rng.random() < 0.85),
        explicit_forward_prefetch=bool(rng.random() < 0.3),
        limiter=2 if engine == "fsdp1" and rng.random() < 0.7 else 0,
        checkpointing=bool(rng.random() < 0.35),
        optimizer_gather="hidden" if rng.random() < 0.5 else "exposed",
        optimizer_gather_pieces=int(rng.integers(1, 5)),
        sync_every_micro_batch=False, regather_every_micro_batch=micro > 1 and bool(rng.random() < 0.3),
        clip=bool(rng.random() < 0.5), blocking="step" if rng.random() < 0.5 else "none",
        data_ns=int(np.exp(rng.normal(np.log(250_000), 0.6))),
        quick_data_ns=int(rng.integers(80_000, 140_000)),
        tokens=int(rng.integers(3, 7)), tensor_parallel=engine == "inference" and bool(rng.random() < 0.6),
    )  # fmt: skip
    return slim(job, rng)


def slim(job: Job, rng: Rng | None = None) -> Job:
    """Reduce the number of kernels to the budget: fewer steps, then micro-batches, then blocks."""
    if job.world * job.steps * job.count_kernels() > _KERNEL_BUDGET and job.steps > 3:
        job = replace(job, steps=3)
    floor = 2 if any(f.startswith("accumulation") for f in job.faults) else 1
    while job.world * job.steps * job.count_kernels() > _KERNEL_BUDGET and job.micro_batches > floor:
        job = replace(job, micro_batches=job.micro_batches - 1)
    while job.world * job.steps * job.count_kernels() > _KERNEL_BUDGET and len(job.blocks) > 6:
        job = replace(job, blocks=job.blocks[:-2] + job.blocks[-1:])
    if job.micro_batches == 1:
        job = replace(job, regather_every_micro_batch=False, sync_every_micro_batch=False)
    return job


def _draw_cluster(rng: Rng, world: int, low: float, high: float) -> Cluster:
    nodes = 2 if world >= 4 and rng.random() < 0.4 else 1
    intra = float(rng.uniform(low, high))
    fast_network = low > 50
    inter = float(rng.uniform(10, 45)) if fast_network else float(np.exp(rng.uniform(np.log(1.5), np.log(8))))
    return Cluster(
        ranks_per_node=world // nodes,
        intra_bus=intra,
        inter_bus=min(inter, intra),
        intra_alpha_ns=int(rng.integers(8_000, 20_000)),
        inter_alpha_ns=int(rng.integers(22_000, 60_000)),
        serial_links=bool(rng.random() < 0.3),
    )


def draw_host(rng: Rng) -> Host:
    """Draw the pace of the host threads."""
    return Host(
        python_ns=int(np.clip(np.exp(rng.normal(np.log(22_000), 0.45)), 8_000, 60_000)),
        quick_ns=int(rng.integers(2_500, 5_000)),
        autograd_factor=float(rng.uniform(0.6, 1.0)),
        launch_ns=int(rng.integers(4_000, 9_500)),
        latency_ns=int(rng.integers(1_500, 4_500)),
        hook_ns=int(rng.integers(60_000, 160_000)),
        collective_ns=int(rng.integers(60_000, 190_000)),
        queue_depth=1022,
        noise=float(rng.uniform(0.05, 0.3)),
        hiccup_rate=float(rng.choice([0.0, 0.0005, 0.002])),
        pcie_rate=float(rng.uniform(8, 24)),
    )


def draw_starts(rng: Rng, world: int, skewed: bool) -> tuple[Start, ...]:
    """Draw window starts: usually some ms apart, sometimes the profiler's start blocks for 0.1 to 0.5 s."""
    scale = (
        float(rng.uniform(2e7, 2.5e8)) if skewed else float(rng.choice([2e5, 2e6, 1e7], p=[0.4, 0.4, 0.2]))
    )
    blocks = rng.random() < 0.35
    lazy = rng.random() < 0.25
    call = "cudaDeviceSynchronize" if rng.random() < 0.6 else "cudaStreamSynchronize"
    base = float(rng.uniform(1e8, 4e8))
    return tuple(
        Start(
            skew_ns=int(rng.uniform(0, scale)),
            stall_ns=int(base * rng.uniform(0.9, 1.3)) if blocks else 0,
            stall_call=call,
            lazy_ns=int(rng.uniform(5e6, 6e7)) if lazy else 0,
            clock_offset_ns=int(rng.uniform(-5e6, 5e6)),
            clock_drift=float(rng.normal(0, 2e-6)),
        )
        for _ in range(world)
    )


def draw_dialect(rng: Rng, engine: Engine, shape: Shape) -> Dialect:
    """Draw the trace dialect: three quarters are torch 2.5 or later, a tenth is older than 2.1."""
    era = str(rng.choice(["new", "mid", "old"], p=[0.72, 0.2, 0.08]))
    if engine == "fsdp2" and era == "old":
        era = "mid"
    annotations = {"fsdp2": "fsdp2", "fsdp1": "fsdp1", "zero1": "ddp"}.get(engine, "none")
    several = shape == "several_steps"
    return Dialect(
        era=era,  # type: ignore[arg-type]
        annotations=annotations,  # type: ignore[arg-type]
        profiler_step=not several and bool(shape != "training" or rng.random() < 0.9),
        optimizer_range=engine != "inference" and (bool(rng.random() < 0.85) or several),
        metadata=era == "new" or (era == "mid" and bool(rng.random() < 0.7)),
        sequence=era == "new" and bool(rng.random() < 0.6),
        distributed_info=bool(rng.random() < 0.9),
        python_rows=bool(rng.random() < 0.2),
        gpu_annotations=bool(rng.random() < 0.5),
        shapes=bool(rng.random() < 0.3),
        syncs=bool(rng.random() < 0.3),
        gz=bool(rng.random() < 0.5),
        keys_first=bool(rng.random() < 0.5),
        one_nccl_stream=bool(rng.random() < 0.5),
        first_step=int(rng.integers(2, 120)),
    )


def _draw_blocks(rng: Rng, engine: Engine, cluster: Cluster, shard: int, itemsize: int) -> tuple[Block, ...]:
    """Draw embedding, transformer blocks (some models have bigger, MoE-like ones) and head."""
    width = int(rng.choice([1024, 1536, 2048, 3072, 4096, 5120]))
    count = int(np.clip(np.exp(rng.normal(np.log(9), 0.5)), 3, 28))
    params = int(12 * width * width * rng.uniform(0.85, 1.2))
    spans = shard > cluster.ranks_per_node
    bus = min(cluster.inter_bus, cluster.intra_bus) if spans else cluster.intra_bus
    while params * itemsize / bus > 12e6 and width > 512:  # slow links come with small models
        width, params = width // 2, params // 4
    vocabulary = int(rng.choice([32_000, 50_304, 100_352, 128_256])) // (1 if width >= 2048 else 2)
    gather_ns = params * itemsize * (shard - 1) / shard / bus
    ratio = float(np.clip(np.exp(rng.normal(np.log(0.45), 0.6)), 0.08, 2.2))
    forward_ns = float(np.clip(gather_ns / ratio, 500_000, 18_000_000))
    if engine == "inference":
        forward_ns = float(rng.uniform(60_000, 300_000))
    style = str(rng.choice(["full", "medium", "fused"], p=[0.4, 0.4, 0.2]))
    big = rng.random() < 0.15
    embedding = Block(
        name="tok_embeddings",
        params=vocabulary * width,
        forward=(Kernel(kind=kernels.EMBEDDING, ns=max(20_000, int(forward_ns * 0.03))),),
        backward=(Kernel(kind=kernels.EMBEDDING, ns=max(30_000, int(forward_ns * 0.06))),),
    )
    blocks = [embedding]
    for index in range(count):
        scale = float(rng.uniform(0.95, 1.05))
        heavy = big and index % 3 == 2
        blocks.append(
            Block(
                name=f"layers.{index}",
                params=int(params * scale * (4 if heavy else 1)),
                forward=_spread(
                    rng, kernels.FORWARD_STYLES[style], forward_ns * scale * (1.4 if heavy else 1)
                ),
                backward=_spread(
                    rng, kernels.BACKWARD_STYLES[style], 2 * forward_ns * scale * (1.4 if heavy else 1)
                ),
            )
        )
    head_ns = forward_ns * min(2.5, vocabulary * width / params)
    blocks.append(
        Block(
            name="output",
            params=vocabulary * width + width,
            forward=(
                Kernel(kind=kernels.NORM, ns=int(forward_ns * 0.02)),
                Kernel(kind=kernels.GEMM2, ns=int(head_ns)),
            ),
            backward=(
                Kernel(kind=kernels.GEMM, ns=int(head_ns)),
                Kernel(kind=kernels.GEMM2, ns=int(head_ns)),
            ),
        )
    )
    return tuple(blocks)


def _spread(rng: Rng, style: tuple[tuple[int, float], ...], total_ns: float) -> tuple[Kernel, ...]:
    shares = np.array([share for _, share in style]) * rng.uniform(0.9, 1.1, len(style))
    shares /= shares.sum()
    return tuple(
        Kernel(kind=kind, ns=max(2_000, int(total_ns * share)))
        for (kind, _), share in zip(style, shares, strict=True)
    )
