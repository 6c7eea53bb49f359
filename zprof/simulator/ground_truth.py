"""Compute the ground truth of a simulated job: step time, gain of removing a cause, where the time went."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from zprof.simulator.faults import draw_candidate, remove
from zprof.simulator.job import CAUSES, NEEDS_BASELINE, Job, hash_key, uniform
from zprof.simulator.kineto import write_traces
from zprof.simulator.ledger import (
    CollectiveTruth,
    StepTruth,
    find_origin,
    list_collectives,
    measure_length,
    measure_steps,
    unite,
)  # fmt: skip
from zprof.simulator.run import run_job
from zprof.simulator.state import Schedule

_ATTEMPTS: Final = 12
_SMALLEST, _LARGEST = 0.02, 0.45


@dataclass(frozen=True, kw_only=True)
class RankTotals:
    """Means per step of one rank over the whole window, by set arithmetic on true times."""

    rank: int
    wall_ns: float
    compute_ns: float
    collective_ns: float
    exposed_ns: float
    wait_ns: float
    transfer_ns: float


@dataclass(frozen=True, kw_only=True)
class Truth:
    """The known facts about a written job."""

    seed: int
    shape: str
    planted: tuple[str, ...]
    step_time_ns: int
    window_time_ns: int
    saving_ns: dict[str, int | None]
    """Gain of each cause that was asked for (all planted ones always), in `step_time_ns`."""
    window_saving_ns: dict[str, int | None]
    """The same in `window_time_ns`, which contains the first step and how the window opened."""
    ranks: tuple[int, ...]
    steps: int
    totals: tuple[RankTotals, ...]
    clock_offsets_ns: tuple[int, ...]
    needs_baseline: bool
    job: dict[str, object]
    schema: str = "zprof.simulation/2"
    origin_ns: int
    """The true clock at the start of the simulation."""
    per_step: tuple[StepTruth, ...]
    collectives: tuple[CollectiveTruth, ...]


def last_step_ends(schedule: Schedule) -> list[int]:
    """Return the end of each step on its last rank."""
    return [max(ends) for ends in zip(*schedule.step_ends(), strict=True)]


def step_time_ns(schedule: Schedule) -> int:
    """Return the mean time between the ends of consecutive steps, each on its last rank.

    The first step has no previous step in the window. It is omitted, and so is the effect of opening the
    window, unless it is the only step.
    """
    ends = last_step_ends(schedule)
    if len(ends) == 1:
        return window_time_ns(schedule)
    return (ends[-1] - ends[0]) // (len(ends) - 1)


def window_time_ns(schedule: Schedule) -> int:
    """Return the mean step as the window shows it: from the first rank's start to the last end."""
    first = min(rank.step_host[0][0] for rank in schedule.ranks)
    ends = last_step_ends(schedule)
    return (ends[-1] - first) // len(ends)


def measure_gain(job: Job, cause: str, with_cause: Schedule | None = None) -> tuple[int, int] | None:
    """Return the gain of removing a cause in step time and in window time."""
    fixed = remove(job, cause)
    if fixed is None:
        return None
    if fixed == job:
        return 0, 0
    before = with_cause or run_job(job, record=False)
    after = run_job(fixed, record=False)
    return (
        step_time_ns(before) - step_time_ns(after),
        window_time_ns(before) - window_time_ns(after),
    )


def gain_ns(job: Job, cause: str) -> int | None:
    """Return the gain per step of removing a cause; None if it cannot occur in such a job.

    `measurement_artifact` is judged by the window time, because the steady step does not contain it.
    """
    gain = measure_gain(job, cause)
    return None if gain is None else gain[cause == "measurement_artifact"]


