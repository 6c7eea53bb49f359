"""Attribution of blocked time when several collectives run at once, against a loop over ticks."""

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from zprof.analysis.intervals import intervals, measure
from zprof.analysis.time.exposure import expose

TICKS = 40
tick = st.integers(0, TICKS)
spans = st.tuples(tick, tick).map(sorted)


@st.composite
def collectives(draw):
    start, end = draw(spans)
    wait = draw(st.one_of(st.none(), spans))
    return {"start": start, "end": end, "wait": wait, "arrival": draw(st.integers(start, TICKS))}


def as_frame(rows):
    return pd.DataFrame(
        {
            "start_ns": pd.Series([row["start"] for row in rows], dtype="int64"),
            "end_ns": pd.Series([row["end"] for row in rows], dtype="int64"),
            "arrival_ns": pd.Series([row["arrival"] for row in rows], dtype="int64"),
            "wait_start_ns": pd.array([row["wait"] and row["wait"][0] for row in rows], dtype="Int64"),
            "wait_end_ns": pd.array([row["wait"] and row["wait"][1] for row in rows], dtype="Int64"),
        }
    )


def rows_of(spans):
    return intervals([start for start, _ in spans], [end for _, end in spans])


def running(row, now):
    return row["start"] <= now < row["end"]


def awaited(row, now):
    return running(row, now) and row["wait"] is not None and row["wait"][0] <= now < row["wait"][1]


@given(st.lists(collectives(), max_size=6), st.lists(spans, max_size=4))
def test_each_blocked_instant_goes_to_exactly_one(rows, blocked):
    exposure = expose(as_frame(rows), rows_of(blocked))
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
    exposure = expose(as_frame(rows), rows_of(blocked))
    assert exposure.wait_ns.tolist() == want["wait"]
    assert exposure.transfer_ns.tolist() == want["transfer"]


def test_a_queue_blocks_first_by_what_stands_in_front():
    rows = [
        {"start": 0, "end": 10, "wait": None, "arrival": 2},
        {"start": 10, "end": 20, "wait": (5, 20), "arrival": 13},
    ]
    exposure = expose(as_frame(rows), rows_of([(5, 20)]))
    assert exposure.wait_ns.tolist() == [0, 3]
    assert exposure.transfer_ns.tolist() == [5, 7]


def test_no_collectives():
    exposure = expose(as_frame([]), rows_of([(0, 5)]))
    assert exposure.wait_ns.dtype == np.int64
    assert measure(exposure.waiting) == 0
