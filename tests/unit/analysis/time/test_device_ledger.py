"""The ledger of ranks with a device: against a sweep that shares no code, and in whole runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.device_ranks import NCCL, Rows, write_run
from tests.support.interval_oracle import Work, totals
from zprof.analysis.time.activity_from_events import read_device_activity
from zprof.analysis.time.analyse import analyse_time
from zprof.analysis.time.blocking import attribute_exposure, find_blocking
from zprof.analysis.time.ledger import average_rank_time, make_step_rows
from zprof.analysis.time.steps import find_step_windows, find_trace_windows
from zprof.analysis.time.timeline import RankTimeline
from zprof.model.time import LEDGER_TERMS, WindowPolicy
from zprof.run.reader import load

span = st.tuples(st.integers(0, 900), st.integers(0, 80)).map(lambda s: (s[0], s[0] + s[1]))
piece = st.one_of(
    st.tuples(span, st.sampled_from(["compute", "mem"]), st.sampled_from([7, 8])),
    st.tuples(span, st.just("comm"), st.sampled_from([20, 21])),
)
work = st.lists(piece, min_size=1, max_size=25)


def rows_of(items, launches=()):
    rows = Rows()
    for index, ((start, end), what, stream) in enumerate(items):
        call = launches[index] if index < len(launches) else None
        number = None if call is None else index + 1
        if call is not None:
            rows.call(call, number)
        if what == "comm":
            rows.collective(start, end, stream, number, launch=call)
        else:
            (rows.kernel if what == "compute" else rows.copy)(start, end, stream, number)
    return rows


def measured(rows, windows):
    activity = read_device_activity(rows.events_table(), rows.collectives_table())
    frame = rows.frame().sort_values(["start_ns", "end_ns"], kind="stable")
    timeline = RankTimeline(
        rank=0, host="a", steps=windows.steps, host_steps=windows.host_steps, activity=activity, pings={}
    )
    blocking, _ = find_blocking(0, activity, timeline.steps, frame)
    exposure = attribute_exposure(frame["arrival_ns"].to_numpy(dtype="int64"), blocking)
    return timeline, make_step_rows(timeline, blocking, exposure), exposure


@given(work)
def test_the_whole_trace_equals_the_sweep(items):
    want = totals(Work(*ran, what) for ran, what, _ in items if ran[1] > ran[0])
    rows = rows_of(items)
    activity = read_device_activity(rows.events_table(), rows.collectives_table())
    windows = find_trace_windows(activity)
    if not want.span:
        assert not len(windows.steps)
        return
    _, table, exposure = measured(rows, windows)
    row = table.iloc[0]
    assert row["wall_ns"] == want.span
    assert row["collective_ns"] == want.comm
    assert row["compute_ns"] == want.compute
    assert row["memcpy_ns"] == want.mem
    assert row["overlapped_ns"] == want.overlap
    assert row["exposed_wait_ns"] + row["exposed_transfer_ns"] == want.exposed
    assert row["idle_ns"] + row["unexplained_ns"] == want.idle
    assert row["wall_ns"] == row[list(LEDGER_TERMS)].sum()
    assert exposure.wait_ns.sum() + exposure.transfer_ns.sum() == want.exposed


@given(work, st.lists(st.integers(0, 900), max_size=25), st.integers(1, 300), st.integers(1, 300))
def test_steps_sum_exactly_and_leave_nothing_out(items, launches, first, second):
    rows = rows_of(items, launches)
    rows.step(3, 100, 100 + first).step(4, 100 + first, 100 + first + second)
    activity = read_device_activity(rows.events_table(), rows.collectives_table())
    windows = find_step_windows(rows.marks_frame(), [3, 4], activity)
    timeline, table, exposure = measured(rows, windows)
    assert (table["wall_ns"] == table[list(LEDGER_TERMS)].sum(axis=1)).all()
    assert (table[list(LEDGER_TERMS)] >= 0).all(axis=None)
    exposed = table["exposed_wait_ns"] + table["exposed_transfer_ns"]
    assert (table["collective_ns"] == table["overlapped_ns"] + exposed).all()
    assert exposed.sum() == exposure.wait_ns.sum() + exposure.transfer_ns.sum()
    mean = average_rank_time(table, "kernels", 0)
    assert mean.wall_ns == sum(getattr(mean, term) for term in LEDGER_TERMS)
    busy = table["compute_ns"] + exposed + table["exposed_memcpy_ns"]
    total = totals(Work(*ran, what) for ran, what, _ in items if ran[1] > ran[0])
    assert busy.sum() + timeline.outside_ns == total.span - total.idle


def test_a_communication_kernel_that_nothing_describes_is_unexplained():
    rows = Rows().kernel(0, 10).kernel(10, 40, stream=20, name=NCCL).kernel(30, 50)
    activity = read_device_activity(rows.events_table(), rows.collectives_table())
    _, table, _ = measured(rows, find_trace_windows(activity))
    assert table["unexplained_ns"].tolist() == [20]
    assert table["compute_ns"].tolist() == [30]


def two_ranks(late=0):
    """Two steps; a gather in each, to which rank 1 comes late; work before the window, and behind its end."""
    ranks = {}
    for rank in (0, 1):
        rows = Rows().step(5, 1000, 2000).step(6, 2000, 3000)
        rows.call(500, 1).kernel(900, 1100, correlation=1)
        for index, base in enumerate((1000, 2000)):
            delay = late if rank == 1 else 0
            number = 10 * (index + 1)
            rows.call(base + 10, number).call(base + 20, number + 1).call(base + 30, number + 2)
            rows.kernel(base + 200, base + 300 + delay, correlation=number)
            start = base + 300 + delay
            rows.collective(
                start,
                base + 600 + late,
                correlation=number + 1,
                launch=base + 20,
                group="0,1",
                group_size=2,
                sequence=index,
                method="nccl",
                dtype="bfloat16",
                bytes=1 << 20,
            )
            rows.kernel(base + 600 + late, base + 1150, correlation=number + 2)
        ranks[rank] = rows
    return ranks


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "x.zprof", two_ranks(late=100))


def test_steps_of_a_run(run):
    time = analyse_time(load(run)).time
    assert time.window.policy is WindowPolicy.STEP
    assert time.window.source == "ProfilerStep"
    assert time.window.pre_window_ns == 200, "the kernel that was launched before the first step"
    assert [(s.rank, s.step, s.wall_ns) for s in time.steps] == [
        (0, 5, 1050),
        (0, 6, 1000),
        (1, 5, 1050),
        (1, 6, 1000),
    ]
    for step in time.steps:
        assert step.wall_ns == sum(getattr(step, term) for term in LEDGER_TERMS)
        assert step.compute_ns == (100 if step.rank == 0 else 200) + 450
        assert step.exposed_wait_ns == (100 if step.rank == 0 else 0)
        assert step.exposed_transfer_ns == 300


def test_the_first_collective_of_a_window_is_told_apart(run):
    first = analyse_time(load(run)).time.per_rank[0]
    assert first.exposed_wait_ns == 100
    assert first.first_wait_ns == 50, "half of the wait of both steps"


def test_the_trace_as_a_window(run):
    analysis = analyse_time(load(run), WindowPolicy.TRACE)
    assert analysis.time.window.source == "whole trace"
    assert analysis.time.window.pre_window_ns == 0
    for entry in analysis.time.per_rank:
        assert (entry.steps, entry.wall_ns) == (1, 3150 - 900)
        assert entry.wall_ns == sum(getattr(entry, term) for term in LEDGER_TERMS)
        assert entry.unexplained_ns == 0
    assert (analysis.collectives["step"] == 0).all()


def test_ranks_with_other_steps_are_measured_over_their_own(tmp_path):
    ranks = two_ranks()
    ranks[1].marks = [mark for mark in ranks[1].marks if mark[2] == 6]
    analysis = analyse_time(load(write_run(tmp_path / "x.zprof", ranks)))
    assert [entry.steps for entry in analysis.time.per_rank] == [2, 1]
    said = [gap.reason for gap in analysis.gaps if gap.what == "steps"]
    assert said == [
        "1 of 2 ranks have steps that others do not have: all have 1 in common, and each is measured over "
        "its own"
    ]


def test_a_rank_that_used_a_gpu_of_which_nothing_is_seen(tmp_path):
    ranks = two_ranks()
    ranks[1].events = [row for row in ranks[1].events if row["category"] == "cuda_runtime"]
    ranks[1].collectives = []
    analysis = analyse_time(load(write_run(tmp_path / "x.zprof", ranks)))
    assert [entry.rank for entry in analysis.time.per_rank] == [0]
    assert [gap.rank for gap in analysis.gaps if gap.what == "GPU work"] == [1]


def test_nothing_communicates(tmp_path):
    ranks = two_ranks()
    for rows in ranks.values():
        rows.collectives = []
        rows.events = [row for row in rows.events if row["name"] != NCCL]
    gaps = analyse_time(load(write_run(tmp_path / "two", ranks))).gaps
    said = [(gap.rank, gap.reason) for gap in gaps if gap.what == "collectives"]
    assert said == [(None, "no collectives found in the window")]
    alone = analyse_time(load(write_run(tmp_path / "one", {0: ranks[0]})))
    assert not [gap for gap in alone.gaps if gap.what == "collectives"]


def test_one_rank_of_two_communicates_with_nobody(tmp_path):
    ranks = two_ranks()
    ranks[1].collectives = []
    gaps = analyse_time(load(write_run(tmp_path / "x.zprof", ranks))).gaps
    assert [gap.rank for gap in gaps if gap.what == "collectives"] == [1]


def test_kernels_alone_make_a_ledger(tmp_path):
    """A sampled trace: no host events, no launches."""
    rows = Rows().kernel(0, 100).collective(80, 200).kernel(210, 250).step(0, 0, 250, name="whole trace")
    analysis = analyse_time(load(write_run(tmp_path / "x.zprof", {0: rows}, world_size=2)))
    entry = analysis.time.per_rank[0]
    assert (entry.wall_ns, entry.compute_ns, entry.collective_ns, entry.overlapped_ns) == (250, 140, 120, 20)
    assert entry.idle_ns == 10
    assert analysis.collectives["step"].tolist() == [0]


def test_what_is_exposed_in_collectives_of_unseen_ranks_is_not_split(tmp_path):
    both = two_ranks(late=100)
    whole = analyse_time(load(write_run(tmp_path / "both", both)))
    assert not [gap for gap in whole.gaps if gap.what == "exposed wait"]
    one = analyse_time(load(write_run(tmp_path / "one", {0: both[0]}, world_size=2)))
    (gap,) = [gap for gap in one.gaps if gap.what == "exposed wait"]
    assert gap.reason.startswith("100% of the exposed communication")
    assert one.time.per_rank[0].exposed_wait_ns == 0
