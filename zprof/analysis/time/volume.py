"""Bytes that a rank moves in a step, against the law of its stage.

As the law counts: an all-reduce moves its tensor twice, the others once; the ring's (N-1)/N is left out
on both sides.
"""

import numpy as np
import pandas as pd

from zprof.analysis.laws import volume_law
from zprof.model.collectives import CollectiveKind
from zprof.model.gaps import Gap
from zprof.model.report import Volume
from zprof.model.training import TrainingFacts


def measure_volume(
    frame: pd.DataFrame, training: TrainingFacts, rank_steps: int
) -> tuple[Volume | None, list[Gap]]:
    """The mean over ranks and steps of the window, or None and why."""
    expected = volume_law(training)
    if expected is None:
        return None, [_gap("the program did not say its stage, parameters, ranks and bytes an element")]
    if not rank_steps:
        return None, [_gap("no step of a time window was recorded")]
    if expected == 0:
        return None, []
    times = np.where(frame["kind"] == str(CollectiveKind.ALL_REDUCE), 2, 1)
    moves = (frame["group_size"] != 1).to_numpy()
    seen = int((frame["bytes"].to_numpy() * times * moves).sum()) // rank_steps
    return Volume(expected_bytes=expected, seen_bytes=seen, ratio=seen / expected), []


def _gap(reason: str) -> Gap:
    return Gap(
        what="volume",
        reason=reason,
        remedy="give zprof.record(training=TrainingFacts(…)), or use an engine that it knows",
    )
