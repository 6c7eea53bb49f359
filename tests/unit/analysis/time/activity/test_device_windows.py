"""Which work of a device belongs to which step, and what is left outside of all of them."""

import numpy as np

from tests.support.device_ranks import Rows
from zprof.analysis.intervals import measure, subtract
from zprof.analysis.time.activity_from_events import (
    has_device_work,
    launches_device_work,
    read_device_activity,
)
from zprof.analysis.time.clocks.rank_clock import RankClock
from zprof.analysis.time.steps import find_step_windows, find_trace_windows


def activity_of(rows):
    return read_device_activity(rows.events_table(), rows.collectives_table())


def windows_of(rows):
    return find_step_windows(rows.marks_frame(), [0, 1, 2], activity_of(rows))


def two_steps():
    """The host runs ahead: its steps are [100, 200) and [200, 300), the device's work comes later."""
    rows = Rows().step(0, 100, 200).step(1, 200, 300)
    rows.call(110, 1).call(190, 2).call(210, 3)
    rows.kernel(120, 130, correlation=1).kernel(230, 260, correlation=2).kernel(280, 400, correlation=3)
    return rows


def edges(windows):
    return [list(pair) for pair in zip(windows.steps.begin_ns, windows.steps.end_ns, strict=True)]


def test_steps_move_behind_the_work_that_they_launched():
    windows = windows_of(two_steps())
    assert edges(windows) == [[100, 260], [260, 400]]
    assert windows.host_steps.begin_ns.tolist() == [100, 200]
    assert windows.source == "ProfilerStep"


def test_work_launched_before_the_window_is_none_of_it():
    rows = two_steps().call(50, 9).kernel(105, 118, stream=8, correlation=9)
    assert edges(windows_of(rows)) == [[118, 260], [260, 400]]


def test_work_without_a_launch_that_ran_first_was_launched_before():
    rows = two_steps().kernel(90, 125, stream=8)
    assert edges(windows_of(rows)) == [[125, 260], [260, 400]]


def test_a_kernel_whose_times_were_lost_says_nothing_of_when_work_began():
    rows = two_steps().call(111, 5).kernel(0, 0, correlation=5).kernel(90, 125, stream=8)
    assert edges(windows_of(rows)) == [[125, 260], [260, 400]]


def test_work_without_a_launch_that_ran_later_moves_nothing():
    rows = two_steps().kernel(131, 270, stream=8)
    assert edges(windows_of(rows)) == [[100, 260], [260, 400]]


def test_the_device_says_itself_to_which_step_work_belongs():
    rows = two_steps().kernel(150, 275, stream=8)
    rows.event(140, 275, "gpu_user_annotation", "ProfilerStep#0", stream=8, thread=8)
    assert edges(windows_of(rows)) == [[100, 275], [275, 400]]


def test_what_the_device_says_of_another_stream_or_step_counts_for_nothing():
    for name, stream in (("ProfilerStep#0", 9), ("ProfilerStep#7", 8), ("forward", 8)):
        rows = two_steps().kernel(150, 275, stream=8)
        rows.event(140, 275, "gpu_user_annotation", name, stream=stream, thread=stream)
        assert edges(windows_of(rows)) == [[100, 260], [260, 400]]


def test_a_range_of_the_device_may_have_its_stream_as_thread_only():
    rows = two_steps().kernel(150, 275, stream=8)
    rows.event(140, 275, "gpu_user_annotation", "ProfilerStep#0", stream=None, thread=8)
    assert edges(windows_of(rows)) == [[100, 275], [275, 400]]


def test_a_trace_without_host_events_is_one_window():
    rows = Rows().kernel(10, 20).kernel(40, 70).copy(80, 90).step(0, 5, 500, name="whole trace")
    windows = windows_of(rows)
    assert edges(windows) == [[10, 90]]
    assert windows.source == "whole trace"


def test_the_trace_as_a_window_is_from_the_first_to_the_last_work():
    rows = two_steps().kernel(20, 30).copy(410, 420).event(0, 1000, "cpu_op", "aten::mm")
    rows.kernel(5, 5).event(425, 500, "cuda_sync", "Event Sync", stream=7)
    windows = find_trace_windows(activity_of(rows))
    assert edges(windows) == [[20, 420]]
    assert windows.host_steps.step_at(np.array([0, 999])).tolist() == [0, 0]


def test_marks_without_a_name_are_those_of_the_recorder():
    rows = Rows().step(0, 0, 10, name="").kernel(1, 2)
    assert windows_of(rows).source == "recorder"


