"""From trace events to rows of collectives: ranges, gloo's executions, NCCL's metadata."""

import pyarrow as pa
import pytest

from tests.support.kineto_traces import MAIN, at, converted, span, thread_name, trace_of
from zprof.collectors.kineto.convert import convert_trace
from zprof.collectors.kineto.trace import Group
from zprof.run.schema import EVENTS

COMM, WORKER, WORKER2 = 20, 30, 31
PAIR = Group(name="0", description="default_pg", ranks=(0, 1))


def launch_op(name, start, *dims):
    return span(name, start, start + 2, category="cpu_op", **{"Input Dims": [*dims, [], []]})


def execution(op, start, end, elements, dtype="float", tid=WORKER):
    return span(f"gloo:{op}", start, end, tid, **{"Input Dims": [[elements]], "Input type": [dtype]})


def workers():
    return [thread_name(tid, f"thread {tid} (pt_gloo_runloop)") for tid in (WORKER, WORKER2)]


@pytest.fixture
def rows_of():
    def run(*events, groups=(PAIR,)):
        return converted(trace_of([*workers(), *events], groups, world_size=2))

    return run


def test_a_modelled_collective_comes_from_its_ranges(rows_of):
    rows, gaps = rows_of(
        span("zero::launch all_gather pg=0 seq=4 unit=b.1 bytes=800 dtype=bfloat16", 10, 12),
        span("zero::comm all_gather pg=0 seq=4 unit=b.1 bytes=800 dtype=bfloat16", 15, 40, COMM),
        span("c10d::_allgather_base_", 16, 18, COMM, "cpu_op", **{"Input Dims": [[400], [200], []]}),
        execution("all_gather", 17, 20, 200),
        span("zero::wait all_gather pg=0 seq=4 unit=b.1", 30, 41),
        span("zprof::wait", 31, 40),
    )
    assert not gaps
    assert rows == [
        {
            "kind": "all_gather",
            "group": "0,1",
            "group_size": 2,
            "sequence": 4,
            "dtype": "bfloat16",
            "bytes": 800,
            "start_ns": at(15),
            "end_ns": at(40),
            "launch_start_ns": at(10),
            "launch_end_ns": at(12),
            "wait_start_ns": at(30),
            "wait_end_ns": at(41),
            "unit": "b.1",
            "stream": None,
            "peer_rank": None,
            "method": "range",
        }
    ]


def test_a_carried_collective_counts_once_though_its_real_one_is_launched_outside(rows_of):
    """The link's thread waits for a collective of gloo that the main thread launched."""
    text = "zero::{} reduce_scatter pg=0 seq={} unit=b bytes=480 dtype=float32"
    rows, gaps = rows_of(
        span(text.format("launch", 0), 10, 15),
        launch_op("c10d::_reduce_scatter_base_", 11, [60], [120]),
        execution("all_reduce", 12, 20, 120),
        span(text.format("comm", 0), 16, 60, COMM),
        span(text.format("launch", 1), 70, 75),
        launch_op("c10d::_reduce_scatter_base_", 71, [60], [120]),
        execution("all_reduce", 72, 80, 120),
    )
    assert not gaps
    assert [(row["sequence"], row["method"], row["end_ns"]) for row in rows] == [(0, "range", at(60))]


def test_of_two_waits_for_one_collective_the_one_that_blocked_counts(rows_of):
    text = "zero::{} all_gather pg=0 seq=0 unit=b bytes=4 dtype=float32"
    rows, _ = rows_of(
        span(text.format("comm"), 10, 40, COMM),
        span(text.format("wait"), 20, 41),
        span(text.format("wait"), 50, 51),
    )
    assert [(row["wait_start_ns"], row["wait_end_ns"]) for row in rows] == [(at(20), at(41))]


def test_native_gloo_takes_kind_and_sequence_from_the_launch(rows_of):
    """Gloo runs a reduce-scatter as an all-reduce; only the launch knows."""
    rows, gaps = rows_of(
        span("zero::launch reduce_scatter pg=0 seq=9 unit=b.0 bytes=480 dtype=float32", 10, 15),
        launch_op("c10d::_reduce_scatter_base_", 11, [60], [120]),
        execution("all_reduce", 20, 30, 120),
        span("zero::wait reduce_scatter pg=0 seq=9 unit=b.0", 25, 31),
    )
    assert not gaps
    (row,) = rows
    assert (row["kind"], row["sequence"], row["bytes"], row["method"]) == (
        "reduce_scatter",
        9,
        480,
        "gloo_fifo",
    )
    assert (row["launch_start_ns"], row["launch_end_ns"]) == (at(10), at(15))
    assert (row["wait_start_ns"], row["wait_end_ns"]) == (at(25), at(31))
    assert row["unit"] == "b.0"


