"""Facts of a training program: the phases of its step, its engine, stage and the sizes that formulas need.

A recorder fills in what it can see; an engine that knows more adds to it. ``None`` is unknown.
"""

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFacts:
    """Engine, sharding stage and the sizes that the memory and volume laws need.

    ``parameters`` is the number of logical elements (the paper's capital psi; with tensor parallelism one
    rank's part), ``shard_ranks`` over how many ranks the states are split.  The three ``*_bytes`` are per
    element: parameter, gradient, and all optimizer state (fp32 master included).  ``communication_bytes``
    is the size of an element on the wire, ``reduction_bytes`` that of a gradient where it is another one than
    that of a gathered parameter.  ``padding_elements`` counts the engine's padding over the whole
    model, ``step_counters`` the 4-byte step tensors of one rank.  ``model_parallel_ranks`` is the size of
    a tensor-parallel group: of R ranks so arranged that neighbours share a model, each R-th holds the same
    part of it.  ``samples_per_step`` and ``tokens_per_step`` are what all ranks together work off in one
    optimizer step, all its micro-batches.  ``modelled`` names what is simulated rather than run.
    """

    engine: str = "unknown"
    stage: int | None = None
    parameters: int | None = None
    shard_ranks: int | None = None
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


class Phase(StrEnum):
    """What the step was doing."""

    FORWARD = "forward"
    RECOMPUTE = "recompute"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    OTHER = "other"
