"""How long a gather stood behind kernels of the unit that computed at its launch."""

import numpy as np
import pandas as pd
import pytest

from tests.support.device_ranks import Rows
from zprof.analysis.time.activity_from_events import read_device_activity
from zprof.analysis.time.clocks.rank_clock import RankClock
from zprof.analysis.time.transfer.launch_delays import find_collective_launches, measure_blocked

US = 1_000


def blocked(rows: Rows) -> list[int | None]:
    activity = read_device_activity(rows.events_table(), rows.collectives_table())
    frame = rows.frame().assign(instance=0)
    found = measure_blocked(
        frame, find_collective_launches(frame, activity.kernels, activity.kernel_stream), activity.named
    )
    return [None if pd.isna(value) else int(value) for value in found]


def unit(*, started: int = 500, launch: int | None = 40, mark: str = "FSDP::pre_forward (layers.1)") -> Rows:
    """A kernel of unit 0 until 300 us, one of unit 1 until 500 us; the gather is launched behind both."""
    rows = Rows().event(20 * US, 22 * US, "user_annotation", mark)
    rows.call(10 * US, 1).kernel(100 * US, 300 * US, correlation=1)
    rows.call(30 * US, 2).kernel(301 * US, 500 * US, correlation=2)
    return rows.collective(started * US, (started + 100) * US, launch=None if launch is None else launch * US)


def test_behind_a_kernel_of_the_unit_that_computes() -> None:
    assert blocked(unit()) == [200 * US]


@pytest.mark.parametrize(("started", "there"), [(500, True), (550, True), (551, False)])
def test_it_starts_when_that_kernel_ends(started: int, there: bool) -> None:
    assert blocked(unit(started=started)) == [200 * US if there else 0]


def test_what_earlier_units_compute_frees_memory_for_it() -> None:
    assert blocked(unit(started=300)) == [0]


def test_what_was_launched_after_it_does_not_count() -> None:
    assert blocked(unit(launch=25)) == [0]


def test_ready_is_when_it_was_launched_if_that_was_later() -> None:
    rows = unit(launch=450)
    assert blocked(rows) == [50 * US]


def test_its_stream_had_another_collective_to_end() -> None:
    rows = unit()
    rows.collectives[0]["sequence"] = 1
    rows.collective(310 * US, 470 * US, launch=5 * US)
    assert blocked(rows)[0] == 30 * US


@pytest.mark.parametrize(
    "mark",
    [
        "FSDP::pre_backward (layers.1)",
        "FSDP::all_gather_copy_out (layers.1)",
        "FullyShardedDataParallel._pre_forward",
        "FullyShardedDataParallel._pre_backward_hook",
    ],
)
def test_marks_of_passes(mark: str) -> None:
    assert blocked(unit(mark=mark)) == [200 * US]


def test_without_marks_launches_or_for_other_kinds_nothing_is_said() -> None:
    assert blocked(unit(mark="Optimizer.step#AdamW.step")) == [None]
    assert blocked(unit(launch=None)) == [None]
    assert blocked(unit(launch=15)) == [None]
    rows = unit()
    rows.collectives[0]["kind"] = "reduce_scatter"
    assert blocked(rows) == [None]


def test_copies_of_what_was_gathered_before_are_waited_for_on_purpose() -> None:
    rows = unit(mark="FSDP::all_gather_copy_out (layers.1)")
    copied = Rows().event(29 * US, 33 * US, "user_annotation", "FSDP::all_gather_copy_out (layers.1)")
    rows.events += copied.events
    assert blocked(rows) == [0]


def test_a_kernel_behind_such_a_copy_blocks_from_its_end_on() -> None:
    rows = unit(mark="FSDP::all_gather_copy_out (layers.1)", started=700)
    rows.event(32 * US, 34 * US, "user_annotation", "FSDP::all_gather_copy_out (layers.1)")
    rows.call(33 * US, 3).kernel(501 * US, 550 * US, correlation=3)
    rows.call(35 * US, 4).kernel(551 * US, 700 * US, correlation=4)
    assert blocked(rows) == [150 * US]


def test_on_the_common_clock() -> None:
    rows, clock = unit(), RankClock(offset_ns=-(10**9), drift_ppb=0.0, origin_ns=0)
    activity = read_device_activity(rows.events_table(), rows.collectives_table()).on(clock)
    times = ["start_ns", "end_ns", "launch_start_ns"]
    frame = rows.frame().assign(instance=0)
    frame[times] += 10**9
    launch = find_collective_launches(frame, activity.kernels, activity.kernel_stream)
    assert measure_blocked(frame, launch, activity.named).tolist() == [200 * US]


def test_a_rank_without_collectives() -> None:
    rows = Rows().kernel(0, 10)
    assert blocked(rows) == []
    assert np.array_equal(blocked(rows), [])
