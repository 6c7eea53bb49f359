"""Write a job of several dimensions with the truth about it: savings, exposed times by role, bubbles."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from zprof.simulator.ground_truth import (
    FileWriter,
    Truth,
    choose_ranks,
    measure_totals,
    step_time_ns,
    window_time_ns,
)
from zprof.simulator.job import Job
from zprof.simulator.kineto import write_traces
from zprof.simulator.ledger import find_origin, list_collectives, measure_steps
from zprof.simulator.mesh.faults import find_culprits, get_parallel, remove_mesh_cause
from zprof.simulator.mesh.layout import ROLES, Parallelism, list_groups
from zprof.simulator.mesh.ledger import BubbleTruth, RoleTruth, list_bubbles, list_roles
from zprof.simulator.run import run_job
from zprof.simulator.state import Schedule


@dataclass(frozen=True, kw_only=True)
class MeshTruth(Truth):
    """The known facts about a written job of several dimensions."""

    parallel: Parallelism
    groups: dict[str, tuple[tuple[int, ...], ...]]
    """By role, the ranks of each group that has more than one."""
    roles: tuple[RoleTruth, ...]
    bubbles: tuple[BubbleTruth, ...]
    fixed_step_time_ns: dict[str, int]
    """By planted cause, the step of the same job without it."""
    culprits: dict[str, tuple[int, ...]]
    """By planted cause, the ranks that are slow or have the most work; none for links and micro-batches."""


def measure_mesh_gain(job: Job, cause: str, with_cause: Schedule | None = None) -> tuple[int, int] | None:
    """Return the gain of removing a cause in step time and in window time; None if it cannot occur."""
    fixed = remove_mesh_cause(job, cause)
    if fixed is None:
        return None
    if fixed == job:
        return 0, 0
    before = with_cause or run_job(job, record=False)
    after = run_job(fixed, record=False)
    return step_time_ns(before) - step_time_ns(after), window_time_ns(before) - window_time_ns(after)


def describe_truth(job: Job, schedule: Schedule, causes: Iterable[str] = ()) -> MeshTruth:
    """Return the truth about a simulated job; `causes` are further causes whose gains to compute."""
    parallel = get_parallel(job)
    gains = {
        cause: measure_mesh_gain(job, cause, schedule) for cause in dict.fromkeys((*job.faults, *causes))
    }
    groups = {role: list_groups(parallel.degrees, comm) for comm, role in enumerate(ROLES)}
    step_ns = step_time_ns(schedule)
    return MeshTruth(
        seed=job.seed, shape=job.shape, planted=job.faults, step_time_ns=step_ns,
        window_time_ns=window_time_ns(schedule),
        saving_ns={cause: gain[0] if gain else None for cause, gain in gains.items()},
        window_saving_ns={cause: gain[1] if gain else None for cause, gain in gains.items()},
        ranks=choose_ranks(job), steps=job.steps, totals=measure_totals(schedule),
        clock_offsets_ns=tuple(start.clock_offset_ns for start in job.starts),
        needs_baseline=False, job=job.describe(), origin_ns=find_origin(schedule),
        per_step=tuple(step for rank in schedule.ranks for step in measure_steps(schedule, rank)),
        collectives=list_collectives(schedule),
        parallel=parallel,
        groups={role: rows for role, rows in groups.items() if len(rows[0]) > 1},
        roles=list_roles(schedule),
        bubbles=list_bubbles(schedule),
        fixed_step_time_ns={c: step_ns - gain[0] for c in job.faults if (gain := gains[c])},
        culprits={cause: find_culprits(job, cause) for cause in job.faults},
    )  # fmt: skip


def write_mesh_job(
    job: Job, folder: str | Path, causes: Iterable[str] = (), *, write: FileWriter = write_traces
) -> MeshTruth:
    """Write traces and truth.json."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    schedule = run_job(job)
    write(schedule, folder, choose_ranks(job))
    truth = describe_truth(job, schedule, causes)
    (folder / "truth.json").write_bytes(msgspec.json.format(msgspec.json.encode(truth), indent=1))
    return truth
