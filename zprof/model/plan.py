"""Define the plan of a job and the prediction of a change: memory, traffic per link, ledger, sensitivity.

Every predicted figure refers to its assumption. Schema ``zprof.plan/1``.
"""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field

from zprof.model.gaps import Gap
from zprof.model.job import Degrees, Job
from zprof.model.layout import Framework, Layout
from zprof.model.tenants import Tenant
from zprof.model.transformer import Transformer


class Assumption(Struct, frozen=True, kw_only=True):
    """Formula of a predicted figure, in words and symbols, with its source.

    ``deviation``: how and why it differs from the paper; empty if it does not.
    """

    formula: str
    source: str
    deviation: str = ""


class Change(Struct, frozen=True, kw_only=True):
    """A change to a run; None keeps a setting.

    ``bandwidth_ratio``, ``latency_ratio``: factor on the measured link. ``prefetch``: units gathered ahead in
    both passes. ``keep_after_forward``: ``none``, ``last`` or ``all`` units stay gathered. ``even``: every
    rank computes as fast as the median one. ``shard_ranks``: number of ranks to shard over.
    """

    stage: int | None = None
    prefetch: int | None = None
    keep_after_forward: str | None = None
    overlap_reduce: bool | None = None
    overlap_gather: bool | None = None
    bandwidth_ratio: float | None = None
    latency_ratio: float | None = None
    units_merged: int | None = None
    micro_batches: int | None = None
    element_bytes_reduced: int | None = None
    even: bool | None = None
    shard_ranks: int | None = None


class PredictedFigure(Struct, frozen=True, kw_only=True):
    """One figure: measured in the run, modelled for the same run, and predicted for the changed one.

    ``error_ratio``: modelled / measured - 1, on the run to which the model was fitted; None if it is not
    meaningful. ``low``, ``high``: range of the prediction. The unit is the suffix of the name: ``_ns`` or
    ``_bytes``.
    """

    name: str
    measured: int | None
    modelled: int | None
    predicted: int | None
    low: int | None
    high: int | None
    error_ratio: float | None
    assumption: str


class FittedLink(Struct, frozen=True, kw_only=True):
    """Latency (alpha) and bandwidth (beta) of one kind of collective in one group."""

    kind: str
    group: str
    latency_ns: int
    busbw_bytes_per_s: float | None
    messages: int
    residual_ratio: float
    how: str


class Calibration(Struct, frozen=True, kw_only=True):
    """Parameters of the model that were fitted to a run."""

    units: int
    micro_batches: int
    passes: int
    forward_ns: int
    backward_ns: int
    optimizer_ns: int
    links: tuple[FittedLink, ...]
    slowest_rank: int | None
    skew_ns: int
    prefetch: int | None
    steps: int


class Prediction(Struct, frozen=True, kw_only=True):
    """The changed run: its step by ledger term (mean over ranks), its peak by tenant (largest rank).

    ``step`` holds ``wall_ns`` and the terms, ``memory`` holds ``peak_bytes`` and the tenants; each is empty
    if it is not predicted. ``saving_ns``: lowest and highest saving per step, negative if the step gets
    longer.
    """

    change: Change
    words: str
    step: tuple[PredictedFigure, ...] = ()
    memory: tuple[PredictedFigure, ...] = ()
    saving_ns: tuple[int, int] | None = None


class Outlook(Struct, frozen=True, kw_only=True):
    """Predicted effect of single changes to a run, and the calibration of the model.

    ``assumptions``: by the keys in predicted figures. ``calibration`` is None if the time of the run could
    not be modelled; ``gaps`` have the reasons. ``is_window``: the times cover one interval, because the run
    has no step marks.
    """

    predictions: tuple[Prediction, ...] = ()
    calibration: Calibration | None = None
    assumptions: Mapping[str, Assumption] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()
    is_window: bool = False

    @property
    def period(self) -> str:
        """The period of the times."""
        return "window" if self.is_window else "step"


