"""Rows of an analysis that several rules select, and means over its (rank, step) pairs."""

import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.collectives import CollectiveKind

#: What names one collective across the ranks.  Where ranks lack rows their sequences count other things.
INSTANCE = "instance"


def steady(analysis: RunAnalysis) -> pd.DataFrame:
    """Collectives without the first of the window, which carries the profilers' start-up skew."""
    rows = analysis.collectives
    return rows[~rows["first_of_window"].astype(bool)]


def of_kind(rows: pd.DataFrame, kind: CollectiveKind) -> pd.DataFrame:
    """Rows of one kind of collective."""
    return rows[rows["kind"].astype(str) == kind.value]


def queued_ns(rows: pd.DataFrame) -> "pd.Series[int]":
    """How long the host was blocked for a collective that had not started: queued behind others.

    0 where the recording has no wait span.
    """
    blocked = rows[["start_ns", "wait_end_ns"]].min(axis=1) - rows["wait_start_ns"]
    return blocked.clip(lower=0).fillna(0).astype("int64")


def mean_per_step(analysis: RunAnalysis, total_ns: float) -> float:
    """A sum over all ranks and steps as the mean of one rank's step."""
    return float(total_ns) / max(1, len(analysis.steps))


def wall_ns(analysis: RunAnalysis) -> float:
    """Mean wall time of a step over ranks and steps."""
    return float(analysis.steps["wall_ns"].mean()) if len(analysis.steps) else 0.0


def noise_floor_ns(analysis: RunAnalysis) -> int:
    """Below which size a duration of this run means nothing: the noisiest rank's."""
    return max((rank.noise_floor_ns for rank in analysis.time.per_rank), default=0)


def clock_uncertainty_ns(analysis: RunAnalysis) -> int:
    """How far apart the aligned clocks of two ranks may be."""
    alignment = analysis.time.alignment
    return alignment.uncertainty_ns if alignment else 0


def has_no_collectives(analysis: RunAnalysis) -> bool:
    """Whether several ranks ran and none of their collectives was recorded."""
    return analysis.run.world_size > 1 and analysis.collectives.empty


def can_replay(analysis: RunAnalysis) -> bool:
    """Return whether the measured step can be replayed: then what a rule proposes is decided there."""
    return analysis.source is not None and analysis.run.device != "cpu"
