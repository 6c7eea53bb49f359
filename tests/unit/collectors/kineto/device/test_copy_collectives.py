"""Collectives that copy engines carry out."""

from tests.support.kineto_traces import MAIN, at, converted, span, trace_of

PEER, LOCAL = "Memcpy PtoP (Device -> Device)", "Memcpy DtoD (Device -> Device)"


def copy(start, end, correlation, name=PEER, stream=40, **args):
    return span(
        name, start, end, stream, "gpu_memcpy", stream=stream, bytes=400, correlation=correlation, **args
    )


def call(start, correlation):
    return span("cudaMemcpyAsync", start, start + 1, MAIN, "cuda_runtime", correlation=correlation)


def gather(start, end, **args):
    metadata = {
        "Collective name": "_allgather_base",
        "In msg nelems": 100,
        "Out msg nelems": 300,
        "dtype": "Float",
        "Process Group Ranks": "[0, 1, 2]",
    }
    return span("record_param_comms", start, end, MAIN, "cpu_op", **metadata | args)


def test_several_copies_are_one_collective():
    rows, gaps = converted(
        trace_of(
            [
                gather(1, 10, Seq=3),
                call(2, 1),
                call(4, 2),
                copy(20, 30, 1),
                copy(25, 45, 2, stream=41),
                gather(11, 20, Seq=4),
                call(12, 3),
                copy(50, 60, 3),
            ]
        )
    )
    assert not gaps
    assert [(r["sequence"], r["start_ns"], r["end_ns"], r["stream"], r["bytes"]) for r in rows] == [
        (3, at(20), at(45), 40, 1200),
        (4, at(50), at(60), 40, 1200),
    ]
    assert (rows[0]["launch_start_ns"], rows[0]["launch_end_ns"]) == (at(2), at(5))
    assert (rows[0]["kind"], rows[0]["group"], rows[0]["method"]) == ("all_gather", "0,1,2", "copies")


def test_copies_elsewhere_are_copies():
    rows, _ = converted(trace_of([gather(1, 3), call(5, 1), copy(20, 30, 1), copy(40, 50, 9)]))
    assert not rows


def test_copies_beside_a_kernel_belong_to_the_kernel():
    rows, _ = converted(
        trace_of(
            [
                gather(1, 10),
                call(2, 1),
                call(4, 2),
                span("ncclDevKernel_AllGather_RING_LL()", 20, 30, 40, "kernel", stream=40, correlation=1),
                copy(31, 35, 2),
            ]
        )
    )
    assert [(row["start_ns"], row["end_ns"]) for row in rows] == [(at(20), at(30))]


def test_a_copy_within_the_device_is_a_collective_of_one_rank_only():
    events = [call(2, 1), copy(20, 30, 1, name=LOCAL)]
    rows, _ = converted(trace_of([gather(1, 10), *events]))
    assert not rows
    rows, _ = converted(trace_of([gather(1, 10, **{"Process Group Ranks": "[0]", "Group size": 1}), *events]))
    assert [(row["group"], row["group_size"]) for row in rows] == [("0", 1)]


def test_symmetric_memory_without_metadata_counts_the_bytes_that_moved():
    rows, _ = converted(
        trace_of(
            [
                span("symm_mem::_low_contention_all_gather", 1, 10, MAIN, "cpu_op"),
                call(2, 1),
                call(4, 2),
                copy(20, 30, 1),
                copy(31, 40, 2),
            ]
        )
    )
    assert [(r["kind"], r["bytes"], r["group"], r["method"]) for r in rows] == [
        ("all_gather", 800, "stream:40", "copies_order")
    ]