class SensitivityPoint(Struct, frozen=True, kw_only=True):
    """One ZeRO-3 step under other conditions; everything else is as in the job.

    ``bandwidth_ratio``: relative to the bandwidth of the data-parallel group, the minimum of the bus within a
    node and the node's network cards. ``latency_ns``: per hop between nodes. ``tokens``: per device and
    micro-batch. ``devices``: data-parallel times model-parallel ranks.
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


class BreakEven(Struct, frozen=True, kw_only=True):
    """Tokens per device and micro-batch above which compute hides the communication of ZeRO-3.

    ``bandwidth_ratio``: as in :class:`SensitivityPoint`. ``forward_tokens``, ``backward_tokens``: for each
    pass, without latency. ``holds_from_tokens``: from this number, the entire step keeps ``kept_ratio`` of
    its speed, including latency.
    """

    hardware: str
    bandwidth_ratio: float
    forward_tokens: float
    backward_tokens: float
    holds_from_tokens: int | None
    kept_ratio: float


class SpeedUp(Struct, frozen=True, kw_only=True):
    """Throughput per device at ``devices``, relative to the smallest number of devices, split into factors.

    whole = equal_batch x larger_batch: sharding the same per-device batch over more ranks, times the gain
    from the larger batch that the freed memory allows. ``samples``: the largest micro-batch that fits on a
    device; ``at_most``: it is an upper bound because not all memory use is known.
    """

    devices: int
    samples: int
    at_most: bool = False
    state_bytes: int
    activation_bytes: int
    whole_ratio: float
    equal_batch_ratio: float
    larger_batch_ratio: float


class Sensitivity(Struct, frozen=True, kw_only=True):
    """Series that vary one condition each, and conclusions as sentences."""

    answers: tuple[str, ...] = ()
    bandwidth: tuple[SensitivityPoint, ...] = ()
    latency: tuple[SensitivityPoint, ...] = ()
    tokens: tuple[SensitivityPoint, ...] = ()
    world: tuple[SensitivityPoint, ...] = ()
    break_even: tuple[BreakEven, ...] = ()
    speed_up: tuple[SpeedUp, ...] = ()


class VerifiedTenant(Struct, frozen=True, kw_only=True):
    """One tenant at the peak, as planned and as measured.

    ``difference_ratio``: planned / verified - 1; None if either is unknown or the verified bytes are 0.
    """

    tenant: Tenant
    planned_bytes: int | None
    verified_bytes: int
    difference_ratio: float | None


class VerifiedStage(Struct, frozen=True, kw_only=True):
    """One stage of ZeRO (0: plain data parallelism).

    The tenants are in display order, and the verified bytes sum to ``verified_peak_bytes``. ``peak_at``:
    phase of the step and unit at which the peak was counted. ``difference_ratio``: planned / verified - 1, of
    the peak.
    """

    stage: int
    tenants: tuple[VerifiedTenant, ...]
    planned_peak_bytes: int | None
    verified_peak_bytes: int
    difference_ratio: float | None
    peak_at: str


class PlanVerification(Struct, frozen=True, kw_only=True):
    """The program that was run to verify the plan, and the plan's error by stage.

    ``ranks``: size of the fake process group. ``program``: description of the program; ``how``: how memory
    was counted. ``seconds``: duration of the verification; None for a cached result.
    """

    ranks: int
    program: str
    how: str
    stages: tuple[VerifiedStage, ...]
    gaps: tuple[Gap, ...] = ()
    seconds: float | None = None


PLAN_SCHEMA = "zprof.plan/1"


class Scheme(StrEnum):
    """How the model is distributed over the devices."""

    DATA_PARALLEL = "data_parallel"
    ZERO_1 = "zero_1"
    ZERO_2 = "zero_2"
    ZERO_3 = "zero_3"
    MODEL_PARALLEL = "model_parallel"
    GPIPE = "gpipe"
    PIPEDREAM = "pipedream"


#: Schemes that are ZeRO stages; stage 0 shards nothing.
ZERO_STAGES: Mapping[Scheme, int] = {
    Scheme.DATA_PARALLEL: 0,
    Scheme.ZERO_1: 1,
    Scheme.ZERO_2: 2,
    Scheme.ZERO_3: 3,
}
#: Display names, as in the ZeRO paper and in common use.
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
    """Return the ZeRO stage of a scheme; 0 for alternatives to ZeRO, which shard nothing."""
    return ZERO_STAGES.get(scheme, 0)


class Term(Struct, frozen=True, kw_only=True):
    """Bytes of one kind within a tenant, at the peak of the device with the maximum.

    ``bytes`` is None if unknown; a gap of the plan has the reason. ``assumption`` is a key of
    ``Plan.assumptions``.
    """

    tenant: Tenant
    sub: str
    bytes: int | None
    assumption: str


class Axis(StrEnum):
    """Kind of parallelism that causes traffic; MODEL: tensor parallelism; HOST: between device and host."""

    DATA = "data"
    MODEL = "model"
    CONTEXT = "context"
    EXPERT = "expert"
    PIPELINE = "pipeline"
    HOST = "host"


class LinkTraffic(Struct, frozen=True, kw_only=True):
    """Traffic of one device per step along one axis.

    ``elements``, ``bytes``: as counted in the paper (an all-reduce is twice its tensor). ``ring_bytes``:
    bytes that a ring moves over the link, (N-1)/N of ``bytes``. ``link``: ``intra``, ``inter`` (nodes) or
    ``pcie``. ``time_ns``: on the link, hidden or not; None without hardware.
    ``assumed``: own leaves that rest on parts of the job that were not stated (``Job.assumed``).
    """

    axis: Axis
    link: str
    elements: int
    bytes: int
    ring_bytes: int
    time_ns: int | None
    assumption: str
    assumed: tuple[str, ...] = ()


class PlannedStep(Struct, frozen=True, kw_only=True):
    """Ledger of one step on one device, without wait, because no rank is assumed to be late.

    wall = compute + exposed_transfer + exposed_memcpy + idle. ``idle_ns``: the pipeline bubble.
    ``efficiency_ratio``: compute / wall. ``assumptions``: by leaf.
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


