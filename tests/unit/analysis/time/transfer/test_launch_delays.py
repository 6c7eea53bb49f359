"""What a collective stood behind between its launch and its start, and what it could have run under."""

import numpy as np
import pandas as pd
import pytest

from tests.support.device_ranks import Rows
from tests.support.matched_rows import BASE_NS, collective, table
from tests.support.tables import as_columns
from zprof.analysis.columns import Columns, OptionalInts
from zprof.analysis.intervals import EMPTY
from zprof.analysis.time.activity import RankActivity, read_device_activity
from zprof.analysis.time.clocks import RankClock
from zprof.analysis.time.decomposition import (
    find_collective_launches,
    make_limiter_columns,
    measure_blocked,
    measure_prefetch,
)
from zprof.analysis.time.steps import make_single_step

US = 1_000


def as_spans(pairs):
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def launches(*spans, kernels=(), streams=None, stream=20, group=None):
    """Rows of rank 0: (launch, start, end); kernels: (launch, start, end), each on its stream."""
    rows = []
    for number, (launch, start, end) in enumerate(spans):
        rows += collective(
            number,
            {0: (start, end)},
            ranks=(0, 1),
            launch_start_ns=None if launch is None else BASE_NS + launch,
            stream=stream[number] if isinstance(stream, list) else stream,
            group=group[number] if group else "0,1",
        )
    frame = table(rows)
    on = np.array(streams or [7] * len(kernels), dtype=np.int64)
    kernels = np.array(kernels, dtype=np.int64).reshape(-1, 3) + BASE_NS
    return find_collective_launches(frame, kernels, on), frame


QUEUE = ((0, 10, 500), (100, 505, 900))
LATER = ((100, 810, 900),)
#: Collectives, what else there is, and how long each waited for what was ahead of it.
DEPENDENCIES = {
    "nothing ahead": ([(100, 110, 200)], {}, [0]),
    "launch unknown": ([(None, 110, 200)], {}, [None]),
    "a collective on its stream": (QUEUE, {}, [0, 400]),
    "off the device, of its group": (QUEUE, {"stream": None}, [0, 400]),
    "off the device, of another group": (QUEUE, {"stream": None, "group": ["0,1", "0,2"]}, [0, 0]),
    "two at once": (
        [(0, 10, 50_000), (100, 120, 40_000), (200, 40_010, 60_000)],
        {"stream": None},
        [0, 0, 39_800],
    ),
    "compute launched before it": (LATER, {"kernels": [(0, 20, 800)]}, [700]),
    "compute launched after it": (LATER, {"kernels": [(101, 120, 800)]}, [0]),
    "the later of two streams": (LATER, {"kernels": [(0, 20, 300), (10, 20, 600)], "streams": [7, 8]}, [500]),
}


@pytest.mark.parametrize("name", DEPENDENCIES)
def test_dependencies_of_a_launch(name) -> None:
    spans, more, expected = DEPENDENCIES[name]
    found, rows = launches(*spans, **more)
    assert found.make_columns(rows)["dependency_ns"].tolist() == expected


def blocked(rows: Rows, clock_ns: int = 0) -> list[int | None]:
    clock = RankClock(offset_ns=-clock_ns, drift_ppb=0.0, origin_ns=0)
    activity = read_device_activity(rows.events_table(), rows.collectives_table()).on(clock)
    collectives = rows.decomposed()
    launched, is_known = collectives.ints("launch_start_ns"), collectives.known("launch_start_ns")
    collectives = collectives.with_columns(
        instance=np.zeros(len(collectives), dtype=np.int64),
        start_ns=collectives.ints("start_ns") + clock_ns,
        end_ns=collectives.ints("end_ns") + clock_ns,
        launch_start_ns=OptionalInts(launched + clock_ns, is_known),
    )
    launch = find_collective_launches(collectives, activity.kernels, activity.kernel_stream)
    return measure_blocked(collectives, launch, activity.named).tolist()


PRE_FORWARD, COPY_OUT = "FSDP::pre_forward (layers.1)", "FSDP::all_gather_copy_out (layers.1)"


def unit(*, start: int = 500, launch: int | None = 40, mark: str = PRE_FORWARD, **more) -> Rows:
    """A kernel of unit 0 until 300 us, one of unit 1 until 500 us; the gather is launched behind both."""
    rows = Rows().event(20 * US, 22 * US, "user_annotation", mark)
    rows.call(10 * US, 1).kernel(100 * US, 300 * US, correlation=1)
    rows.call(30 * US, 2).kernel(301 * US, 500 * US, correlation=2)
    return rows.collective(
        start * US, (start + 100) * US, launch=None if launch is None else launch * US, **more
    )


def behind_a_collective() -> Rows:
    return unit(sequence=1).collective(310 * US, 470 * US, launch=5 * US, kind="all_reduce")


def copied_out() -> Rows:
    return unit(mark=COPY_OUT).event(29 * US, 33 * US, "user_annotation", COPY_OUT)


def kernel_behind_a_copy() -> Rows:
    rows = unit(mark=COPY_OUT, start=700).event(32 * US, 34 * US, "user_annotation", COPY_OUT)
    rows.call(33 * US, 3).kernel(501 * US, 550 * US, correlation=3)
    return rows.call(35 * US, 4).kernel(551 * US, 700 * US, correlation=4)


