"""Which collective an exposed instant of a device goes to, against a loop over ticks."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.device_ranks import Rows
from zprof.analysis.intervals import intervals, measure, subtract, union
from zprof.analysis.time.activity_from_events import read_device_activity
from zprof.analysis.time.blocking import attribute_exposure, find_blocking
from zprof.analysis.time.steps import find_trace_windows

TICKS = 40
STREAMS = (20, 21, 22)
spans = st.tuples(st.integers(0, TICKS), st.integers(1, 12)).map(lambda s: (s[0], min(TICKS, s[0] + s[1])))
lasting = spans.filter(lambda s: s[1] > s[0])
communication = st.lists(st.tuples(lasting, st.sampled_from(STREAMS)), max_size=6)


def rows_of(compute, collectives):
    rows = Rows()
    for start, end in compute:
        rows.kernel(start, end)
    for (start, end), stream in collectives:
        rows.collective(start, end, stream)
    return rows


def exposed(rows):
    activity = read_device_activity(rows.events_table(), rows.collectives_table())
    frame = rows.frame()
    blocking, gaps = find_blocking(0, activity, find_trace_windows(activity).steps, frame)
    assert gaps == []
    exposure = attribute_exposure(frame["arrival_ns"].to_numpy(dtype=np.int64), blocking)
    return (exposure.wait_ns + exposure.transfer_ns).tolist()


def expected(compute, collectives):
    """Instant by instant: of those done when the next compute starts the last, else the first to start."""
    found = [0] * len(collectives)
    busy = [any(start <= now < end for start, end in compute) for now in range(TICKS + 1)]
    for now in range(TICKS):
        running = [i for i, ((start, end), _) in enumerate(collectives) if start <= now < end]
        if busy[now] or not running:
            continue
        next_compute = next((t for t in range(now, TICKS + 1) if busy[t]), -1)
        done = [i for i in running if collectives[i][0][1] <= next_compute]
        owner = max(done, key=lambda i: (collectives[i][0][1], -collectives[i][0][0], -i)) if done else None
        if owner is None:
            owner = min(running, key=lambda i: (collectives[i][0][0], i))
        found[owner] += 1
    return found


@given(st.lists(lasting, max_size=5), communication)
def test_each_instant_goes_to_what_the_next_compute_waits_for(compute, collectives):
    if compute or collectives:
        assert exposed(rows_of(compute, collectives)) == expected(compute, collectives)


@given(st.lists(lasting, max_size=6), communication.filter(bool))
def test_exposed_parts_sum_to_communication_without_compute(compute, collectives):
    ran = union(intervals(*np.array([span for span, _ in collectives]).T))
    computed = union(intervals(*np.array(compute).T)) if compute else ran[:0]
    assert sum(exposed(rows_of(compute, collectives))) == measure(subtract(ran, computed))


def test_what_still_runs_when_compute_goes_on_did_not_hold_it_up():
    """A reduce-scatter runs all along; the gather is what the compute at 50 waits for."""
    rows = Rows().kernel(0, 10).kernel(50, 60).collective(5, 80, 21).collective(12, 48, 20)
    assert exposed(rows) == [(12 - 10) + (50 - 48) + (80 - 60), 48 - 12]


def test_the_last_to_end_before_the_compute_takes_what_it_covers():
    rows = Rows().kernel(0, 10).kernel(50, 60).collective(10, 30, 20).collective(20, 50, 21)
    assert exposed(rows) == [10, 30]


def test_each_gap_in_the_compute_has_a_dependency_of_its_own():
    """The long one holds up the second gap; in the first another is done when the compute goes on."""
    rows = Rows().kernel(-10, 0).kernel(10, 20).kernel(50, 60).collective(0, 8, 20).collective(0, 50, 21)
    assert exposed(rows) == [8, 2 + 30]


def test_of_two_that_end_together_the_first_to_start_takes_it():
    rows = Rows().kernel(0, 1).kernel(12, 13).collective(1, 12, 20).collective(0, 12, 21)
    assert exposed(rows) == [0, 11]


def test_without_compute_behind_it_the_first_to_start_takes_all():
    rows = Rows().kernel(0, 10).collective(10, 30, 20).collective(20, 50, 21)
    assert exposed(rows) == [20, 20]


def waiting(wait_call):
    """Two collectives, launched at 1 and 3; the kernel behind them at 7; the call to wait in between."""
    rows = Rows().kernel(0, 10, correlation=1).call(0, 1).call(7, 2).kernel(50, 60, correlation=2)
    rows.collective(10, 45, 20, launch=1).collective(12, 48, 21, launch=3)
    return rows.event(wait_call, wait_call + 1, "cuda_sync", "Stream Wait Event", stream=7, thread=7)


def test_a_recorded_wait_rules_out_what_was_launched_after_it():
    assert exposed(waiting(5)) == [2, 36]
    assert exposed(waiting(2)) == [35, 3]


def test_a_wait_of_another_stream_or_behind_the_launch_is_none_of_it():
    """Nothing is in front of the kernel: the first to start takes it."""
    for late in (waiting(8), waiting(-5)):
        assert exposed(late) == [35, 3]
    other = waiting(5)
    other.events[-1]["stream"] = 9
    assert exposed(other) == [35, 3]


def test_kernels_of_one_graph_launch_can_wait_for_anything():
    rows = Rows().call(0, 1).kernel(0, 10, correlation=1).kernel(50, 60, correlation=1)
    rows.collective(10, 45, 20, launch=0).collective(12, 48, 21, launch=0)
    rows.event(-20, -19, "cuda_sync", "Stream Wait Event", stream=7, thread=7)
    assert exposed(rows) == [2, 36]


def test_a_collective_of_the_host_exposes_nothing_of_a_device():
    rows = Rows().kernel(0, 10).kernel(50, 60).described(10, 50, None)
    assert exposed(rows) == [0]
