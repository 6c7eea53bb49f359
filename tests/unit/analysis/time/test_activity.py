"""Which events of a rank are compute, copies, waits or collectives; which work belongs to which step."""

import numpy as np
import pyarrow as pa
import pytest

from tests.support.device_ranks import Rows
from zprof.analysis.columns import Columns
from zprof.analysis.intervals import measure
from zprof.analysis.time.activity import (
    RankActivity,
    has_device_work,
    launches_device_work,
    read_device_activity,
    read_host_activity,
)
from zprof.analysis.time.clocks import RankClock
from zprof.analysis.time.steps import find_step_windows

MAIN, OTHER = 1, 2


def host(*rows: tuple) -> RankActivity:
    events = Rows()
    for start, end, category, name, *thread in rows:
        events.event(start, end, category, name, thread=thread[0] if thread else MAIN)
    return read_host_activity(events.events_table())


def test_operators_compute_and_their_wrappers_do_not() -> None:
    activity = host(
        (0, 100, "cpu_op", "autograd::engine::evaluate_function: AddmmBackward0"),
        (5, 95, "cpu_op", "AddmmBackward0"),
        (10, 20, "cpu_op", "aten::mm"),
        (30, 40, "cpu_op", "c10d::_allgather_base_"),
        (50, 60, "cpu_op", "fsdp::chunk_cat"),
        (61, 62, "cpu_op", "mylib::wait"),
        (70, 80, "cpu_op", "_c10d_functional::wait_tensor"),
        (85, 90, "user_annotation", "FSDP::all_gather (blocks.0)"),
        (10, 90, "cpu_op", "aten::mm", OTHER),
    )
    assert activity.compute.tolist() == [[10, 20], [50, 60], [61, 62]]
    assert activity.coverage.tolist() == [[0, 100]]
    assert not len(activity.waits)


def test_ranges_of_the_engine_are_compute_waits_and_copies() -> None:
    activity = host(
        (0, 50, "user_annotation", "sim::compute forward unit=0"),
        (10, 20, "cpu_op", "aten::mm"),
        (40, 70, "user_annotation", "sim::wait all_gather pg=0 seq=0 unit=0"),
        (45, 60, "user_annotation", "zprof::wait"),
        (80, 90, "user_annotation", "zprof::wait"),
        (92, 99, "user_annotation", "zprof::wait", OTHER),
        (110, 140, "user_annotation", "zero::copy checkpoint unit=blocks.0 bytes=64"),
        (112, 120, "cpu_op", "aten::copy_"),
        (130, 135, "user_annotation", "zprof::wait"),
        (160, 190, "user_annotation", "zero::copy checkpoint unit=blocks.0 bytes=64", OTHER),
    )
    assert activity.compute.tolist() == [[0, 40]]
    assert activity.waits.tolist() == [[40, 70], [80, 90], [130, 135]]
    assert activity.anonymous_waits.tolist() == [[80, 90], [130, 135]]
    assert activity.copies.tolist() == [[110, 130], [135, 140]]


def device(rows: Rows) -> RankActivity:
    return read_device_activity(rows.events_table(), rows.collectives_table())


def test_only_kernels_copies_and_fills_are_work_of_a_device() -> None:
    rows = Rows().kernel(0, 20).kernel(10, 25).copy(30, 40).copy(50, 60, kind="gpu_memset")
    rows.event(70, 80, "overhead", "Instrumentation", stream=7).event(0, 90, "cpu_op", "aten::mm")
    rows.event(70, 80, "gpu_user_annotation", "forward", stream=7)
    rows.event(70, 80, "cuda_sync", "Stream Wait Event", stream=7)
    activity = device(rows)
    assert activity.on_device
    assert activity.work.tolist() == [[0, 25], [30, 40], [50, 60]]
    assert activity.copies.tolist() == [[30, 40], [50, 60]]
    assert measure(activity.compute) == 25
    for empty in (read_host_activity(Rows().events_table()), device(Rows())):
        assert not len(empty.compute)
        assert not len(empty.coverage)


def test_collectives_are_known_by_their_row_as_well_as_by_their_name() -> None:
    rows = Rows().kernel(0, 10).collective(20, 30, 7, name="my_fused_gather").kernel(20, 30, stream=8)
    rows.collective(40, 50, 9, name="Memcpy PtoP", category="gpu_memcpy").copy(60, 70)
    rows.kernel(80, 90, name="ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)")
    activity = device(rows)
    assert activity.compute.tolist() == [[0, 10], [20, 30]]
    assert activity.kernels[:, 1:].tolist() == [[0, 10], [20, 30]]
    assert activity.copies.tolist() == [[60, 70]]
    assert activity.nameless.tolist() == [[80, 90]]


