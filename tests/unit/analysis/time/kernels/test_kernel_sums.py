"""Kernels by name: what they take alone and beside collectives, and which of them only copy."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.support.device_ranks import HOST_THREAD, Rows
from zprof.analysis.time.activity_from_events import read_device_activity, read_host_activity
from zprof.analysis.time.clocks.rank_clock import RankClock
from zprof.analysis.time.kernels import KERNEL_COLUMNS, OTHER_KERNELS, make_kernel_frame, sum_kernels
from zprof.analysis.time.steps import make_single_step
from zprof.analysis.time.timeline import RankTimeline

SPLIT = "void at::native::split_with_sizes_copy_out_contiguous_no_cast_kernel<int>"


def table(rows: Rows, *, until: int = 10_000, on_device: bool = True) -> pd.DataFrame:
    events = rows.events_table()
    activity = (
        read_device_activity(events, rows.collectives_table()) if on_device else read_host_activity(events)
    )
    steps = make_single_step(0, 0, until)
    timeline = RankTimeline(rank=3, host="", steps=steps, host_steps=steps, activity=activity, pings={})
    clock = RankClock(offset_ns=-7, drift_ppb=0.0, origin_ns=0)
    moved = timeline.on(clock)
    frame = rows.frame()
    for name in ("start_ns", "end_ns", "arrival_ns"):
        frame[name] = frame[name] + 7
    return make_kernel_frame([sum_kernels(moved, frame)]).set_index(["name", "role"])


def row(rows: Rows, name: str, role: str = "compute", **more: Any) -> dict[str, float]:
    return dict(table(rows, **more).loc[(name, role)])


def alternating(beside: int, slower: int = 0, times: int = 6) -> Rows:
    """Kernels of 100 ns, each second one beside a collective for so long, and longer by so much."""
    rows = Rows()
    for number in range(times):
        start, odd = 1_000 * number, number % 2
        rows.kernel(start, start + 100 + slower * odd, name="gemm")
        if odd:
            rows.collective(start, start + beside)
    return rows


def test_alone_and_beside() -> None:
    found = row(alternating(200, slower=60, times=30), "gemm", until=100_000)
    assert (found["rank"], found["count"], found["alone_count"], found["overlapped_count"]) == (3, 30, 15, 15)
    assert (found["alone_median_ns"], found["overlapped_median_ns"]) == (100, 160)
    assert (found["total_ns"], found["beside_ns"]) == (15 * 260, 15 * 160)
    # the three at each end have neighbours of their own
    assert (found["judged_count"], found["judged_beside_ns"], found["excess_ns"]) == (12, 12 * 160, 12 * 60)


@pytest.mark.parametrize(
    ("beside", "alone", "overlapped"), [(0, 6, 0), (1, 6, 0), (2, 3, 0), (49, 3, 0), (50, 3, 3), (100, 3, 3)]
)
def test_shares(beside: int, alone: int, overlapped: int) -> None:
    found = row(alternating(beside), "gemm")
    assert (found["alone_count"], found["overlapped_count"]) == (alone, overlapped)


def test_what_never_ran_alone_twice_is_not_judged() -> None:
    rows = Rows()
    for number in range(9):
        rows.kernel(1_000 * number, 1_000 * number + 100, name="gemm")
        if number != 4:
            rows.collective(1_000 * number, 1_000 * number + 100)
    found = row(rows, "gemm")
    assert (found["judged_count"], found["excess_ns"], found["beside_ns"]) == (0, 0, 800)
    assert np.isnan(row(alternating(0), "gemm")["overlapped_median_ns"])


def test_other_shapes_of_the_same_name_are_held_apart() -> None:
    """The large one always runs beside a collective, the small one never: nothing is known of a slowdown."""
    rows = Rows()
    for number in range(8):
        start = 1_000 * number
        rows.kernel(start, start + 300, name="gemm").kernel(start + 400, start + 450, name="norm")
        rows.kernel(start + 500, start + 600, name="gemm")
        rows.collective(start, start + 300)
    found = row(rows, "gemm")
    assert (found["alone_count"], found["overlapped_count"]) == (8, 8)
    assert found["judged_count"] == 0


def test_work_launched_outside_of_the_steps_is_left_out() -> None:
    rows = Rows().kernel(100, 200, name="gemm").kernel(5_000, 5_100, name="gemm")
    assert row(rows, "gemm", until=1_000)["count"] == 1


def test_copies_by_name_and_by_the_range_that_launched_them() -> None:
    rows = Rows().event(10, 20, "user_annotation", "FSDP::all_gather_copy_in (layers.0)")
    rows.call(12, 1).kernel(100, 140, correlation=1, name="cat").call(13, 2).copy(150, 160, correlation=2)
    rows.call(25, 3).kernel(200, 230, correlation=3, name="cat").call(26, 4).copy(240, 250, correlation=4)
    rows.kernel(300, 350, name=SPLIT, stream=8).kernel(330, 400, name="gemm")
    found = table(rows)
    assert sorted(found.index) == [
        ("Memcpy DtoD (Device -> Device)", "memcpy"),
        ("cat", "compute"),
        ("cat", "copy"),
        ("gemm", "compute"),
        (SPLIT, "copy"),
    ]
    assert found["count"].tolist() == [1] * 5
    uncovered = found["uncovered_ns"]
    assert uncovered[(SPLIT, "copy")] == 30
    assert uncovered[("cat", "copy")] == 40
    assert uncovered[("gemm", "compute")] == 0


def test_names_are_bounded_and_nothing_gets_lost() -> None:
    rows = Rows()
    for number in range(300):
        rows.kernel(1_000 * number, 1_000 * number + 100 + number, name=f"k{number}")
    found = table(rows, until=1_000_000)
    assert len(found) == 257
    assert found.loc[(OTHER_KERNELS, "compute"), "count"] == 44
    assert ("k0", "compute") not in found.index
    assert found["total_ns"].sum() == 300 * 100 + 299 * 150


def operators(*spans: tuple[int, int, str], thread: int = HOST_THREAD) -> Rows:
    rows = Rows()
    for start, end, name in spans:
        rows.event(start, end, "cpu_op", name, thread=thread)
    return rows


def test_on_a_cpu_the_outermost_operators_of_the_main_thread_count() -> None:
    rows = operators((0, 100, "aten::linear"), (10, 100, "aten::addmm"), (20, 80, "aten::mm"))
    rows.event(0, 100, "cpu_op", "aten::mm", thread=9)
    rows.event(200, 300, "cpu_op", "autograd::engine::evaluate_function: MmBackward0")
    rows.event(210, 250, "cpu_op", "aten::mm").event(250, 290, "cpu_op", "aten::mm")
    found = table(rows, on_device=False)
    assert found["total_ns"].to_dict() == {("aten::linear", "compute"): 100, ("aten::mm", "compute"): 80}


def test_on_a_cpu_a_collective_that_waits_takes_nothing() -> None:
    rows = operators((0, 100, "aten::mm"), (200, 300, "aten::mm"))
    rows.described(0, 400, None)
    activity = read_host_activity(rows.events_table())
    steps = make_single_step(0, 0, 1_000)
    timeline = RankTimeline(rank=0, host="", steps=steps, host_steps=steps, activity=activity, pings={})
    late = rows.frame().assign(arrival_ns=250)
    assert make_kernel_frame([sum_kernels(timeline, late)])["beside_ns"].tolist() == [50]


def test_a_rank_without_work_has_no_rows() -> None:
    found = make_kernel_frame([kernel_sums_of_nothing()])
    assert list(found.columns) == list(KERNEL_COLUMNS)
    assert found.empty


def kernel_sums_of_nothing() -> dict[str, Any]:
    rows = Rows().copy(0, 10)
    activity = read_device_activity(rows.events_table(), rows.collectives_table())
    steps = make_single_step(0, 0, 100)
    timeline = RankTimeline(rank=0, host="", steps=steps, host_steps=steps, activity=activity, pings={})
    return dict(sum_kernels(timeline, rows.frame()))
