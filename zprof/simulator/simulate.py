"""Simulate a plan: run every step of every rank, and write a trace per rank and the truth."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from zprof.simulator.engine.cpu import CpuMachine
from zprof.simulator.engine.device import DeviceMachine
from zprof.simulator.engine.schedule import ORIGIN_NS, Schedule
from zprof.simulator.plan import Plan, Vendor
from zprof.simulator.program.instructions import Mesh
from zprof.simulator.program.step import step_instructions
from zprof.simulator.truth.build import build_truth
from zprof.simulator.truth.model import RankTruth, Truth, write_truth
from zprof.simulator.writing.events import LocalTimes
from zprof.simulator.writing.trace import Written, write_trace


def simulate(plan: Plan, folder: Path, on_rank: Callable[[int], None] | None = None) -> Truth:
    """Write ``folder/rank{N}.json.gz`` for each rank, and ``folder/truth.json``.

    Args:
        plan: What to simulate.  The same plan gives the same files, byte by byte.
        folder: Output folder, created if needed.
        on_rank: Called after each rank with the number of ranks done.

    Returns:
        The content of truth.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    schedule = run_plan(plan)
    times = LocalTimes(schedule)
    ranks: list[RankTruth] = []
    lost: dict[int, frozenset[int]] = {}
    for rank in range(plan.ranks):
        written = None if rank in plan.missing else write_trace(schedule, times, rank, folder)
        ranks.append(_make_rank_truth(plan, times, rank, written))
        lost[rank] = written.lost if written else frozenset(range(_count_collectives(times, rank)))
        if on_rank is not None:
            on_rank(rank + 1)
    truth = build_truth(schedule, ranks, lost)
    write_truth(truth, folder)
    return truth


def _make_rank_truth(plan: Plan, times: LocalTimes, rank: int, written: Written | None) -> RankTruth:
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


def _count_collectives(times: LocalTimes, rank: int) -> int:
    return sum(moment.line.groups is not None for moment in times.moments(rank))


def run_plan(plan: Plan) -> Schedule:
    """Simulate every step of every rank."""
    mesh = Mesh(plan)
    machine = CpuMachine(plan, mesh) if plan.vendor is Vendor.GLOO else DeviceMachine(plan, mesh)
    for step in range(plan.steps):
        machine.state.begin_step(step)
        for instruction in step_instructions(plan, step):
            machine.carry_out(instruction)
    machine.finish()
    ends = [line.end for line in machine.state.lines]
    return Schedule(
        plan=plan,
        mesh=mesh,
        lines=machine.state.lines,
        end_ns=np.maximum(machine.state.host[0], np.max(ends, axis=0)),
    )
