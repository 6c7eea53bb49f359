"""Define findings: a claim with cause, evidence, saving range, confidence, fix and a way to disprove it.

Causes have stable ids: ZP1xx measurement, ZP2xx memory, ZP3xx waiting, ZP4xx transfer and volume, ZP5xx host
and device. An id is never reused for another cause.
"""

from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """Cause of a slow step or of high memory use; the value is its name in reports."""

    MEASUREMENT_ARTIFACT = "measurement_artifact"
    SLOWED_BY_INSTRUMENTS = "slowed_by_instruments"
    BUFFERS_DOMINATE = "buffers_dominate"
    FRAGMENTATION = "fragmentation"
    ACTIVATIONS_DOMINATE = "activations_dominate"
    LOGITS_DOMINATE = "logits_dominate"
    REPLICATED_STATE = "replicated_state"
    WRONG_STAGE = "wrong_stage"
    RETAINED_GRADIENTS = "retained_gradients"
    INIT_SPIKE = "init_spike"
    OUTSIDE_ALLOCATOR = "outside_allocator"
    ATTENTION_SCORES = "attention_scores"
    WEIGHT_COPIES = "weight_copies"
    STATES_DOMINATE = "states_dominate"
    OUT_OF_MEMORY = "out_of_memory"
    STRAGGLER_RANK = "straggler_rank"
    ROTATING_STRAGGLER = "rotating_straggler"
    NO_PREFETCH = "no_prefetch"
    LOW_BUS_BANDWIDTH = "low_bus_bandwidth"
    LATENCY_BOUND_COLLECTIVES = "latency_bound_collectives"
    UNITS_TOO_SMALL = "units_too_small"
    SINGLE_UNIT = "single_unit"
    RATE_LIMITED_PREFETCH = "rate_limited_prefetch"
    COMPUTE_BLOCKS_COMM = "compute_blocks_comm"
    SHARDING_SPANS_NODES = "sharding_spans_nodes"
    FP32_REDUCE = "fp32_reduce"
    FP32_GATHER = "fp32_gather"
    ACCUMULATION_SYNCS = "accumulation_syncs"
    ACCUMULATION_REGATHERS = "accumulation_regathers"
    NEEDLESS_RESHARD_AFTER_FORWARD = "needless_reshard_after_forward"
    LAST_UNIT_REGATHERED = "last_unit_regathered"
    CHECKPOINT_REGATHERS = "checkpoint_regathers"
    UNHIDDEN_OPTIMIZER_GATHER = "unhidden_optimizer_gather"
    UNEVEN_SHAPES = "uneven_shapes"
    OPTION_WITHOUT_EFFECT = "option_without_effect"
    ALLOCATOR_RETRIES = "allocator_retries"
    CPU_BOUND_LAUNCH = "cpu_bound_launch"
    BLOCKING_SYNC = "blocking_sync"
    DATA_LOADER = "data_loader"
    OFFLOAD_ON_CRITICAL_PATH = "offload_on_critical_path"
    COMM_SLOWS_COMPUTE = "comm_slows_compute"
    COPY_OVERHEAD = "copy_overhead"
    LOST_COMPUTE_EFFICIENCY = "lost_compute_efficiency"


FINDING_IDS: dict[Cause, str] = {
    Cause.MEASUREMENT_ARTIFACT: "ZP101",
    Cause.SLOWED_BY_INSTRUMENTS: "ZP102",
    Cause.BUFFERS_DOMINATE: "ZP201",
    Cause.FRAGMENTATION: "ZP202",
    Cause.ACTIVATIONS_DOMINATE: "ZP203",
    Cause.LOGITS_DOMINATE: "ZP204",
    Cause.REPLICATED_STATE: "ZP205",
    Cause.WRONG_STAGE: "ZP206",
    Cause.RETAINED_GRADIENTS: "ZP207",
    Cause.INIT_SPIKE: "ZP208",
    Cause.OUTSIDE_ALLOCATOR: "ZP209",
    Cause.ATTENTION_SCORES: "ZP211",
    Cause.WEIGHT_COPIES: "ZP212",
    Cause.STATES_DOMINATE: "ZP213",
    Cause.OUT_OF_MEMORY: "ZP210",
    Cause.STRAGGLER_RANK: "ZP301",
    Cause.ROTATING_STRAGGLER: "ZP302",
    Cause.NO_PREFETCH: "ZP401",
    Cause.LOW_BUS_BANDWIDTH: "ZP402",
    Cause.LATENCY_BOUND_COLLECTIVES: "ZP403",
    Cause.UNITS_TOO_SMALL: "ZP404",
    Cause.SINGLE_UNIT: "ZP405",
    Cause.RATE_LIMITED_PREFETCH: "ZP406",
    Cause.COMPUTE_BLOCKS_COMM: "ZP407",
    Cause.SHARDING_SPANS_NODES: "ZP408",
    Cause.FP32_REDUCE: "ZP409",
    Cause.FP32_GATHER: "ZP410",
    Cause.ACCUMULATION_SYNCS: "ZP411",
    Cause.ACCUMULATION_REGATHERS: "ZP412",
    Cause.NEEDLESS_RESHARD_AFTER_FORWARD: "ZP413",
    Cause.LAST_UNIT_REGATHERED: "ZP414",
    Cause.CHECKPOINT_REGATHERS: "ZP415",
    Cause.UNHIDDEN_OPTIMIZER_GATHER: "ZP416",
    Cause.UNEVEN_SHAPES: "ZP417",
    Cause.OPTION_WITHOUT_EFFECT: "ZP418",
    Cause.ALLOCATOR_RETRIES: "ZP501",
    Cause.CPU_BOUND_LAUNCH: "ZP502",
    Cause.BLOCKING_SYNC: "ZP503",
    Cause.DATA_LOADER: "ZP504",
    Cause.OFFLOAD_ON_CRITICAL_PATH: "ZP505",
    Cause.COMM_SLOWS_COMPUTE: "ZP506",
    Cause.COPY_OVERHEAD: "ZP507",
    Cause.LOST_COMPUTE_EFFICIENCY: "ZP508",
}


class Severity(StrEnum):
    """Importance of a finding."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Confidence(StrEnum):
    """Certainty of a finding."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


#: Evidence keys that other code reads.
START_COST_PER_STEP = "start_cost_per_step"
STEPS_LATEST_RATIO = "steps_latest_ratio"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One measured fact behind a claim; ``unit``: ns, bytes, bytes_per_s, count, ratio, times (a factor).

    ``key`` identifies it for programs, ``what`` describes it for readers.
    """

    key: str
    what: str
    value: float
    unit: str
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLocation:
    """A line of the user's program: ``file`` is relative to the program's working folder if it lies in it.

    ``line`` is where the function starts if a trace names only that.
    """

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem, the evidence for it, its cost and its fix.

    ``saving_ns`` is a range per step that never exceeds the ledger term that the finding claims.
    ``saving_bytes`` is the range by which the memory of the largest rank would shrink; None if the finding is
    not about memory. ``location`` is the line that the cause is in, None if it is unknown or not one line.
    """

    id: str
    cause: Cause
    severity: Severity
    sentence: str
    evidence: tuple[Evidence, ...]
    saving_ns: tuple[int, int]
    confidence: Confidence
    fix: str
    disprove: str
    doc: str
    saving_bytes: tuple[int, int] | None = None
    location: SourceLocation | None = None

    @property
    def invalidates_times(self) -> bool:
        """Return True if the times of the run cannot be trusted."""
        return self.cause is Cause.MEASUREMENT_ARTIFACT and self.severity is Severity.HIGH
