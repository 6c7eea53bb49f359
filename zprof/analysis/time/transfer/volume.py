"""Bytes that a rank moves in a step, against the law of its stage.

As the law counts: an all-reduce moves its tensor twice, the others once; the ring's (N-1)/N is left out
on both sides.  The law is that of data parallelism: collectives of a tensor-parallel group are not counted.
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
        return None, [_gap(f"not known: {', '.join(_missing(training)) or 'the law of this stage'}")]
    if not rank_steps:
        return None, [_gap("no step of a time window was recorded")]
    if expected == 0:
        return None, []
    times = np.where(frame["kind"] == str(CollectiveKind.ALL_REDUCE), 2, 1)
    moves = (frame["group_size"] != 1).to_numpy() & _data_parallel(frame["group"], training)
    seen = int((frame["bytes"].to_numpy() * times * moves).sum()) // rank_steps
    return Volume(expected_bytes=expected, seen_bytes=seen, ratio=seen / expected), []


def _data_parallel(groups: pd.Series, training: TrainingFacts) -> np.ndarray:
    """Rows of groups whose ranks hold the same part of the model; without tensor parallelism all."""
    stride = training.model_parallel_ranks
    if stride == 1:
        return np.ones(len(groups), dtype=bool)
    same_part = {group: _same_part(str(group), stride) for group in groups.unique()}
    return groups.map(same_part).to_numpy(dtype=bool)


def _same_part(group: str, stride: int) -> bool:
    ranks = group.split("#", 1)[0].split(",")
    return all(rank.isdecimal() for rank in ranks) and len({int(rank) % stride for rank in ranks}) == 1


def _missing(training: TrainingFacts) -> list[str]:
    """What the law needs and nobody said, in words."""
    facts = {
        "the sharding stage": training.stage,
        "the number of parameters": training.parameters,
        "the ranks that share the model": training.shard_ranks,
        "one size of an element on the wire (gathered and reduced alike)": training.communication_bytes,
    }
    return [what for what, value in facts.items() if value is None]


def _gap(reason: str) -> Gap:
    return Gap(
        what="volume",
        reason=reason,
        remedy="give zprof.record(training=TrainingFacts(…)), or use an engine that it knows",
    )
