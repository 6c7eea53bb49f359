"""Simulated jobs for tests: varied jobs by seed, simulated, imported and analysed as a user's would be."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from msgspec import Struct

from zprof.analysis.time.analyse import TimeAnalysis, analyse_time
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.model.time import WindowPolicy
from zprof.run.reader import Run, load
from zprof.simulator.ground_truth import Truth, choose_ranks, write_job
from zprof.simulator.job import VENDORS, Job, Pace, Start
from zprof.simulator.kineto import write_traces
from zprof.simulator.regular import make_job
from zprof.simulator.run import run_job
from zprof.simulator.state import Schedule

MS = 1_000_000
#: Written times have a resolution of a nanosecond; clocks with a drift round once more.
_STAMP_NS = 5


def with_pace(job: Job, pace: Pace, *ranks: int) -> Job:
    """The job with some ranks at another pace than the others."""
    return replace(job, ranks=tuple(pace if rank in ranks else each for rank, each in enumerate(job.ranks)))


def with_clocks(job: Job, offsets_ns: dict[int, int], drift: float = 0.0) -> Job:
    """The job on hosts of one rank each, whose clocks differ."""
    starts = tuple(
        replace(
            start, clock_offset_ns=offsets_ns.get(rank, 0), clock_drift=drift if rank in offsets_ns else 0.0
        )
        for rank, start in enumerate(job.starts)
    )
    return replace(job, starts=starts, cluster=replace(job.cluster, ranks_per_node=1))


def make_three_hosts(drift: float = 0.0) -> Job:
    """Three ranks on hosts and clocks of their own; rank 2 computes slower."""
    job = make_job(seed=3, ranks=3, steps=2, units=3, unit_params=1 << 20, prefetch="off")
    return with_clocks(with_pace(job, Pace(gpu=1.25), 2), {1: 3_000_000_000}, drift)


class Simulated(Struct, frozen=True, kw_only=True):
    """What was simulated, what is true of it, and what zprof makes of its traces."""

    job: Job
    truth: Truth
    run: Run
    analysis: TimeAnalysis


def simulated(job: Job, folder: Path, policy: WindowPolicy = WindowPolicy.STEP) -> Simulated:
    """Simulate, import the traces in this process, analyse."""
    truth = write_job(job, folder / "traces")
    return analysed_traces(job, truth, folder, policy)


def analysed_traces(
    job: Job, truth: Truth, folder: Path, policy: WindowPolicy = WindowPolicy.STEP
) -> Simulated:
    """Import the traces of a job in this process, analyse."""
    import_paths([folder / "traces"], folder / "run.zprof")
    run = load(folder / "run.zprof")
    return Simulated(job=job, truth=truth, run=run, analysis=analyse_time(run, policy))


def simulate_traces(job: Job, folder: Path) -> Schedule:
    """Write only the traces: the truth about a job takes as long again."""
    schedule = run_job(job)
    write_traces(schedule, folder, choose_ranks(job))
    return schedule


def varied_job(seed: int) -> Job:
    """A job of its own for each seed: 2 to 16 ranks, all vendors and stages, hosts whose clocks differ."""
    chance = random.Random(seed)
    ranks = chance.choice([2, 2, 3, 4, 4, 5, 6, 8, 12, 16])
    per_host = chance.choice([1, 1, 2, 4])
    host_ns = [chance.randint(-5 * MS, 5 * MS) for _ in range(ranks)]
    micro_batches = chance.choice([1, 1, 2])
    job = make_job(
        seed=seed,
        ranks=ranks,
        steps=2,
        vendor=VENDORS[seed % 3],
        stage=seed // 3 % 4,
        units=chance.choice([2, 3, 5]),
        unit_params=chance.choice([1 << 18, 1 << 20, 1 << 22]),
        prefetch=chance.choice(["off", "on", "on"]),
        micro_batches=micro_batches,
        regather_every_micro_batch=micro_batches > 1,
        reduce_bucket=chance.choice([1, 2, 5]),
        clip=chance.random() < 0.8,
        alpha_ns=chance.choice([5_000, 20_000, 60_000]),
        bus=chance.choice([5.0, 25.0, 100.0]),
        starts=tuple(Start(clock_offset_ns=host_ns[rank // per_host]) for rank in range(ranks)),
    )
    job = replace(job, cluster=replace(job.cluster, ranks_per_node=per_host))
    slow = Pace(gpu=chance.choice([1.25, 1.05]))
    return with_pace(job, slow, chance.randrange(ranks)) if chance.random() < 0.5 else job


def offset_errors(job: Simulated) -> dict[int, int]:
    """By aligned rank, how far its offset against the first rank is from the true one."""
    alignment = job.analysis.time.alignment
    assert alignment is not None
    true = job.truth.clock_offsets_ns
    first = min(alignment.offsets_ns)
    return {rank: found - (true[rank] - true[first]) for rank, found in alignment.offsets_ns.items()}


def beside_truth(job: Simulated) -> pd.DataFrame:
    """The analysed collectives, each beside its truth (columns ``true_*``; NaN where there is none).

    They are joined by the start that the rank's own clock stamped, which neither side changes.
    """
    alignment = job.analysis.time.alignment
    assert alignment is not None
    found = job.analysis.collectives.to_frame()
    found["stamp"] = found["start_ns"] + found["rank"].map(alignment.offsets_ns)
    return pd.merge_asof(
        found.sort_values("stamp"),
        _truth_rows(job).sort_values("stamp"),
        on="stamp",
        by="rank",
        direction="nearest",
        tolerance=_STAMP_NS,
    )


def true_steps(job: Simulated) -> pd.DataFrame:
    """The true ledger, a row a rank and step."""
    names = (
        "rank", "wall_ns", "compute_ns", "exposed_wait_ns", "exposed_transfer_ns", "exposed_memcpy_ns",
        "collective_ns", "overlapped_ns",
    )  # fmt: skip
    first = job.job.dialect.first_step
    return pd.DataFrame(
        [
            {"step": first + step.step, **{name: getattr(step, name) for name in names}}
            for step in job.truth.per_step
        ]
    )


def _truth_rows(job: Simulated) -> pd.DataFrame:
    rows = pd.DataFrame(
        [
            {
                "rank": entry.rank,
                "stamp": entry.start_ns + job.truth.clock_offsets_ns[entry.rank],
                "true_key": f"{entry.ranks}:{entry.number}:{entry.kind}",
                "true_kind": entry.kind,
                "true_bytes": entry.bytes,
                "true_wait_ns": entry.wait_ns,
                "true_transfer_ns": entry.transfer_ns,
                "true_late_rank": entry.late_rank,
            }
            for entry in job.truth.collectives
        ]
    )
    return rows.astype({"stamp": np.int64})
