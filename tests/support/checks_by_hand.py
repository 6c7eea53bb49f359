"""Checks for the tests of their faces, made by hand, in the words of the gates: nothing is judged here."""

from dataclasses import replace

from zprof.model.check import Check, GateResult, Limit, Outcome, Sense
from zprof.model.quantities import Unit

MIB, MS = 1 << 20, 1_000_000
BASELINE = "ci/baseline.json"


def limit(gate: str, unit: str, said: str, **more: object) -> Limit:
    """A limit as pyproject.toml says it."""
    return Limit(gate=gate, unit=Unit(unit), said=said, **{"origin": "pyproject.toml", **more})  # type: ignore[arg-type]


FAILED = GateResult(
    limit=limit("peak_memory", "bytes", "+2%", change_ratio=0.02),
    outcome=Outcome.FAILED,
    subject="rank 1",
    value=21.4 * MIB,
    baseline=20.5 * MIB,
    allowed=20.9 * MIB,
    leaf="memory.per_rank[1].peak_bytes",
    grew="activations grew most, +819.2 KiB",
    sentence="peak_memory: 21.4 MiB on rank 1 is 4.4 % above the baseline's 20.5 MiB, allowed +2% "
    "(20.9 MiB); activations grew most, +819.2 KiB",
)
TENANT = GateResult(
    limit=limit("peak_memory.communication_buffers", "bytes", "4 MiB", value=4 * MIB),
    outcome=Outcome.FAILED,
    subject="communication_buffers on rank 0",
    value=4 * MIB + 512,
    baseline=4 * MIB,
    allowed=4 * MIB,
    leaf="memory.per_rank[0].tenants.communication_buffers",
    grew="most of it is gathered_param, 3.0 MiB",
    sentence="peak_memory.communication_buffers: 4.0 MiB on rank 0 is 512 B above the baseline's 4.0 MiB, "
    "allowed at most 4.0 MiB, 512 B beyond it; most of it is gathered_param, 3.0 MiB",
)
WARNED = GateResult(
    limit=limit("exposed_wait", "ns", "+10%", change_ratio=0.1, origin="default"),
    outcome=Outcome.WARNED,
    value=8.9 * MS,
    baseline=3.3 * MS,
    allowed=3.63 * MS,
    leaf="time.steps",
    sentence="exposed_wait: 8.9 ms a step is 169.7 % above the baseline's 3.3 ms, allowed +10% (3.6 ms); "
    "no rank is late in nearly all steps, so that it only warns",
)
TIMED = GateResult(
    limit=limit("step_time", "ns", "+3% @0.95", change_ratio=0.03, confidence=0.95),
    outcome=Outcome.PASSED,
    value=391.2 * MS,
    baseline=386.6 * MS,
    allowed=398.2 * MS,
    interval=(-3.1 * MS, 12.4 * MS),
    leaf="time.steps",
    sentence="step_time: 391.2 ms a step is 1.2 % above the baseline's 386.6 ms, allowed +3% @0.95 "
    "(398.2 ms), 95 % interval of the change -3.1 ms to +12.4 ms",
)
NOISY = GateResult(
    limit=limit("step_time", "ns", "+3% @0.95", change_ratio=0.03, confidence=0.95),
    outcome=Outcome.WITHIN_NOISE,
    value=412.0 * MS,
    baseline=386.6 * MS,
    allowed=398.2 * MS,
    interval=(-9.8 * MS, 60.6 * MS),
    leaf="time.steps",
    noise=35.2 * MS,
    sentence="step_time: 412.0 ms a step is 6.6 % above the baseline's 386.6 ms, allowed +3% @0.95 "
    "(398.2 ms), 95 % interval of the change -9.8 ms to +60.6 ms; beyond the limit, by no more than the "
    "steps vary; the noise of ±35.2 ms is wider than the limit: a change of less than both together cannot "
    "fail",
    remedy="record more steps, on a quieter machine, or state a limit that is wider than the noise",
)
LOOSE = GateResult(
    limit=limit("exposed_ratio", "ratio", "+3pt @0.95", change_points=0.03, confidence=0.95),
    outcome=Outcome.PASSED,
    value=0.31,
    baseline=0.30,
    allowed=0.33,
    interval=(-0.05, 0.07),
    leaf="time.steps",
    noise=0.06,
    sentence="exposed_ratio: 31.0 % of a step is 1.0 points above the baseline's 30.0 %, allowed +3pt @0.95 "
    "(33.0 %), 95 % interval of the change -5.0 points to +7.0 points; the noise of ±6.0 points is wider "
    "than the limit: a change of less than both together cannot fail",
    remedy="record more steps, on a quieter machine, or state a limit that is wider than the noise",
)
UNKNOWN = GateResult(
    limit=limit("overlap_ratio", "ratio", ">=0.7", sense=Sense.AT_LEAST, value=0.7),
    outcome=Outcome.UNKNOWN,
    baseline=0.82,
    leaf="time.steps",
    sentence="overlap_ratio: unknown: no step was timed",
    remedy="record the time window on all ranks (--time-steps 8)",
)
SKIPPED = GateResult(
    limit=limit("collective_bytes", "bytes", "exact", change_ratio=0.0, origin="default"),
    outcome=Outcome.SKIPPED,
    value=19 * MIB,
    leaf="time.collectives",
    sentence="collective_bytes: 19.0 MiB a step, not judged: there is no baseline yet",
    remedy="save one: zprof baseline save RUN",
)
LACKED = replace(
    SKIPPED,
    sentence="collective_bytes: 19.0 MiB a step, not judged: the baseline does not have it",
    remedy="save the baseline again from a whole run: zprof baseline update",
)
EXACT = GateResult(
    limit=limit("collective_count", "count", "exact", change_ratio=0.0, origin="default"),
    outcome=Outcome.PASSED,
    value=27,
    baseline=27,
    allowed=27,
    subject="all_gather of float32 over 2 ranks",
    leaf="time.collectives",
    sentence="collective_count: 27 a step is that of the baseline, allowed exact (27)",
)
IN_PSI = GateResult(
    limit=limit("collective_bytes_law", "psi", "3Ψ", value=3.0, origin="--collective-bytes-law"),
    outcome=Outcome.PASSED,
    value=3.0,
    allowed=3.0,
    leaf="volume.seen_bytes",
    grew="the ZeRO formula of the stage expects 3Ψ",
    sentence="collective_bytes_law: 3Ψ (12.0 MiB) a step, allowed at most 3Ψ; "
    "the ZeRO formula of the stage expects 3Ψ",
)


