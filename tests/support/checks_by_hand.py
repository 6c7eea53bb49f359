"""Checks for the tests of their faces, made by hand: nothing is judged here."""

from zprof.model.check import Check, GateResult, Limit, Outcome, Sense

MIB, MS = 1 << 20, 1_000_000
BASELINE = "ci/baseline.json"


def limit(gate: str, unit: str, said: str, **more: object) -> Limit:
    """A limit as pyproject.toml says it."""
    return Limit(gate=gate, unit=unit, said=said, **{"origin": "pyproject.toml", **more})  # type: ignore[arg-type]


FAILED = GateResult(
    limit=limit("peak_memory", "bytes", "+2%", change_ratio=0.02),
    outcome=Outcome.FAILED,
    subject="rank 1",
    value=21.4 * MIB,
    baseline=20.5 * MIB,
    allowed=20.9 * MIB,
    leaf="memory.per_rank[1].peak_bytes",
    grew="activations grew most, +0.8 MiB",
    sentence="peak_memory: 21.4 MiB on rank 1 is 4.4 % above the baseline's 20.5 MiB, allowed +2 % "
    "(20.9 MiB); activations grew most, +0.8 MiB",
)
TENANT = GateResult(
    limit=limit("peak_memory.communication_buffers", "bytes", "4 MiB", value=4 * MIB),
    outcome=Outcome.FAILED,
    subject="communication_buffers",
    value=4 * MIB + 512,
    baseline=4 * MIB,
    allowed=4 * MIB,
    leaf="memory.per_rank[0].tenants.communication_buffers",
    grew="gathered_param +512 B",
    sentence="peak_memory.communication_buffers: 512 B above 4.0 MiB on rank 0",
)
WARNED = GateResult(
    limit=limit("exposed_wait", "ns", "+10%", change_ratio=0.1, warns=True, origin="default"),
    outcome=Outcome.WARNED,
    subject="rank 0",
    value=8.9 * MS,
    baseline=3.3 * MS,
    allowed=3.63 * MS,
    leaf="time.per_rank[*].exposed_wait_ns",
    sentence="exposed_wait: 8.9 ms a step, 3.3 ms in the baseline; the late rank is not stable: it warns",
)
TIMED = GateResult(
    limit=limit("step_time", "ns", "+3%", change_ratio=0.03, confidence=0.95),
    outcome=Outcome.PASSED,
    value=391.2 * MS,
    baseline=386.6 * MS,
    allowed=398.2 * MS,
    interval=(-3.1 * MS, 12.4 * MS),
    leaf="time.per_rank[*].wall_ns",
    sentence="step_time: 391.2 ms, 1.2 % above the baseline's 386.6 ms, allowed +3 %",
)
UNKNOWN = GateResult(
    limit=limit("overlap_ratio", "ratio", ">=0.7", sense=Sense.AT_LEAST, value=0.7),
    outcome=Outcome.UNKNOWN,
    baseline=0.82,
    allowed=0.7,
    leaf="time.per_rank[*].overlap_ratio",
    sentence="overlap_ratio: no step was timed, so it is not known",
    remedy="record time steps: zprof record --skip 2 --time 8",
)
SKIPPED = GateResult(
    limit=limit("collective_bytes", "bytes", "exact", change_ratio=0.0, origin="default"),
    outcome=Outcome.SKIPPED,
    value=19 * MIB,
    leaf="time.collectives[*].bytes",
    sentence="collective_bytes: there is no baseline to hold it against",
    remedy="zprof baseline save RUN -o ci/baseline.json",
)
EXACT = GateResult(
    limit=limit("collective_count", "count", "exact", change_ratio=0.0, origin="default"),
    outcome=Outcome.PASSED,
    value=27,
    baseline=27,
    allowed=27,
    leaf="time.collectives[*].count",
    sentence="collective_count: 27 a step, as in the baseline",
)
LAW = GateResult(
    limit=limit("collective_bytes_law", "psi", "3Ψ", value=3.0, origin="--collective-bytes-law"),
    outcome=Outcome.PASSED,
    value=3.0,
    allowed=3.0,
    leaf="volume.ratio",
    sentence="collective_bytes_law: 3 Ψ a step, allowed 3 Ψ",
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
        LAW,
        SKIPPED,
        outcome=Outcome.FAILED,
        notices=("the baseline was recorded with zprof 0.0.0-dev",),
    ),
    "unknown": check(EXACT, UNKNOWN, outcome=Outcome.UNKNOWN),
    "warned": check(EXACT, WARNED, outcome=Outcome.WARNED),
    "passed": check(EXACT, TIMED, LAW, outcome=Outcome.PASSED),
    "first": check(
        SKIPPED,
        outcome=Outcome.PASSED,
        baseline=None,
        notices=("no baseline: nothing was held against one; zprof baseline save RUN -o FILE makes it",),
    ),
    "nothing": check(outcome=Outcome.PASSED),
}
