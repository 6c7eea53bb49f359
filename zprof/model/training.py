"""Define facts about a training program: phases of a step, engine, stage and the sizes for formulas.

A recorder fills in the facts that it can observe; an engine adds the others. ``None`` is unknown.
"""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from zprof.model.stated_mesh import StatedMesh


class Engine(StrEnum):
    """The engine that synchronizes the ranks of a program; other names come from the program itself."""

    FSDP2 = "fsdp2"
    FSDP1 = "fsdp1"
    DDP = "ddp"
    ZERO1 = "zero_redundancy_optimizer"
    DEEPSPEED = "deepspeed"
    PYTORCH = "pytorch"
    REFERENCE = "reference"


ENGINE_TITLES: Mapping[Engine, str] = {
    Engine.FSDP2: "FSDP2",
    Engine.FSDP1: "FSDP1",
    Engine.DDP: "DDP",
    Engine.ZERO1: "ZeroRedundancyOptimizer",
    Engine.DEEPSPEED: "DeepSpeed",
    Engine.PYTORCH: "PyTorch",
    Engine.REFERENCE: "reference",
}


class Framework(StrEnum):
    """A framework that runs the training loop around an engine and holds its settings."""

    TRANSFORMERS = "transformers"
    ACCELERATE = "accelerate"
    LIGHTNING = "lightning"


class SettingEffect(StrEnum):
    """Effect of an option: why it has no effect here, or that it slows what it measures."""

    NORMAL = "normal"
    NO_STREAMS = "no_streams"
    OFF_IN_PIPELINES = "off_in_pipelines"
    REDUCED_BY_ALL_REDUCE = "reduced_by_all_reduce"
    GATHERED_IN_ONE_CALL = "gathered_in_one_call"
    IGNORED_BY_FSDP2 = "ignored_by_fsdp2"
    SYNCHRONISES = "synchronises"


#: Reasons why an option has no effect.
NO_EFFECT_REASONS: Mapping[SettingEffect, str] = {
    SettingEffect.NO_STREAMS: "the device has no streams to overlap on",
    SettingEffect.OFF_IN_PIPELINES: "pipelines turn it off",
    SettingEffect.REDUCED_BY_ALL_REDUCE: "stages 1 and 2 reduce by all_reduce",
    SettingEffect.GATHERED_IN_ONE_CALL: "stages 1 and 2 gather in one call",
    SettingEffect.IGNORED_BY_FSDP2: "FSDP2 ignores it",
}


class EngineSetting(Struct, frozen=True, kw_only=True):
    """One engine option: its name and value as in its configuration.

    ``is_set``: False for a default that the program did not choose.
    """

    name: str
    value: str
    is_set: bool = True
    effect: SettingEffect = SettingEffect.NORMAL


class TrainingFacts(Struct, frozen=True, kw_only=True):
    """Engine, sharding stage and the sizes for the memory and volume formulas.

    ``parameters`` is the number of elements without padding (the paper's Ψ; with tensor parallelism the part
    of one rank), ``shard_ranks`` the number of ranks over which the states are sharded, ``replica_ranks`` the
    number of such groups with equal states (hybrid sharding; None without replicas). The three ``*_bytes``
    are per element: parameter, gradient, and all optimizer state (including fp32 master weights).
    ``communication_bytes`` is the size of an element on the wire, ``reduction_bytes`` the size of a gradient
    element on the wire if it differs from a gathered parameter. ``padding_elements`` is the engine's padding
    over the entire model, ``step_counters`` the number of 4-byte step tensors on one rank.
    ``model_parallel_ranks`` is the size R of a tensor-parallel group: adjacent ranks share a model, and every
    R-th rank holds the same part of the model. ``samples_per_step`` and ``tokens_per_step`` are the work of
    all ranks in one optimizer step, over all micro-batches. ``modelled`` lists what is simulated instead of
    run. ``framework`` runs the loop, None if the program has its own loop. ``gathered_elements`` and
    ``reduced_elements`` are the elements that the engine moves per step if it does not follow the formula of
    its stage; an all-reduced element counts twice. ``settings`` are the engine's options. ``mesh`` is the
    job's parallelism as the user states it, outermost first.
    """

    engine: str = "unknown"
    stage: int | None = None
    parameters: int | None = None
    shard_ranks: int | None = None
    replica_ranks: int | None = None
    parameter_bytes: int | None = None
    gradient_bytes: int | None = None
    optimizer_state_bytes: int | None = None
    communication_bytes: int | None = None
    reduction_bytes: int | None = None
    padding_elements: int = 0
    step_counters: int = 0
    micro_batches: int = 1
    model_parallel_ranks: int = 1
    samples_per_step: int | None = None
    tokens_per_step: int | None = None
    modelled: tuple[str, ...] = ()
    framework: Framework | None = None
    gathered_elements: int | None = None
    reduced_elements: int | None = None
    settings: tuple[EngineSetting, ...] = ()
    mesh: StatedMesh = ()


class Phase(StrEnum):
    """Phase of a training step."""

    FORWARD = "forward"
    RECOMPUTE = "recompute"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    OTHER = "other"
