"""What every rule is written with: its type, constructors of findings and gaps, selections of rows.

A rule is a pure function from the analysis to a finding, a gap, or None. A rule that lacks its inputs
returns a gap "not tested": that is not the same as having found nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import FINDING_IDS, Cause, Confidence, Evidence, Finding, Severity
from zprof.model.gaps import Gap

#: Of the step: a gain above which a cause is there.
SURE_RATIO = 0.015


class Check(Protocol):
    """Tests one cause on one run."""

    def __call__(self, analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
        """A finding where the cause is there, a gap where it cannot be tested, None where it is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A cause, its check, and the ledger terms that its saving is taken from, in that order.

    ``explains``: causes whose signal this one makes as well.  Where both are found, and this one is sure, it
    takes its time first, and the other one is only what is left.
    ``elsewhere``: terms of other ranks that are the same loss: while some wait, the late one stands idle.
    """

    cause: Cause
    check: Check
    claims: tuple[str, ...] = ()
    explains: tuple[Cause, ...] = ()
    elsewhere: tuple[str, ...] = ()


def untested_gap(cause: Cause, reason: str, remedy: str) -> Gap:
    """The gap of a rule without its inputs."""
    return Gap(what=f"rule {cause.value} not tested", reason=reason, remedy=remedy)


def list_untested(
    causes: Sequence[Cause], gaps: Sequence[Gap], asked: Sequence[Rule] | None = None
) -> list[Cause]:
    """Those of ``causes`` that could not be tested; of ``asked`` rules also those that no rule asks for."""
    words = {
        word for gap in gaps if gap.what.startswith("rule") for word in gap.what.replace(",", " ").split()
    }
    known = {rule.cause for rule in asked} if asked is not None else set(causes)
    return [cause for cause in causes if cause.value in words or cause not in known]


def group_gaps(gaps: Sequence[Gap]) -> list[Gap]:
    """Gaps of rules, those that the same missing input keeps from being tested as one."""
    rules: dict[tuple[str, str], list[str]] = {}
    for gap in gaps:
        name = gap.what.removeprefix("rule ").removesuffix(" not tested")
        rules.setdefault((gap.reason, gap.remedy), []).append(name)
    return [
        Gap(
            what=f"rule{'s' if len(names) > 1 else ''} {', '.join(names)} not tested",
            reason=reason,
            remedy=remedy,
        )
        for (reason, remedy), names in rules.items()
    ]


def make_finding(
    cause: Cause,
    *,
    sentence: str,
    evidence: Sequence[Evidence],
    saving_ns: tuple[float, float],
    severity: Severity,
    confidence: Confidence,
    fix: str,
    disprove: str,
    saving_bytes: tuple[float, float] | None = None,
) -> Finding:
    """A finding with the id and the page of its cause, savings in whole nanoseconds and bytes."""
    identifier = FINDING_IDS[cause]
    low, high = saving_ns
    return Finding(
        id=identifier,
        cause=cause,
        severity=severity,
        sentence=sentence,
        evidence=tuple(evidence),
        saving_ns=(int(min(low, high)), int(high)),
        confidence=confidence,
        fix=fix,
        disprove=disprove,
        doc=f"docs/findings/{identifier}.md",
        saving_bytes=(int(saving_bytes[0]), int(saving_bytes[1])) if saving_bytes else None,
    )


def rate_severity(saving: float, whole: float) -> Severity:
    """High from a tenth of the whole (the step's time, the peak's bytes) on, medium from a twentieth."""
    if saving >= 0.10 * whole:
        return Severity.HIGH
    return Severity.MEDIUM if saving >= 0.05 * whole else Severity.LOW


def choose_fix(engine: str, snippets: Mapping[str, str]) -> str:
    """The snippet of the run's engine; where that has none, all of them, each under its engine's name."""
    for name, snippet in snippets.items():
        if name.lower() == engine.lower():
            return snippet
    return "\n".join(f"{name}:\n{snippet}" for name, snippet in snippets.items())


#: What names one collective across the ranks.  Where ranks lack rows their sequences count other things.
INSTANCE = "instance"


def steady_rows(analysis: RunAnalysis) -> pd.DataFrame:
    """Collectives without the first of the window, which carries the profilers' start-up skew."""
    rows = analysis.collectives
    return rows[~rows["first_of_window"].astype(bool)]


def select_kind(rows: pd.DataFrame, kind: CollectiveKind) -> pd.DataFrame:
    """Rows of one kind of collective."""
    return rows[rows["kind"].astype(str) == kind.value]


def queued_ns(rows: pd.DataFrame) -> "pd.Series[int]":
    """How long the host was blocked for a collective that had not started: queued behind others.

    0 where the recording has no wait span.
    """
    blocked = rows[["start_ns", "wait_end_ns"]].min(axis=1) - rows["wait_start_ns"]
    return blocked.clip(lower=0).fillna(0).astype("int64")


def mean_per_step(analysis: RunAnalysis, total_ns: float) -> float:
    """A sum over all ranks and steps as the mean of one rank's step."""
    return float(total_ns) / max(1, len(analysis.steps))


def wall_ns(analysis: RunAnalysis) -> float:
    """Mean wall time of a step over ranks and steps."""
    return float(analysis.steps["wall_ns"].mean()) if len(analysis.steps) else 0.0


def noise_floor_ns(analysis: RunAnalysis) -> int:
    """Below which size a duration of this run means nothing: the noisiest rank's."""
    return max((rank.noise_floor_ns for rank in analysis.time.per_rank), default=0)


def clock_uncertainty_ns(analysis: RunAnalysis) -> int:
    """How far apart the aligned clocks of two ranks may be."""
    alignment = analysis.time.alignment
    return alignment.uncertainty_ns if alignment else 0


def has_no_collectives(analysis: RunAnalysis) -> bool:
    """Whether several ranks ran and none of their collectives was recorded."""
    return analysis.run.world_size > 1 and analysis.collectives.empty


def can_replay(analysis: RunAnalysis) -> bool:
    """Return whether the measured step can be replayed: then what a rule proposes is decided there."""
    return analysis.source is not None and analysis.run.device != "cpu"


#: The operator that copies gradients together.
GRADIENT_COPY_KERNEL = "chunk_cat"


def copy_kernels(analysis: RunAnalysis) -> pd.DataFrame:
    """Rows of the kernels that are copies."""
    kernels = analysis.kernels
    return kernels if kernels.empty else kernels[kernels["role"] != "compute"]


def copy_names(analysis: RunAnalysis) -> frozenset[str]:
    """Return the names of these kernels."""
    rows = copy_kernels(analysis)
    return frozenset(rows["name"].astype(str)) if len(rows) else frozenset()


def gather_copies_ns(analysis: RunAnalysis, gathers: pd.DataFrame) -> float:
    """What copying these all_gathers out takes in a step, of rows of ``analysis.collectives``."""
    rows = copy_kernels(analysis)
    if rows.empty:
        return 0.0
    out = rows[~rows["name"].astype(str).str.contains(GRADIENT_COPY_KERNEL)]
    mine, whole = (
        float(select_kind(each, CollectiveKind.ALL_GATHER)["bytes"].sum())
        for each in (gathers, analysis.collectives)
    )
    return mean_per_step(analysis, float(out["uncovered_ns"].sum())) * mine / whole if whole else 0.0
