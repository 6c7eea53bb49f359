"""The report: one tree of values behind every face of zprof (schema ``zprof.report/1``).

Times are integer nanoseconds, sizes integer bytes, ratios floats in [0, 1].  ``None`` means unknown,
and a :class:`~zprof.model.gaps.Gap` says why.  Leaves may be added; those that stand here stay.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from zprof.model.equal_work import Difference, EqualWork
from zprof.model.findings import Finding
from zprof.model.gaps import Gap
from zprof.model.memory import Memory, RankMemory
from zprof.model.planning.whatif import Outlook
from zprof.model.second_opinion import SecondOpinion
from zprof.model.time import RankTime, Time

REPORT_SCHEMA = "zprof.report/1"


class VerdictStatus(StrEnum):
    """The answer in one word."""

    OK = "ok"
    SLOWER = "slower"
    RISK = "risk"
    INCONCLUSIVE = "inconclusive"


#: Of the bytes of the ZeRO formula: padding, norms and losses are less.
_BESIDE_RATIO = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer in one word and one sentence."""

    status: VerdictStatus
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What was recorded.

    ``modelled`` names what was simulated in the run (a link, compute time): never empty silently.
    ``steps`` are those of the time window; ``memory_steps`` those of the memory window.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """Bytes a rank moves in a step against the law of its stage (2, 2, 2, 3 times the parameters).

    ``parameter_bytes``: all parameters once, as they travel, padding included.
    """

    expected_bytes: int
    seen_bytes: int
    ratio: float
    parameter_bytes: int | None = None

    @property
    def exceeds_formula(self) -> bool:
        """Whether more is moved than padding, norms and losses can add to the formula."""
        return self.ratio > 1 + _BESIDE_RATIO


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeChange:
    """Mean step time of both runs, and the 95 % interval of b minus a."""

    a_ns: int
    b_ns: int
    ci95: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """This run minus its baseline.  The ledger's deltas sum to the change of the mean wall time.

    ``ledger_delta`` has one entry a term, means over ranks; ``memory_delta`` one a tenant, the largest
    rank of each side at its peak.  Where a side has no timed step, ``step_time`` is None and the ledger's
    deltas are empty.  The ``baseline_*`` fields are the baseline's own leaves.  ``equal_work`` is None where
    the work of a step is not known of both runs; ``differences``: what else than the change that is asked
    about is not the same in both jobs.
    """

    baseline: str
    ledger_delta: Mapping[str, int]
    memory_delta: Mapping[str, int]
    step_time: StepTimeChange | None
    baseline_run: RunFacts | None = None
    baseline_time: tuple[RankTime, ...] = ()
    baseline_memory: tuple[RankMemory, ...] = ()
    equal_work: EqualWork | None = None
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that zprof says about one run.

    ``unclaimed``: what one rank loses in its mean step and no finding explains, by ledger term, so that the
    terms add up; ``unclaimed_rank`` is that rank, the one that has most of it.
    ``outlook``: what single changes would make of the run; None where nobody asked, or nothing is
    predicted.
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
