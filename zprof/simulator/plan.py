"""A plan: everything that a simulation depends on.  The same plan gives the same files.

Ranks are laid out with the tensor-parallel axis innermost, then the sharding axis, then the replicas.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from zprof.model.errors import BadInput
from zprof.simulator.knobs import (
    Allocator,
    Compute,
    DType,
    Gathering,
    Host,
    HostDelay,
    Limiter,
    Network,
    Offload,
    Precision,
    Recording,
    Stamps,
    Vendor,
    Window,
)

__all__ = [
    "Allocator",
    "Compute",
    "DType",
    "Gathering",
    "Host",
    "HostDelay",
    "Limiter",
    "Network",
    "Offload",
    "Plan",
    "Precision",
    "Recording",
    "Stamps",
    "Vendor",
    "Window",
]

MOST_RANKS = 1024
#: Parts of a block that are wrapped each by itself; further ones are its experts.
_LEAVES = ("attn.wq", "attn.wk", "attn.wv", "attn.wo", "norm", "mlp.w1", "mlp.w2", "mlp.w3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A sharded training job, the machines it runs on, and how it is recorded.

    Attributes:
        units: Wrapped units, each of ``unit_elements`` parameters.
        units_per_block: So many of them are one block of the model; what they are called says so.
        prefetch: Gathers that run ahead of the unit that computes (stage 3).
        bucket_bytes: Gradients that one reduction carries (stages 0 to 2).
        reduce_each: Reduce in every micro-batch, not only in the last.
        hide_optimizer_gather: Let the gather of new parameters (stages 1, 2) run under the next forward.
        tensor, shard: Sizes of these axes; ``shard`` None: all that remain.
        tensor_elements: Elements of each tensor-parallel all-reduce.
        padding_ratio: Share by which shards that do not divide evenly are padded.
        speed: By rank, how fast it computes (1 = as planned).
        offsets_ns, drift_ppb: By rank: local = common + offset + drift * (common - origin).
        ranks_per_host: How ranks fill hosts.
        drops: (rank, i): the i-th collective of that rank is missing from its trace.
        drop_probability: Share of all events that are lost.
        windows: By rank, when its recording opens and closes; missing: ranks without a trace.
        loss_all_reduce, norm_all_reduce: One element a step, each.
        cause, strength: What was planted, for the record.
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
    host: Host = field(default_factory=Host)
    compute: Compute = field(default_factory=Compute)
    precision: Precision = field(default_factory=Precision)
    gathering: Gathering = field(default_factory=Gathering)
    offload: Offload = field(default_factory=Offload)
    allocator: Allocator = field(default_factory=Allocator)
    recording: Recording = field(default_factory=Recording)
    speed: Mapping[int, float] = field(default_factory=dict)
    delays: tuple[HostDelay, ...] = ()
    offsets_ns: Mapping[int, int] = field(default_factory=dict)
    drift_ppb: Mapping[int, int] = field(default_factory=dict)
    ranks_per_host: int = 8
    drops: tuple[tuple[int, int], ...] = ()
    drop_probability: float = 0.0
    windows: Mapping[int, Window] = field(default_factory=dict)
    missing: tuple[int, ...] = ()
    cause: str = "none"
    strength: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what cannot be simulated.

        Raises:
            BadInput: with the knob that is wrong.
        """
        for wrong, what in (
            (not 1 <= self.ranks <= MOST_RANKS, f"ranks: 1 to {MOST_RANKS}, not {self.ranks}"),
            (not isinstance(self.vendor, Vendor), f"vendor: a Vendor, not {self.vendor!r}"),
            (not 0 <= self.stage <= 3, f"stage: 0 to 3, not {self.stage}"),
            (min(self.steps, self.units, self.micro_batches) < 1, "steps, units, micro-batches: at least 1"),
            (self.units_per_block < 1, f"units_per_block: at least 1, not {self.units_per_block}"),
            (self.prefetch < 0, f"prefetch: 0 or more, not {self.prefetch}"),
            (self.unit_elements < 1 or self.bucket_bytes < 1024, "unit_elements, bucket_bytes: too small"),
            (self.ranks % (self.tensor * (self.shard or 1)) != 0, "tensor * shard must divide the ranks"),
            (any(value <= 0 for value in self.speed.values()), "speed: above 0"),
            (set(range(self.ranks)) <= set(self.missing), "missing: at least one rank must be written"),
        ):
            if wrong:
                raise BadInput(what, hint="zprof simulate --help shows the options")

    def unit_name(self, unit: int) -> str:
        """What the program calls a unit: a block, or a part of one."""
        block, part = divmod(unit, self.units_per_block)
        if self.units_per_block == 1:
            return f"layers.{block}"
        leaf = _LEAVES[part] if part < len(_LEAVES) else f"experts.{part - len(_LEAVES)}"
        return f"layers.{block}.{leaf}"

    @property
    def shard_size(self) -> int:
        """Ranks that one copy of the parameters is spread over."""
        return self.shard or self.ranks // self.tensor

    @property
    def replicas(self) -> int:
        """Copies of the sharded parameters."""
        return self.ranks // (self.tensor * self.shard_size)

    @property
    def padded_unit_elements(self) -> int:
        """Elements of a unit as messages carry them: a whole number a shard."""
        wanted = int(self.unit_elements * (1 + self.padding_ratio))
        return -(-wanted // self.shard_size) * self.shard_size
