"""Which collective a blocked instant goes to, against loops over ticks; and what stays unseen."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.device_ranks import Rows
from tests.support.tables import as_columns
from zprof.analysis.intervals import EMPTY, intervals, measure
from zprof.analysis.time.activity import AFTER_ALL_NS, RankActivity, read_device_activity
from zprof.analysis.time.ledger import (
    Blocking,
    attribute_exposure,
    find_blocking,
    share_by_first_start,
)
from zprof.analysis.time.steps import find_trace_windows, make_single_step

TICKS = 40
tick = st.integers(0, TICKS)
spans = st.tuples(tick, tick).map(sorted)
lasting = spans.filter(lambda span: span[1] > span[0])


def exposed_on_device(rows: Rows) -> list[int]:
    activity = read_device_activity(rows.events_table(), rows.collectives_table())
    collectives = rows.decomposed()
    blocking, gaps = find_blocking(0, activity, find_trace_windows(activity).steps, collectives)
    assert gaps == []
    exposure = attribute_exposure(collectives.ints("arrival_ns"), blocking)
    return (exposure.wait_ns + exposure.transfer_ns).tolist()


def rows_of(compute, collectives) -> Rows:
    rows = Rows()
    for start, end in compute:
        rows.kernel(start, end)
    for (start, end), stream in collectives:
        rows.collective(start, end, stream)
    return rows


def expected_on_device(compute, collectives) -> list[int]:
    """Instant by instant: of those done when the next compute starts the last, else the first to start."""
    found = [0] * len(collectives)
    busy = [any(start <= now < end for start, end in compute) for now in range(TICKS + 1)]
    for now in range(TICKS):
        running = [i for i, ((start, end), _) in enumerate(collectives) if start <= now < end]
        if busy[now] or not running:
            continue
        next_compute = next((t for t in range(now, TICKS + 1) if busy[t]), -1)
        done = [i for i in running if collectives[i][0][1] <= next_compute]
        if done:
            owner = max(done, key=lambda i: (collectives[i][0][1], -collectives[i][0][0], -i))
        else:
            owner = min(running, key=lambda i: (collectives[i][0][0], i))
        found[owner] += 1
    return found


@settings(max_examples=40)
@given(
    st.lists(lasting, max_size=5),
    st.lists(st.tuples(lasting, st.sampled_from((20, 21, 22))), min_size=1, max_size=6),
)
def test_an_exposed_instant_goes_to_what_the_next_compute_waits_for(compute, collectives) -> None:
    assert exposed_on_device(rows_of(compute, collectives)) == expected_on_device(compute, collectives)


def two_collectives(wait_call: int, stream: int = 7) -> Rows:
    """Launched at 1 and 3; the kernel behind them at 7; the call to wait in between."""
    rows = Rows().kernel(0, 10, correlation=1).call(0, 1).call(7, 2).kernel(50, 60, correlation=2)
    rows.collective(10, 45, 20, launch=1).collective(12, 48, 21, launch=3)
    return rows.event(
        wait_call, wait_call + 1, "cuda_sync", "Stream Wait Event", stream=stream, thread=stream
    )


@pytest.mark.parametrize(
    ("rows", "exposed"),
    [
        (two_collectives(5), [2, 36]),
        (two_collectives(2), [35, 3]),  # rules out what was launched after it
        (two_collectives(8), [35, 3]),  # behind the launch: the first to start takes it
        (two_collectives(-5), [35, 3]),
        (two_collectives(5, stream=9), [35, 3]),
    ],
)
def test_a_recorded_wait_tells_what_the_kernel_depends_on(rows: Rows, exposed: list[int]) -> None:
    assert exposed_on_device(rows) == exposed


def test_kernels_of_one_graph_launch_can_wait_for_anything() -> None:
    rows = Rows().call(0, 1).kernel(0, 10, correlation=1).kernel(50, 60, correlation=1)
    rows.collective(10, 45, 20, launch=0).collective(12, 48, 21, launch=0)
    rows.event(-20, -19, "cuda_sync", "Stream Wait Event", stream=7, thread=7)
    assert exposed_on_device(rows) == [2, 36]


@st.composite
def collectives(draw):
    start, end = draw(spans)
    wait = draw(st.one_of(st.none(), spans))
    return {"start": start, "end": end, "wait": wait, "arrival": draw(st.integers(start, TICKS))}


def as_intervals(pairs):
    return intervals([start for start, _ in pairs], [end for _, end in pairs])


def exposed_on_host(rows, blocked):
    running = as_intervals([(row["start"], row["end"]) for row in rows])
    waits = as_intervals([row["wait"] or (0, 0) for row in rows])
    awaited = share_by_first_start(
        np.maximum(running[:, 0], waits[:, 0]), np.minimum(running[:, 1], waits[:, 1])
    )
    blocking = Blocking(
        blocked=as_intervals(blocked), unexplained=EMPTY, method="", running=running, awaited=awaited
    )
    return attribute_exposure(np.array([row["arrival"] for row in rows], dtype=np.int64), blocking)


@settings(max_examples=40)
@given(st.lists(collectives(), max_size=5, unique_by=lambda row: row["start"]), st.lists(spans, max_size=3))
def test_a_blocked_instant_goes_to_what_is_awaited(rows, blocked) -> None:
    free = 0
    for row in rows:  # a thread waits for one thing at a time
        if row["wait"] is not None:
            row["wait"] = (max(free, row["wait"][0]), max(free, row["wait"][1]))
            free = max(free, row["wait"][1])
    want = {"wait": [0] * len(rows), "transfer": [0] * len(rows)}
    for now in range(TICKS):
        running = [i for i, row in enumerate(rows) if row["start"] <= now < row["end"]]
        if not running or not any(start <= now < end for start, end in blocked):
            continue
        awaited = [i for i in running if rows[i]["wait"] and rows[i]["wait"][0] <= now < rows[i]["wait"][1]]
        owner = min(awaited or running, key=lambda i: rows[i]["start"])
        want["wait" if now < rows[owner]["arrival"] else "transfer"][owner] += 1
    exposure = exposed_on_host(rows, blocked)
    assert exposure.wait_ns.tolist() == want["wait"]
    assert exposure.transfer_ns.tolist() == want["transfer"]
    assert measure(exposure.waiting) == sum(want["wait"])
    assert measure(exposure.moving) == sum(want["transfer"])


UNIT = 10_000
EVERY_50 = [(50 * n, 50 * n + 5) for n in range(16)]
QUEUED = [(100 + 50 * n, 150 + 50 * n) for n in range(8)]
#: Spans of waits and of collectives in units, which collectives have a wait of their own, and if all is seen.
WAITS = {
    "no collectives": ([], [], 0, True),
    "not one wait": ([], [(100, 200)], 0, False),
    "one long wait for a queue": ([(100, 500)], QUEUED, 0, True),
    "a queue behind the wait": ([(100, 500)], [(start + 450, end + 450) for start, end in QUEUED], 0, False),
    "as many waits, but of others": ([(100 * n, 100 * n + 10) for n in range(8)], EVERY_50, 2, False),
    "each has its own": ([(100 * n, 100 * n + 10) for n in range(8)], EVERY_50[::2], 1, True),
}


@pytest.mark.parametrize("name", WAITS)
def test_waits_that_nobody_recorded_make_an_upper_bound(name: str) -> None:
    waits, ran, every, seen = WAITS[name]
    waited = as_intervals([(UNIT * start, UNIT * end) for start, end in waits])
    activity = RankActivity(
        on_device=False, compute=EMPTY, waits=waited, anonymous_waits=waited, copies=EMPTY, launched=EMPTY,
        coverage=intervals([0], [1000 * UNIT]), awaits_until=np.full(0, AFTER_ALL_NS),
    )  # fmt: skip
    frame = pd.DataFrame(ran, columns=["start_ns", "end_ns"]).astype("int64") * UNIT
    unknown = pd.array([None] * len(frame), dtype="Int64")
    frame = frame.assign(stream=7, launch_start_ns=unknown, wait_start_ns=unknown, wait_end_ns=unknown)
    if every:
        frame.loc[::every, ["wait_start_ns", "wait_end_ns"]] = waited
    blocking, gaps = find_blocking(0, activity, make_single_step(0, 0, 1000 * UNIT), as_columns(frame))
    assert [gap.what for gap in gaps] == ([] if seen else ["exposed time"])
    assert (blocking.method == "wait spans") == seen