def test_plain_programs_are_joined_in_order(rows_of):
    rows, gaps = rows_of(
        launch_op("c10d::_allgather_base_", 10, [120], [60]),
        launch_op("c10d::allreduce_", 14, [[60]]),
        launch_op("c10d::_allgather_base_", 18, [120], [60]),
        execution("all_gather", 30, 34, 60, tid=WORKER2),
        execution("all_gather", 12, 29, 60),
        execution("all_reduce", 16, 32, 60, "c10::BFloat16"),
    )
    assert not gaps
    assert [(r["kind"], r["sequence"], r["start_ns"], r["bytes"], r["dtype"]) for r in rows] == [
        ("all_gather", 0, at(12), 480, "float32"),
        ("all_reduce", 1, at(16), 120, "bfloat16"),
        ("all_gather", 2, at(30), 480, "float32"),
    ]
    assert {row["method"] for row in rows} == {"gloo_fifo_order"}
    assert {row["wait_start_ns"] for row in rows} == {None}


def test_a_synchronous_call_waits_right_behind_its_launch(rows_of):
    def gather(start, is_async):
        row = launch_op("c10d::_allgather_base_", start, [120], [60])
        row["args"]["Concrete Inputs"] = ["", "", "", str(is_async), "-1"]
        return row

    rows, _ = rows_of(
        gather(10, False),
        execution("all_gather", 12, 40, 60),
        span("zprof::wait", 13, 41),
        gather(50, True),
        execution("all_gather", 52, 70, 60),
        span("zprof::wait", 60, 71),
    )
    assert [(row["wait_start_ns"], row["wait_end_ns"]) for row in rows] == [(at(13), at(41)), (None, None)]


def test_a_lost_execution_is_not_guessed(rows_of):
    rows, gaps = rows_of(
        launch_op("c10d::_allgather_base_", 10, [120], [60]),
        launch_op("c10d::_allgather_base_", 20, [120], [60]),
        launch_op("c10d::_allgather_base_", 30, [8], [4]),
        execution("all_gather", 22, 25, 60),
        execution("all_gather", 31, 35, 4),
    )
    assert [row["bytes"] for row in rows] == [32]
    assert rows[0]["sequence"] == 2, "numbers count launches, so the other ranks still agree"
    assert len(gaps) == 1
    assert "2 launches and 1 executions of all_gather of 60 elements" in gaps[0].reason


def test_an_execution_before_its_launch_is_not_joined(rows_of):
    rows, gaps = rows_of(
        launch_op("c10d::allreduce_", 10, [[60]]),
        launch_op("c10d::allreduce_", 50, [[60]]),
        execution("all_reduce", 12, 14, 60),
        execution("all_reduce", 20, 24, 60),
    )
    assert not rows
    assert len(gaps) == 1


def test_the_last_prefetch_may_still_run_when_the_window_closes(rows_of):
    launch = "zero::launch all_gather pg=0 seq={} unit=b bytes=480 dtype=float32"
    rows, gaps = rows_of(
        span(launch.format(0), 10, 15),
        launch_op("c10d::_allgather_base_", 11, [120], [60]),
        span("zero::wait all_gather pg=0 seq=0 unit=b", 16, 31),
        span(launch.format(1), 40, 45),
        launch_op("c10d::_allgather_base_", 41, [120], [60]),
        execution("all_gather", 20, 30, 60),
    )
    assert not gaps
    assert [row["sequence"] for row in rows] == [0]


def test_several_operators_under_one_launch_are_one_collective(rows_of):
    rows, gaps = rows_of(
        span("zero::launch all_gather pg=0 seq=0 unit=b bytes=960 dtype=float32", 10, 20),
        launch_op("c10d::_allgather_base_", 11, [120], [60]),
        launch_op("c10d::_allgather_base_", 14, [120], [60]),
        execution("all_gather", 20, 30, 60),
        execution("all_gather", 25, 40, 60, tid=WORKER2),
    )
    assert not gaps
    assert [(row["bytes"], row["start_ns"], row["end_ns"]) for row in rows] == [(960, at(20), at(40))]


