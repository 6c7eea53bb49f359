"""Bytes a step against the law: what counts, and what does not."""

import pandas as pd
import pytest

from zprof.analysis.time.transfer.volume import measure_volume
from zprof.model.training import TrainingFacts


def rows(*collectives: tuple[str, str, int]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"kind": kind, "group": group, "group_size": len(group.split("#")[0].split(",")), "bytes": size}
            for kind, group, size in collectives
        ]
    )


def facts(**more: int) -> TrainingFacts:
    return TrainingFacts(**{"stage": 3, "parameters": 100, "shard_ranks": 2, "communication_bytes": 4} | more)


def test_an_all_reduce_counts_twice() -> None:
    frame = rows(("all_reduce", "0,1", 400), ("all_gather", "0,1", 400))
    volume, gaps = measure_volume(frame, facts(), rank_steps=1)
    assert volume is not None
    assert (volume.seen_bytes, volume.expected_bytes) == (1200, 1200)
    assert not gaps


@pytest.mark.parametrize(("tensor_parallel", "seen"), [(1, 1500), (2, 700)])
def test_collectives_of_a_tensor_parallel_group_are_not_counted(tensor_parallel: int, seen: int) -> None:
    frame = rows(("all_gather", "0,2", 400), ("all_gather", "1,3#dp", 300), ("all_reduce", "2,3", 400))
    volume, _ = measure_volume(frame, facts(model_parallel_ranks=tensor_parallel), rank_steps=1)
    assert volume is not None
    assert volume.seen_bytes == seen


def test_a_group_of_unknown_ranks_is_not_counted_beside_tensor_parallelism() -> None:
    frame = rows(("all_gather", "0,2", 400), ("all_gather", "?", 300))
    frame["group_size"] = 2
    volume, _ = measure_volume(frame, facts(model_parallel_ranks=2), rank_steps=1)
    assert volume is not None
    assert volume.seen_bytes == 400


def test_the_gap_names_what_is_missing() -> None:
    unsaid = TrainingFacts(stage=3, parameters=100, shard_ranks=2)
    volume, (gap,) = measure_volume(rows(("all_gather", "0,1", 400)), unsaid, rank_steps=1)
    assert volume is None
    assert "size of an element on the wire" in gap.reason
    assert "stage" not in gap.reason
