"""Define the report: the tree of values behind every output (schema ``zprof.report/1``).

Times are integer nanoseconds, sizes integer bytes, ratios floats in [0, 1]. ``None`` means unknown, and a
:class:`~zprof.model.gaps.Gap` has the reason. Leaves may be added, but never removed or renamed. The document
of ``zprof whatif`` (``zprof.whatif/1``) has the same parts.
"""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field

from zprof.model.endings import RankEnd
from zprof.model.findings import Finding
from zprof.model.gaps import Gap
from zprof.model.hang import Hang
from zprof.model.memory import GroupChange, Memory, RankMemory
from zprof.model.plan import Outlook
from zprof.model.time import RankTime, Time
from zprof.model.training import EngineSetting


class HtaCriticalPath(Struct, frozen=True, kw_only=True):
    """Longest path through one rank's work; a collective on the path is one segment, including its wait.

    ``window``: the part of the trace that the path covers. ``shares``: shares of its length by resource (cpu,
    gpu_compute, gpu_communication, gpu_kernel_kernel_overhead, gpu_kernel_launch_overhead).
    """

    window: str
    length_ns: int
    shares: Mapping[str, float]


class StreamIdle(Struct, frozen=True, kw_only=True):
    """Gaps between the kernels of one stream, by the reason why the next kernel started late.

    Host: it was launched after the previous kernel had ended. Kernel: the gap is as short as a launch.
    Other: everything else, including waits for another stream.
    """

    stream: int
    host_wait_ns: int
    kernel_wait_ns: int
    other_ns: int


class RankOpinion(Struct, frozen=True, kw_only=True):
    """Figures of one rank; None if the other program reported none; a gap then has its message."""

    rank: int
    critical_path: HtaCriticalPath | None
    idle: tuple[StreamIdle, ...] | None


class SecondOpinion(Struct, frozen=True, kw_only=True):
    """Figures of another program; ``source`` is its name and version."""

    source: str
    per_rank: tuple[RankOpinion, ...]


VERIFY_SCHEMA = "zprof.verify/1"


class FigureStatus(StrEnum):
    """Agreement of the two programs on a figure."""

    EQUAL = "equal"
    DIFFERS = "differs"
    UNKNOWN = "unknown"


class VerifiedFigure(Struct, frozen=True, kw_only=True):
    """One figure of one rank.

    ``difference`` is zprof's value minus the other program's value, None if one is None. If both programs
    find nothing to measure (no collective, so no overlap), both are None and the status is equal.
    """

    name: str
    unit: str
    zprof: float | None
    other: float | None
    difference: float | None
    tolerance: float
    status: FigureStatus


class RankVerification(Struct, frozen=True, kw_only=True):
    """Comparison of one rank; ``reasons`` explain the differences if known."""

    rank: int
    device_rows: int
    figures: tuple[VerifiedFigure, ...]
    reasons: tuple[str, ...] = ()


class Verification(Struct, frozen=True, kw_only=True):
    """Comparison of all ranks; ``source`` is the other program, ``settings`` are its settings."""

    schema: str = VERIFY_SCHEMA
    zprof_version: str
    source: str
    settings: str
    window: str
    ranks: tuple[RankVerification, ...]
    gaps: tuple[Gap, ...] = ()

    @property
    def status(self) -> FigureStatus:
        """Return DIFFERS if any figure differs, UNKNOWN if none could be compared, else EQUAL."""
        seen = {figure.status for rank in self.ranks for figure in rank.figures}
        for status in (FigureStatus.DIFFERS, FigureStatus.EQUAL):
            if status in seen:
                return status
        return FigureStatus.UNKNOWN


class WorkUnit(StrEnum):
    """Unit of the work of a step."""

    TOKENS = "tokens"
    SAMPLES = "samples"


class EqualWork(Struct, frozen=True, kw_only=True):
    """Step time of b for the same work per rank as a step of a.

    ``a_per_step`` and ``b_per_step`` count the work of the whole job, over all ranks. ``b_ns`` is b's mean
    step time scaled by a's work per rank over b's. ``ci95`` is the 95 % interval of ``b_ns`` minus a's step
    time.
    """

    unit: WorkUnit
    a_per_step: int
    b_per_step: int
    b_ns: int
    ci95: tuple[int, int]


#: Keys of settings that change the work per step, and keys of the work per step itself.
WORK_SETTINGS = frozenset({"world_size", "parameters", "model_parallel_ranks", "micro_batches"})
WORK_SIZES = frozenset({"tokens_per_step", "samples_per_step"})


class Difference(Struct, frozen=True, kw_only=True):
    """A setting that differs between the two jobs and may therefore explain why a figure differs.

    ``a`` and ``b`` are strings; a setting that is known for only one run is omitted.
    """

    key: str
    what: str
    a: str
    b: str


REPORT_SCHEMA = "zprof.report/1"


class VerdictStatus(StrEnum):
    """Overall verdict on a run, as one word."""

    OK = "ok"
    SLOWER = "slower"
    RISK = "risk"
    INCONCLUSIVE = "inconclusive"


#: Maximum excess over the expected bytes; padding, gradient norms and losses add less.
_VOLUME_TOLERANCE_RATIO = 0.1