@pytest.mark.parametrize(
    ("rows", "launches", "works"),
    [
        (Rows().event(0, 9, "user_annotation", "gloo:all_reduce"), False, False),
        (Rows().event(0, 9, "cpu_op", "customLaunch"), False, False),
        (Rows().call(3, 1, "cudaGetDeviceCount"), False, False),
        (Rows().call(3, 1, "hipLaunchKernel"), True, False),
        (Rows().event(0, 9, "user_annotation", "nccl:all_to_all"), True, False),
        (Rows().copy(0, 1), None, True),
    ],
)  # fmt: skip
def test_a_device_without_work_is_told_from_a_rank_without_a_device(
    rows: Rows, launches: bool | None, works: bool
) -> None:
    events: pa.Table = rows.events_table()
    assert has_device_work(events) == works
    assert launches is None or launches_device_work(events) == launches


def two_steps() -> Rows:
    """The host runs ahead: its steps are [100, 200) and [200, 300), the device's work comes later."""
    rows = Rows().step(0, 100, 200).step(1, 200, 300)
    rows.call(110, 1).call(190, 2).call(210, 3)
    rows.kernel(120, 130, correlation=1).kernel(230, 260, correlation=2).kernel(280, 400, correlation=3)
    return rows


def windows_of(rows: Rows):
    return find_step_windows(Columns.from_arrow(rows.marks_table()), [0, 1, 2], device(rows))


def edges(windows) -> list[list[int]]:
    return [list(pair) for pair in zip(windows.steps.begin_ns, windows.steps.end_ns, strict=True)]


def ranged(name: str, stream: int | None, thread: int) -> Rows:
    rows = two_steps().kernel(150, 275, stream=8)
    return rows.event(140, 275, "gpu_user_annotation", name, stream=stream, thread=thread)


EDGES = {
    "steps move behind the work that they launched": (two_steps(), [[100, 260], [260, 400]]),
    "work launched before the window is not part of it": (
        two_steps().call(50, 9).kernel(105, 118, stream=8, correlation=9),
        [[118, 260], [260, 400]],
    ),
    "work without a launch that ran first was launched before": (
        two_steps().kernel(90, 125, stream=8),
        [[125, 260], [260, 400]],
    ),
    "a kernel whose times were lost does not begin the work": (
        two_steps().call(111, 5).kernel(0, 0, correlation=5).kernel(90, 125, stream=8),
        [[125, 260], [260, 400]],
    ),
    "work without a launch that ran later moves nothing": (
        two_steps().kernel(131, 270, stream=8),
        [[100, 260], [260, 400]],
    ),
    "a range of the device tells the step": (ranged("ProfilerStep#0", 8, 8), [[100, 275], [275, 400]]),
    "by its thread where it has no stream": (ranged("ProfilerStep#0", None, 8), [[100, 275], [275, 400]]),
    "a range of another stream": (ranged("ProfilerStep#0", 9, 9), [[100, 260], [260, 400]]),
    "a range of another step": (ranged("ProfilerStep#7", 8, 8), [[100, 260], [260, 400]]),
    "work behind the last step is outside": (
        two_steps().kernel(20, 90, stream=8).call(450, 11).kernel(460, 470, correlation=11),
        [[100, 260], [260, 400]],
    ),
}


@pytest.mark.parametrize("name", EDGES)
def test_edges_of_steps(name: str) -> None:
    rows, expected = EDGES[name]
    windows = windows_of(rows)
    assert edges(windows) == expected
    assert windows.host_steps.begin_ns.tolist() == [100, 200]
    assert windows.source == "ProfilerStep"


def test_a_step_that_launched_behind_the_last_kernel_of_the_trace_is_unknown() -> None:
    windows = windows_of(two_steps().call(250, 4).call(290, 5))
    assert (windows.unknown, edges(windows)) == ((1,), [[100, 260]])
    assert windows.host_steps.number.tolist() == [0]
    other = two_steps().call(150, 8)
    other.event(295, 296, "cuda_runtime", "cudaLaunchHostFunc", correlation=9)
    other.event(296, 297, "cuda_runtime", "cudaMemsetAsync", correlation=10)
    assert windows_of(other).unknown == (), "calls that never have a kernel"


def test_a_clock_moves_every_time_of_a_rank() -> None:
    rows = ranged("ProfilerStep#0", 8, 8).kernel(90, 125, stream=8).call(111, 4)
    rows.event(115, 116, "cuda_sync", "Stream Wait Event", stream=7).call(118, 5)
    rows.kernel(125, 128, correlation=4).kernel(131, 133, correlation=5).collective(300, 310)
    later = Rows()
    later.events = [row | {"start_ns": row["start_ns"] + 5} for row in rows.events]
    later.collectives = [row | {"start_ns": 305, "end_ns": 315} for row in rows.collectives]
    moved, want = device(later).on(RankClock(offset_ns=5)), device(rows)
    for name in ("compute", "copies", "coverage", "launched", "work", "nameless", "unlaunched", "kernels"):
        assert getattr(moved, name).tolist() == getattr(want, name).tolist(), name
    assert moved.steps.spans.tolist() == want.steps.spans.tolist()
    known = np.abs(want.awaits_until) < 1 << 61
    assert known.any()
    assert moved.awaits_until[known].tolist() == want.awaits_until[known].tolist()
