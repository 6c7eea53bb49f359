"""Judge each limit by its gate; the worst result is the outcome of the check.

Severity: failed > unknown > warned > within noise > passed. If no limit was judged, the outcome is unknown,
except on a first run without a baseline. With a required baseline, a limit that cannot be judged is unknown.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from zprof.checks.baseline import make_baseline
from zprof.checks.baseline_comparison import find_condition_differences
from zprof.checks.gates.communication import (
    read_collective_bytes,
    read_collective_bytes_law,
    read_collective_count,
)
from zprof.checks.gates.judge import SAVE_HINT, judge
from zprof.checks.gates.memory import read_peak_memory, read_tenant_memory, read_untagged_ratio
from zprof.checks.gates.reading import GateInput, Reading, is_relative
from zprof.checks.gates.time import (
    read_exposed_ratio,
    read_exposed_wait,
    read_overlap_ratio,
    read_step_time,
)
from zprof.model.baseline import Baseline
from zprof.model.check import Check, GateResult, Limit, Outcome
from zprof.model.errors import BadInput
from zprof.model.findings import Confidence, Finding
from zprof.model.formatting import printable
from zprof.model.quantities import Unit, format_number
from zprof.model.report import Report
from zprof.version import __version__

GATES: Mapping[str, Callable[[GateInput], Reading]] = {
    "peak_memory": read_peak_memory,
    "untagged_ratio": read_untagged_ratio,
    "exposed_ratio": read_exposed_ratio,
    "overlap_ratio": read_overlap_ratio,
    "collective_bytes": read_collective_bytes,
    "collective_count": read_collective_count,
    "collective_bytes_law": read_collective_bytes_law,
    "step_time": read_step_time,
    "exposed_wait": read_exposed_wait,
}
_TENANT_PREFIX = "peak_memory."
_MEMORY_GATES = ("peak_memory", "untagged_ratio")
_WORST_FIRST = (Outcome.FAILED, Outcome.UNKNOWN, Outcome.WARNED, Outcome.WITHIN_NOISE, Outcome.PASSED)


def check(
    report: Report,
    limits: Sequence[Limit],
    baseline: Baseline | None,
    *,
    environment: Mapping[str, str],
    any_conditions: bool = False,
    requires_baseline: bool = False,
    baseline_file: Path | None = None,
) -> Check:
    """Judge a run against limits and a baseline.

    Args:
        report: The report on the run.
        limits: The limits, in the order of their results.
        baseline: None on a first run; relative limits are then skipped.
        environment: The environment from the run's manifest, for the torch version.
        any_conditions: Compare even if the recording conditions differ.
        requires_baseline: A limit that the baseline or the run cannot judge is unknown, default or not.
        baseline_file: Where the baseline was read from, for errors.

    Raises:
        BadInput: The conditions differ from those of the baseline, or a gate is unknown.
    """
    current = make_baseline(report, environment, report.run.name)
    differences = (
        find_condition_differences(baseline.conditions, current.conditions) if baseline is not None else ()
    )
    if differences and not any_conditions:
        named = f"its baseline {baseline_file}" if baseline_file is not None else "its baseline"
        raise BadInput(
            f"{current.name}: not comparable with {named}: {'; '.join(differences)}",
            hint="use zprof baseline update to replace the baseline, or --any-conditions to compare anyway",
        )
    results = tuple(
        _judge_limit(
            GateInput(limit=limit, report=report, current=current, baseline=baseline), requires_baseline
        )
        for limit in limits
    )
    outcome, notices = _find_worst_outcome(results, current, baseline)
    conditions_notice = (
        (f"compared with a baseline recorded under different conditions: {'; '.join(differences)}",)
        if differences
        else ()
    )
    return Check(
        zprof_version=__version__,
        run=current.name,
        baseline=None if baseline is None else baseline.name,
        outcome=outcome,
        results=results,
        notices=(*conditions_notice, *notices),
    )


def name_causes(result: Check, report: Report) -> tuple[str, ...]:
    """Name what the diagnosis holds for the cause of the failed gates: of time or traffic, and of memory.

    The first finding of each that is more than a guess; empty if no gate failed.
    """
    failed = [entry.limit.gate for entry in result.results if entry.outcome is Outcome.FAILED]
    is_memory = [gate.startswith(_MEMORY_GATES) for gate in failed]
    sure = [finding for finding in report.findings if finding.confidence is not Confidence.LOW]
    of_time = [finding for finding in sure if finding.saving_ns[1] > 0]
    of_memory = [finding for finding in sure if finding.saving_bytes is not None]
    chosen = [*of_time[: not all(is_memory)], *of_memory[: any(is_memory)]]
    return tuple(f"likely cause: {_describe_cause(finding)}" for finding in dict.fromkeys(chosen))


def _describe_cause(finding: Finding) -> str:
    """Describe a finding by its name, its sentence, and what it costs or saves."""
    cost = ""
    if finding.change_ns is not None and finding.change_ns[1] > 0:
        cost = f"; costs {_format_range(finding.change_ns, Unit.NS)} per step more than in the baseline"
    elif finding.saving_ns[1] > 0:
        cost = f"; its fix saves {_format_range(finding.saving_ns, Unit.NS)} per step"
    elif finding.saving_bytes is not None:
        cost = f"; its fix frees {_format_range(finding.saving_bytes, Unit.BYTES)}"
    name = f"{finding.cause.value} ({finding.id}, {finding.confidence.value} confidence)"
    return f"{name}: {printable(finding.sentence)}{cost}"


def _format_range(ends: tuple[int, int], unit: Unit) -> str:
    low, high = (format_number(max(0, end), unit) for end in ends)
    return low if low == high else f"{low} to {high}"


def _judge_limit(gate_input: GateInput, requires_baseline: bool) -> GateResult:
    gate = gate_input.limit.gate
    read = read_tenant_memory if gate.startswith(_TENANT_PREFIX) else GATES.get(gate)
    if read is None:
        raise BadInput(f"unknown gate {gate[:60]!r}", hint=f"known: {', '.join(GATES)}")
    return judge(
        gate_input.limit,
        read(gate_input),
        has_baseline=gate_input.baseline is not None,
        requires_baseline=requires_baseline,
    )


def _find_worst_outcome(
    results: Sequence[GateResult], current: Baseline, baseline: Baseline | None
) -> tuple[Outcome, tuple[str, ...]]:
    outcomes = {result.outcome for result in results}
    is_skipped = any(result.outcome is Outcome.SKIPPED and is_relative(result.limit) for result in results)
    notices = (
        (f"no baseline yet: relative limits were skipped; {SAVE_HINT}",)
        if baseline is None and is_skipped
        else ()
    )
    worst = next((outcome for outcome in _WORST_FIRST if outcome in outcomes), None)
    is_judged = any(result.allowed is not None for result in results)
    if worst is not None and (is_judged or baseline is None):
        return worst, notices
    is_measured = current.memory is not None or current.time is not None
    if baseline is None and results and is_measured:
        return Outcome.PASSED, notices
    reason = "nothing was judged: " + ("no gate could be evaluated" if results else "all limits are off")
    return Outcome.UNKNOWN, (*notices, f"{reason}; record both windows, or set limits (--peak-memory +2%)")
