"""From a kernel to what describes it: its launch, the metadata around that, operators and ranges."""

from tests.support.kineto_traces import MAIN, at, converted, span, trace_of
from zprof.collectors.kineto.trace import Group

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GENERIC = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"
PAIR = Group(name="0", description="default_pg", ranks=(0, 1))


def kernel(start, end, name=GENERIC, stream=40, **args):
    return span(name, start, end, stream, "kernel", stream=stream, **args)


def call(start, end, correlation, thread=MAIN, name="cudaLaunchKernelExC", category="cuda_runtime"):
    return span(name, start, end, thread, category, correlation=correlation)


def record(start, end, thread=MAIN, **args):
    args = {
        "Collective name": "_allgather_base",
        "In msg nelems": 10,
        "Out msg nelems": 20,
        "dtype": "Float",
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1]",
    } | args
    return span("record_param_comms", start, end, thread, "cpu_op", **args)


def test_metadata_of_the_operator_by_external_id():
    (row,), gaps = converted(
        trace_of([record(10, 15, **{"External id": 31, "Seq": 4}), kernel(20, 30, **{"External id": 31})])
    )
    assert (row["kind"], row["bytes"], row["group"], row["sequence"]) == ("all_gather", 80, "0,1", 4)
    assert row["method"] == "nccl"
    assert [gap.what for gap in gaps] == ["launches of collectives"]


def test_metadata_of_the_operator_around_the_launch():
    (row,), gaps = converted(
        trace_of(
            [
                record(9, 16),
                call(10, 12, 77),
                record(9, 16, thread=MAIN + 1, **{"Collective name": "broadcast"}),
                kernel(20, 30, correlation=77),
            ]
        )
    )
    assert not gaps
    assert (row["kind"], row["method"]) == ("all_gather", "nccl_order")
    assert (row["launch_start_ns"], row["launch_end_ns"]) == (at(10), at(12))
    assert (row["start_ns"], row["end_ns"], row["stream"]) == (at(20), at(30), 40)


def test_an_external_id_that_repeats_the_correlation_accuses_no_stranger():
    """Old traces write the correlation as External id; an operator of another time may have that number."""
    (row,), _ = converted(
        trace_of(
            [
                record(90, 95, **{"External id": 77, "Collective name": "broadcast"}),
                record(9, 16),
                call(10, 12, 77),
                kernel(20, 30, correlation=77, **{"External id": 77}),
            ]
        )
    )
    assert row["kind"] == "all_gather"
    (row,), _ = converted(
        trace_of([record(1, 2, **{"External id": 77}), kernel(20, 30, correlation=77, **{"External id": 77})])
    )
    assert row["method"] == "kernel_name_order"


def test_the_kernel_speaks_first_and_the_operator_completes_it():
    (row,), _ = converted(
        trace_of(
            [
                record(10, 15, **{"External id": 31, "Seq": 4, "Process Group Ranks": "[2, 3]"}),
                kernel(20, 30, **{"External id": 31, "Collective name": "allreduce", "dtype": "Half"}),
            ]
        )
    )
    assert (row["kind"], row["dtype"], row["sequence"], row["group"]) == ("all_reduce", "float16", 4, "2,3")


def test_shapes_complete_metadata_without_a_size():
    shapes = {"Input Dims": [[64], [16], []], "Input type": ["float", "float", ""]}
    (row,), _ = converted(
        trace_of(
            [
                span("c10d::_allgather_base_", 5, 18, MAIN, "cpu_op", **shapes),
                call(10, 12, 77),
                kernel(20, 30, correlation=77, **{"Collective name": "_allgather_base", "Seq": 3}),
            ]
        )
    )
    assert (row["bytes"], row["dtype"], row["sequence"], row["method"]) == (256, "float32", 3, "nccl")


def test_a_wait_around_a_launch_describes_nothing():
    (row,), _ = converted(
        trace_of(
            [
                record(9, 16, **{"Collective name": "wait"}),
                call(10, 12, 77),
                kernel(20, 30, name=ALL_REDUCE, correlation=77),
            ]
        )
    )
    assert (row["kind"], row["group"], row["method"]) == ("all_reduce", "stream:40", "kernel_name_order")


def test_drivers_and_hip_launch_too():
    for category, name in (
        ("cuda_driver", "cuLaunchKernelEx"),
        ("cuda_runtime", "hipLaunchKernel"),
        ("hip_runtime", "hipExtLaunchKernel"),
    ):
        (row,), _ = converted(
            trace_of([call(10, 12, 77, name=name, category=category), kernel(20, 30, correlation=77)])
        )
        assert row["launch_start_ns"] == at(10)


def test_operators_describe_where_no_metadata_does():
    """Of torch 1.x: shapes stand on the operator, and torch names the collective in a range."""
    shapes = {"Input Dims": [[64], [16], []], "Input type": ["c10::BFloat16", "c10::BFloat16", ""]}
    (row,), gaps = converted(
        trace_of(
            [
                span("c10d::_allgather_base_", 5, 18, MAIN, "cpu_op", **shapes),
                span("record_param_comms", 6, 17, MAIN, "cpu_op", **{"Input Dims": [[16], []]}),
                span("nccl:_all_gather_base", 7, 16, MAIN, **{"Input Dims": [[16]]}),
                call(10, 12, 77),
                kernel(20, 30, name="ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(x)", correlation=77),
            ],
            groups=[PAIR],
        )
    )
    assert (row["kind"], row["bytes"], row["dtype"]) == ("all_gather", 128, "bfloat16")
    assert (row["group"], row["group_size"], row["method"]) == ("0,1", 2, "operator_order")
    assert not gaps


