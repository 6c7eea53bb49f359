"""Simulates a plan: a trace a rank, and the truth beside them."""

from collections.abc import Callable
from pathlib import Path

from zprof.simulator.clocks import ORIGIN_NS
from zprof.simulator.engine.run import run
from zprof.simulator.plan import Plan
from zprof.simulator.truth.build import build_truth
from zprof.simulator.truth.model import RankTruth, Truth
from zprof.simulator.truth.store import write_truth
from zprof.simulator.writing.moments import Times
from zprof.simulator.writing.trace import Written, write_trace


def simulate(plan: Plan, folder: Path, on_rank: Callable[[int], None] | None = None) -> Truth:
    """Write ``folder/rank{N}.json.gz`` for each rank, and ``folder/truth.json``.

    Args:
        plan: What to simulate.  The same plan gives the same files, byte by byte.
        folder: Where to; it is made if need be.
        on_rank: Called after each rank with the number of ranks done.

    Returns:
        What is in truth.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    schedule = run(plan)
    times = Times(schedule)
    ranks: list[RankTruth] = []
    lost: dict[int, frozenset[int]] = {}
    for rank in range(plan.ranks):
        written = None if rank in plan.missing else write_trace(schedule, times, rank, folder)
        ranks.append(_rank(plan, times, rank, written))
        lost[rank] = written.lost if written else frozenset(range(_collectives(times, rank)))
        if on_rank is not None:
            on_rank(rank + 1)
    truth = build_truth(schedule, ranks, lost)
    write_truth(truth, folder)
    return truth


def _rank(plan: Plan, times: Times, rank: int, written: Written | None) -> RankTruth:
    opening = times.common_opening(rank)
    return RankTruth(
        rank=rank,
        offset_ns=plan.offsets_ns.get(rank, 0),
        drift_ppb=plan.drift_ppb.get(rank, 0),
        host=rank // max(1, plan.ranks_per_host),
        file=written.file if written else None,
        events=written.events if written else 0,
        dropped=written.dropped if written else 0,
        opens_ns=ORIGIN_NS + opening.opens_ns,
        closes_ns=ORIGIN_NS + opening.closes_ns,
    )


def _collectives(times: Times, rank: int) -> int:
    return sum(moment.line.groups is not None for moment in times.moments(rank))
