"""Define the job of a plan: model, hardware, degrees, precision, batch and engine behavior.

Counts are in elements, sizes in integer bytes. ``None`` is unknown, and so is everything that depends on it.
"""

from enum import StrEnum

from msgspec import Struct, field

from zprof.model.machines import Hardware


class LlamaBlock(Struct, frozen=True, kw_only=True):
    """Block of the Llama family: RMS norms, rotary positions, grouped-query attention and a gated MLP.

    ``kv_heads``: heads of keys and values; ``head_width``: elements of a head. ``mlp``: inner width of the
    MLP, or of one expert. ``biased``: query, key and value have biases (Qwen 2.5); ``head_norms``: queries
    and keys are normalized per head (Qwen 3). With more than one of ``experts``, a router sends each token to
    ``active_experts`` of them.
    """

    kv_heads: int
    head_width: int
    mlp: int
    biased: bool = False
    head_norms: bool = False
    experts: int = 1
    active_experts: int = 1


class Shape(Struct, frozen=True, kw_only=True):
    """Decoder-only transformer.

    ``block``: None for the GPT block, which has an MLP with four times the width and learned positions; a
    Llama block also needs ``heads``. ``tied``: the head shares the weights of the token embedding.
    """

    layers: int
    hidden: int
    vocabulary: int = 0
    context: int = 0
    heads: int | None = None
    tied: bool = True
    block: LlamaBlock | None = None

    @property
    def position_rows(self) -> int:
        """Rows of the position embedding table; 0 for rotary positions."""
        return self.context if self.block is None else 0


class ModelUnit(Struct, frozen=True, kw_only=True):
    """Module that is gathered and reduced as a whole: a block, or the rest of the model.

    All figures are per model-parallel rank and per micro-batch. ``encloses``: the root, whose forward pass
    starts before and ends after all others. ``saved_bytes``: bytes that the forward pass saves for the
    backward pass; ``checkpoint_bytes``: bytes that it saves if the unit is recomputed. ``frozen_elements``:
    the part of ``elements`` that is not trained. ``active_elements``: the part that a token is multiplied
    with, if there are experts; None means all. ``largest_gradient_elements``: size of the largest gradient of
    one parameter. ``early_gradient_elements``: gradients of an enclosing unit that are produced before all
    others. ``forward_work_bytes``, ``backward_work_bytes``: maximum of additional temporary buffers.
    ``forward_flop``: FLOPs of the forward pass.
    """

    name: str
    elements: int
    frozen_elements: int = 0
    active_elements: int | None = None
    encloses: bool = False
    saved_bytes: int | None = None
    checkpoint_bytes: int | None = None
    forward_work_bytes: int | None = None
    backward_work_bytes: int | None = None
    forward_flop: float | None = None
    largest_gradient_elements: int | None = None
    early_gradient_elements: int = 0


class Degrees(Struct, frozen=True, kw_only=True):
    """How the job is distributed over devices: data, model (tensor) and pipeline parallel degrees."""

    dp: int = 1
    mp: int = 1
    pp: int = 1

    @property
    def devices(self) -> int:
        """Total number of devices."""
        return self.dp * self.mp * self.pp


class ElementBytes(Struct, frozen=True, kw_only=True):
    """Bytes per element of each model state, and of communication.

    ``optimizer_state`` includes the fp32 master weights if there are any (K = 12: master, momentum,
    variance). ``gathered``, ``reduced``: on the wire. ``gradient_copy``: temporary copy of the gradient in
    the optimizer (0 if it uses the gradient itself).
    """

    parameter: int = 2
    gradient: int = 2
    optimizer_state: int = 12
    gathered: int = 2
    reduced: int = 2
    gradient_copy: int = 4


class Batch(Struct, frozen=True, kw_only=True):
    """Batch of one replica in the job's degrees.

    A micro-batch has ``samples`` of ``sequence`` tokens; a step has ``micro_batches`` of them.
    """

    samples: int | None = None
    sequence: int | None = None
    micro_batches: int = 1

    @property
    def tokens(self) -> int | None:
        """Tokens of one replica in one micro-batch."""
        return None if self.samples is None or self.sequence is None else self.samples * self.sequence


class Residual(Struct, frozen=True, kw_only=True):
    """ZeRO-R (arXiv 1910.02054, section 6) and checkpointing.

    ``checkpointing``: units keep only their input and are recomputed before their backward pass.
    ``partition``: checkpoints are partitioned over the model-parallel ranks (Pa); ``offload``: they are also
    kept in host memory (Pa+cpu). ``constant_buffer_elements``: the size of fused buffers (CB); None means the
    size of the unit. ``defragment``: full gradients are kept in preallocated memory (MD).
    """

    checkpointing: bool = False
    partition: bool = False
    offload: bool = False
    constant_buffer_elements: int | None = None
    defragment: bool = False


class Overlap(Struct, frozen=True, kw_only=True):
    """How communication overlaps with compute.

    ``prefetch``: units gathered ahead (stage 3). ``keep_last``: the last unit stays gathered from forward to
    backward. ``reductions_in_flight``: number of reductions in flight before the backward pass waits for the
    oldest. ``alignment_elements``: a rank's shard of a unit is a multiple of it.
    """

    prefetch: int = 1
    keep_last: bool = False
    reductions_in_flight: int = 2
    alignment_elements: int = 1


class Backend(StrEnum):
    """Library that runs the collectives.

    NCCL allocates no memory from torch's allocator. gloo allocates a copy of the full tensor: in a
    reduce-scatter until the wait, in an all-gather while it runs.
    """

    NCCL = "nccl"
    GLOO = "gloo"


class Assumed(StrEnum):
    """Part of a job that was not given and has a typical value instead."""

    SHAPE = "shape"
    MICRO_BATCH = "micro_batch"
    SEQUENCE = "sequence"
    HARDWARE = "hardware"


class Job(Struct, frozen=True, kw_only=True):
    """Everything that a plan depends on.

    ``parameters``: of the entire model. ``units``: empty if the structure of the model is unknown; otherwise
    they sum to the parameters of one model-parallel rank. ``frozen_parameters``: the part of ``parameters``
    that is not trained and so needs neither gradients nor optimizer state. Without ``hardware``, no time is
    predicted and it is unknown if the job fits. ``assumed``: parts that were not given and have a typical
    value.
    """

    name: str = ""
    parameters: int
    frozen_parameters: int = 0
    degrees: Degrees = field(default_factory=Degrees)
    shape: Shape | None = None
    units: tuple[ModelUnit, ...] = ()
    element_bytes: ElementBytes = field(default_factory=ElementBytes)
    batch: Batch = field(default_factory=Batch)
    residual: Residual = field(default_factory=Residual)
    overlap: Overlap = field(default_factory=Overlap)
    backend: Backend = Backend.NCCL
    hardware: Hardware | None = None
    assumed: tuple[Assumed, ...] = ()
