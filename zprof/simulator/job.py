"""Describe a simulated sharded training job: model, engine, cluster, host, clocks and trace dialect.

All randomness is either drawn once into a `Job` or keyed by stable ids (`mix`), so two jobs that differ in
one field have the same noise everywhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Literal
from zlib import crc32

import numpy as np

from zprof.simulator.mesh.layout import Parallelism

Engine = Literal[
    "fsdp2", "fsdp1", "zero3", "zero2", "zero1", "ddp", "inference", "megatron", "torch", "deepspeed"
]
Vendor = Literal["nvidia", "amd", "gloo"]
VENDORS: Final[tuple[Vendor, ...]] = ("nvidia", "amd", "gloo")
Shape = Literal["training", "healthy", "skewed", "partial", "cut", "damaged", "inference", "several_steps"]
SHAPES: Final[tuple[Shape, ...]] = (
    "training", "healthy", "skewed", "partial", "cut", "damaged", "inference", "several_steps",
)  # fmt: skip

CAUSES: Final[tuple[str, ...]] = (
    "straggler_rank", "rotating_straggler", "latency_bound_collectives", "units_too_small", "single_unit",
    "no_prefetch", "rate_limited_prefetch", "cpu_bound_launch", "allocator_retries", "comm_slows_compute",
    "compute_blocks_comm", "low_bus_bandwidth", "sharding_spans_nodes", "fp32_reduce", "fp32_gather",
    "accumulation_syncs", "accumulation_regathers", "needless_reshard_after_forward",
    "last_unit_regathered", "checkpoint_regathers", "offload_on_critical_path", "blocking_sync",
    "data_loader", "unhidden_optimizer_gather", "copy_overhead", "uneven_shapes",
    "lost_compute_efficiency", "measurement_artifact", "first_gather_exposed",
)  # fmt: skip

HEALTHY: Final = ("none", "tight")
"""Jobs without a cause: as they are, and with gathers that take nine tenths of the forward beside them."""

RANKS_PER_HOST: Final = 8
"""Of regular jobs."""

NEEDS_BASELINE: Final = frozenset({"low_bus_bandwidth", "lost_compute_efficiency"})
"""Causes that one run cannot show: the same job before the change is written beside it."""

_MASK: Final = (1 << 64) - 1
NORMALS: Final[list[float]] = np.random.Generator(np.random.PCG64(20260101)).standard_normal(4096).tolist()


def mix(state: int, value: int) -> int:
    """Return a 64-bit hash of a state and a value."""
    state = ((state ^ value) * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & _MASK
    return state ^ (state >> 29)


def hash_key(*parts: int | str) -> int:
    """Return a 64-bit key that depends only on the parts, not on the order of the calls."""
    state = 0x1234567
    for part in parts:
        state = mix(state, crc32(part.encode()) if isinstance(part, str) else part)
    return mix(state, 0x55AA)


def uniform(*parts: int | str) -> float:
    """Return a number in [0, 1) that depends only on the key."""
    return hash_key(*parts) / (_MASK + 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernel:
    """A kernel of a block: index into the name table, and its duration on an idle GPU."""

    kind: int
    ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A module with parameters (embedding, transformer block, head); backward kernels in execution order."""

    name: str
    params: int
    forward: tuple[Kernel, ...]
    backward: tuple[Kernel, ...]

    @property
    def is_layer(self) -> bool:
        """Return True for a transformer block, which may be checkpointed or wrapped in parts."""
        return self.name.startswith("layers.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """Links between ranks. Bandwidths are bus bandwidths in bytes per ns (GB/s)."""

    ranks_per_node: int
    intra_bus: float
    inter_bus: float
    intra_alpha_ns: int
    inter_alpha_ns: int
    extra_alpha_ns: int = 0
    bandwidth_factor: float = 1.0
    serial_links: bool = False
    """Transfers that share a rank wait for each other (True) or split the bandwidth (False)."""
    end_spread_ns: int = 1_500
    """Standard deviation of a rank's end of a collective against the first end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One device model: memory rate in bytes per ns, and how compute and NCCL kernels disturb each other."""

    name: str
    sms: int
    memory_bytes: int
    memory_rate: float
    gap_ns: int
    factor: float = 1.0
    comm_slowdown: float = 1.0
    starve: float = 0.0
    """Chance that a collective that finds a kernel running lets one more kernel pass; 0: never waits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """Pace of the host threads."""

    python_ns: int
    quick_ns: int
    autograd_factor: float
    launch_ns: int
    latency_ns: int
    hook_ns: int
    collective_ns: int
    queue_depth: int
    noise: float
    hiccup_rate: float
    pcie_rate: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """The pace of a rank that differs from the others.

    ``gpu``, ``host``, ``attention``: factors of the times of its kernels, its host and its attention kernels
    (longer sequences).  ``link``: share of the link's bandwidth.  ``data_ns``: additional time per step for
    data. ``stall_ns``: a stall of the host in each step, before the forward pass of block ``stall_block``.
    ``retries``: allocator retries in each place; None for those of the job.
    """

    gpu: float = 1.0
    host: float = 1.0
    attention: float = 1.0
    link: float = 1.0
    data_ns: int = 0
    stall_ns: int = 0
    stall_block: int = 0
    retries: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """How a rank enters the profiled window, and its clock."""

    skew_ns: int = 0
    stall_ns: int = 0
    stall_call: str = "cudaDeviceSynchronize"
    lazy_ns: int = 0
    clock_offset_ns: int = 0
    clock_drift: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Rotating:
    """A different rank stalls in each step: on the host at one block, or in all its GPU work."""

    host_ns: int = 0
    gpu_factor: float = 1.0
    point: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """The contents of the trace files."""

    era: Literal["new", "mid", "old"]
    annotations: Literal["fsdp2", "fsdp1", "ddp", "none"]
    profiler_step: bool
    optimizer_range: bool
    metadata: bool
    sequence: bool
    distributed_info: bool
    python_rows: bool
    gpu_annotations: bool
    shapes: bool
    syncs: bool
    gz: bool
    keys_first: bool
    one_nccl_stream: bool
    first_step: int
    vendor: Vendor = "nvidia"
    host_names: bool = False
    waits: bool = True
    """A CPU rank records that its main thread waits for a collective, as zprof's recorder does."""
    names_collectives: bool = False
    """A CPU rank's engine says which collective it launches and waits for, in zprof's grammar of ranges."""
    min_bytes: int = 0
    """Pad each file with events of an idle thread to about that many bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A complete job: simulating it needs nothing else."""

    seed: int
    key: int
    """What all noise is keyed by: made of seed, cause and shape."""
    shape: Shape
    faults: tuple[str, ...]
    engine: Engine
    world: int
    steps: int
    micro_batches: int
    blocks: tuple[Block, ...]
    cluster: Cluster
    gpu: Gpu
    host: Host
    ranks: tuple[Pace, ...]
    starts: tuple[Start, ...]
    dialect: Dialect
    noise: float
    # sharding
    shard_size: int
    wrapping: Literal["block", "fine", "single"] = "block"
    fine_pieces: int = 6
    root_unit: bool = True
    gather_pieces: int = 1
    reduce_bucket: int = 1
    gather_itemsize: int = 2
    reduce_itemsize: int = 2
    padding: float = 0.0
    padding_cost: float = 1.0
    """How many times as long the copies before reductions take if they pad."""
    reshard_after_forward: bool = True
    last_unit_kept: bool = True
    prefetch: Literal["on", "backward_off", "off"] = "on"
    explicit_forward_prefetch: bool = False
    limiter: int = 0
    checkpointing: bool = False
    checkpoint_regather: bool = False
    sync_every_micro_batch: bool = False
    regather_every_micro_batch: bool = False
    optimizer_gather: Literal["hidden", "exposed"] = "exposed"
    optimizer_gather_pieces: int = 2
    copy_factor: float = 1.0
    # host and optimizer
    clip: bool = False
    blocking: Literal["none", "step", "micro", "unit"] = "none"
    data_ns: int = 200_000
    batch_copy_ns: int = 24_000
    reads_loss: bool = False
    """The program reads the loss before the backward, to stop if it is not finite."""
    unshard_early: bool = False
    quick_data_ns: int = 120_000
    offload_ns_per_param: float = 0.0
    retries: int = 0
    retry_ns: int = 0
    rotating: Rotating = Rotating()
    # inference
    tokens: int = 4
    tensor_parallel: bool = False
    # tensor parallelism in training
    tensor_size: int = 1
    """Ranks that share each block; innermost in the order of ranks."""
    tensor_elements: int = 4 * 1024 * 1024
    """Elements of each all-reduce of activations."""
    parallel: Parallelism | None = None
    """How a job of several dimensions is divided; such a job has no blocks and no units."""

    @property
    def on_cpu(self) -> bool:
        """Return True if ranks compute on CPUs and communicate over gloo."""
        return self.dialect.vendor == "gloo"

    @property
    def replicas(self) -> int:
        """Return the number of copies of the sharded parameters."""
        return self.world // (self.shard_size * self.tensor_size)

    @property
    def params(self) -> int:
        """Return the number of parameters of the model."""
        return sum(block.params for block in self.blocks)

    @property
    def sharded_parameters(self) -> bool:
        """Return True if parameters are gathered for each use (ZeRO-3, FSDP)."""
        return self.engine in ("fsdp2", "fsdp1", "zero3")

    @property
    def spans_nodes(self) -> bool:
        """Return True if a shard group crosses a node boundary."""
        return self.shard_size * self.tensor_size > self.cluster.ranks_per_node

    def estimate_compute_ns(self) -> int:
        """Return the compute time of a step on an idle GPU, without launches and communication."""
        forward = sum(kernel.ns for block in self.blocks for kernel in block.forward)
        backward = sum(kernel.ns for block in self.blocks for kernel in block.backward)
        if self.engine == "inference":
            return int(forward * self.tokens * self.gpu.factor)
        again = forward if self.checkpointing else 0
        return int((forward + backward + again) * self.micro_batches * self.gpu.factor)

    def count_kernels(self) -> int:
        """Return the approximate number of compute kernels per rank and step."""
        forward = sum(len(block.forward) for block in self.blocks)
        backward = sum(len(block.backward) for block in self.blocks)
        if self.engine == "inference":
            return forward * self.tokens
        return (forward * (2 if self.checkpointing else 1) + backward) * self.micro_batches

    def describe(self) -> dict[str, object]:
        """Return the scalar fields, for truth.json."""
        plain = (str, int, float, bool)
        scalars = {
            f.name: getattr(self, f.name) for f in fields(self) if isinstance(getattr(self, f.name), plain)
        }
        return scalars | {"vendor": self.dialect.vendor}