def draw_job(seed: int, fault: str | None = None, shape: str = "training") -> Job:
    """Draw a job. Planted causes are redrawn until their counterfactual gain is 2 to 45 % of the step."""
    best: tuple[float, Job] | None = None
    for attempt in range(_ATTEMPTS):
        job = draw_candidate(seed, fault, shape, attempt)
        if not job.faults:
            return job
        schedule = run_job(job, record=False)
        shares = []
        for cause in job.faults:
            gain = measure_gain(job, cause, schedule)
            by_window = cause == "measurement_artifact"
            whole = window_time_ns(schedule) if by_window else step_time_ns(schedule)
            shares.append((gain[by_window] if gain else 0) / whole)
            if by_window and shares[-1] > _LARGEST:
                shares[-1] = _LARGEST
        if min(shares) >= _SMALLEST and max(shares) <= _LARGEST:
            return job
        if best is None or min(shares) > best[0]:
            best = min(shares), job
    assert best is not None
    return best[1]


def measure_totals(schedule: Schedule) -> tuple[RankTotals, ...]:
    """Return where the time of each rank went; exposed is collective time that no compute overlaps."""
    steps = schedule.job.steps
    totals = []
    for rank in schedule.ranks:
        compute, comm = [], []
        wait = transfer = 0
        for task in rank.tasks:
            if task.cat == "kernel":
                compute.append((task.start, task.end))
            elif task.cat == "collective":
                comm.append((task.start, task.end))
                assert task.collective is not None
                wait += task.collective.arrived - task.start
                transfer += task.end - task.collective.arrived
        both = measure_length(unite(compute + comm))
        busy = measure_length(unite(compute))
        begin, end = rank.step_host[0][0], max(rank.step_host[-1][1], rank.step_events[-1].time)
        totals.append(
            RankTotals(
                rank=rank.index,
                wall_ns=(end - begin) / steps,
                compute_ns=busy / steps,
                collective_ns=measure_length(unite(comm)) / steps,
                exposed_ns=(both - busy) / steps,
                wait_ns=wait / steps,
                transfer_ns=transfer / steps,
            )
        )
    return tuple(totals)


def choose_ranks(job: Job) -> tuple[int, ...]:
    """Return the ranks whose files are written: all, except for the shape "partial"."""
    if job.shape != "partial":
        return tuple(range(job.world))
    kept = tuple(r for r in range(job.world) if uniform(job.key, "kept", r) < 0.5)
    if not kept or len(kept) == job.world:
        kept = (hash_key(job.key, "only rank") % job.world,)
    return kept


#: Writes the files of some ranks to a folder: Kineto traces, or another format.
FileWriter = Callable[[Schedule, Path, Iterable[int]], object]


def write_job(
    job: Job,
    folder: str | Path,
    causes: Iterable[str] = (),
    *,
    with_baseline: bool = True,
    write: FileWriter = write_traces,
) -> Truth:
    """Write traces and truth.json; for causes that one run cannot show, also the earlier run ("baseline").

    `causes` are further causes whose gains to compute.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    schedule = run_job(job)
    ranks = choose_ranks(job)
    write(schedule, folder, ranks)
    before = job
    for cause in job.faults:
        if cause in NEEDS_BASELINE:
            before = remove(before, cause) or before
    if with_baseline and before != job:
        write(run_job(replace(before, faults=())), folder / "baseline", ranks)
    gains = {c: measure_gain(job, c, schedule) for c in CAUSES if c in job.faults or c in set(causes)}
    truth = Truth(
        seed=job.seed, shape=job.shape, planted=job.faults, step_time_ns=step_time_ns(schedule),
        window_time_ns=window_time_ns(schedule),
        saving_ns={c: g[0] if g else None for c, g in gains.items()},
        window_saving_ns={c: g[1] if g else None for c, g in gains.items()},
        ranks=ranks, steps=job.steps, totals=measure_totals(schedule),
        clock_offsets_ns=tuple(s.clock_offset_ns for s in job.starts),
        needs_baseline=before != job, job=job.describe(), origin_ns=find_origin(schedule),
        per_step=tuple(step for rank in schedule.ranks for step in measure_steps(schedule, rank)),
        collectives=list_collectives(schedule),
    )  # fmt: skip
    (folder / "truth.json").write_bytes(msgspec.json.format(msgspec.json.encode(truth), indent=1))
    return truth
