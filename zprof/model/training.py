"""Facts of a training program: phases of its step, engine, stage and the sizes that formulas need.

A recorder fills in what it can see; an engine that knows more adds to it. ``None`` is unknown.
"""

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFacts:
    """Engine, sharding stage and the sizes that the memory and volume formulas need.

    ``parameters`` is the number of logical elements (the paper's capital psi; with tensor parallelism the
    part of one rank), ``shard_ranks`` the number of ranks over which the states are split. The three
    ``*_bytes`` are per element: parameter, gradient, and all optimizer state (fp32 master included).
    ``communication_bytes`` is the size of an element on the wire, ``reduction_bytes`` that of a gradient if
    it differs from a gathered parameter. ``padding_elements`` counts the engine's padding over the whole
    model, ``step_counters`` the 4-byte step tensors of one rank. ``model_parallel_ranks`` is the size of a
    tensor-parallel group: with R ranks ordered so that neighbours share a model, every R-th rank holds the
    same part of it. ``samples_per_step`` and ``tokens_per_step`` are the work of all ranks together in one
    optimizer step, over all its micro-batches. ``modelled`` names what is simulated rather than run.
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
    """Phase of a training step."""

    FORWARD = "forward"
    RECOMPUTE = "recompute"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    OTHER = "other"
