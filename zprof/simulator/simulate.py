"""Simulate a plan: run every step of every rank, and write a trace per rank and the ground truth."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from zprof.simulator.engine.cpu import CpuMachine
from zprof.simulator.engine.device import DeviceMachine
from zprof.simulator.engine.schedule import ORIGIN_NS, SimulatedRun
from zprof.simulator.plan import SimulationPlan, Vendor
from zprof.simulator.program.instructions import Mesh
from zprof.simulator.program.step import make_step_instructions
from zprof.simulator.truth.build import build_truth
from zprof.simulator.truth.model import GroundTruth, RankTruth, write_truth
from zprof.simulator.writing.events import LocalTimes
from zprof.simulator.writing.trace import WrittenTrace, write_trace


def simulate(plan: SimulationPlan, folder: Path, on_rank: Callable[[int], None] | None = None) -> GroundTruth:
    """Write ``folder/rank{N}.json.gz`` for each rank, and ``folder/truth.json``.

    Args:
        plan: The plan to simulate.  The same plan gives the same files, byte for byte.
        folder: Output folder, created if needed.
        on_rank: Called after each rank with the number of finished ranks.

    Returns:
        The content of truth.json.
    """
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    before = set(folder.iterdir())
    try:
        schedule = run_plan(plan)
        times = LocalTimes(schedule)
        ranks: list[RankTruth] = []
        missing_collectives: dict[int, frozenset[int]] = {}
        for rank in range(plan.ranks):
            written = None if rank in plan.missing else write_trace(schedule, times, rank, folder)
            ranks.append(_make_rank_truth(plan, times, rank, written))
            missing_collectives[rank] = (
                written.missing_collectives
                if written
                else frozenset(
                    range(sum(timing.line.groups is not None for timing in times.get_timings(rank)))
                )
            )
            if on_rank is not None:
                on_rank(rank + 1)
        truth = build_truth(schedule, ranks, missing_collectives)
        write_truth(truth, folder)
        return truth
    except BaseException:  # without its truth.json a simulation cannot be replaced
        with suppress(OSError):
            for path in set(folder.iterdir()) - before:
                path.unlink(missing_ok=True)
            if is_new:
                folder.rmdir()
        raise


def _make_rank_truth(
    plan: SimulationPlan, times: LocalTimes, rank: int, written: WrittenTrace | None
) -> RankTruth:
    window = times.get_common_window(rank)
    return RankTruth(
        rank=rank,
        offset_ns=plan.offsets_ns.get(rank, 0),
        drift_ppb=plan.drift_ppb.get(rank, 0),
        host=rank // max(1, plan.ranks_per_host),
        file=written.file if written else None,
        events=written.events if written else 0,
        dropped=written.dropped if written else 0,
        opens_ns=ORIGIN_NS + window.start_ns,
        closes_ns=ORIGIN_NS + window.end_ns,
    )


def run_plan(plan: SimulationPlan) -> SimulatedRun:
    """Simulate every step of every rank."""
    mesh = Mesh(plan)
    machine = CpuMachine(plan, mesh) if plan.vendor is Vendor.GLOO else DeviceMachine(plan, mesh)
    for step in range(plan.steps):
        machine.state.start_step(step)
        for instruction in make_step_instructions(plan, step):
            machine.execute(instruction)
    machine.finish()
    ends = [line.end for line in machine.state.lines]
    return SimulatedRun(
        plan=plan,
        mesh=mesh,
        lines=machine.state.lines,
        end_ns=np.maximum(machine.state.host[0], np.max(ends, axis=0)),
    )
