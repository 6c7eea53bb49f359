"""Judge each limit by its gate; the worst result is the outcome of the check.

failed > unknown > warned > within noise > passed
nothing judged at all: unknown, except on a first run without a baseline
"""

from collections.abc import Callable, Mapping, Sequence

from zprof.checks.baseline import make_baseline
from zprof.checks.baseline_comparison import find_condition_differences
from zprof.checks.gates.communication import collective_bytes, collective_bytes_law, collective_count
from zprof.checks.gates.judge import SAVE_HINT, judge
from zprof.checks.gates.memory import peak_memory, tenant_memory, untagged_ratio
from zprof.checks.gates.reading import GateInput, Reading
from zprof.checks.gates.time import exposed_ratio, exposed_wait, overlap_ratio, step_time
from zprof.model.baseline import Baseline
from zprof.model.check import Check, GateResult, Limit, Outcome
from zprof.model.errors import BadInput
from zprof.model.report import Report
from zprof.version import __version__

GATES: Mapping[str, Callable[[GateInput], Reading]] = {
    "peak_memory": peak_memory,
    "untagged_ratio": untagged_ratio,
    "exposed_ratio": exposed_ratio,
    "overlap_ratio": overlap_ratio,
    "collective_bytes": collective_bytes,
    "collective_count": collective_count,
    "collective_bytes_law": collective_bytes_law,
    "step_time": step_time,
    "exposed_wait": exposed_wait,
}
_TENANT_PREFIX = "peak_memory."
_WORST_FIRST = (Outcome.FAILED, Outcome.UNKNOWN, Outcome.WARNED, Outcome.WITHIN_NOISE, Outcome.PASSED)


def check(
    report: Report,
    limits: Sequence[Limit],
    baseline: Baseline | None,
    *,
    environment: Mapping[str, str],
    any_conditions: bool = False,
) -> Check:
    """Judge a run against limits and a baseline.

    Args:
        report: The report on the run.
        limits: The limits, in the order of their results.
        baseline: None on a first run: limits relative to it are skipped.
        environment: The environment from the run's manifest, for the version of torch.
        any_conditions: Compare even if the conditions of the recordings differ.

    Raises:
        BadInput: The conditions differ from those of the baseline, or there is no such gate.
    """
    now = make_baseline(report, environment, report.run.name)
    apart = find_condition_differences(baseline.conditions, now.conditions) if baseline is not None else ()
    if apart and not any_conditions:
        raise BadInput(
            f"{now.name}: not comparable with its baseline: {'; '.join(apart)}",
            hint="zprof baseline update saves this run in its place; --any-conditions compares all the same",
        )
    results = tuple(
        _judge_limit(GateInput(limit=limit, report=report, now=now, before=baseline)) for limit in limits
    )
    outcome, notices = _worst_outcome(results, now, baseline)
    held = (f"held against a baseline of other conditions: {'; '.join(apart)}",) if apart else ()
    return Check(
        zprof_version=__version__,
        run=now.name,
        baseline=None if baseline is None else baseline.name,
        outcome=outcome,
        results=results,
        notices=(*held, *notices),
    )


def _judge_limit(asked: GateInput) -> GateResult:
    gate = asked.limit.gate
    read = tenant_memory if gate.startswith(_TENANT_PREFIX) else GATES.get(gate)
    if read is None:
        raise BadInput(f"there is no gate {gate[:60]!r}", hint=f"known: {', '.join(GATES)}")
    return judge(asked.limit, read(asked), has_baseline=asked.before is not None)


def _worst_outcome(
    results: Sequence[GateResult], now: Baseline, baseline: Baseline | None
) -> tuple[Outcome, tuple[str, ...]]:
    seen = {result.outcome for result in results}
    first = (
        () if baseline is not None else (f"no baseline yet: limits that need one were skipped; {SAVE_HINT}",)
    )
    worst = next((outcome for outcome in _WORST_FIRST if outcome in seen), None)
    if worst is not None:
        return worst, first
    measured = now.memory is not None or now.time is not None
    if baseline is None and results and measured:
        return Outcome.PASSED, first
    reason = "nothing was judged: " + ("no gate could be" if results else "no limit is on")
    return Outcome.UNKNOWN, (*first, f"{reason}; record both windows, or state limits (--peak-memory +2%)")