def test_an_annotation_alone_says_the_kind_and_its_input():
    annotation = span("nccl:all_reduce", 7, 16, MAIN, **{"Input Dims": [[5], [3]], "Input type": ["float"]})
    (row,), _ = converted(trace_of([annotation, call(10, 12, 77), kernel(20, 30, correlation=77)]))
    assert (row["kind"], row["bytes"], row["group"]) == ("all_reduce", 32, "stream:40")
    annotation = span("nccl:_all_gather_base", 7, 16, MAIN, **{"Input Dims": [[5]], "Input type": ["float"]})
    (row,), gaps = converted(trace_of([annotation, call(10, 12, 77), kernel(20, 30, correlation=77)]))
    assert (row["kind"], row["bytes"]) == ("all_gather", 0), "its input is one part of nobody knows how many"
    assert "the size of 1 of 1 collectives" in gaps[1].reason


def test_kernels_without_anything_are_rows_with_a_gap():
    rows, gaps = converted(
        trace_of(
            [
                kernel(20, 30, name=ALL_REDUCE),
                kernel(40, 50, stream=41),
                kernel(60, 70, name="gemm<nccl::x>(int)"),
                record(1, 2, **{"External id": 5}),
                kernel(80, 90, **{"External id": 5}),
            ],
            groups=[PAIR],
        )
    )
    assert [(row["kind"], row["group"], row["group_size"], row["bytes"]) for row in rows] == [
        ("all_reduce", "stream:40", 0, 0),
        ("other", "stream:41", 0, 0),
        ("all_gather", "0,1", 2, 80),
    ]
    assert "2 of 3 collectives on the device carry no metadata" in gaps[0].reason
    assert "launched 3 of 3 collectives" in gaps[1].reason


def test_sequences_without_numbers_count_within_the_group():
    def of(start, ranks):
        return kernel(start, start + 5, **{"Collective name": "allreduce", "Process Group Ranks": ranks})

    rows, _ = converted(trace_of([of(30, "[0, 1]"), of(10, "[0, 1]"), of(20, "[0, 2]"), of(40, "[0, 2]")]))
    assert [(row["start_ns"], row["group"], row["sequence"]) for row in rows] == [
        (at(10), "0,1", 0),
        (at(20), "0,2", 0),
        (at(30), "0,1", 1),
        (at(40), "0,2", 1),
    ]


def test_an_unknown_kernel_with_metadata_is_a_collective():
    (row,), _ = converted(trace_of([kernel(1, 2, name="novel_ring", **{"Collective name": "allreduce"})]))
    assert (row["kind"], row["method"]) == ("all_reduce", "nccl_order")


def test_the_engine_s_own_launch_range_gives_the_number():
    text = "zero::{} all_gather pg=0 seq=9 unit=b.1 bytes=80 dtype=float32"
    rows, _ = converted(
        trace_of(
            [
                span(text.format("launch"), 5, 18),
                record(9, 16),
                call(10, 12, 77),
                kernel(20, 30, correlation=77),
                span(text.format("wait"), 19, 31),
            ],
            groups=[PAIR],
        )
    )
    assert [(r["sequence"], r["unit"], r["wait_end_ns"], r["method"]) for r in rows] == [
        (9, "b.1", at(31), "nccl_range")
    ]
    assert rows[0]["launch_start_ns"] == at(10), "the call, not the range around it"


def test_a_launch_range_around_several_kernels_numbers_none():
    events = [span("zero::launch all_gather pg=0 seq=9 unit=b.1 bytes=80 dtype=float32", 5, 30)]
    for correlation in (1, 2):
        begin = 10 * correlation
        events += [
            call(begin, begin + 1, correlation),
            kernel(40 + begin, 45 + begin, correlation=correlation),
        ]
    rows, _ = converted(trace_of(events))
    assert [(row["sequence"], row["method"]) for row in rows] == [
        (0, "kernel_name_order"),
        (1, "kernel_name_order"),
    ]


def test_collectives_that_left_no_work_on_the_device_are_told():
    _, gaps = converted(trace_of([span("nccl:all_to_all", 1, 2), span("nccl:all_to_all", 3, 4)]))
    assert "the host launched 2 collectives of NCCL, and the trace holds no work of a GPU" in gaps[0].reason
    alone = {"Process Group Ranks": "[0]", "Group size": 1}
    _, gaps = converted(trace_of([record(1, 2, **alone), span("nccl:all_gather", 1, 2)]))
    assert not gaps
    _, gaps = converted(trace_of([record(1, 2), kernel(5, 9, name="gemm()")]))
    assert "none of its kernels or copies belongs to one" in gaps[0].reason
