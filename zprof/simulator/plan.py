"""Describe a simulation; the same plan gives the same files.

Times are integer nanoseconds, sizes integer bytes, rates bytes per second.  Ranks are laid out with the
tensor-parallel axis innermost, then the sharding axis, then the replicas.
"""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field

from zprof.base.errors import BadInput

MAX_RANKS = 1024
#: Parts of a block that can be wrapped separately; further parts are its experts.
_BLOCK_PARTS = ("attn.wq", "attn.wk", "attn.wv", "attn.wo", "norm", "mlp.w1", "mlp.w2", "mlp.w3")


class Vendor(StrEnum):
    """Vendor whose trace format is written."""

    NVIDIA = "nvidia"
    AMD = "amd"
    GLOO = "gloo"


class Limiter(StrEnum):
    """Limit that keeps gathers from running further ahead than the prefetch depth.

    EVENT: the gather waits on the device for free memory (FSDP2).  HOST: the host waits before the launch
    (FSDP1's rate limiter).  NONE: no limit.
    """

    EVENT = "event"
    HOST = "host"
    NONE = "none"


class DType(StrEnum):
    """Type of the elements of a message."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"

    @property
    def size_bytes(self) -> int:
        """Bytes of one element."""
        return 4 if self is DType.FLOAT32 else 2


class Network(Struct, frozen=True, kw_only=True):
    """Network in which a message takes alpha + bytes * bus factor / beta after the last rank has arrived.

    ``beta_bytes_per_s``: bus bandwidth within a host; ``inter_*``: for groups that span hosts (None: the
    same). ``links``: share of the bandwidth of a rank's own link, which limits its groups.
    ``spread_ns``, ``spread_ratio``: maximum difference of ends between ranks, in time and as a share of the
    transfer. ``per_kind_streams``: one stream per kind of collective, instead of one per group.
    """

    alpha_ns: int = 20_000
    beta_bytes_per_s: float = 100e9
    inter_alpha_ns: int | None = None
    inter_beta_bytes_per_s: float | None = None
    links: tuple[tuple[int, float], ...] = ()
    spread_ns: int = 800
    spread_ratio: float = 0.0
    per_kind_streams: bool = False


class HostThread(Struct, frozen=True, kw_only=True):
    """Thread that launches work.

    ``run_ahead``: kernels that may be queued before it blocks.  ``sync_each_step``: read the loss at the end
    of a step.  ``syncs_per_unit``: further blocking reads after each unit's forward.  ``reads_loss``: read
    the loss before the backward (to stop if it is not finite).
    """

    launch_ns: int = 6_000
    collective_launch_ns: int = 24_000
    latency_ns: int = 4_000
    run_ahead: int = 24
    sync_ns: int = 9_000
    sync_each_step: bool = True
    syncs_per_unit: int = 0
    reads_loss: bool = False
    resume_ns: int = 2_000


class ComputeCost(Struct, frozen=True, kw_only=True):
    """Cost of a unit at full speed.

    ``noise_ratio``: standard deviation of each kernel's time, per rank and kernel.  ``gap_ns``: gap between
    two kernels of a stream.  ``slowdown``: factor on a kernel's time while a collective runs in parallel.
    ``blocks_collectives``: kernels fill the device, so a collective starts after the queued kernels.
    ``copy_ns``: time to copy a gathered unit into place.  ``factor``: factor on every kernel of every rank.
    """

    forward_ns: int = 2_000_000
    backward_ns: int = 4_000_000
    optimizer_ns: int = 1_500_000
    forward_kernels: int = 4
    backward_kernels: int = 8
    noise_ratio: float = 0.005
    gap_ns: int = 700
    slowdown: float = 1.0
    blocks_collectives: bool = False
    copy_ns: int = 30_000
    factor: float = 1.0


class Precision(Struct, frozen=True, kw_only=True):
    """Element types of gathers and of reductions."""

    gather: DType = DType.BFLOAT16
    reduce: DType = DType.BFLOAT16


class Gathering(Struct, frozen=True, kw_only=True):
    """Gather policy of stage 3.

    ``reshard_after_forward``: free a unit after its forward, so that the backward gathers it again.
    ``keep_last_unit``: do not free the last unit.  ``recompute``: the backward first repeats the forward.
    ``recompute_gathers``: the recomputation gathers again.  ``limiter``: see :class:`Limiter`.
    """

    reshard_after_forward: bool = True
    keep_last_unit: bool = False
    recompute: bool = False
    recompute_gathers: bool = False
    limiter: Limiter = Limiter.EVENT


class Offload(Struct, frozen=True, kw_only=True):
    """Shards in host memory: copied out and in, and updated by the CPU."""

    enabled: bool = False
    pcie_bytes_per_s: float = 20e9
    optimizer_ns: int = 8_000_000


class AllocatorRetries(Struct, frozen=True, kw_only=True):
    """Allocator retries per step: the host frees memory (which waits for the device) and allocates again."""

    retries_per_step: int = 0
    free_ns: int = 400_000
    malloc_ns: int = 900_000
    ranks: tuple[int, ...] | None = None


class HostDelay(Struct, frozen=True, kw_only=True):
    """Stall of a rank's host before the forward of a unit, in every step.

    ``rotating``: in step s the rank is (rank + s) modulo the ranks, as with garbage collection.
    """

    rank: int
    ns: int
    unit: int = 0
    rotating: bool = False
    data: bool = False


class PartialRecording(Struct, frozen=True, kw_only=True):
    """Recording that starts later and ends earlier than those of other ranks.

    ``opening_ns``: time that the host spends starting it, before its first step; other ranks wait for it.
    """

    opening_ns: int = 0
    opens_late_ns: int = 0
    closes_early_ns: int = 0


class Stamps(StrEnum):
    """Format of times: float microseconds since a base, or whole microseconds (until 2024)."""

    BASED = "based"
    WHOLE_MICROSECONDS = "whole_microseconds"


class Recording(Struct, frozen=True, kw_only=True):
    """Format of the files.

    ``metadata``: kernels of collectives have metadata; without it, they also have their old names.
    ``sequence``: ``Seq`` is part of the metadata.  ``wait_ranges``: record gloo's waits.
    ``synchronisation``: also record CUPTI's cuda_sync events.  ``pad_to_bytes``: fill each file with host
    events up to about that size.  ``compress``: .json.gz instead of .json.
    """

    metadata: bool = True
    sequence: bool = True
    stamps: Stamps = Stamps.BASED
    indented: bool = True
    compress: bool = True
    wait_ranges: bool = True
    synchronisation: bool = False
    pad_to_bytes: int = 0


class SimulationPlan(Struct, frozen=True, kw_only=True):
    """A sharded training job, its machines, and its recording.

    Attributes:
        units: Wrapped units, each of ``unit_elements`` parameters.
        units_per_block: Units that form one block of the model; determines their names.
        prefetch: Gathers that run ahead of the computing unit (stage 3).
        bucket_bytes: Gradient bytes per reduction (stages 0 to 2).
        reduce_each: Reduce in every micro-batch, not only in the last.
        hide_optimizer_gather: Overlap the gather of new parameters (stages 1, 2) with the next forward.
        tensor, shard: Sizes of these axes; ``shard`` None: all remaining ranks.
        tensor_elements: Elements of each tensor-parallel all-reduce.
        padding_ratio: Padding of shards that do not divide evenly, as a share.
        speed: Compute speed by rank (1 = as planned).
        offsets_ns, drift_ppb: By rank: local = common + offset + drift * (common - origin).
        ranks_per_host: Ranks on each host.
        drops: (rank, i): the i-th collective of that rank is missing from its trace.
        drop_probability: Share of all events that are lost.
        windows: Recording window by rank.
        missing: Ranks without a trace.
        loss_all_reduce, norm_all_reduce: Add an all-reduce of one element per step.
        cause, strength: Planted cause, for the ground truth.
    """

    ranks: int = 4
    steps: int = 3
    seed: int = 0
    vendor: Vendor = Vendor.NVIDIA
    stage: int = 3
    units: int = 8
    units_per_block: int = 1
    unit_elements: int = 16 * 1024 * 1024
    prefetch: int = 1
    micro_batches: int = 1
    bucket_bytes: int = 40 * 1024 * 1024
    reduce_each: bool = False
    hide_optimizer_gather: bool = False
    tensor: int = 1
    tensor_elements: int = 4 * 1024 * 1024
    shard: int | None = None
    padding_ratio: float = 0.0
    data_ns: int = 250_000
    batch_bytes: int = 65_536
    loss_all_reduce: bool = True
    norm_all_reduce: bool = True
    network: Network = field(default_factory=Network)
    host: HostThread = field(default_factory=HostThread)
    compute: ComputeCost = field(default_factory=ComputeCost)
    precision: Precision = field(default_factory=Precision)
    gathering: Gathering = field(default_factory=Gathering)
    offload: Offload = field(default_factory=Offload)
    allocator: AllocatorRetries = field(default_factory=AllocatorRetries)
    recording: Recording = field(default_factory=Recording)
    speed: Mapping[int, float] = field(default_factory=dict)
    delays: tuple[HostDelay, ...] = ()
    offsets_ns: Mapping[int, int] = field(default_factory=dict)
    drift_ppb: Mapping[int, int] = field(default_factory=dict)
    ranks_per_host: int = 8
    drops: tuple[tuple[int, int], ...] = ()
    drop_probability: float = 0.0
    windows: Mapping[int, PartialRecording] = field(default_factory=dict)
    missing: tuple[int, ...] = ()
    cause: str = "none"
    strength: float = 0.0

    def __post_init__(self) -> None:
        """Check that the plan can be simulated.

        Raises:
            BadInput: a setting is invalid; the message names it.
        """
        for is_invalid, message in (
            (not 1 <= self.ranks <= MAX_RANKS, f"ranks must be 1 to {MAX_RANKS}, not {self.ranks}"),
            (not isinstance(self.vendor, Vendor), f"vendor must be a Vendor, not {self.vendor!r}"),
            (not 0 <= self.stage <= 3, f"stage must be 0 to 3, not {self.stage}"),
            (
                min(self.steps, self.units, self.micro_batches) < 1,
                "steps, units and micro-batches must be at least 1",
            ),
            (self.units_per_block < 1, f"units_per_block must be at least 1, not {self.units_per_block}"),
            (self.prefetch < 0, f"prefetch must be 0 or more, not {self.prefetch}"),
            (
                self.unit_elements < 1 or self.bucket_bytes < 1024,
                "unit_elements or bucket_bytes is too small",
            ),
            (self.ranks % (self.tensor * (self.shard or 1)) != 0, "tensor * shard must divide the ranks"),
            (any(value <= 0 for value in self.speed.values()), "speed must be above 0"),
            (set(range(self.ranks)) <= set(self.missing), "missing: at least one rank must have a trace"),
        ):
            if is_invalid:
                raise BadInput(message, hint="zprof simulate --help shows the options")

    def unit_name(self, unit: int) -> str:
        """Return a unit's name in the program: a block, or a part of one."""
        block, part = divmod(unit, self.units_per_block)
        if self.units_per_block == 1:
            return f"layers.{block}"
        part_name = _BLOCK_PARTS[part] if part < len(_BLOCK_PARTS) else f"experts.{part - len(_BLOCK_PARTS)}"
        return f"layers.{block}.{part_name}"

    @property
    def shard_size(self) -> int:
        """Ranks that share one copy of the parameters."""
        return self.shard or self.ranks // self.tensor

    @property
    def replicas(self) -> int:
        """Copies of the sharded parameters."""
        return self.ranks // (self.tensor * self.shard_size)

    @property
    def padded_unit_elements(self) -> int:
        """Elements of a unit in messages: a multiple of the shard size."""
        padded_elements = int(self.unit_elements * (1 + self.padding_ratio))
        return -(-padded_elements // self.shard_size) * self.shard_size
