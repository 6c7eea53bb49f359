"""Pairs of simulated jobs for tests of what-if: one is recorded and changed, the other is the truth."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from zprof.analysis.analysis import RunAnalysis, analyse
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.model.plan import Change, PredictedFigure, Prediction
from zprof.run.reader import load
from zprof.simulator.ground_truth import write_job
from zprof.simulator.job import Job
from zprof.simulator.ledger import measure_steps
from zprof.simulator.run import run_job

#: Steps of a job that count: what a step leaves to the next is there from the second one on.
_STEADY = 2


def analysed(job: Job) -> RunAnalysis:
    """Simulate, import the traces, analyse: as a user's."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_job(job, folder / "traces")
        import_paths([folder / "traces"], folder / "run.zprof")
        return analyse(load(folder / "run.zprof"))


def true_step_ns(job: Job) -> float:
    """The mean of the job's last steps over its ranks; nothing is written for it."""
    schedule = run_job(job)
    steps = [step for rank in schedule.ranks for step in measure_steps(schedule, rank)]
    walls = [step.wall_ns for step in steps if step.step >= job.steps - _STEADY]
    return sum(walls) / len(walls)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A change as the model is asked for it, and the job in which it is made."""

    change: Change
    job: Job


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
