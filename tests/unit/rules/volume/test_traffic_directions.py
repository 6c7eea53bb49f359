"""Which collectives carry the model, and of what type they are called, on the thresholds."""

import pandas as pd
import pytest

from zprof.rules.volume.model_traffic import Direction, has_known_sizes, select_large


def rows(*sizes: int, dtype: str = "float32") -> pd.DataFrame:
    """Collectives of one step of one rank."""
    made = pd.DataFrame({"bytes": sizes})
    return made.assign(rank=0, step=0, kind="all_gather", group_size=2, dtype=dtype)


@pytest.mark.parametrize(("small", "kept"), [(1000, True), (999, False), (900, False)])
def test_a_thousandth_of_the_step_carries_a_part_of_the_model(small: int, *, kept: bool) -> None:
    assert (small in set(select_large(rows(999_000, small))["bytes"])) is kept


def test_where_no_collective_says_its_bytes_its_transfer_weighs() -> None:
    silent = rows(0, 0, 0).assign(transfer_ns=[1_000_000, 0, 900])
    assert select_large(silent)["transfer_ns"].tolist() == [1_000_000]


@pytest.mark.parametrize(("full", "half"), [(60, 40), (50, 50), (40, 60)])
def test_half_of_the_bytes_is_most_of_them(full: int, half: int) -> None:
    both = pd.concat([rows(full), rows(half, dtype="bfloat16")], ignore_index=True)
    assert Direction(rows=both).is_full is (full >= 50)
    assert Direction(rows=both).is_half is (half >= 50)


@pytest.mark.parametrize(("known", "is_known"), [(18, False), (19, True)])
def test_nearly_all_must_say_their_bytes(known: int, *, is_known: bool) -> None:
    assert has_known_sizes(rows(*[8] * known, *[0] * (20 - known))) is is_known
