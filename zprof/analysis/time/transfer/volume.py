"""Measure the bytes that a rank transfers per step, and compare them with the ZeRO formula of its stage.

An all-reduce transfers its tensor twice, other kinds once; both sides ignore the ring's factor (N-1)/N. The
formula covers data parallelism over the ranks that share the states: collectives of tensor-parallel groups
and point-to-point messages are not counted. All-reduces between replicas of the shards (HSDP) are counted if
the number of replicas is known, and reported as a gap if not.
"""

import numpy as np

from zprof.analysis.columns import Columns, Mask, Texts
from zprof.analysis.time.collective_rows import StepCounts, parse_group_ranks
from zprof.analysis.zero_formulas import (
    compute_engine_volume,
    compute_expected_volume,
    compute_wire_parameter_bytes,
)
from zprof.model.collectives import UNKNOWN_GROUP, CollectiveKind
from zprof.model.formatting import format_bytes
from zprof.model.gaps import Gap, GapKind
from zprof.model.report import Volume
from zprof.model.training import TrainingFacts

_POINT_TO_POINT = (CollectiveKind.SEND, CollectiveKind.RECV)
#: Relative to the formula: other groups (a norm, a flag) below this are not reported.
_MIN_REPORTED_RATIO = 0.01


def measure_volume(
    collectives: Columns, training: TrainingFacts, steps: StepCounts
) -> tuple[Volume | None, list[Gap]]:
    """Return the mean over the steps of ranks with transfers, or None with the reason as a gap."""
    expected = compute_expected_volume(training)
    if expected is None:
        return None, [
            _make_volume_gap(
                f"unknown: {', '.join(_list_missing_facts(training)) or 'the ZeRO formula of this stage'}"
            )
        ]
    if not sum(steps.by_rank.values()):
        return None, [_make_volume_gap("no time window was recorded")]
    if expected == 0:
        return None, []
    counted = (
        (collectives.ints("group_size") != 1)
        & ~collectives.texts("kind").equals(*_POINT_TO_POINT)
        & _is_data_parallel(collectives.texts("group"), training)
    )
    is_replicating = counted & _find_replicating(collectives, training, counted)
    unsized = int((counted & _find_rows_without_size(collectives)).sum())
    if unsized:
        return None, [_make_no_sizes_gap(unsized, int(counted.sum()))]
    is_shard_sized = counted & _find_gathers_of_unknown_group(collectives)
    if is_shard_sized.any():
        if training.replica_ranks is None:
            return None, [_make_unknown_group_gap(int(is_shard_sized.sum()), int(counted.sum()))]
        # Hybrid sharding gathers within the shard group only.
        whole = collectives.ints("bytes") * np.where(is_shard_sized, training.shard_ranks or 1, 1)
        collectives = collectives.with_columns(bytes=whole)
    seen_bytes = _mean_bytes(collectives, counted & ~is_replicating, steps)
    return (
        Volume(
            expected_bytes=expected,
            seen_bytes=seen_bytes,
            ratio=seen_bytes / expected,
            parameter_bytes=compute_wire_parameter_bytes(training),
            engine_bytes=compute_engine_volume(training),
        ),
        _list_replication_gaps(_mean_bytes(collectives, is_replicating, steps), expected),
    )


def _find_rows_without_size(collectives: Columns) -> Mask:
    """Mark rows that transfer data of an unknown size."""
    is_barrier = collectives.texts("kind").equals(CollectiveKind.BARRIER)
    has_no_size: Mask = ~is_barrier & (collectives.ints("bytes") == 0)
    return has_no_size


def _find_gathers_of_unknown_group(collectives: Columns) -> Mask:
    """Mark gloo's all-gathers of which only the size of a rank's part is known."""
    gathers = collectives.texts("kind").equals(CollectiveKind.ALL_GATHER)
    is_unknown: Mask = collectives.texts("group").equals(UNKNOWN_GROUP) & (
        collectives.ints("group_size") == 0
    )
    return gathers & is_unknown


def _make_unknown_group_gap(unknown: int, counted: int) -> Gap:
    return Gap(
        kind=GapKind.VOLUME,
        what="volume",
        reason=f"{unknown} of {counted} collectives are all-gathers in groups of unknown size: "
        "only the size of a rank's part was recorded",
        remedy="record ranks with a GPU: NCCL's events name their group",
    )


def _make_no_sizes_gap(unsized: int, counted: int) -> Gap:
    return Gap(
        kind=GapKind.VOLUME,
        what="volume",
        reason=f"{unsized} of {counted} collectives have no recorded size",
        remedy="profile with record_shapes=True",
    )


def _mean_bytes(collectives: Columns, rows: Mask, steps: StepCounts) -> int:
    """Return bytes per step of the rows, as the mean over the ranks that have any."""
    times = np.where(collectives.texts("kind").equals(CollectiveKind.ALL_REDUCE), 2, 1)
    total = int((collectives.ints("bytes") * times)[rows].sum())
    ranks = collectives.ints("rank")[rows]
    return total // max(1, sum(steps.by_rank.get(int(rank), 0) for rank in np.unique(ranks)))


def _is_data_parallel(groups: Texts, training: TrainingFacts) -> Mask:
    """Mark rows of groups whose ranks have the same model part; all rows without tensor parallelism."""
    stride = training.model_parallel_ranks
    if stride == 1:
        return np.ones(len(groups), dtype=bool)
    return groups.match(lambda group: _has_same_model_part(group, stride))


def _has_same_model_part(group: str, stride: int) -> bool:
    ranks = parse_group_ranks(group)
    return bool(ranks) and len({rank % stride for rank in ranks}) == 1


def _find_replicating(collectives: Columns, training: TrainingFacts, counted: Mask) -> Mask:
    """Mark all-reduces in groups whose size differs from that of the sharding group.

    If the number of replicas is known, the formula includes them.
    """
    if training.replica_ranks is not None:
        return np.zeros(len(collectives), dtype=bool)
    sharing: Mask = collectives.ints("group_size") == training.shard_ranks
    if not training.stage or not (sharing & counted).any():
        return np.zeros(len(collectives), dtype=bool)
    return ~sharing & collectives.texts("kind").equals(CollectiveKind.ALL_REDUCE)


def _list_replication_gaps(other_bytes: int, expected: int) -> list[Gap]:
    if other_bytes < _MIN_REPORTED_RATIO * expected:
        return []
    return [
        Gap(
            kind=GapKind.VOLUME,
            what="volume",
            reason="all-reduces in groups whose size differs from the sharding group transfer another "
            f"{format_bytes(other_bytes)} (replicas of shards), which the formula does not include",
            remedy="compare them with twice the bytes of a rank's shard",
        )
    ]


def _list_missing_facts(training: TrainingFacts) -> list[str]:
    """List the unknown facts that the formula needs, as text."""
    facts = {
        "the sharding stage": training.stage,
        "the number of parameters": training.parameters,
        "the ranks that share the model": training.shard_ranks,
        "the bytes per transferred element (equal for gathers and reductions)": training.communication_bytes,
    }
    return [what for what, value in facts.items() if value is None]


def _make_volume_gap(reason: str) -> Gap:
    return Gap(
        kind=GapKind.VOLUME,
        what="volume",
        reason=reason,
        remedy="set it with report --stage --parameters …, or zprof.record(training=TrainingFacts(…))",
    )