def test_gloo_words_on_other_threads_are_no_executions(rows_of):
    rows, gaps = rows_of(
        launch_op("c10d::allreduce_", 10, [[60]]),
        execution("all_reduce", 12, 14, 60, tid=MAIN),
        execution("all_reduce", 12, 15, 60),
    )
    assert not gaps
    assert [row["end_ns"] for row in rows] == [at(15)]


def test_groups_over_different_ranks_are_not_guessed(rows_of):
    rows, gaps = rows_of(
        launch_op("c10d::allreduce_", 10, [[60]]),
        execution("all_reduce", 12, 15, 60),
        groups=(PAIR, Group(name="1", description="", ranks=(0,))),
    )
    assert [(row["group"], row["group_size"]) for row in rows] == [("unknown", 0)]
    assert [gap.what for gap in gaps] == ["process group of collectives"]


def test_two_groups_over_the_same_ranks_keep_their_own_numbers(rows_of):
    text = "zero::comm all_gather pg={} seq=0 unit=b bytes=4 dtype=float32"
    rows, _ = rows_of(
        span(text.format("0"), 10, 20, COMM),
        span(text.format("7"), 30, 40, COMM),
        groups=(PAIR, Group(name="7", description="undefined", ranks=(0, 1))),
    )
    assert [(row["group"], row["group_size"]) for row in rows] == [("0,1", 2), ("0,1#7", 2)]


def test_a_range_that_says_too_little_is_a_gap(rows_of):
    rows, gaps = rows_of(
        span("zero::comm all_gather pg=0 unit=b bytes=4 dtype=float32", 10, 20, COMM),
        span("zero::comm all_gather pg=0 seq=1 unit=b", 30, 40, COMM),
    )
    assert not rows
    assert "2 ::comm ranges" in gaps[0].reason


def test_kernels_with_metadata(rows_of):
    metadata = {
        "Collective name": "_allgather_base",
        "In msg nelems": 100,
        "Out msg nelems": 200,
        "dtype": "BFloat16",
        "Process Group Name": "0",
        "Process Group Ranks": "[1, 0]",
        "Seq": 6,
        "stream": 40,
        "correlation": 77,
    }
    rows, gaps = rows_of(
        span("cudaLaunchKernelExC", 10, 12, MAIN, "cuda_runtime", correlation=77),
        span("ncclDevKernel_AllGather_RING_LL(...)", 20, 50, 40, "kernel", **metadata),
        span("gemm", 20, 50, 7, "kernel", stream=7, correlation=78),
    )
    assert not gaps
    (row,) = rows
    assert (row["kind"], row["group"], row["sequence"], row["bytes"]) == ("all_gather", "0,1", 6, 400)
    assert (row["launch_start_ns"], row["launch_end_ns"], row["stream"]) == (at(10), at(12), 40)
    assert row["method"] == "nccl"


def test_events_keep_what_ran_and_leave_out_bookkeeping():
    trace = trace_of(
        [
            span("b", 5, 9, category="cpu_op"),
            span("a", 1, 3, category="kernel", stream=7, correlation=8, **{"External id": 4}),
            span("Memcpy HtoD", 2, 3, category="gpu_memcpy", stream=7, bytes=64),
            span("PyTorch Profiler (0)", 0, 99, category="Trace"),
        ]
    )
    events = convert_trace(trace)[0]["events"]
    assert events["name"].to_pylist() == ["a", "Memcpy HtoD", "b"]
    assert events["category"].to_pylist() == ["kernel", "gpu_memcpy", "cpu_op"]
    assert events["start_ns"].tolist() == [at(1), at(2), at(5)]
    assert events["stream"].to_pylist() == [7, 7, None]
    assert events["correlation"].to_pylist() == [8, None, None]
    assert events["external_id"].to_pylist() == [4, None, None]
    assert events["bytes"].to_pylist() == [None, 64, None]


def test_events_go_into_a_run_as_they_are():
    trace = trace_of([span("caf\ud800é", 1, 2), span("b", 3, 4)])
    columns = convert_trace(trace)[0]["events"]
    table = pa.table(columns, schema=EVENTS)
    assert table.column("name").to_pylist() == ["caf?é", "b"]
