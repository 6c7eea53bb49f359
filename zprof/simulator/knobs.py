"""Groups of knobs of a plan: network, host, model, precision, clocks and what the recording misses.

Times are integer nanoseconds, sizes integer bytes, rates bytes per second.
"""

from dataclasses import dataclass
from enum import StrEnum


class Vendor(StrEnum):
    """Whose traces are written."""

    NVIDIA = "nvidia"
    AMD = "amd"
    GLOO = "gloo"


class Limiter(StrEnum):
    """What keeps gathers from running further ahead than the prefetch depth.

    EVENT: the gather waits on the device for memory to be free (FSDP2).  HOST: the host itself waits
    before it launches (FSDP1's rate limiter).  NONE: nothing does.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A message takes alpha + bytes * bus factor / beta once the last rank has come.

    ``beta_bytes_per_s``: bus bandwidth within a host; ``inter_*``: of groups that span hosts (None: the
    same).  ``links``: share of the bandwidth that a rank's own link has; its groups go at that pace.
    ``spread_ns``, ``spread_ratio``: how far ends differ between ranks, at most, in time and as a share of
    the transfer.  ``per_kind_streams``: a stream for each kind of collective, instead of one a group.
    """

    alpha_ns: int = 20_000
    beta_bytes_per_s: float = 100e9
    inter_alpha_ns: int | None = None
    inter_beta_bytes_per_s: float | None = None
    links: tuple[tuple[int, float], ...] = ()
    spread_ns: int = 800
    spread_ratio: float = 0.0
    per_kind_streams: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The thread that launches.

    ``run_ahead``: kernels that may be queued before it blocks.  ``sync_each_step``: it reads the loss at
    the end of a step.  ``syncs_per_unit``: further blocking reads after each unit's forward.
    ``reads_loss``: it reads the loss before the backward (to stop where it is not finite).
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """What a unit costs at full speed.

    ``noise_ratio``: standard deviation of each kernel's time, per rank and kernel.  ``gap_ns``: between
    two kernels of a stream.  ``slowdown``: factor on a kernel's time while a collective runs beside it.
    ``blocks_collectives``: kernels fill the device, so a collective starts behind the queued ones.
    ``copy_ns``: copying a gathered unit into place.  ``factor``: on every kernel of every rank.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Types of what is gathered and of what is reduced."""

    gather: DType = DType.BFLOAT16
    reduce: DType = DType.BFLOAT16


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathering:
    """When stage 3 gathers.

    ``reshard_after_forward``: drop a unit after its forward, so that the backward gathers again.
    ``keep_last_unit``: except the last one.  ``recompute``: the backward runs the forward first;
    ``recompute_gathers``: and gathers once more for it.  ``limiter``: see there.
    """

    reshard_after_forward: bool = True
    keep_last_unit: bool = False
    recompute: bool = False
    recompute_gathers: bool = False
    limiter: Limiter = Limiter.EVENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Shards that live in host memory: copied out and in, and updated by the CPU."""

    enabled: bool = False
    pcie_bytes_per_s: float = 20e9
    optimizer_ns: int = 8_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocator:
    """Retries: so many times a step the host frees (which waits for the device) and allocates again."""

    retries_per_step: int = 0
    free_ns: int = 400_000
    malloc_ns: int = 900_000
    ranks: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDelay:
    """The host of a rank stalls before the forward of a unit, in every step.

    ``rotating``: in step s the rank is (rank + s) modulo the ranks, as with collection of garbage.
    """

    rank: int
    ns: int
    unit: int = 0
    rotating: bool = False
    data: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A recording that opens later and closes earlier than the others' by so much.

    ``opening_ns``: so long the host is busy opening it, before its first step; what others wait for then.
    """

    opening_ns: int = 0
    opens_late_ns: int = 0
    closes_early_ns: int = 0


class Stamps(StrEnum):
    """How times are written: float microseconds since a base, or whole microseconds (to 2024)."""

    BASED = "based"
    WHOLE_MICROSECONDS = "whole_microseconds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The form of the files.

    ``metadata``: kernels of collectives carry theirs; without it they have their old names, too.
    ``sequence``: ``Seq`` is among it.  ``wait_ranges``: gloo's waits are visible.
    ``synchronisation``: CUPTI's cuda_sync events are recorded, too.  ``pad_to_bytes``: fill
    each file with events of the host up to about that size.  ``compress``: .json.gz instead of .json.
    """

    metadata: bool = True
    sequence: bool = True
    stamps: Stamps = Stamps.BASED
    indented: bool = True
    compress: bool = True
    wait_ranges: bool = True
    synchronisation: bool = False
    pad_to_bytes: int = 0
