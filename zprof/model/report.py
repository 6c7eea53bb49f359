"""The report: one tree of values that every output shows (schema ``zprof.report/1``).

Times are integer nanoseconds, sizes integer bytes, ratios floats in [0, 1]. ``None`` means unknown, and a
:class:`~zprof.model.gaps.Gap` says why. Leaves may be added; existing ones stay. The document of ``zprof
whatif`` (``zprof.whatif/1``) is made of the same parts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from zprof.model.findings import Finding
from zprof.model.gaps import Gap
from zprof.model.memory import Memory, RankMemory
from zprof.model.second_opinion import SecondOpinion
from zprof.model.time import RankTime, Time
from zprof.model.whatif import Outlook


class WorkUnit(StrEnum):
    """What a step works off."""

    TOKENS = "tokens"
    SAMPLES = "samples"


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualWork:
    """The step time of b for as much work on a rank as a's step does.

    ``a_per_step`` and ``b_per_step`` are of the whole job, by all its ranks.  ``b_ns``: b's mean step time
    times a's work on a rank over b's; ``ci95``: the 95 % interval of ``b_ns`` minus a's step time.
    """

    unit: WorkUnit
    a_per_step: int
    b_per_step: int
    b_ns: int
    ci95: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What is not the same in both jobs, and therefore may be why a figure differs.

    ``a`` and ``b`` are texts; one of them is ``unknown`` where only the other run says it.
    """

    what: str
    a: str
    b: str


REPORT_SCHEMA = "zprof.report/1"


class VerdictStatus(StrEnum):
    """The answer in one word."""

    OK = "ok"
    SLOWER = "slower"
    RISK = "risk"
    INCONCLUSIVE = "inconclusive"


#: Of the bytes of the ZeRO formula: padding, norms and losses are less.
_VOLUME_TOLERANCE_RATIO = 0.1


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
        return self.ratio > 1 + _VOLUME_TOLERANCE_RATIO


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


WHATIF_SCHEMA = "zprof.whatif/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The run that was measured, and what the changes asked for would make of it."""

    schema: str = WHATIF_SCHEMA
    zprof_version: str
    run: RunFacts
    outlook: Outlook
