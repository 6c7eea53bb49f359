"""Kernels by name: their time alone and beside collectives, and which of them only copy."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.support.device_ranks import Rows
from zprof.analysis.time.activity import read_device_activity, read_host_activity
from zprof.analysis.time.clocks import RankClock
from zprof.analysis.time.rank import (
    KERNEL_COLUMNS,
    OTHER_KERNELS,
    sum_kernels,
)
from zprof.analysis.time.steps import make_single_step
from zprof.analysis.time.timeline import RankTimeline

SPLIT = "void at::native::split_with_sizes_copy_out_contiguous_no_cast_kernel<int>"


def table(rows: Rows, *, until: int = 10_000, on_device: bool = True, late: int = 0) -> pd.DataFrame:
    """The sums of a rank whose clock is 7 ns behind."""
    events = rows.events_table()
    activity = (
        read_device_activity(events, rows.collectives_table()) if on_device else read_host_activity(events)
    )
    steps = make_single_step(0, 0, until)
    timeline = RankTimeline(rank=3, host="", steps=steps, host_steps=steps, activity=activity, pings={})
    moved = timeline.on(RankClock(offset_ns=-7, drift_ppb=0.0, origin_ns=0))
    collectives = rows.decomposed()
    collectives = collectives.with_columns(
        start_ns=collectives.ints("start_ns") + 7,
        end_ns=collectives.ints("end_ns") + 7,
        arrival_ns=collectives.ints("arrival_ns") + 7 + late,
    )
    return sum_kernels(moved, collectives).to_frame().set_index(["name", "role"])


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


@pytest.mark.parametrize(("beside", "alone", "overlapped"), [(1, 6, 0), (20, 3, 0), (100, 3, 3)])
def test_a_kernel_is_alone_up_to_one_percent_and_overlapped_from_half_on(
    beside: int, alone: int, overlapped: int
) -> None:
    found = row(alternating(beside), "gemm")
    assert (found["alone_count"], found["overlapped_count"]) == (alone, overlapped)
    assert np.isnan(found["overlapped_median_ns"]) == (overlapped == 0)


def test_copies_by_name_and_by_the_range_that_launched_them() -> None:
    rows = Rows().event(10, 20, "user_annotation", "FSDP::all_gather_copy_in (layers.0)")
    rows.call(12, 1).kernel(100, 140, correlation=1, name="cat").call(13, 2).copy(150, 160, correlation=2)
    rows.call(25, 3).kernel(200, 230, correlation=3, name="cat").call(26, 4).copy(240, 250, correlation=4)
    rows.kernel(300, 350, name=SPLIT, stream=8).kernel(330, 400, name="gemm")
    rows.kernel(5_000, 5_100, name="outside of the steps")
    found = table(rows, until=1_000)
    assert found["uncovered_ns"].to_dict() == {
        ("Memcpy DtoD (Device -> Device)", "memcpy"): 10,
        ("cat", "compute"): 0,
        ("cat", "copy"): 40,
        ("gemm", "compute"): 0,
        (SPLIT, "copy"): 30,
    }
    assert found["count"].tolist() == [1] * 5


def test_names_are_bounded_and_their_time_is_kept() -> None:
    rows = Rows()
    for number in range(300):
        rows.kernel(1_000 * number, 1_000 * number + 100 + number, name=f"k{number}")
    found = table(rows, until=1_000_000)
    assert len(found) == 257
    assert found.loc[(OTHER_KERNELS, "compute"), "count"] == 44
    assert ("k0", "compute") not in found.index
    assert found["total_ns"].sum() == 300 * 100 + 299 * 150
    nothing = table(Rows().copy(0, 10), until=0)
    assert nothing.empty
    assert {*nothing.columns, "name", "role"} == set(KERNEL_COLUMNS)


def test_on_a_cpu_the_outermost_operators_of_the_main_thread_count() -> None:
    rows = Rows().event(0, 100, "cpu_op", "aten::linear").event(10, 100, "cpu_op", "aten::addmm")
    rows.event(20, 80, "cpu_op", "aten::mm").event(0, 100, "cpu_op", "aten::mm", thread=9)
    rows.event(200, 300, "cpu_op", "autograd::engine::evaluate_function: MmBackward0")
    rows.event(210, 250, "cpu_op", "aten::mm").event(250, 290, "cpu_op", "aten::mm")
    found = table(rows.described(0, 400, None), on_device=False, late=250)
    assert found["total_ns"].to_dict() == {("aten::linear", "compute"): 100, ("aten::mm", "compute"): 80}
    assert found["beside_ns"].to_dict() == {
        ("aten::linear", "compute"): 0,  # until its last rank has come, a collective takes nothing
        ("aten::mm", "compute"): 40,
    }