class Verdict(Struct, frozen=True, kw_only=True):
    """The verdict as one word and one sentence."""

    status: VerdictStatus
    sentence: str


class RunFacts(Struct, frozen=True, kw_only=True):
    """Facts about the recording.

    ``modelled`` lists what was simulated in the run (a link, compute time), so outputs can mark simulated
    figures. ``steps`` are the steps of the time window, ``memory_steps`` the steps of the memory window.
    ``settings`` are the engine options that could be read.
    """

    name: str
    source: str
    world_size: int
    ranks_loaded: tuple[int, ...]
    steps: tuple[int, ...]
    memory_steps: tuple[int, ...] = ()
    device: str
    backend: str
    engine: str
    stage: int | None
    modelled: tuple[str, ...] = ()
    settings: tuple[EngineSetting, ...] = ()

    @property
    def is_of_logs(self) -> bool:
        """Return True if only logs of a stuck job were read: they seldom contain its number of ranks."""
        return self.source == "flight_recorder" and not self.ranks_loaded


class Volume(Struct, frozen=True, kw_only=True):
    """Bytes that a rank moves per step, checked against the ZeRO formula of its stage.

    The formula gives 2, 2, 2 and 3 times the parameters for stages 0 to 3. ``parameter_bytes``: all
    parameters once, at their size on the wire, padding included. ``engine_bytes``: bytes that the engine's
    own scheme moves with its settings, None if it is not known to differ from the formula.
    """

    expected_bytes: int
    seen_bytes: int
    ratio: float
    parameter_bytes: int | None = None
    engine_bytes: int | None = None

    @property
    def exceeds_scheme(self) -> bool:
        """Return True if padding, norms and losses cannot explain the bytes above the engine's scheme or the
        formula.
        """
        expected = self.expected_bytes if self.engine_bytes is None else self.engine_bytes
        return self.seen_bytes > (1 + _VOLUME_TOLERANCE_RATIO) * expected


class StepTimeChange(Struct, frozen=True, kw_only=True):
    """Mean step time of both runs, and the 95 % interval of b minus a."""

    a_ns: int
    b_ns: int
    ci95: tuple[int, int]


class Comparison(Struct, frozen=True, kw_only=True):
    """This run minus its baseline. The ledger's deltas sum to the change of the mean wall time.

    ``ledger_delta`` has one entry per term, as a mean over ranks. ``memory_delta`` has one entry per tenant,
    one for untagged and one for the peak: each is the maximum over ranks, at the rank's own peak. It is None
    for a tenant that is unknown on a rank of either run. If a run has no timed step, ``step_time`` is None
    and ``ledger_delta`` is empty. The ``baseline_*`` fields are leaves of the baseline's report.
    ``equal_work`` is None unless the work per step of both runs is known. ``differences`` lists other
    differences between the jobs, apart from the change under test. ``groups``: for two snapshots, the bytes
    by owner and allocation site, on the rank with the largest peak, largest change first; their deltas sum to
    the difference of the two peaks. ``group_phases``: the phases of those two peaks, the baseline's first;
    empty if unknown. ``unclaimed_ns``: by ledger term, the growth beyond the findings' claims; empty if the
    step is not longer.
    """

    baseline: str
    ledger_delta: Mapping[str, int]
    memory_delta: Mapping[str, int | None]
    step_time: StepTimeChange | None
    baseline_run: RunFacts | None = None
    baseline_time: tuple[RankTime, ...] = ()
    baseline_memory: tuple[RankMemory, ...] = ()
    equal_work: EqualWork | None = None
    differences: tuple[Difference, ...] = ()
    groups: tuple[GroupChange, ...] = ()
    group_phases: tuple[str, str] = ("", "")
    unclaimed_ns: Mapping[str, int] = {}


class Report(Struct, frozen=True, kw_only=True):
    """Everything that zprof reports about one run.

    ``unclaimed``: lost time per mean step that no finding explains, by ledger term, on one rank, so the terms
    add up. ``unclaimed_rank`` is that rank, the one with the largest unexplained loss. ``outlook``: predicted
    effect of single changes; None if it was not requested or nothing is predicted. ``hang``: what a stuck job
    waits for; None if the run has no flight recorder. ``endings``: how the ranks of a failed job ended, the
    first end first.
    """

    schema: str = REPORT_SCHEMA
    zprof_version: str
    verdict: Verdict
    run: RunFacts
    time: Time = field(default_factory=Time)
    memory: Memory = field(default_factory=Memory)
    volume: Volume | None = None
    comparison: Comparison | None = None
    findings: tuple[Finding, ...] = ()
    gaps: tuple[Gap, ...] = ()
    second_opinion: SecondOpinion | None = None
    unclaimed: Mapping[str, int] = field(default_factory=dict)
    unclaimed_rank: int | None = None
    outlook: Outlook | None = None
    hang: Hang | None = None
    endings: tuple[RankEnd, ...] = ()


WHATIF_SCHEMA = "zprof.whatif/1"


class WhatIf(Struct, frozen=True, kw_only=True):
    """The measured run, and the predicted effect of the requested changes on it."""

    schema: str = WHATIF_SCHEMA
    zprof_version: str
    run: RunFacts
    outlook: Outlook
