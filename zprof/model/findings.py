"""Define findings: a claim with cause, evidence, saving range, confidence, fix and a way to disprove it.

Causes have stable ids: ZP1xx measurement, ZP2xx memory, ZP3xx waiting, ZP4xx transfer and volume, ZP5xx host
and device, ZP6xx hangs. An id is never reused for another cause.
"""

from enum import StrEnum

from msgspec import Struct


class Cause(StrEnum):
    """Cause of a slow step or of high memory use; the value is its name in reports."""

    #: Stable id.
    finding_id: str
    #: What the cause says about a run; also the first line of its page.
    meaning: str

    def __new__(cls, name: str, finding_id: str = "", meaning: str = "") -> "Cause":
        """Make a member from its name in reports, its id and its meaning."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.finding_id, member.meaning = finding_id, meaning
        return member

    MEASUREMENT_ARTIFACT = (
        "measurement_artifact",
        "ZP101",
        "The recording itself made part of what it shows.",
    )
    SLOWED_BY_INSTRUMENTS = (
        "slowed_by_instruments",
        "ZP102",
        "The program's own loggers or debug settings slow the steps that were recorded.",
    )
    BUFFERS_DOMINATE = (
        "buffers_dominate",
        "ZP201",
        "Communication buffers hold far more memory than the units in flight need.",
    )
    FRAGMENTATION = (
        "fragmentation",
        "ZP202",
        "The allocator holds memory that is free and of no use to anybody.",
    )
    ACTIVATIONS_DOMINATE = (
        "activations_dominate",
        "ZP203",
        "What autograd keeps for the backward is most of the peak, and none of it is recomputed.",
    )
    LOGITS_DOMINATE = (
        "logits_dominate",
        "ZP204",
        "Tensors of [tokens, vocabulary] are a large part of the peak.",
    )
    REPLICATED_STATE = (
        "replicated_state",
        "ZP205",
        "Every rank keeps parameters, gradients or optimizer state that the other ranks keep too.",
    )
    WRONG_STAGE = (
        "wrong_stage",
        "ZP206",
        "This sharding stage frees less than it costs, or another one would free more.",
    )
    RETAINED_GRADIENTS = (
        "retained_gradients",
        "ZP207",
        "Gradients are alive while a forward runs, and need not be.",
    )
    INIT_SPIKE = ("init_spike", "ZP208", "The program's highest point lies before its first step.")
    OUTSIDE_ALLOCATOR = (
        "outside_allocator",
        "ZP209",
        "Much of the device's memory is held outside of torch's allocator.",
    )
    ATTENTION_SCORES = (
        "attention_scores",
        "ZP211",
        "The matrix of attention scores is kept, for each head and each pair of tokens.",
    )
    WEIGHT_COPIES = (
        "weight_copies",
        "ZP212",
        "Autocast keeps a copy of each weight in 16 bit beside the fp32 weights.",
    )
    STATES_DOMINATE = (
        "states_dominate",
        "ZP213",
        "Parameters, gradients and optimizer state of one device are most of its peak.",
    )
    OUT_OF_MEMORY = (
        "out_of_memory",
        "ZP210",
        "An allocation failed, and the snapshot shows what filled the device.",
    )
    STRAGGLER_RANK = (
        "straggler_rank",
        "ZP301",
        "One rank is late, step after step, and the others wait for it.",
    )
    ROTATING_STRAGGLER = (
        "rotating_straggler",
        "ZP302",
        "In each step another rank's host stalls, and all others wait for it.",
    )
    NO_PREFETCH = (
        "no_prefetch",
        "ZP401",
        "all_gathers are launched when their result is already needed, so nothing hides them.",
    )
    LOW_BUS_BANDWIDTH = (
        "low_bus_bandwidth",
        "ZP402",
        "Large messages move at far less than the bandwidth they should have.",
    )
    LATENCY_BOUND_COLLECTIVES = (
        "latency_bound_collectives",
        "ZP403",
        "Messages spend their time on the latency of the link, not on their bytes.",
    )
    UNITS_TOO_SMALL = (
        "units_too_small",
        "ZP404",
        "Wrapped units are so small that gathering one takes longer than computing it, "
        "on a link that is fine.",
    )
    SINGLE_UNIT = (
        "single_unit",
        "ZP405",
        "The model is gathered, or its gradients are reduced, as a whole: no compute can run beside it.",
    )
    RATE_LIMITED_PREFETCH = (
        "rate_limited_prefetch",
        "ZP406",
        "Gathers are held back until memory is free, and the compute that should follow "
        "has not been launched yet.",
    )
    COMPUTE_BLOCKS_COMM = (
        "compute_blocks_comm",
        "ZP407",
        "All_gathers that could start stand behind kernels of the unit that computes, "
        "and are exposed for it.",
    )
    SHARDING_SPANS_NODES = (
        "sharding_spans_nodes",
        "ZP408",
        "Parameters are sharded over hosts, so every gather crosses the slow link between them.",
    )
    FP32_REDUCE = (
        "fp32_reduce",
        "ZP409",
        "Gradients travel in float32 although parameters travel, or kernels compute, in half precision.",
    )
    FP32_GATHER = (
        "fp32_gather",
        "ZP410",
        "Parameters travel in float32 although they are used in half precision.",
    )
    ACCUMULATION_SYNCS = (
        "accumulation_syncs",
        "ZP411",
        "Gradients are reduced in every micro-batch, although the step needs their sum only once.",
    )
    ACCUMULATION_REGATHERS = (
        "accumulation_regathers",
        "ZP412",
        "Every micro-batch gathers all parameters again, although they change once per step.",
    )
    NEEDLESS_RESHARD_AFTER_FORWARD = (
        "needless_reshard_after_forward",
        "ZP413",
        "Units are dropped after their forward, and the backward waits while they are gathered again.",
    )
    LAST_UNIT_REGATHERED = (
        "last_unit_regathered",
        "ZP414",
        "The last unit is dropped after its forward and gathered again at once, for the backward.",
    )
    CHECKPOINT_REGATHERS = (
        "checkpoint_regathers",
        "ZP415",
        "The recomputation of a checkpointed unit gathers it a third time.",
    )
    UNHIDDEN_OPTIMIZER_GATHER = (
        "unhidden_optimizer_gather",
        "ZP416",
        "A step of ZeRO stage 1 or 2 ends with a gather of all new parameters, with nothing beside it.",
    )
    UNEVEN_SHAPES = (
        "uneven_shapes",
        "ZP417",
        "Shapes do not divide evenly: padding travels with every gather and reduction, "
        "or one rank has more to do.",
    )
    OPTION_WITHOUT_EFFECT = (
        "option_without_effect",
        "ZP418",
        "An option that is set to hide communication changes nothing here.",
    )
    ALLOCATOR_RETRIES = (
        "allocator_retries",
        "ZP501",
        "The allocator freed its cached segments and asked the device for memory again.",
    )
    CPU_BOUND_LAUNCH = (
        "cpu_bound_launch",
        "ZP502",
        "The host launches slower than kernels run, and the device runs dry between them.",
    )
    BLOCKING_SYNC = (
        "blocking_sync",
        "ZP503",
        "The host waits for its device again and again, and each time the queue runs dry.",
    )
    DATA_LOADER = (
        "data_loader",
        "ZP504",
        "The device has nothing to run while the host waits for the next batch.",
    )
    OFFLOAD_ON_CRITICAL_PATH = (
        "offload_on_critical_path",
        "ZP505",
        "Shards travel to host memory and back with no compute beside them, or the CPU "
        "updates them meanwhile.",
    )
    COMM_SLOWS_COMPUTE = (
        "comm_slows_compute",
        "ZP506",
        "Kernels take longer while a collective runs beside them: hidden communication is not free.",
    )
    COPY_OVERHEAD = ("copy_overhead", "ZP507", "Copies around collectives hold the compute up.")
    LOST_COMPUTE_EFFICIENCY = (
        "lost_compute_efficiency",
        "ZP508",
        "The same kernels take longer than in the baseline, and collectives are not the reason.",
    )
    RANK_NEVER_ENTERED = (
        "rank_never_entered",
        "ZP601",
        "A rank went on without a collective that the others wait in.",
    )
    HOST_STUCK = (
        "host_stuck",
        "ZP602",
        "A rank has finished all that it entered, and its host does not enter the next collective.",
    )
    DIFFERENT_COLLECTIVES = (
        "different_collectives",
        "ZP603",
        "Ranks entered different collectives at the same place of a group's sequence.",
    )
    MISMATCHED_COLLECTIVE = (
        "mismatched_collective",
        "ZP604",
        "Ranks entered the same collective with different sizes, counts or dtypes.",
    )
    CIRCULAR_WAIT = (
        "circular_wait",
        "ZP605",
        "Ranks wait for one another in collectives of several groups, entered in different orders.",
    )
    DEVICE_STOPPED = (
        "device_stopped",
        "ZP606",
        "A rank has not finished collectives that its peers finished: its device or process has stopped.",
    )
    COLLECTIVE_NOT_FINISHED = (
        "collective_not_finished",
        "ZP607",
        "All ranks have entered a collective, and none leaves it.",
    )
    RANK_WITHOUT_DUMP = (
        "rank_without_dump",
        "ZP608",
        "The job waits for ranks that have ended, or left no dump and no line in a log.",
    )
    HANG_NOT_TOLD = (
        "hang_not_told",
        "ZP609",
        "Ranks wait in a collective, and what is known does not tell for whom.",
    )


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


class SavingNote(StrEnum):
    """Reason why the saving of a finding is not the range of the played step alone."""

    #: The step played without the cause takes as long.
    GAINS_NOTHING = "gains_nothing"
    #: It is wider by the difference of two recordings of the same job.
    STEP_NOISE = "step_noise"
    #: It is no more than the time that it is taken from.
    LIMITED_TO_LOSS = "limited_to_loss"
    #: Another finding claims part of the same time.
    CLAIMED_BY_OTHERS = "claimed_by_others"
    #: Another finding is a stall that a host running ahead would hide: without the stall, this saves nothing.
    EXPOSES_A_STALL = "exposes_a_stall"


class Evidence(Struct, frozen=True, kw_only=True):
    """One measured fact behind a claim; ``unit``: ns, bytes, bytes_per_s, count, ratio, times (a factor).

    ``key`` identifies it for programs, ``what`` describes it for readers.
    """

    key: str
    what: str
    value: int | float  # a whole number stays one
    unit: str
    rank: int | None = None


class SourceLocation(Struct, frozen=True, kw_only=True):
    """A line of the user's program: ``file`` is relative to the program's working folder if it lies in it.

    ``line`` is where the function starts if a trace names only that.
    """

    file: str
    line: int
    function: str


class Finding(Struct, frozen=True, kw_only=True):
    """A problem, the evidence for it, its cost and its fix.

    ``saving_ns`` is a range per step that never exceeds the ledger term that the finding claims;
    ``saving_notes`` are the reasons why it is not that of the step played without the cause, in order.
    ``saving_bytes`` is the range by which the memory of the largest rank would shrink; None if the finding is
    not about memory. ``change_ns``: range of what it costs more per step than in the baseline; None without a
    baseline. ``location`` is the line that the cause is in, None if it is unknown or not one line.
    """

    id: str
    cause: str
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
    saving_notes: tuple[SavingNote, ...] = ()
    change_ns: tuple[int, int] | None = None

    @property
    def is_hang(self) -> bool:
        """Return True if it says why a job is stuck."""
        return self.id.startswith("ZP6")

    @property
    def is_about_recording(self) -> bool:
        """Return True if it says what the recording itself adds."""
        return self.id.startswith("ZP1")

    @property
    def invalidates_times(self) -> bool:
        """Return True if the times of the run cannot be trusted."""
        return self.is_about_recording and self.severity is Severity.HIGH