def check(*results: GateResult, outcome: Outcome, baseline: str | None = BASELINE, **more: object) -> Check:
    """A check of the run zero3."""
    return Check(
        zprof_version="0.0.0", run="zero3", baseline=baseline, outcome=outcome, results=results, **more
    )  # type: ignore[arg-type]


CHECKS = {
    "failed": check(
        EXACT,
        TIMED,
        FAILED,
        WARNED,
        TENANT,
        UNKNOWN,
        IN_PSI,
        LACKED,
        outcome=Outcome.FAILED,
        notices=("held against a baseline of other conditions: torch 2.13.0, the baseline has 2.8.0",),
    ),
    "unknown": check(EXACT, UNKNOWN, outcome=Outcome.UNKNOWN),
    "warned": check(EXACT, WARNED, outcome=Outcome.WARNED),
    "noisy": check(EXACT, NOISY, LOOSE, outcome=Outcome.WITHIN_NOISE),
    "passed": check(EXACT, TIMED, IN_PSI, outcome=Outcome.PASSED),
    "first": check(
        SKIPPED,
        outcome=Outcome.PASSED,
        baseline=None,
        notices=("no baseline yet: limits that need one were skipped; save one: zprof baseline save RUN",),
    ),
    "nothing": check(
        outcome=Outcome.UNKNOWN,
        notices=(
            "nothing was judged: no limit is on; record both windows, or state limits (--peak-memory +2%)",
        ),
    ),
}
