"""The analysis of one run: what the rules read.

Tables of single collectives and steps stand beside the summed leaves that the report shows.
"""

from dataclasses import dataclass

import pandas as pd

from zprof.model.gaps import Gap
from zprof.model.report import Memory, RunFacts, Time, Volume
from zprof.model.training import TrainingFacts
from zprof.run.reader import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAnalysis:
    """Everything that is known of one run.

    ``steps`` has one row per (rank, step) with the terms of the ledger in nanoseconds.
    ``collectives`` has one row per collective and rank, on the common clock.
    """

    run: RunFacts
    training: TrainingFacts
    time: Time
    memory: Memory
    volume: Volume | None
    steps: pd.DataFrame
    collectives: pd.DataFrame
    gaps: tuple[Gap, ...]


def analyse(run: Run) -> RunAnalysis:
    """Measure memory and time of a run."""
    raise NotImplementedError(f"the analysis of {run.path} is not there yet")
