"""Analyses for tests of causes, what causes answer to them, and walls and sums that a float holds exactly."""

from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec.structs import replace

from tests.support.analyses import MS, Scenario, analysis_of
from tests.support.tables import changed
from zprof.analysis.analysis import RunAnalysis, Untested
from zprof.causes import load_causes
from zprof.causes.cause import Cause
from zprof.diagnosis.diagnose import diagnose
from zprof.diagnosis.find_causes import ask
from zprof.model.findings import Confidence, Finding, Severity
from zprof.model.hang import Hang

#: Makes an analysis when a test asks for it.
Run = Callable[[], RunAnalysis]

_runs: dict[str, RunAnalysis] = {}


def run_of(plan: Scenario | None = None, **fields: Any) -> RunAnalysis:
    """Return the analysis of a scenario; it is made once and shared, so change copies only."""
    plan = replace(plan or Scenario(), **fields)
    key = repr(plan)
    if key not in _runs:
        _runs[key] = analysis_of(plan)
    return _runs[key]


def found(cause: Cause, analysis: RunAnalysis, baseline: RunAnalysis | None = None) -> Finding:
    """Return the finding of a cause that must have one."""
    answer = ask(cause, analysis, baseline)
    assert isinstance(answer, Finding), answer
    return answer


def judged(cause: Cause, analysis: RunAnalysis, baseline: RunAnalysis | None = None) -> str | None:
    """Return "high", "medium" or "low" for a finding, "gap" if it was not tested, None if it is not there."""
    answer = ask(cause, analysis, baseline)
    if isinstance(answer, Finding):
        return answer.confidence.value
    return "gap" if isinstance(answer, Untested) else None


def fires(cause: Cause, analysis: RunAnalysis, baseline: RunAnalysis | None = None) -> bool:
    """Return whether the cause has a finding."""
    return isinstance(ask(cause, analysis, baseline), Finding)


def values(finding: Finding, unit: str) -> list[float]:
    """Return the values of the finding's evidence in a unit, in their order."""
    return [fact.value for fact in finding.evidence if fact.unit == unit]


def with_terms(name: str, *terms: str, **fields: Any) -> dict[str, Cause]:
    """Return a record of that name, which claims these terms, by its name."""
    return {name: Cause(id=load_causes()[name].id, name=name, meaning="", terms=terms, **fields)}


def claim(
    cause: str,
    low: float = 0,
    high: float = 0,
    confidence: Confidence = Confidence.HIGH,
    *,
    severity: Severity = Severity.HIGH,
    frees: int | None = None,
    sentence: str = "",
) -> Finding:
    """Return a finding without evidence; ``frees``: the most bytes that its fix frees."""
    return Finding(
        id=load_causes()[cause].id,
        cause=cause,
        sentence=sentence,
        evidence=(),
        saving_ns=(int(low), int(high)),
        severity=severity,
        confidence=confidence,
        fix="",
        disprove="",
        doc="",
        saving_bytes=None if frees is None else (0, frees),
    )


def explain_hang(hang: Hang) -> Finding:
    """Return the only finding on a job that is stuck."""
    (finding,) = diagnose(replace(run_of(), hang=hang)).findings
    return finding


def without_collectives(analysis: RunAnalysis) -> RunAnalysis:
    """Return the run as if none of its collectives was recorded."""
    return replace(analysis, collectives=analysis.collectives.at(slice(0)))


def in_groups_of_one(analysis: RunAnalysis) -> RunAnalysis:
    """Return the run as if each of its groups had one rank."""
    return replace(analysis, collectives=changed(analysis.collectives, group_size=1))


def on_device(analysis: RunAnalysis, device: str = "cuda", **columns: object) -> RunAnalysis:
    """Return the run on another device, with other columns of its collectives."""
    rows = changed(analysis.collectives, **columns)
    return replace(analysis, run=replace(analysis.run, device=device), collectives=rows)


def with_walls(analysis: RunAnalysis, wall_ns: float = 100 * MS) -> RunAnalysis:
    """Return the run with this wall time in each step of each rank."""
    return replace(analysis, steps=changed(analysis.steps, wall_ns=wall_ns))


def with_ranks(analysis: RunAnalysis, **terms: int) -> RunAnalysis:
    """Return the run with other terms in the mean step of each rank."""
    per_rank = tuple(replace(rank, **terms) for rank in analysis.time.per_rank)
    return replace(analysis, time=replace(analysis.time, per_rank=per_rank))


def with_clocks(analysis: RunAnalysis, *, uncertainty_ns: int = 0, noise_floor_ns: int = 0) -> RunAnalysis:
    """Return the run with other uncertainties."""
    assert analysis.time.alignment is not None
    alignment = replace(analysis.time.alignment, uncertainty_ns=uncertainty_ns)
    made = with_ranks(analysis, noise_floor_ns=noise_floor_ns)
    return replace(made, time=replace(made.time, alignment=alignment))


def on_one_rank(analysis: RunAnalysis) -> RunAnalysis:
    return replace(analysis, run=replace(analysis.run, world_size=1))


def with_queue(analysis: RunAnalysis, queued_ns: np.ndarray) -> RunAnalysis:
    """Return the run of CPU ranks whose threads waited this long for a processor, by row of its steps."""
    rows = analysis.steps.pick(("step", "rank"))
    return replace(analysis, host=changed(rows, queued_ns=queued_ns, on_device=False))