BLOCKED = {
    "behind a kernel of its unit": (unit(), 200),
    "50 us after that kernel": (unit(start=550), 200),
    "kernels launched after it": (unit(launch=25), 0),
    "launched while the kernel ran": (unit(launch=450), 50),
    "behind a collective on its stream": (behind_a_collective(), 30),
    "marks of copies": (unit(mark=COPY_OUT), 200),
    "marks of FSDP1": (unit(mark="FullyShardedDataParallel._pre_forward"), 200),
    "other marks": (unit(mark="Optimizer.step#AdamW.step"), None),
    "launched before the mark": (unit(launch=15), None),
    "not a gather": (unit(kind="reduce_scatter"), None),
    "copies are waited for on purpose": (copied_out(), 0),
    "a kernel behind such a copy": (kernel_behind_a_copy(), 150),
}


@pytest.mark.parametrize("name", BLOCKED)
def test_gathers_behind_kernels_of_the_unit_that_computes(name) -> None:
    rows, expected_us = BLOCKED[name]
    assert blocked(rows)[0] == (None if expected_us is None else expected_us * US)


def test_blocked_time_on_the_common_clock() -> None:
    assert blocked(unit(), clock_ns=10**9) == [200 * US]
    assert blocked(Rows().kernel(0, 10)) == []


def limiter_rows(holds, compute, gathers=(), on_device=True) -> Columns:
    """Spans of holds and of compute, and ends of gathers, in us."""
    empty = dict.fromkeys(("waits", "anonymous_waits", "copies", "coverage", "launched"), EMPTY)
    activity = RankActivity(on_device=on_device, compute=US * as_spans(compute), **empty)
    ends = US * np.array(gathers, dtype=np.int64)
    steps = make_single_step(7, 0, 10_000 * US)
    return make_limiter_columns(2, US * as_spans(holds), activity, steps, ends)


@pytest.mark.parametrize(
    ("holds", "compute", "gathers", "idle_us"),
    [
        ([(100, 700)], [(0, 500), (900, 1000)], [], [400]),  # the device ran dry
        ([(300, 700)], [(0, 100), (900, 1000)], [50], [600]),  # idle before the hold too
        ([(100, 700)], [(0, 500), (900, 1000)], [850], [50]),  # the next kernel waits for a gather anyway
        ([(100, 600), (620, 700)], [(0, 500), (900, 1000)], [], [400, 0]),  # an instant counts once
        ([(600, 650)], [(0, 500), (900, 1000)], [], [300]),
        ([(600, 700)], [(0, 500)], [], [0]),  # nothing computes afterwards
        ([(20_000, 20_700)], [(0, 500), (900, 1000)], [], []),  # outside of the steps
    ],
)
def test_idle_time_after_a_hold_of_the_rate_limiter(holds, compute, gathers, idle_us) -> None:
    rows = limiter_rows(holds, compute, gathers)
    assert (rows.ints("idle_ns") // US).tolist() == idle_us
    assert not len(limiter_rows(holds, compute, gathers, on_device=False))


GATHERS = [("all_gather", 0, 10), ("all_gather", 30, 40)]
#: (kind, start, end) of rows, compute, columns that differ, and the compute that each could have run under.
FREE = {
    "compute between two gathers": (GATHERS, [(10, 30)], {}, [0, 20]),
    "compute beside a collective": (
        [GATHERS[0], ("reduce_scatter", 12, 17), GATHERS[1]], [(10, 30)], {}, [0, 2, 15],
    ),
    "compute before both": ([("all_gather", 10, 20), ("all_gather", 20, 30)], [(0, 10)], {}, [0, 0]),
    "another step": (GATHERS, [(10, 30)], {"step": [0, 1]}, [0, 0]),
    "another group": (GATHERS, [(10, 30)], {"group": ["0", "1"]}, [0, 0]),
    "a gather that ends late": (
        [("all_gather", 0, 25), ("all_gather", 5, 10), GATHERS[1]], [(0, 30)], {}, [0, 0, 5],
    ),
    "nothing": ([], [], {}, []),
}  # fmt: skip


def prefetch(rows, compute, moving=(), **columns) -> Columns:
    frame = pd.DataFrame(rows, columns=["kind", "start_ns", "end_ns"]).assign(step=0, group="0")
    frame = frame.astype({"start_ns": "int64", "end_ns": "int64"}).assign(**columns)
    return Columns(measure_prefetch(as_columns(frame), as_spans(compute), as_spans(list(moving))))


@pytest.mark.parametrize("name", FREE)
def test_compute_that_could_have_hidden_a_gather(name) -> None:
    rows, compute, columns, expected = FREE[name]
    found = prefetch(rows, compute, **columns)["free_compute_ns"].tolist()
    gathers = [row[0] == "all_gather" for row in rows]
    assert [ns for ns, is_gather in zip(found, gathers, strict=True) if is_gather] == [
        ns for ns, is_gather in zip(expected, gathers, strict=True) if is_gather
    ]


@pytest.mark.parametrize(
    ("compute", "reduction", "moving", "queued"),
    [
        ([(10, 30)], (30, 40), [(0, 10), (30, 50)], 10),
        ([(10, 12), (20, 40)], (12, 20), [(0, 10), (12, 20), (40, 50)], 0),  # compute lies between
    ],
)
def test_exposed_transfer_that_a_gather_stood_behind(compute, reduction, moving, queued) -> None:
    rows = [("all_gather", 0, 10), ("reduce_scatter", *reduction), ("all_gather", 40, 50)]
    assert prefetch(rows, compute, moving)["queued_exposed_ns"].tolist()[2] == queued
