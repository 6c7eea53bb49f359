"""Pairs of simulated jobs for tests of what-if: one is recorded and changed, the other is the truth."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from zprof.analysis.analysis import RunAnalysis, analyse
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.model.plan import Change, PredictedFigure, Prediction
from zprof.run.reader import load
from zprof.simulator.plan import SimulationPlan
from zprof.simulator.simulate import run_plan, simulate
from zprof.simulator.truth.build import measure_steps
from zprof.simulator.truth.sweep import resolve_dependencies

#: Steps of a plan that count: what a step leaves to the next is there from the second one on.
_STEADY = 2


def analysed(plan: SimulationPlan) -> RunAnalysis:
    """Simulate, import the traces, analyse: as a user's."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        simulate(plan, folder / "traces")
        import_paths([folder / "traces"], folder / "run.zprof")
        return analyse(load(folder / "run.zprof"))


def true_step_ns(plan: SimulationPlan) -> float:
    """The mean of the plan's last steps over its ranks; nothing is written for it."""
    schedule = run_plan(plan)
    known = resolve_dependencies(schedule)
    steps = [step for rank in range(plan.ranks) for step in measure_steps(schedule, known, rank)[0]]
    last = max(step.number for step in steps)
    walls = [step.wall_ns for step in steps if step.number > last - _STEADY]
    return sum(walls) / len(walls)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A change as the model is asked for it, and the plan in which it is made."""

    change: Change
    plan: SimulationPlan


def named(rows: Sequence[PredictedFigure], name: str) -> PredictedFigure:
    """The row of that name."""
    return next(row for row in rows if row.name == name)


def wall(prediction: Prediction) -> PredictedFigure:
    """Its step."""
    return named(prediction.step, "wall_ns")


def predicted(row: PredictedFigure) -> int:
    """What is predicted, which must be known."""
    assert row.predicted is not None
    return row.predicted
