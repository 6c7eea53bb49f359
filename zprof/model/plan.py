"""What a job would cost: memory per tenant, traffic per link, the step ledger, and their sensitivity.

Every predicted figure names the assumption that it rests on. Schema ``zprof.plan/1``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from zprof.model.gaps import Gap
from zprof.model.job import Degrees, Job
from zprof.model.tenants import Tenant
from zprof.model.whatif import Assumption


@dataclass(frozen=True, slots=True, kw_only=True)
class SensitivityPoint:
    """One step of ZeRO-3 at other conditions; all else is the job's.

    ``bandwidth_ratio``: of what the data-parallel group gets of the network, the lesser of the bus in a
    node and the node's cards: not of the cards alone.  ``latency_ns``: of a hop between nodes.
    ``tokens``: of a device in a micro-batch.  ``devices``: data-parallel ranks times the model's.
    """

    bandwidth_ratio: float
    latency_ns: int
    tokens: int
    devices: int
    wall_ns: int
    compute_ns: int
    exposed_ns: int
    efficiency_ratio: float
    state_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """Tokens of a device in a micro-batch from which on compute hides what ZeRO-3 moves.

    ``bandwidth_ratio``: as in ``Point``.  ``forward_tokens``, ``backward_tokens``: of the passes, without
    latency; ``holds_from_tokens``: from there on the whole step keeps ``kept_ratio`` of its speed, latency
    included.
    """

    hardware: str
    bandwidth_ratio: float
    forward_tokens: float
    backward_tokens: float
    holds_from_tokens: int | None
    kept_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedUp:
    """Throughput of a device at ``devices`` against that at the fewest of a series, taken apart.

    whole = equal_batch x larger_batch: sharding the same batch of a device over more ranks, and what the
    memory won lets a device take more of.  ``samples``: a device's largest micro-batch that fits;
    ``at_most``: an upper bound of it, as not all of the memory is known.
    """

    devices: int
    samples: int
    at_most: bool = False
    state_bytes: int
    activation_bytes: int
    whole_ratio: float
    equal_batch_ratio: float
    larger_batch_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """Series over one condition each, and the answer in sentences."""

    answers: tuple[str, ...] = ()
    bandwidth: tuple[SensitivityPoint, ...] = ()
    latency: tuple[SensitivityPoint, ...] = ()
    tokens: tuple[SensitivityPoint, ...] = ()
    world: tuple[SensitivityPoint, ...] = ()
    break_even: tuple[BreakEven, ...] = ()
    speed_up: tuple[SpeedUp, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedTenant:
    """One tenant at the peak: by the plan and as it was counted.

    ``difference_ratio``: planned / verified - 1; None where either is not known, or nothing was counted.
    """

    tenant: Tenant
    planned_bytes: int | None
    verified_bytes: int
    difference_ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedStage:
    """One stage of ZeRO (0: plain data parallelism).

    The tenants stand in the order in which they are shown, and what was counted sums to
    ``verified_peak_bytes``.  ``peak_at``: the phase of the step and the unit in which the peak was counted.
    ``difference_ratio``: planned / verified - 1, of the peak.
    """

    stage: int
    tenants: tuple[VerifiedTenant, ...]
    planned_peak_bytes: int | None
    verified_peak_bytes: int
    difference_ratio: float | None
    peak_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanVerification:
    """What ran, how, and how far the plan is off, by stage.

    ``ranks``: of the fake process group.  ``program``: what ran, in words; ``how``: the way it was counted.
    ``seconds``: how long that took, None where it shall not count (a stored answer).
    """

    ranks: int
    program: str
    how: str
    stages: tuple[VerifiedStage, ...]
    gaps: tuple[Gap, ...] = ()
    seconds: float | None = None


PLAN_SCHEMA = "zprof.plan/1"


class Scheme(StrEnum):
    """How the model is spread over the devices."""

    DATA_PARALLEL = "data_parallel"
    ZERO_1 = "zero_1"
    ZERO_2 = "zero_2"
    ZERO_3 = "zero_3"
    MODEL_PARALLEL = "model_parallel"
    GPIPE = "gpipe"
    PIPEDREAM = "pipedream"


#: The schemes that are stages of ZeRO; stage 0 shards nothing.
ZERO_STAGES: Mapping[Scheme, int] = {
    Scheme.DATA_PARALLEL: 0,
    Scheme.ZERO_1: 1,
    Scheme.ZERO_2: 2,
    Scheme.ZERO_3: 3,
}
#: As the paper and everybody calls them.
SCHEME_NAMES: Mapping[Scheme, str] = {
    Scheme.DATA_PARALLEL: "DP",
    Scheme.ZERO_1: "ZeRO-1",
    Scheme.ZERO_2: "ZeRO-2",
    Scheme.ZERO_3: "ZeRO-3",
    Scheme.MODEL_PARALLEL: "Megatron",
    Scheme.GPIPE: "GPipe",
    Scheme.PIPEDREAM: "PipeDream",
}
PIPELINES = frozenset({Scheme.GPIPE, Scheme.PIPEDREAM})


def get_zero_stage(scheme: Scheme) -> int:
    """What it shards over data-parallel ranks, as a stage; the alternatives to ZeRO shard nothing."""
    return ZERO_STAGES.get(scheme, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """Bytes of one kind within a tenant, on the device with the most of them, at the moment of its peak.

    None: not known, and a gap of the plan says why.  ``assumption`` is a key of ``Plan.assumptions``.
    """

    tenant: Tenant
    sub: str
    bytes: int | None
    assumption: str


class Axis(StrEnum):
    """What travels for which kind of parallelism; HOST: between a device and its host."""

    DATA = "data"
    MODEL = "model"
    PIPELINE = "pipeline"
    HOST = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTraffic:
    """What one device moves in a step along one axis.

    ``elements``, ``bytes``: as the paper counts (an all-reduce is twice its tensor).  ``ring_bytes``: what a
    ring puts on the link, (N-1)/N of it.  ``link``: ``intra``, ``inter`` (nodes) or ``pcie``.  ``time_ns``:
    on the link, hidden or not; None without hardware.
    """

    axis: Axis
    link: str
    elements: int
    bytes: int
    ring_bytes: int
    time_ns: int | None
    assumption: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """The ledger of one step on one device; no rank is late, so that nothing waits.

    wall = compute + exposed_transfer + exposed_memcpy + idle.  ``idle_ns``: the bubble of a pipeline.
    ``efficiency_ratio``: compute / wall.  ``assumptions``: of each leaf by its name.
    """

    wall_ns: int
    compute_ns: int
    exposed_transfer_ns: int
    exposed_memcpy_ns: int
    idle_ns: int
    collective_ns: int
    overlapped_ns: int
    efficiency_ratio: float
    assumptions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """One way to spread the model, for one device.

    ``terms`` sum to ``least_bytes``, as far as they are known; ``peak_bytes`` is None where one is not.
    ``state_bytes``: parameters, gradients and optimizer state by the law of the scheme, at rest; at the
    peak some gradients may not be there yet, and others not be sharded yet.  ``fits``: None where that is
    not known; False as soon as what is known does not.  ``left_bytes``: of the device beside the peak,
    below 0 where it does not fit; None where the peak or the device is not known.  ``tight``: it fits, and
    little is left for what no plan has: the driver's context, buffers of the network's library,
    fragmentation.  ``largest_parameters``: the largest model that fits of the job's width or of its layers,
    whichever is larger; an upper bound where the peak is not all known, by states alone where only they are;
    None without hardware.  ``peak_at``: the moment of the step.
    ``micro_batches``: of one replica in a step; the global batch is the same in all schemes, as far as
    whole micro-batches allow.
    """

    scheme: Scheme
    stage: int | None
    degrees: Degrees
    micro_batches: int = 1
    terms: tuple[Term, ...]
    tenants: Mapping[Tenant, int]
    state_bytes: int
    least_bytes: int
    peak_bytes: int | None
    peak_at: str
    fits: bool | None
    largest_parameters: int | None
    left_bytes: int | None = None
    tight: bool = False
    links: tuple[LinkTraffic, ...] = ()
    step: PlannedStep | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The job, every way to spread it, and what that rests on.

    ``verification``: None where none was asked for.
    """

    schema: str = PLAN_SCHEMA
    zprof_version: str
    job: Job
    rows: tuple[PlanRow, ...]
    assumptions: Mapping[str, Assumption]
    sensitivity: Sensitivity | None = None
    verification: PlanVerification | None = None
    gaps: tuple[Gap, ...] = ()
