"""Bytes a step against the law: what counts, and what does not."""

import pandas as pd
import pytest

from zprof.analysis.time.collective_rows import RankSteps
from zprof.analysis.time.transfer.volume import measure_volume
from zprof.model.training import TrainingFacts


def rows(*collectives: tuple[str, str, int]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "rank": 0,
                "kind": kind,
                "group": group,
                "group_size": len(group.split("#")[0].split(",")),
                "bytes": size,
            }
            for kind, group, size in collectives
        ]
    )


ONE = RankSteps(of_rank={0: 1})


def facts(**more: int) -> TrainingFacts:
    return TrainingFacts(**{"stage": 3, "parameters": 100, "shard_ranks": 2, "communication_bytes": 4} | more)


def test_an_all_reduce_counts_twice() -> None:
    frame = rows(("all_reduce", "0,1", 400), ("all_gather", "0,1", 400))
    volume, gaps = measure_volume(frame, facts(), steps=ONE)
    assert volume is not None
    assert (volume.seen_bytes, volume.expected_bytes, volume.parameter_bytes) == (1200, 1200, 400)
    assert not gaps


def test_padding_travels_with_the_parameters() -> None:
    volume, _ = measure_volume(rows(("all_gather", "0,1", 400)), facts(padding_elements=5), steps=ONE)
    assert volume is not None
    assert volume.parameter_bytes == 420


@pytest.mark.parametrize(("tensor_parallel", "seen"), [(1, 1500), (2, 700)])
def test_collectives_of_a_tensor_parallel_group_are_not_counted(tensor_parallel: int, seen: int) -> None:
    frame = rows(("all_gather", "0,2", 400), ("all_gather", "1,3#dp", 300), ("all_reduce", "2,3", 400))
    volume, _ = measure_volume(frame, facts(model_parallel_ranks=tensor_parallel), steps=ONE)
    assert volume is not None
    assert volume.seen_bytes == seen


def test_a_group_of_unknown_ranks_is_not_counted_beside_tensor_parallelism() -> None:
    frame = rows(("all_gather", "0,2", 400), ("all_gather", "?", 300))
    frame["group_size"] = 2
    volume, _ = measure_volume(frame, facts(model_parallel_ranks=2), steps=ONE)
    assert volume is not None
    assert volume.seen_bytes == 400


def test_the_gap_names_what_is_missing() -> None:
    unsaid = TrainingFacts(stage=3, parameters=100, shard_ranks=2)
    volume, (gap,) = measure_volume(rows(("all_gather", "0,1", 400)), unsaid, steps=ONE)
    assert volume is None
    assert "size of an element on the wire" in gap.reason
    assert "stage" not in gap.reason


@pytest.mark.parametrize("kind", ["send", "recv"])
def test_messages_between_two_ranks_are_not_the_law_s(kind: str) -> None:
    volume, _ = measure_volume(rows(("all_gather", "0,1", 400), (kind, "0,1", 50)), facts(), ONE)
    assert volume is not None
    assert volume.seen_bytes == 400


def test_replicas_across_shards_are_stated_and_not_counted() -> None:
    frame = rows(("all_gather", "0,1", 800), ("reduce_scatter", "0,1", 400), ("all_reduce", "0,2,4", 200))
    volume, gaps = measure_volume(frame, facts(), ONE)
    assert volume is not None
    assert (volume.seen_bytes, volume.expected_bytes) == (1200, 1200)
    assert [gap.what for gap in gaps] == ["volume"]
    assert "400 B" in gaps[0].reason


def test_a_norm_over_all_ranks_is_not_worth_a_word() -> None:
    frame = rows(("all_gather", "0,1", 1200), ("all_reduce", "0,1,2,3", 4))
    volume, gaps = measure_volume(frame, facts(), ONE)
    assert volume is not None
    assert not gaps


def test_replicated_states_are_reduced_by_whatever_group_does_it() -> None:
    frame = rows(("all_reduce", "0,1,2,3", 400), ("all_reduce", "0,1", 4))
    volume, _ = measure_volume(frame, facts(stage=0), ONE)
    assert volume is not None
    assert volume.seen_bytes == 808


def test_the_mean_is_over_the_ranks_that_moved_something() -> None:
    frame = pd.concat([rows(("all_gather", "0,1", 400)), rows(("all_gather", "0,1", 600)).assign(rank=1)])
    volume, _ = measure_volume(frame, facts(), RankSteps(of_rank={0: 1, 1: 1, 2: 8}))
    assert volume is not None
    assert volume.seen_bytes == 500


def test_sizes_that_no_trace_states_are_a_gap_and_not_zero() -> None:
    frame = rows(("all_gather", "0,1", 400), ("all_gather", "0,1", 0), ("barrier", "0,1", 0))
    volume, (gap,) = measure_volume(frame, facts(), steps=ONE)
    assert volume is None
    assert "1 of 3 collectives" in gap.reason
    volume, gaps = measure_volume(frame.drop(index=1), facts(), steps=ONE)
    assert volume is not None
    assert not gaps
