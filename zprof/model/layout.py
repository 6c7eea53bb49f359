"""Describe how a framework distributes a job: degrees, sharding, schedule, recomputation, precision,
buffers."""

from enum import StrEnum

from msgspec import Struct

MIB = 1 << 20


class Framework(StrEnum):
    """Whose buffers and schedule a plan describes; REFERENCE: zprof's own engine, as in the ZeRO paper."""

    REFERENCE = "reference"
    DDP = "ddp"
    FSDP2 = "fsdp2"
    DEEPSPEED = "deepspeed"
    MEGATRON = "megatron"


class Recompute(StrEnum):
    """Activations that are recomputed in the backward pass.

    SELECTIVE: FSDP2: torchtitan's policy, which keeps every second matrix product and the attention's output;
    Megatron: attention scores, norms, and activations of MLPs. FULL: all but the input of a layer.
    """

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class PipelineSchedule(StrEnum):
    """Order of the micro-batches on the stages of a pipeline."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"
    ZERO_BUBBLE = "zero_bubble"


class ComputePrecision(StrEnum):
    """Type in which the matrices of the layers are multiplied."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"
    FP8 = "fp8"
    MXFP8 = "mxfp8"
    NVFP4 = "nvfp4"


class OptimizerKind(StrEnum):
    """Optimizer, which sets the bytes of state per element."""

    ADAM = "adam"
    ADAM_8BIT = "adam8bit"
    ADAFACTOR = "adafactor"
    MUON = "muon"
    MOMENTUM = "momentum"
    SGD = "sgd"


class ParallelDegrees(Struct, frozen=True, kw_only=True):
    """Parallel degrees. ``devices`` = data x tensor x context x pipeline.

    ``data``: ranks with different samples. ``shard``: data x context ranks that share one copy of the states;
    fewer than all of them is hybrid sharding (HSDP). ``expert``: ranks over which the experts are spread, out
    of the data, context and tensor ranks. ``virtual``: model chunks per pipeline stage (interleaved).
    """

    data: int = 1
    tensor: int = 1
    context: int = 1
    pipeline: int = 1
    expert: int = 1
    shard: int = 1
    virtual: int = 1

    @property
    def devices(self) -> int:
        """Total number of devices."""
        return self.data * self.tensor * self.context * self.pipeline

    @property
    def expert_tensor(self) -> int:
        """Ranks that split each expert: the tensor-parallel ranks, unless the experts are spread over
        ranks."""
        return self.tensor if self.expert == 1 else 1

    @property
    def replicas(self) -> int:
        """Copies of the sharded states."""
        return self.data * self.context // self.shard


class Kernels(Struct, frozen=True, kw_only=True):
    """Which operators are fused, as frameworks run them by default.

    ``fused_loss``: the head's logits and their gradient stay in 16 bits. ``compiled``: the
    layers are compiled, so elementwise operators are fused. ``flash_version``: generation of the flash
    attention kernels: 1 (2022), 2 (2023, torch's default), 3 (2024: Hopper, cuDNN).
    """

    flash_attention: bool = True
    flash_version: int = 2
    fused_loss: bool = True
    fused_norms: bool = True
    compiled: bool = False


class EngineBuffers(Struct, frozen=True, kw_only=True):
    """Sizes of the buffers of DDP and DeepSpeed, with their documented defaults.

    ``ddp_bucket_bytes``: ``bucket_cap_mb``. ``gradient_as_bucket_view``: gradients live in the buckets. The
    others are keys of ``ds_config.json``, in elements: ``reduce_bucket_size``, ``allgather_bucket_size``,
    ``stage3_prefetch_bucket_size``, ``stage3_max_live_parameters``, ``stage3_max_reuse_distance``,
    ``stage3_param_persistence_threshold``. ``overlap_comm``: two reduce buckets. ``foreach_optimizer``: the
    update makes temporary copies, as torch's default does; fused optimizers make none.
    """

    ddp_bucket_bytes: int = 25 * MIB
    gradient_as_bucket_view: bool = False
    reduce_bucket_elements: int = 500_000_000
    allgather_bucket_elements: int = 500_000_000
    prefetch_bucket_elements: int = 50_000_000
    max_live_elements: int = 1_000_000_000
    max_reuse_distance_elements: int = 1_000_000_000
    persistence_threshold_elements: int = 100_000
    overlap_comm: bool = True
    foreach_optimizer: bool = True


class Layout(Struct, frozen=True, kw_only=True):
    """One way in which one framework runs the job on the devices.

    ``stage``: ZeRO stage; 0: states are replicated. ``reshard``: stage 3: parameters are sharded again after
    the forward pass. ``micro_batch``: samples of a micro-batch on one data-parallel rank; ``micro_batches``:
    per step. ``sequence_parallel``: norms and residuals are split over the tensor-parallel ranks.
    ``master_weights``: the optimizer keeps fp32 weights, or the stored ones are fp32. ``fp32_reduce``:
    gradients are reduced in fp32.
    """

    framework: Framework
    degrees: ParallelDegrees
    stage: int
    micro_batch: int
    micro_batches: int
    sequence: int
    reshard: bool = True
    sequence_parallel: bool = True
    schedule: PipelineSchedule = PipelineSchedule.ONE_F_ONE_B
    recompute: Recompute = Recompute.NONE
    offload_optimizer: bool = False
    offload_parameters: bool = False
    precision: ComputePrecision = ComputePrecision.BF16
    master_weights: bool = True
    fp32_reduce: bool = False
    optimizer: OptimizerKind = OptimizerKind.ADAM
    kernels: Kernels = Kernels()
    buffers: EngineBuffers = EngineBuffers()

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch on one data-parallel rank, before they are split over context ranks."""
        return self.micro_batch * self.sequence

    @property
    def step_tokens(self) -> int:
        """Tokens of one step over all devices."""
        return self.tokens * self.micro_batches * self.degrees.data
