"""What a gather could have run under, and what it stood behind."""

import numpy as np
import pandas as pd
import pytest

from zprof.analysis.intervals import Intervals
from zprof.analysis.time.transfer.launch_delays import measure_prefetch


def columns(
    rows: list[tuple[str, int, int]], compute: list[tuple[int, int]], **other: object
) -> pd.DataFrame:
    """Columns of (kind, start, end) rows of one step and group; ``moving``: exposed transfer."""
    frame = pd.DataFrame(rows, columns=["kind", "start_ns", "end_ns"]).assign(step=0, group="0")
    frame = frame.astype({"start_ns": "int64", "end_ns": "int64"})
    frame = frame.assign(**{key: value for key, value in other.items() if key != "moving"})
    moving = other.get("moving", [])
    return pd.DataFrame(measure_prefetch(frame, spans(compute), spans(moving)))  # type: ignore[arg-type]


def spans(pairs: list[tuple[int, int]]) -> Intervals:
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def test_compute_between_two_gathers_could_have_hidden_the_second() -> None:
    found = columns([("all_gather", 0, 10), ("all_gather", 30, 40)], [(10, 30)])
    assert found["free_compute_ns"].tolist() == [0, 20]


def test_compute_beside_a_collective_is_not_free() -> None:
    rows = [("all_gather", 0, 10), ("reduce_scatter", 12, 17), ("all_gather", 30, 40)]
    assert columns(rows, [(10, 30)])["free_compute_ns"].tolist()[2] == 15


def test_compute_before_the_gather_before_is_not_counted_again() -> None:
    found = columns([("all_gather", 10, 20), ("all_gather", 20, 30)], [(0, 10)])
    assert found["free_compute_ns"].tolist() == [0, 0]


@pytest.mark.parametrize("other", [{"step": [0, 1]}, {"group": ["0", "1"]}])
def test_another_step_or_group_gives_no_room(other: dict[str, list[object]]) -> None:
    """The first gather of a step follows the update of what it gathers."""
    found = columns([("all_gather", 0, 10), ("all_gather", 30, 40)], [(10, 30)], **other)
    assert found["free_compute_ns"].tolist() == [0, 0]


def test_a_gather_that_ends_late_counts_though_another_began_after_it() -> None:
    rows = [("all_gather", 0, 25), ("all_gather", 5, 10), ("all_gather", 30, 40)]
    assert columns(rows, [(0, 30)])["free_compute_ns"].tolist()[2] == 5


def test_exposed_transfer_that_a_gather_stood_behind() -> None:
    rows = [("all_gather", 0, 10), ("reduce_scatter", 30, 40), ("all_gather", 40, 50)]
    found = columns(rows, [(10, 30)], moving=[(0, 10), (30, 50)])
    assert found["queued_exposed_ns"].tolist()[2] == 10


def test_exposed_transfer_before_the_last_compute_is_not_what_it_stood_behind() -> None:
    rows = [("all_gather", 0, 10), ("reduce_scatter", 12, 20), ("all_gather", 40, 50)]
    found = columns(rows, [(10, 12), (20, 40)], moving=[(0, 10), (12, 20), (40, 50)])
    assert found["queued_exposed_ns"].tolist()[2] == 0


def test_nothing_at_all() -> None:
    assert columns([], []).empty
    assert columns([("all_gather", 0, 10)], [])["free_compute_ns"].tolist() == [0]
