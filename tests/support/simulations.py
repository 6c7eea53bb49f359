"""Simulated jobs for tests: varied plans by seed, simulated, imported and analysed as a user's would be."""

import random
from pathlib import Path

import numpy as np
import pandas as pd
from msgspec import Struct

from zprof.analysis.time.analyse import TimeAnalysis, analyse_time
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.model.time import WindowPolicy
from zprof.run.reader import Run, load
from zprof.simulator.plan import Network, SimulationPlan, Vendor
from zprof.simulator.simulate import simulate
from zprof.simulator.truth.model import GroundTruth

MS = 1_000_000
#: Three ranks on hosts and clocks of their own; rank 2 computes slower.
THREE_HOSTS = SimulationPlan(
    seed=3,
    ranks=3,
    steps=2,
    units=3,
    unit_elements=1 << 20,
    prefetch=0,
    speed={2: 0.8},
    offsets_ns={1: 3_000_000_000},
    ranks_per_host=1,
)
#: Written times have a resolution of a nanosecond; clocks with a drift round once more.
_STAMP_NS = 5


class Simulated(Struct, frozen=True, kw_only=True):
    """What was planned, what is true of it, and what zprof makes of its traces."""

    plan: SimulationPlan
    truth: GroundTruth
    run: Run
    analysis: TimeAnalysis


def simulated(plan: SimulationPlan, folder: Path, policy: WindowPolicy = WindowPolicy.STEP) -> Simulated:
    """Simulate, import the traces in this process, analyse."""
    truth = simulate(plan, folder / "traces")
    import_paths([folder / "traces"], folder / "run.zprof")
    run = load(folder / "run.zprof")
    return Simulated(plan=plan, truth=truth, run=run, analysis=analyse_time(run, policy))


def varied_plan(seed: int) -> SimulationPlan:
    """A plan of its own for each seed: 2 to 16 ranks, all vendors and stages, hosts whose clocks differ."""
    chance = random.Random(seed)
    ranks = chance.choice([2, 2, 3, 4, 4, 5, 6, 8, 12, 16])
    per_host = chance.choice([1, 1, 2, 4])
    host_ns = [chance.randint(-5 * MS, 5 * MS) for _ in range(ranks)]
    short = chance.random() < 0.8
    return SimulationPlan(
        seed=seed,
        ranks=ranks,
        steps=2,
        vendor=list(Vendor)[seed % 3],
        stage=seed // 3 % 4,
        units=chance.choice([2, 3, 5]),
        unit_elements=chance.choice([1 << 18, 1 << 20, 1 << 22]),
        prefetch=chance.choice([0, 1, 2]),
        micro_batches=chance.choice([1, 1, 2]),
        bucket_bytes=chance.choice([2 << 20, 8 << 20, 40 << 20]),
        loss_all_reduce=short,
        norm_all_reduce=short,
        network=Network(
            alpha_ns=chance.choice([5_000, 20_000, 60_000]),
            beta_bytes_per_s=chance.choice([5e9, 25e9, 100e9]),
            spread_ns=chance.choice([200, 800]),
        ),
        speed={chance.randrange(ranks): chance.choice([0.8, 0.95])} if chance.random() < 0.5 else {},
        offsets_ns={rank: host_ns[rank // per_host] for rank in range(ranks)},
        ranks_per_host=per_host,
    )


def offset_errors(job: Simulated) -> dict[int, int]:
    """By aligned rank, how far its offset against the first rank is from the true one."""
    alignment = job.analysis.time.alignment
    assert alignment is not None
    true = {rank.rank: rank.offset_ns for rank in job.truth.per_rank}
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
    return pd.DataFrame(
        [
            {
                "rank": step.rank,
                "step": step.number,
                "wall_ns": step.wall_ns,
                "compute_ns": step.compute_ns,
                "exposed_wait_ns": step.exposed_wait_ns,
                "exposed_transfer_ns": step.exposed_transfer_ns,
                "exposed_memcpy_ns": step.exposed_memcpy_ns,
                "collective_ns": step.collective_ns,
                "overlapped_ns": step.overlapped_ns,
            }
            for step in job.truth.per_step
        ]
    )


def _truth_rows(job: Simulated) -> pd.DataFrame:
    clocks = {rank.rank: rank.offset_ns for rank in job.truth.per_rank}
    rows = pd.DataFrame(
        [
            {
                "rank": entry.rank,
                "stamp": entry.start_ns + clocks[entry.rank],
                "true_key": f"{entry.ranks}:{entry.sequence}:{entry.kind}",
                "true_kind": str(entry.kind),
                "true_bytes": entry.bytes,
                "true_wait_ns": entry.wait_ns,
                "true_transfer_ns": entry.transfer_ns,
                "true_late_rank": entry.late_rank,
                "true_reason": str(entry.reason),
            }
            for entry in job.truth.collectives
            if entry.recorded
        ]
    )
    return rows.astype({"stamp": np.int64})
