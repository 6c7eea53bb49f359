"""The faults of the jobs: how each is planted, and what is then true."""

import random
from collections.abc import Callable

from benchmarks.hang_jobs import findings, plans
from benchmarks.hang_jobs.findings import Finding, Outcome
from benchmarks.hang_jobs.mesh import Mesh
from benchmarks.hang_jobs.plans import Plan
from benchmarks.hang_jobs.program import Program

Planner = Callable[[random.Random, Mesh, list[Program]], Plan | None]
Reader = Callable[[Outcome], Finding | None]

FAULTS: dict[str, tuple[Planner, Reader]] = {
    "host_stuck": (plans.plan_host_stuck, findings.read_host_stuck),
    "never_entered": (plans.plan_never_entered, findings.read_never_entered),
    "skipped_and_shifted": (plans.plan_never_entered, findings.read_shifted),
    "different_collectives": (plans.plan_other_operation, findings.read_disagreement),
    "mismatched": (plans.plan_mismatch, findings.read_disagreement),
    "circular_wait": (plans.plan_circular, findings.read_circular),
    "receive_cycle": (plans.plan_recv_cycle, findings.read_recv_cycle),
    "device_stopped": (plans.plan_device_stopped, findings.read_device_stopped),
    "not_finished": (plans.plan_dead_network, findings.read_dead_network),
    "rank_died": (plans.plan_dead_rank, findings.read_dead_rank),
}
#: Jobs in which nothing is wrong.
HEALTHY = ("shut_down", "running")
