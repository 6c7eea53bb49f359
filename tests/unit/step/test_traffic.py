"""Who shards, and which messages carry the model."""

import numpy as np
import pytest

from tests.support.link_runs import MS, Sent, gathers, link_run, reduces
from tests.support.rule_runs import in_groups_of_one
from tests.support.tables import changed
from zprof.analysis.columns import Columns, Texts
from zprof.model.collectives import CollectiveKind
from zprof.step.traffic import (
    StepTraffic,
    count_elements,
    find_sharding,
    has_known_sizes,
    read_step_traffic,
    select_large,
)

MIB, KIB = 1 << 20, 1 << 10


def traffic(*sent: object) -> StepTraffic:
    found = read_step_traffic(link_run(*sent))  # type: ignore[arg-type]
    assert found is not None
    return found


@pytest.mark.parametrize(("size", "count"), [(KIB, 1), (KIB + 1, 2)])
def test_messages_up_to_a_1024th_are_no_traffic(size: int, count: int) -> None:
    found = traffic(gathers(1, MIB, MS), gathers(1, size, MS, begins_ns=100 * MS)).gathers
    assert found is not None
    assert found.count == count


@pytest.mark.parametrize(("begins_ns", "before"), [(0, False), (1, True)])
def test_gathers_that_start_with_the_reductions_serve_no_pass(begins_ns: int, *, before: bool) -> None:
    assert traffic(gathers(2, MIB, MS), reduces(2, MIB, MS, begins_ns=begins_ns)).before is before


def test_groups_of_one_rank_and_gathers_of_nothing_are_no_traffic() -> None:
    assert read_step_traffic(in_groups_of_one(link_run(gathers(2, MIB, MS)))) is None
    barriers = traffic(gathers(2, 0, MS, group="0,1"), reduces(2, MIB, MS, group="0,2"))
    assert (barriers.gathers is None, barriers.reduces is None) == (True, False)


def all_reduces(count: int, size: int, **more: object) -> Sent:
    return Sent(kind=CollectiveKind.ALL_REDUCE, count=count, bytes=size, each_ns=MS, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        # Flags beside the gradients are no gathers of parameters, in whichever group.
        ((gathers(1, 16 * KIB, MS), all_reduces(2, MIB)), (None, "all_reduce")),
        ((gathers(1, 33 * KIB, MS), all_reduces(2, MIB)), ("all_gather", "all_reduce")),
        # A norm or a loss is no gradient.
        ((all_reduces(2, 1_000),), (None, None)),
        ((gathers(2, MIB, MS), all_reduces(2, 1_000)), ("all_gather", None)),
        # Reductions are of the kind that moves most; those of other groups are not the sharding's.
        ((gathers(2, MIB, MS), reduces(2, MIB, MS), all_reduces(1, MIB)), ("all_gather", "reduce_scatter")),
        ((gathers(2, MIB, MS), all_reduces(4, MIB, group="0,2")), ("all_gather", None)),
        ((reduces(1, MIB, MS), all_reduces(4, MIB, group="0,2")), (None, "reduce_scatter")),
    ],
)
def test_who_shards(sent: tuple[Sent, ...], found: tuple[str | None, str | None]) -> None:
    sharding = find_sharding(link_run(*sent))
    kinds = [each.texts("kind").list_distinct() for each in (sharding.gathers, sharding.reductions)]
    assert kinds == [[kind] if kind else [] for kind in found]


def test_each_rank_shards_in_the_group_in_which_it_gathers_most() -> None:
    """The group of ranks 1 and 2 is the larger one of rank 2 only."""
    run = link_run(gathers(3, MIB, MS, group="0,1"), gathers(2, MIB, MS, group="1,2", begins_ns=9 * MS))
    rows = find_sharding(run).gathers
    assert set(zip(rows.ints("rank").tolist(), rows.texts("group"), strict=True)) == {
        (0, "0,1"),
        (1, "0,1"),
        (2, "1,2"),
    }


def rows(*sizes: int, dtype: str = "float32") -> Columns:
    """Collectives of one step of one rank."""
    made = Columns({"bytes": np.array(sizes)})
    return changed(made, rank=0, step=0, kind="all_gather", group_size=2, dtype=dtype)


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("float64", 8), ("float32", 4), ("bfloat16", 2), ("float16", 2), ("float8_e4m3fn", 1),
     ("float8_e5m2fnuz", 1), ("int64", 8), ("uint8", 1), ("unknown", 4)],
)  # fmt: skip
def test_elements_are_counted_by_the_size_of_their_type(dtype: str, size: int) -> None:
    assert count_elements(rows(840, 1680, dtype=dtype)) == 2520 / size


@pytest.mark.parametrize(("small", "kept"), [(1025, True), (1024, False)])
@pytest.mark.parametrize("large", [1, 4_000])
def test_more_than_a_1024th_of_the_largest_carries_a_part_of_the_model(
    small: int, large: int, *, kept: bool
) -> None:
    """However many messages there are: each of 4,000 buckets carries as much as the only one."""
    found = select_large(rows(*[1 << 20] * large, small)).ints("bytes")
    assert len(found) == large + kept


def test_gathers_and_reductions_have_a_largest_message_each() -> None:
    both = rows(1 << 30, 1 << 20)
    assert len(select_large(both)) == 1
    assert len(select_large(both.with_columns(kind=Texts.of(("reduce_scatter", "all_gather"))))) == 2


def test_without_bytes_transfer_times_weigh() -> None:
    silent = changed(rows(0, 0, 0), transfer_ns=[1_000_000, 0, 900])
    assert select_large(silent).ints("transfer_ns").tolist() == [1_000_000]


@pytest.mark.parametrize(("known", "is_known"), [(18, False), (19, True)])
def test_nearly_all_must_state_their_bytes(known: int, *, is_known: bool) -> None:
    assert has_known_sizes(rows(*[8] * known, *[0] * (20 - known))) is is_known
