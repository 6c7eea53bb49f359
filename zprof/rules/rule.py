"""Define the type of a rule, and what rules share: constructors of findings and gaps, row selections.

A rule is a pure function from the analysis to a finding, a gap or None. A rule without its inputs returns a
"not tested" gap, which is not the same as having found nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import FINDING_IDS, Cause, Confidence, Evidence, Finding, Severity
from zprof.model.gaps import Gap, GapKind

#: A cause is present if the gain exceeds this share of the step.
SURE_RATIO = 0.015


class Check(Protocol):
    """A function that tests one cause on one run."""

    def __call__(self, analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
        """Return a finding if the cause is present, a gap if it cannot be tested, None if it is absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A cause, its check, and the ledger terms that its saving is taken from, in that order.

    ``explains``: causes whose signal this cause produces as well. If both are found and this one is above low
    confidence, it claims its time first and the other gets what is left. ``elsewhere``: terms of other ranks
    that are the same loss: while some ranks wait, the late one is idle.
    """

    cause: Cause
    check: Check
    claims: tuple[str, ...] = ()
    explains: tuple[Cause, ...] = ()
    elsewhere: tuple[str, ...] = ()


def untested_gap(cause: Cause, reason: str, remedy: str) -> Gap:
    """Return the gap of a rule that lacks its inputs."""
    return Gap(
        kind=GapKind.UNTESTED_RULE,
        causes=(cause,),
        what=f"rule {cause.value} not tested",
        reason=reason,
        remedy=remedy,
    )


def list_untested(
    causes: Sequence[Cause], gaps: Sequence[Gap], asked: Sequence[Rule] | None = None
) -> list[Cause]:
    """Return the causes that a gap names as untested, or that none of the ``asked`` rules tests."""
    untested = {cause for gap in gaps for cause in gap.causes}
    known = {rule.cause for rule in asked} if asked is not None else set(causes)
    return [cause for cause in causes if cause in untested or cause not in known]


def group_gaps(gaps: Sequence[Gap]) -> list[Gap]:
    """Merge the gaps of rules that the same missing input keeps from being tested."""
    causes: dict[tuple[str, str], list[Cause]] = {}
    for gap in gaps:
        causes.setdefault((gap.reason, gap.remedy), []).extend(gap.causes)
    return [
        Gap(
            kind=GapKind.UNTESTED_RULE,
            causes=tuple(untested),
            what=f"rule{'s' if len(untested) > 1 else ''} {', '.join(untested)} not tested",
            reason=reason,
            remedy=remedy,
        )
        for (reason, remedy), untested in causes.items()
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
    """Return a finding with the id and the doc page of its cause, and savings in whole ns and bytes."""
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
    """Return HIGH from 10 % of the whole (step time or peak bytes), MEDIUM from 5 %, else LOW."""
    if saving >= 0.10 * whole:
        return Severity.HIGH
    return Severity.MEDIUM if saving >= 0.05 * whole else Severity.LOW


def choose_fix(engine: str, snippets: Mapping[str, str]) -> str:
    """Return the snippet for the run's engine, or all snippets under their engines' names if it has none."""
    for name, snippet in snippets.items():
        if name.lower() == engine.lower():
            return snippet
    return "\n".join(f"{name}:\n{snippet}" for name, snippet in snippets.items())


#: Column that identifies one collective across ranks. Sequence numbers do not if ranks lack rows.
INSTANCE = "instance"


def steady_rows(analysis: RunAnalysis) -> pd.DataFrame:
    """Return the collectives without the first of the window, which carry the profilers' start-up skew."""
    rows = analysis.collectives
    return rows[~rows["first_of_window"].astype(bool)]


def select_kind(rows: pd.DataFrame, kind: CollectiveKind) -> pd.DataFrame:
    """Return the rows of one kind of collective."""
    return rows[rows["kind"].astype(str) == kind.value]


def queued_ns(rows: pd.DataFrame) -> "pd.Series[int]":
    """Return how long the host was blocked on each collective before it started, queued behind others.

    0 if the recording has no wait span.
    """
    blocked = rows[["start_ns", "wait_end_ns"]].min(axis=1) - rows["wait_start_ns"]
    return blocked.clip(lower=0).fillna(0).astype("int64")


def mean_per_step(analysis: RunAnalysis, total_ns: float) -> float:
    """Return a sum over all ranks and steps as the mean per rank and step."""
    return float(total_ns) / max(1, len(analysis.steps))


def wall_ns(analysis: RunAnalysis) -> float:
    """Return the mean wall time of a step over ranks and steps, in ns."""
    return float(analysis.steps["wall_ns"].mean()) if len(analysis.steps) else 0.0


def noise_floor_ns(analysis: RunAnalysis) -> int:
    """Return the noise floor of durations: that of the noisiest rank."""
    return max((rank.noise_floor_ns for rank in analysis.time.per_rank), default=0)


def clock_uncertainty_ns(analysis: RunAnalysis) -> int:
    """Return the maximum offset that may remain between the aligned clocks of two ranks, 0 if not aligned."""
    alignment = analysis.time.alignment
    return alignment.uncertainty_ns if alignment else 0


def has_no_collectives(analysis: RunAnalysis) -> bool:
    """Return whether several ranks ran and none of their collectives was recorded."""
    return analysis.run.world_size > 1 and analysis.collectives.empty


def can_replay(analysis: RunAnalysis) -> bool:
    """Return whether the measured step may be replayed; if so, the replay decides what a rule proposes."""
    return analysis.source is not None and analysis.run.device != "cpu"


#: The operator that packs gradients into the buffer of a reduction.
GRADIENT_COPY_KERNEL = "chunk_cat"


def copy_kernels(analysis: RunAnalysis) -> pd.DataFrame:
    """Return the rows of kernels that are copies."""
    kernels = analysis.kernels
    return kernels if kernels.empty else kernels[kernels["role"] != "compute"]


def copy_names(analysis: RunAnalysis) -> frozenset[str]:
    """Return the names of the kernels that are copies."""
    rows = copy_kernels(analysis)
    return frozenset(rows["name"].astype(str)) if len(rows) else frozenset()


def gather_copies_ns(analysis: RunAnalysis, gathers: pd.DataFrame) -> float:
    """Return the mean time per rank and step to copy these all_gathers out, by their share of the bytes."""
    rows = copy_kernels(analysis)
    if rows.empty:
        return 0.0
    out = rows[~rows["name"].astype(str).str.contains(GRADIENT_COPY_KERNEL)]
    mine, whole = (
        float(select_kind(each, CollectiveKind.ALL_GATHER)["bytes"].sum())
        for each in (gathers, analysis.collectives)
    )
    return mean_per_step(analysis, float(out["uncovered_ns"].sum())) * mine / whole if whole else 0.0
