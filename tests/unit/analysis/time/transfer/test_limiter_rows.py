"""What a device does without after its host was held back."""

import numpy as np
import pandas as pd
import pytest

from zprof.analysis.intervals import EMPTY
from zprof.analysis.time.activity import Activity
from zprof.analysis.time.steps import make_single_step
from zprof.analysis.time.transfer.launch_delays import LIMITER_COLUMNS, make_limiter_rows

US = 1_000


def rows(
    holds: list[tuple[int, int]],
    compute: list[tuple[int, int]],
    gathers: list[int] | None = None,
    on_device: bool = True,
) -> pd.DataFrame:
    """Rows of holds; all times in us, ``gathers`` are ends."""
    activity = Activity(
        on_device=on_device, compute=US * np.array(compute, dtype=np.int64).reshape(-1, 2), waits=EMPTY,
        anonymous_waits=EMPTY, copies=EMPTY, coverage=EMPTY, launched=EMPTY,
    )  # fmt: skip
    ends = US * np.array(gathers or [], dtype=np.int64)
    frame = pd.DataFrame({"kind": ["all_gather"] * len(ends), "end_ns": ends})
    limiter = US * np.array(holds, dtype=np.int64).reshape(-1, 2)
    return make_limiter_rows(2, limiter, activity, make_single_step(7, 0, 10_000 * US), frame)


def idle_us(*args: object) -> list[int]:
    return (rows(*args)["idle_ns"] // US).tolist()  # type: ignore[arg-type]


def test_a_device_that_runs_dry_costs_the_time_to_the_next_compute() -> None:
    found = rows([(100, 700)], [(0, 500), (900, 1000)])
    assert tuple(found.columns) == LIMITER_COLUMNS
    assert found.iloc[0].tolist() == [2, 7, 100 * US, 700 * US, 400 * US]


def test_a_device_with_work_queued_costs_nothing() -> None:
    assert idle_us([(100, 700)], [(0, 800), (900, 1000)]) == [0]


def test_idle_time_before_the_hold_is_not_its_doing() -> None:
    assert idle_us([(300, 700)], [(0, 100), (900, 1000)], [50]) == [600]


def test_what_the_next_kernel_waits_for_anyway_is_not_its_doing() -> None:
    assert idle_us([(100, 700)], [(0, 500), (900, 1000)], [850]) == [50]


def test_an_instant_counts_once() -> None:
    assert idle_us([(100, 600), (620, 700)], [(0, 500), (900, 1000)]) == [400, 0]


@pytest.mark.parametrize(("held_us", "count"), [(49, 0), (50, 1)])
def test_a_limiter_that_returns_at_once_holds_nothing_back(held_us: int, count: int) -> None:
    assert len(rows([(600, 600 + held_us)], [(0, 500), (900, 1000)])) == count


def test_none_on_a_rank_that_computes_itself_nor_outside_of_the_steps() -> None:
    assert rows([(100, 700)], [(0, 500), (900, 1000)], on_device=False).empty
    assert rows([(20_000, 20_700)], [(0, 500), (900, 1000)]).empty


def test_nothing_computes_afterwards() -> None:
    assert idle_us([(600, 700)], [(0, 500)]) == [0]
    assert idle_us([(600, 700)], []) == [0]