def test_only_kernels_copies_and_fills_are_work():
    rows = Rows().kernel(10, 20).copy(30, 40).copy(50, 60, kind="gpu_memset")
    rows.event(70, 80, "overhead", "Instrumentation", stream=7)
    rows.event(70, 80, "gpu_user_annotation", "forward", stream=7)
    rows.event(70, 80, "cuda_sync", "Stream Wait Event", stream=7)
    activity = activity_of(rows)
    assert activity.work.tolist() == [[10, 20], [30, 40], [50, 60]]
    assert activity.copies.tolist() == [[30, 40], [50, 60]]


def test_collectives_are_known_by_their_row_as_well_as_by_their_name():
    rows = Rows().kernel(0, 10).collective(20, 30, 7, name="my_fused_gather").kernel(20, 30, stream=8)
    rows.collective(40, 50, 9, name="Memcpy PtoP", category="gpu_memcpy").copy(60, 70)
    rows.kernel(80, 90, name="ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)")
    activity = activity_of(rows)
    assert activity.compute.tolist() == [[0, 10], [20, 30]]
    assert activity.kernels[:, 1:].tolist() == [[0, 10], [20, 30]]
    assert activity.copies.tolist() == [[60, 70]]
    assert activity.nameless.tolist() == [[80, 90]]


def test_overlapping_kernels_of_one_stream_count_once():
    activity = activity_of(Rows().kernel(0, 20).kernel(10, 30).kernel(12, 14))
    assert measure(activity.compute) == 30


def test_a_clock_moves_every_time_of_a_rank():
    rows = two_steps().kernel(90, 125, stream=8)
    rows.event(140, 275, "gpu_user_annotation", "ProfilerStep#0", stream=8, thread=8)
    rows.event(150, 151, "cuda_sync", "Stream Wait Event", stream=7).collective(300, 310)
    later = Rows()
    later.events = [row | {"start_ns": row["start_ns"] + 5} for row in rows.events]
    later.collectives = [row | {"start_ns": 305, "end_ns": 315} for row in rows.collectives]
    moved = activity_of(later).on(RankClock(offset_ns=5))
    want = activity_of(rows)
    for name in ("compute", "copies", "coverage", "launched", "work", "nameless", "unlaunched", "kernels"):
        assert getattr(moved, name).tolist() == getattr(want, name).tolist(), name
    assert moved.steps.spans.tolist() == want.steps.spans.tolist()
    known = np.abs(want.awaits_until) < 1 << 61
    assert known.any()
    assert moved.awaits_until[known].tolist() == want.awaits_until[known].tolist()


def test_no_work_is_told_from_a_rank_without_a_device():
    host = Rows().event(0, 9, "cpu_op", "aten::mm").event(0, 9, "user_annotation", "gloo:all_reduce")
    assert not has_device_work(host.events_table())
    assert not launches_device_work(host.events_table())
    assert not launches_device_work(host.event(0, 9, "cpu_op", "customLaunch").events_table())
    assert not launches_device_work(host.call(3, 1, "cudaGetDeviceCount").events_table())
    assert launches_device_work(host.call(3, 1, "hipLaunchKernel").events_table())
    named = Rows().event(0, 9, "user_annotation", "nccl:all_to_all")
    assert launches_device_work(named.events_table())
    assert has_device_work(Rows().copy(0, 1).events_table())


def test_all_work_is_in_one_step_or_outside():
    rows = two_steps().kernel(20, 90, stream=8).call(450, 11).kernel(460, 470, correlation=11)
    activity, windows = activity_of(rows), windows_of(rows)
    inside = measure(activity.work) - measure(subtract(activity.work, windows.steps.spans))
    assert edges(windows) == [[100, 260], [260, 400]]
    assert inside == 10 + 30 + 120


def test_a_step_that_launched_behind_the_last_kernel_of_the_trace_is_unknown():
    rows = two_steps().call(250, 4).call(290, 5)
    windows = windows_of(rows)
    assert windows.unknown == (1,)
    assert edges(windows) == [[100, 260]]
    assert windows.host_steps.number.tolist() == [0]


def test_launches_without_a_kernel_between_others_or_that_never_have_one_are_no_end():
    rows = two_steps().call(150, 8)
    rows.event(295, 296, "cuda_runtime", "cudaLaunchHostFunc", correlation=9)
    rows.event(296, 297, "cuda_runtime", "cudaMemsetAsync", correlation=10)
    assert windows_of(rows).unknown == ()
