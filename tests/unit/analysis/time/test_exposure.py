"""Attribution of blocked time when several collectives run at once, against a loop over ticks."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zprof.analysis.intervals import EMPTY, intervals, measure
from zprof.analysis.time.blocking import Blocking, attribute_exposure, share_by_first_start

TICKS = 40
tick = st.integers(0, TICKS)
spans = st.tuples(tick, tick).map(sorted)


@st.composite
def collectives(draw):
    start, end = draw(spans)
    wait = draw(st.one_of(st.none(), spans))
    return {"start": start, "end": end, "wait": wait, "arrival": draw(st.integers(start, TICKS))}


def exposed(rows, blocked):
    running = rows_of([(row["start"], row["end"]) for row in rows])
    waits = rows_of([row["wait"] or (0, 0) for row in rows])
    awaited = share_by_first_start(
        np.maximum(running[:, 0], waits[:, 0]), np.minimum(running[:, 1], waits[:, 1])
    )
    blocking = Blocking(
        blocked=rows_of(blocked), unexplained=EMPTY, method="", running=running, awaited=awaited
    )
    return attribute_exposure(np.array([row["arrival"] for row in rows], dtype=np.int64), blocking)


def rows_of(spans):
    return intervals([start for start, _ in spans], [end for _, end in spans])


def running(row, now):
    return row["start"] <= now < row["end"]


def awaited(row, now):
    return running(row, now) and row["wait"] is not None and row["wait"][0] <= now < row["wait"][1]


@given(st.lists(collectives(), max_size=6), st.lists(spans, max_size=4))
def test_each_blocked_instant_goes_to_exactly_one(rows, blocked):
    exposure = exposed(rows, blocked)
    total = int(exposure.wait_ns.sum() + exposure.transfer_ns.sum())
    ticks = [now for now in range(TICKS) if any(start <= now < end for start, end in blocked)]
    assert total == sum(any(running(row, now) for row in rows) for now in ticks)
    assert measure(exposure.waiting) == exposure.wait_ns.sum()
    assert measure(exposure.moving) == exposure.transfer_ns.sum()


@given(st.lists(collectives(), max_size=5, unique_by=lambda row: row["start"]), st.lists(spans, max_size=3))
def test_one_wait_at_a_time_goes_to_what_is_awaited(rows, blocked):
    free = 0
    for row in rows:  # a thread waits for one thing at a time
        if row["wait"] is not None:
            row["wait"] = (max(free, row["wait"][0]), max(free, row["wait"][1]))
            free = max(free, row["wait"][1])
    want = {"wait": [0] * len(rows), "transfer": [0] * len(rows)}
    for now in range(TICKS):
        if not any(start <= now < end for start, end in blocked):
            continue
        candidates = [i for i, row in enumerate(rows) if awaited(row, now)]
        candidates = candidates or [i for i, row in enumerate(rows) if running(row, now)]
        if candidates:
            owner = min(candidates, key=lambda i: rows[i]["start"])
            want["wait" if now < rows[owner]["arrival"] else "transfer"][owner] += 1
    exposure = exposed(rows, blocked)
    assert exposure.wait_ns.tolist() == want["wait"]
    assert exposure.transfer_ns.tolist() == want["transfer"]


def test_a_queue_blocks_first_by_what_stands_in_front():
    rows = [
        {"start": 0, "end": 10, "wait": None, "arrival": 2},
        {"start": 10, "end": 20, "wait": (5, 20), "arrival": 13},
    ]
    exposure = exposed(rows, [(5, 20)])
    assert exposure.wait_ns.tolist() == [0, 3]
    assert exposure.transfer_ns.tolist() == [5, 7]


def test_no_collectives():
    exposure = exposed([], [(0, 5)])
    assert exposure.wait_ns.dtype == np.int64
    assert measure(exposure.waiting) == 0