class Fit(StrEnum):
    """Whether a layout fits in the memory of a device.

    FITS: with the reserve. TIGHT: only if context, communication library and fragmentation take less than the
    reserve. TOO_LARGE: not even if the prediction is too high by its usual error.
    """

    FITS = "fits"
    TIGHT = "tight"
    TOO_LARGE = "too_large"


class Bound(StrEnum):
    """What takes the most of a step beyond what the matrices need."""

    COMPUTE = "compute"
    LAUNCH = "launch"
    NETWORK = "network"
    BUBBLE = "bubble"


class PlanRow(Struct, frozen=True, kw_only=True):
    """One way to distribute the model, per device.

    The known ``terms`` sum to ``least_bytes``; ``peak_bytes`` is None if a term is unknown. ``state_bytes``:
    parameters, gradients and optimizer state at rest, by the formula of the scheme; at the peak, some
    gradients may not exist yet and others may not be sharded yet. ``fits``: None if unknown, False if the
    known terms alone do not fit. ``left_bytes``: device memory minus the peak, negative if it does not fit;
    None if the peak or the device is unknown. ``tight``: it fits, but leaves little for memory that no plan
    includes: the CUDA context, buffers of the communication library, fragmentation. ``largest_parameters``:
    the largest model that fits with the job's width or with its number of layers, whichever is larger; an
    upper bound if the peak is not fully known, based only on the states if nothing else is known; None
    without hardware. ``peak_at``: the moment of the step. ``micro_batches``: per replica and step; the global
    batch is the same in all schemes, up to the rounding to complete micro-batches. ``assumed``: own leaves
    based on parts of the job that were not given (``Job.assumed``); terms and tenants have the same basis as
    ``peak_bytes``. Rows of a framework also have a ``layout``, its ``reserve_bytes`` for context,
    communication library and fragmentation, ``tokens_per_s`` per device, the host's ``launch_ns`` and what
    bounds the step.
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
    assumed: tuple[str, ...] = ()
    layout: Layout | None = None
    reserve_bytes: int | None = None
    tokens_per_s: float | None = None
    launch_ns: int | None = None
    bound: Bound | None = None

    @property
    def name(self) -> str:
        """Name of the column: the framework's scheme with its degree, or the paper's scheme."""
        if self.layout is None:
            return SCHEME_NAMES[self.scheme]
        degrees = self.layout.degrees
        match self.scheme:
            case Scheme.DATA_PARALLEL:
                return "DDP"
            case Scheme.ZERO_3:
                return "FSDP2" if self.layout.framework is Framework.FSDP2 else "ZeRO-3"
            case Scheme.MODEL_PARALLEL:
                return f"TP {degrees.tensor}"
            case Scheme.GPIPE:
                return f"GPipe {degrees.pipeline}"
            case Scheme.PIPEDREAM:
                return f"PP {degrees.pipeline}"
            case _:
                return SCHEME_NAMES[self.scheme]


class Estimate(Struct, frozen=True, kw_only=True):
    """One layout of the job on the devices: memory of the fullest device, and the step.

    ``peak_bytes``: the sum of ``terms``, what the framework's allocator holds. ``reserve_bytes``: what the
    device needs besides: the driver's context, the communication library, fragmentation. ``left_bytes``:
    device memory minus both, negative if they do not fit. ``tokens_per_s``: per device. ``launch_ns``: time
    in which the host launches the kernels of a step. ``model_flops_ratio``: flop of the model without
    recomputation, by the peak of the precision (MFU). ``stage``: pipeline stage of the fullest device.
    """

    layout: Layout
    terms: tuple[Term, ...]
    peak_bytes: int
    peak_at: str
    reserve_bytes: int
    left_bytes: int
    fit: Fit
    stage: int
    step: PlannedStep
    launch_ns: int
    tokens_per_s: float
    model_flops_ratio: float
    bound: Bound
    links: tuple[LinkTraffic, ...] = ()


class Search(Struct, frozen=True, kw_only=True):
    """Layouts of the job on ``devices`` devices, searched over all legal degrees and schemes.

    ``front``: the fastest layout for each amount of memory, fastest first; no other layout is faster with
    less memory. ``best``: of the fastest within 1 % that fit with the reserve, the layout with the least
    memory; else the fastest tight one; None if none does. ``tried``: layouts estimated; ``left_out``: legal
    layouts beyond the limit of estimates. ``fitting``: layouts that fit, tight ones too. ``smallest``: the
    estimate with the least memory.
    """

    devices: int
    global_batch: int
    sequence: int
    tried: int
    fitting: int
    front: tuple[Estimate, ...]
    best: Estimate | None = None
    smallest: Estimate | None = None
    left_out: int = 0


class PlanOptions(Struct, frozen=True, kw_only=True):
    """What the given options lead to, as far as a reader may not expect it.

    ``framework``: whose buffers and schedule the plan describes; None: the usual framework of each scheme.
    ``reference_options``: options of the reference engine that selected it. ``old_options``: given options
    that go with the next release, and their replacements. ``auto_keys``: keys of ``ds_config.json`` with the
    value ``"auto"``, which got defaults. ``kept_arguments``: given arguments that hold for every layout: the
    model, the machine, the precision.
    """

    framework: Framework | None = None
    reference_options: tuple[str, ...] = ()
    old_options: tuple[tuple[str, str], ...] = ()
    auto_keys: tuple[str, ...] = ()
    kept_arguments: tuple[str, ...] = ()


class Plan(Struct, frozen=True, kw_only=True):
    """The job, every way to distribute it, and the assumptions behind the figures.

    ``model``: layer by layer, ``active_parameters``: those that one token uses; None for the reference
    engine, which plans ``job.shape``. ``suggestions``: the fastest layout of each scheme that fits, fastest
    first, tight ones last.
    ``search``, ``verification``: None unless they were requested.
    """

    schema: str = PLAN_SCHEMA
    zprof_version: str
    job: Job
    rows: tuple[PlanRow, ...]
    assumptions: Mapping[str, Assumption]
    sensitivity: Sensitivity | None = None
    verification: PlanVerification | None = None
    model: Transformer | None = None
    active_parameters: int | None = None
    options: PlanOptions = PlanOptions(framework=Framework.REFERENCE)
    suggestions: tuple[Estimate, ...] = ()
    search: Search | None = None
    gaps: tuple[Gap, ...] = ()
