"""Checks for the tests of their pages and CI formats: the gates judge small runs, one outcome each."""

from collections.abc import Sequence

from msgspec.structs import replace

from tests.support.check_runs import MS, Made, check_run, judged
from zprof.checks.check import check as check_limits
from zprof.checks.limit_text import parse_limit
from zprof.model.comparison import Check, GateResult, Limit, Outcome
from zprof.model.memory import MemoryPart
from zprof.model.tenants import Tenant

KIB, MIB = 1 << 10, 1 << 20
BASELINE_NAME = "ci/baseline.json"


def limit(gate: str, stated: str, origin: str = "pyproject.toml") -> Limit:
    """A limit as pyproject.toml states it."""
    parsed = parse_limit(gate, stated, origin=origin)
    assert parsed is not None
    return parsed


def tenants(activations: int, buffers: int) -> dict[Tenant, int]:
    return {
        **dict.fromkeys(Tenant, 0),
        Tenant.ACTIVATIONS: activations,
        Tenant.COMMUNICATION_BUFFERS: buffers,
    }


def varying(mean_ms: float, by_ms: float) -> Sequence[int]:
    """Eight steps, half of them shorter and half of them longer than their mean."""
    return tuple(int((mean_ms + (by_ms if step % 2 else -by_ms)) * MS) for step in range(8))


BASE = Made(
    peaks=(int(20.1 * MIB), int(20.5 * MIB)),
    tenants=tenants(12 * MIB, 4 * MIB),
    walls=varying(386.6, 5),
    wait=int(3.3 * MS),
    collective=(100 * MS,) * 8,
    exposed=(18 * MS,) * 8,
    collectives=(("all_gather", "float32", 18.0, 12 * MIB), ("reduce_scatter", "float32", 9.0, 7 * MIB)),
    seen=12 * MIB,
    parameter_bytes=4 * MIB,
    name=BASELINE_NAME,
)
RUN = replace(
    BASE,
    name="zero3",
    peaks=(int(20.1 * MIB), int(21.4 * MIB)),
    tenants=tenants(12 * MIB + 800 * KIB + 205, 4 * MIB + 512),
    parts=(MemoryPart(tenant=Tenant.COMMUNICATION_BUFFERS, sub="gathered_param", bytes=3 * MIB),),
    walls=varying(391.2, 5),
    wait=int(8.9 * MS),
)
UNTIMED = replace(RUN, walls=(), exposed=(), collective=())
SLOW = replace(RUN, walls=varying(412.0, 40))
EXPOSED = replace(RUN, walls=(100 * MS,) * 8, exposed=varying(31, 8), collective=(100 * MS,) * 8)
EXPOSED_BASE = replace(EXPOSED, name=BASELINE_NAME, exposed=varying(30, 1))

FAILED = judged(limit("peak_memory", "+2%"), RUN, BASE)
TENANT = judged(limit("peak_memory.communication_buffers", "4 MiB"), RUN, BASE)
WARNED = judged(limit("exposed_wait", "+10%", "default"), RUN, BASE)
TIMED = judged(limit("step_time", "+3% @0.95"), RUN, BASE)
NOISY = judged(limit("step_time", "+3% @0.95"), SLOW, BASE)
LOOSE = judged(limit("exposed_ratio", "+3pt @0.95"), EXPOSED, EXPOSED_BASE)
UNKNOWN = judged(limit("overlap_ratio", ">=0.7"), UNTIMED, BASE)
SKIPPED = judged(limit("collective_bytes", "exact", "default"), RUN, None)
UNMEASURED = judged(
    limit("untagged_ratio", "10%", "default"), replace(RUN, memory=False), replace(BASE, memory=False)
)
EXACT = judged(limit("collective_count", "exact", "default"), RUN, BASE)
IN_PSI = judged(limit("collective_bytes_law", "3Ψ", "--collective-bytes-law"), RUN, BASE)


def check(
    *results: GateResult, outcome: Outcome, baseline: str | None = BASELINE_NAME, **more: object
) -> Check:
    """A check of the run zero3, of results of several runs."""
    return Check(
        zprof_version="0.0.0", run="zero3", baseline=baseline, outcome=outcome, results=results, **more
    )  # type: ignore[arg-type]


OTHER_CONDITIONS = check_limits(
    RUN.report, (), BASE.baseline, environment={"torch": "2.8.0"}, any_conditions=True
)

CHECKS = {
    "failed": check(
        EXACT, TIMED, FAILED, WARNED, TENANT, UNKNOWN, IN_PSI, UNMEASURED,
        outcome=Outcome.FAILED,
        notices=OTHER_CONDITIONS.notices[:1],
    ),
    "unknown": check(EXACT, UNKNOWN, outcome=Outcome.UNKNOWN),
    "warned": check(EXACT, WARNED, outcome=Outcome.WARNED),
    "noisy": check(EXACT, NOISY, LOOSE, outcome=Outcome.WITHIN_NOISE),
    "passed": check(EXACT, TIMED, IN_PSI, outcome=Outcome.PASSED),
    "first": check_run([SKIPPED.limit], RUN, None),
    "nothing": check_run([], RUN, BASE),
}  # fmt: skip
