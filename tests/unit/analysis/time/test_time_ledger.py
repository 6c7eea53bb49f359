"""Rounding of the ledger's means, and its blind spots."""

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from zprof.analysis.intervals import EMPTY, intervals
from zprof.analysis.time.activity import Activity
from zprof.analysis.time.blocking import AFTER_ALL_NS, attribute_exposure, find_blocking
from zprof.analysis.time.ledger import divide_evenly, make_step_rows
from zprof.analysis.time.steps import StepWindows
from zprof.analysis.time.timeline import RankTimeline


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=7), st.integers(1, 50))
def test_means_still_sum(sums, count):
    means = divide_evenly(sums, count)
    assert sum(means) == sum(sums) // count
    assert all(abs(mean - value / count) <= 1 for mean, value in zip(means, sums, strict=True))
    assert min(means) >= 0


def timeline(**activity):
    values = {
        "on_device": False,
        "compute": EMPTY,
        "waits": EMPTY,
        "anonymous_waits": EMPTY,
        "copies": EMPTY,
        "launched": EMPTY,
        "coverage": intervals([0], [1000]),
    }
    computed = len(activity.get("compute", EMPTY))
    values["awaits_until"] = np.full(computed, AFTER_ALL_NS)
    steps = StepWindows(number=np.array([7]), begin_ns=np.array([0]), end_ns=np.array([1000]))
    return RankTimeline(
        rank=0,
        host="a",
        steps=steps,
        host_steps=steps,
        activity=Activity(**values | activity),
        pings={},
    )


def collectives(*rows):
    frame = pd.DataFrame([{"start_ns": s, "end_ns": e, "arrival_ns": s} for s, e in rows])
    frame = (
        frame if len(frame) else pd.DataFrame({"start_ns": [], "end_ns": [], "arrival_ns": []}, dtype="int64")
    )
    return frame.assign(
        stream=7,
        launch_start_ns=pd.array([None] * len(frame), dtype="Int64"),
        wait_start_ns=pd.array([None] * len(frame), dtype="Int64"),
        wait_end_ns=pd.array([None] * len(frame), dtype="Int64"),
    )


def ledger(timeline, frame):
    blocking, _ = find_blocking(0, timeline.activity, timeline.steps, frame)
    exposure = attribute_exposure(frame["arrival_ns"].to_numpy(dtype="int64"), blocking)
    return make_step_rows(timeline, blocking, exposure).iloc[0]


def test_outside_of_the_trace_is_unexplained():
    row = ledger(timeline(compute=intervals([200], [500]), coverage=intervals([200], [700])), collectives())
    assert row["compute_ns"] == 300
    assert row["unexplained_ns"] == 500
    assert row["idle_ns"] == 200


def test_a_wait_on_nothing_seen_is_unexplained():
    waits = intervals([100, 400], [200, 500])
    row = ledger(timeline(waits=waits, anonymous_waits=waits), collectives((90, 180)))
    assert row["exposed_transfer_ns"] == 80
    assert row["unexplained_ns"] == 100
    assert row["idle_ns"] == 1000 - 80 - 100


def test_on_a_device_everything_without_compute_is_blocked():
    device = timeline(
        on_device=True,
        compute=intervals([0, 500], [300, 600]),
        copies=intervals([290, 650], [320, 700]),
    )
    row = ledger(device, collectives((200, 400), (350, 450)))
    assert row["exposed_transfer_ns"] == 150
    assert row["overlapped_ns"] == 100
    assert row["collective_ns"] == 250
    assert row["exposed_memcpy_ns"] == 50
    assert row["idle_ns"] == 1000 - 400 - 150 - 50


def test_a_wait_that_has_its_collective_stands_for_no_other():
    """Eight collectives without a wait, and eight waits: but those belong to eight others."""
    us = 10_000
    waits = intervals([i * 100 * us for i in range(8)], [i * 100 * us + 10 * us for i in range(8)])
    whole = intervals([0], [1000 * us])
    activity = timeline(waits=waits, anonymous_waits=waits, coverage=whole).activity
    steps = StepWindows(number=np.array([0]), begin_ns=np.array([0]), end_ns=np.array([1000 * us]))
    frame = collectives(*[(i * 50 * us, i * 50 * us + 5 * us) for i in range(16)])
    frame.loc[::2, "wait_start_ns"] = waits[:, 0]
    frame.loc[::2, "wait_end_ns"] = waits[:, 1]
    blocking, gaps = find_blocking(0, activity, steps, frame)
    assert "8 collectives" in gaps[0].reason
    assert "upper bound" in blocking.method
    frame["wait_start_ns"] = frame["wait_start_ns"].fillna(-1)
    assert not find_blocking(0, activity, steps, frame)[1]


def test_a_collective_that_ends_within_some_wait_was_waited_for():
    """Waits one behind the other run together, so there are fewer of them than collectives."""
    us = 10_000
    waits = intervals([100 * us], [500 * us])
    activity = timeline(waits=waits, anonymous_waits=waits, coverage=intervals([0], [1000 * us])).activity
    steps = StepWindows(number=np.array([0]), begin_ns=np.array([0]), end_ns=np.array([1000 * us]))
    queued = [(100 * us + i * 50 * us, 150 * us + i * 50 * us) for i in range(8)]
    blocking, gaps = find_blocking(0, activity, steps, collectives(*queued))
    assert (blocking.method, gaps) == ("wait spans", [])
    late = [(start + 450 * us, end + 450 * us) for start, end in queued]
    blocking, gaps = find_blocking(0, activity, steps, collectives(*late))
    assert "upper bound" in blocking.method
    assert "8 collectives" in gaps[0].reason


def test_waits_unseen_in_part_give_a_mixed_bound():
    us = 1_000
    activity = timeline(
        waits=intervals([0], [10]), anonymous_waits=intervals([0], [10]), coverage=intervals([0], [1000 * us])
    )
    steps = StepWindows(number=np.array([0]), begin_ns=np.array([0]), end_ns=np.array([1000 * us]))
    frame = collectives(*[(i * 100 * us, i * 100 * us + 50 * us) for i in range(8)])
    blocking, gaps = find_blocking(0, activity.activity, steps, frame)
    assert "upper bound" in blocking.method
    assert gaps
    assert gaps[0].what == "exposed time"


def test_not_one_wait_recorded_is_no_proof_that_nothing_waited():
    """Two collectives, a loop of a few steps: where nobody was seen to wait, holes bound it."""
    us = 10_000
    activity = timeline(coverage=intervals([0], [1000 * us])).activity
    steps = StepWindows(number=np.array([0]), begin_ns=np.array([0]), end_ns=np.array([1000 * us]))
    blocking, gaps = find_blocking(0, activity, steps, collectives((100 * us, 200 * us)))
    assert blocking.method == "aten gap upper bound"
    assert gaps
    assert find_blocking(0, activity, steps, collectives())[0].method == "wait spans"
