"""The job that a plan is made for: model, hardware, degrees, precision, batch, and how the engine works.

Elements are counted, sizes are integer bytes. ``None`` is unknown: whatever depends on it stays unknown
too.
"""

from dataclasses import dataclass, field
from enum import StrEnum

_FP32_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Devices in nodes.

    ``memory_bytes``: of one device.  ``flops_per_s``: dense peak of 16-bit matrices;
    ``fp32_flops_per_s``: of 32-bit ones, without TF32; None: not known, and so is the time of fp32 jobs.
    ``efficiency_ratio``: the share of it that compute reaches when nothing is waited for.
    ``node_bytes_per_s``: all network cards of a node together, one direction.  ``intra_bytes_per_s``: bus
    bandwidth of collectives within a node.  Latencies are of one hop of a ring.  ``host_bytes_per_s``:
    between a device and the memory of its host.
    """

    name: str
    memory_bytes: int
    flops_per_s: float
    efficiency_ratio: float
    devices_per_node: int
    node_bytes_per_s: float
    intra_bytes_per_s: float
    intra_latency_ns: int = 2_000
    inter_latency_ns: int = 10_000
    host_bytes_per_s: float = 25e9
    fp32_flops_per_s: float | None = None

    def peak_flops_per_s(self, element_bytes: int) -> float | None:
        """Of matrices whose elements have so many bytes; None where that is not known."""
        return self.fp32_flops_per_s if element_bytes == _FP32_BYTES else self.flops_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A decoder-only transformer: blocks of attention and a perceptron four times as wide.

    ``tied``: the head shares the weights of the token embedding.
    """

    layers: int
    hidden: int
    vocabulary: int = 0
    context: int = 0
    heads: int | None = None
    tied: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What is gathered and reduced as a whole: a block, or what is left of the model around the blocks.

    All of one model-parallel rank, and of one micro-batch.  ``encloses``: its forward begins before and ends
    after that of all others (the root).  ``saved_bytes``: what the forward keeps for the backward;
    ``checkpoint_bytes``: what it keeps where the unit is recomputed.  ``frozen_elements``: of ``elements``,
    those that are not trained.  ``largest_gradient_elements``: of the gradient of one parameter, the most;
    ``early_gradient_elements``: of an enclosing unit's gradients, those that are made before all others.
    ``forward_work_bytes``, ``backward_work_bytes``: temporary buffers beside that, at the most.
    ``forward_flop``: of its forward.
    """

    name: str
    elements: int
    frozen_elements: int = 0
    encloses: bool = False
    saved_bytes: int | None = None
    checkpoint_bytes: int | None = None
    forward_work_bytes: int | None = None
    backward_work_bytes: int | None = None
    forward_flop: float | None = None
    largest_gradient_elements: int | None = None
    early_gradient_elements: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """Over how many devices the job is spread, and how: data, model (tensor) and pipeline parallel."""

    dp: int = 1
    mp: int = 1
    pp: int = 1

    @property
    def devices(self) -> int:
        """All of them."""
        return self.dp * self.mp * self.pp


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementBytes:
    """Bytes of one element of each state, and of what travels.

    ``optimizer_state`` holds the fp32 master weights where there are any (K = 12:
    master, momentum, variance).
    ``gathered``, ``reduced``: on the wire.  ``gradient_copy``: of the gradient that the optimizer makes for
    its own arithmetic, for as long as it runs (0: it reads the gradient as it is).
    """

    parameter: int = 2
    gradient: int = 2
    optimizer_state: int = 12
    gathered: int = 2
    reduced: int = 2
    gradient_copy: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Of one replica in the job's degrees.

    ``samples`` of ``sequence`` tokens a micro-batch, so many micro-batches a step.
    """

    samples: int | None = None
    sequence: int | None = None
    micro_batches: int = 1

    @property
    def tokens(self) -> int | None:
        """Tokens of one replica in one micro-batch."""
        return None if self.samples is None or self.sequence is None else self.samples * self.sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """ZeRO-R (arXiv 1910.02054, section 6) and checkpointing.

    ``checkpointing``: units keep their input only, and are computed again before their backward.
    ``partition``: checkpoints are split over the model-parallel ranks (Pa); ``offload``: and kept in host
    memory (Pa+cpu).  ``constant_buffer_elements``: the size of fused buffers (CB); None: that of the unit.
    ``defragment``: whole gradients in memory that was allocated once (MD).
    """

    checkpointing: bool = False
    partition: bool = False
    offload: bool = False
    constant_buffer_elements: int | None = None
    defragment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """What runs beside compute.

    ``prefetch``: units gathered ahead (stage 3).  ``keep_last``: the last unit stays from forward to
    backward.  ``reductions_in_flight``: before the backward waits for the oldest.  ``alignment_elements``: a
    rank's shard of a unit is a multiple of it.
    """

    prefetch: int = 1
    keep_last: bool = False
    reductions_in_flight: int = 2
    alignment_elements: int = 1


class Backend(StrEnum):
    """What carries collectives.

    NCCL takes no memory of the framework's allocator.  gloo does: a copy of the whole tensor in a
    reduce-scatter until it is waited for, and in an all-gather while it runs.
    """

    NCCL = "nccl"
    GLOO = "gloo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Everything that a plan depends on.

    ``parameters``: of the whole model.  ``units``: empty where the model's inside is not known; with them
    ``parameters`` of one model-parallel rank is their sum.  ``frozen_parameters``: those of ``parameters``
    that are not trained, and so need neither gradients nor optimizer state.  Without ``hardware`` there is
    no time, and nothing to fit into.
    """

    name: str = ""
    parameters: int
    frozen_parameters: int = 0
    degrees: Degrees = field(default_factory=Degrees)
    shape: Shape | None = None
    units: tuple[Unit, ...] = ()
    element_bytes: ElementBytes = field(default_factory=ElementBytes)
    batch: Batch = field(default_factory=Batch)
    residual: Residual = field(default_factory=Residual)
    overlap: Overlap = field(default_factory=Overlap)
    backend: Backend = Backend.NCCL
    hardware: Hardware | None = None
