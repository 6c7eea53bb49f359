"""From a kernel or copy to what describes it: its launch, the metadata around that, operators and ranges."""

import pytest

from tests.support.kineto_traces import MAIN, at, converted, span, trace_of
from zprof.collectors.read.kineto.trace import TraceProcessGroup

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GENERIC = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"
PEER, LOCAL = "Memcpy PtoP (Device -> Device)", "Memcpy DtoD (Device -> Device)"
PAIR = TraceProcessGroup(name="0", description="default_pg", ranks=(0, 1))


def kernel(start, end, name=GENERIC, stream=40, **args):
    return span(name, start, end, stream, "kernel", stream=stream, **args)


def call(start, end, correlation, name="cudaLaunchKernelExC", category="cuda_runtime"):
    return span(name, start, end, MAIN, category, correlation=correlation)


def copy(start, end, correlation, name=PEER, stream=40):
    return span(name, start, end, stream, "gpu_memcpy", stream=stream, bytes=400, correlation=correlation)


def record(start, end, thread=MAIN, **args):
    metadata = {
        "Collective name": "_allgather_base",
        "In msg nelems": 10,
        "Out msg nelems": 20,
        "dtype": "Float",
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1]",
    }
    return span("record_param_comms", start, end, thread, "cpu_op", **metadata | args)


def rows_of(*events, groups=()):
    return converted(trace_of(events, groups))


def one(*events, groups=()):
    (row,), gaps = rows_of(*events, groups=groups)
    return row, [gap.what for gap in gaps]


def test_metadata_of_the_operator_around_the_launch():
    row, gaps = one(
        record(9, 16),
        call(10, 12, 77),
        record(9, 16, thread=MAIN + 1, **{"Collective name": "broadcast"}),
        kernel(20, 30, correlation=77),
    )
    assert (row["kind"], row["method"], gaps) == ("all_gather", "nccl_order", [])
    assert (row["launch_start_ns"], row["launch_end_ns"]) == (at(10), at(12))
    assert (row["start_ns"], row["end_ns"], row["stream"]) == (at(20), at(30), 40)


@pytest.mark.parametrize("start", [1, 90])
def test_an_external_id_that_repeats_the_correlation_is_ignored(start):
    """Old traces write the correlation as External id; an operator of another time may have that number."""
    stranger = record(start, start + 1, **{"External id": 77, "Collective name": "broadcast"})
    launched = kernel(20, 30, correlation=77, **{"External id": 77})
    assert one(stranger, record(9, 16), call(10, 12, 77), launched)[0]["kind"] == "all_gather"
    assert one(stranger, launched)[0]["method"] == "kernel_name_order"


def test_the_operator_completes_the_metadata_of_the_kernel():
    row, _ = one(
        record(10, 15, **{"External id": 31, "Seq": 4, "Process Group Ranks": "[2, 3]"}),
        kernel(20, 30, **{"External id": 31, "Collective name": "allreduce", "dtype": "Half"}),
    )
    assert (row["kind"], row["dtype"], row["sequence"], row["group"]) == ("all_reduce", "float16", 4, "2,3")


def test_operators_describe_a_kernel_without_metadata():
    """As torch 1.x writes it: shapes on the operator, the collective's name in a range."""
    shapes = {"Input Dims": [[64], [16], []], "Input type": ["c10::BFloat16", "c10::BFloat16", ""]}
    row, gaps = one(
        span("c10d::_allgather_base_", 5, 18, MAIN, "cpu_op", **shapes),
        span("record_param_comms", 6, 17, MAIN, "cpu_op", **{"Input Dims": [[16], []]}),
        span("nccl:_all_gather_base", 7, 16, MAIN, **{"Input Dims": [[16]]}),
        call(10, 12, 77),
        kernel(20, 30, "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(x)", correlation=77),
        groups=[PAIR],
    )
    assert (row["kind"], row["bytes"], row["dtype"]) == ("all_gather", 128, "bfloat16")
    assert (row["group"], row["group_size"], row["method"]) == ("0,1", 2, "operator_order")
    assert not gaps


def test_kernels_without_a_description_are_rows_with_gaps():
    rows, gaps = rows_of(
        kernel(20, 30, ALL_REDUCE),
        kernel(40, 50, stream=41),
        kernel(60, 70, "gemm<nccl::x>(int)"),
        record(1, 2, **{"External id": 5}),
        kernel(80, 90, **{"External id": 5}),
        kernel(95, 99, "novel_ring", **{"Collective name": "allreduce"}),
        groups=[PAIR],
    )
    assert [(row["kind"], row["group"], row["group_size"], row["bytes"]) for row in rows] == [
        ("all_reduce", "stream:40", 0, 0),
        ("other", "stream:41", 0, 0),
        ("all_gather", "0,1", 2, 80),
        ("all_reduce", "0,1", 2, 0),
    ]
    counts = {gap.what: gap.reason for gap in gaps}
    assert "2 of 4" in counts["metadata of collectives"]
    assert "4 of 4" in counts["launches of collectives"]


def test_collectives_without_numbers_are_counted_within_their_group():
    def reduce(start, ranks):
        return kernel(start, start + 5, **{"Collective name": "allreduce", "Process Group Ranks": ranks})

    rows, _ = rows_of(reduce(30, "[0, 1]"), reduce(10, "[0, 1]"), reduce(20, "[0, 2]"), reduce(40, "[0, 2]"))
    assert [(row["start_ns"], row["group"], row["sequence"]) for row in rows] == [
        (at(10), "0,1", 0),
        (at(20), "0,2", 0),
        (at(30), "0,1", 1),
        (at(40), "0,2", 1),
    ]


def test_collectives_of_two_streams_are_numbered_by_launch():
    rows, _ = rows_of(
        record(9, 16),
        call(10, 11, 1),
        call(12, 13, 2),
        kernel(50, 60, stream=40, correlation=1),
        kernel(20, 30, stream=41, correlation=2),
    )
    assert {row["stream"]: row["sequence"] for row in rows} == {40: 0, 41: 1}


def test_the_launch_range_of_an_engine_gives_number_unit_and_wait():
    text = "zero::{} all_gather pg=0 seq=9 unit=b.1 bytes=80 dtype=float32"
    row, _ = one(
        span(text.format("launch"), 5, 18),
        record(9, 16),
        call(10, 12, 77),
        kernel(20, 30, correlation=77),
        span(text.format("wait"), 19, 31),
        groups=[PAIR],
    )
    assert (row["sequence"], row["unit"], row["wait_end_ns"], row["method"]) == (
        9,
        "b.1",
        at(31),
        "nccl_range",
    )
    assert row["launch_start_ns"] == at(10)  # of the call, not of the range around it


@pytest.mark.parametrize(
    ("events", "gaps"),
    [
        ([span("nccl:all_to_all", 1, 2), span("nccl:all_to_all", 3, 4)], 1),
        ([record(1, 2, **{"Process Group Ranks": "[0]", "Group size": 1}), span("nccl:all_gather", 1, 2)], 0),
        ([record(1, 2), kernel(5, 9, "gemm()")], 1),
    ],
    ids=["nothing of a device", "a group of one rank", "other kernels only"],
)
def test_collectives_that_left_no_work_on_the_device_are_a_gap(events, gaps):
    rows, found = rows_of(*events)
    assert (rows, [gap.what for gap in found]) == ([], ["collectives on the device"] * gaps)


def test_several_copies_are_one_collective():
    rows, gaps = rows_of(
        record(1, 10, Seq=3),
        call(2, 3, 1, "cudaMemcpyAsync"),
        call(4, 5, 2, "cudaMemcpyAsync"),
        copy(20, 30, 1),
        copy(25, 45, 2, stream=41),
        record(11, 20, Seq=4),
        call(12, 13, 3, "cudaMemcpyAsync"),
        copy(50, 60, 3),
    )
    assert not gaps
    assert [(r["sequence"], r["start_ns"], r["end_ns"], r["stream"], r["bytes"]) for r in rows] == [
        (3, at(20), at(45), 40, 80),
        (4, at(50), at(60), 40, 80),
    ]
    assert (rows[0]["launch_start_ns"], rows[0]["launch_end_ns"]) == (at(2), at(5))
    assert (rows[0]["kind"], rows[0]["group"], rows[0]["method"]) == ("all_gather", "0,1", "copies")


@pytest.mark.parametrize(
    ("ranks", "copied", "found"),
    [
        ("[0, 1]", copy(20, 30, 1, LOCAL), []),  # a copy within the device
        ("[0]", copy(20, 30, 1, LOCAL), [("0", at(20))]),
        ("[0, 1]", copy(20, 30, 9), []),  # launched elsewhere
    ],
)
def test_a_copy_is_a_collective_only_where_it_can_be_one(ranks, copied, found):
    metadata = {"Process Group Ranks": ranks, "Group size": ranks.count(",") + 1}
    rows, _ = rows_of(record(1, 10, **metadata), call(2, 3, 1, "cudaMemcpyAsync"), copied)
    assert [(row["group"], row["start_ns"]) for row in rows] == found


def test_kernels_of_a_graph_share_its_launch_and_have_no_operator():
    """As kineto writes a graph: one correlation for all kernels, and a node id on each."""
    rows, gaps = rows_of(
        record(1, 3, **{"Collective name": "broadcast"}),
        call(10, 12, 77, "cudaGraphLaunch"),
        kernel(20, 30, ALL_REDUCE, correlation=77, **{"graph id": 5, "graph node id": 3}),
        kernel(30, 60, "triton_poi_fused_add_0", 7, correlation=77),
        kernel(60, 70, "ncclDevKernel_AllGather_RING_LL(x)", correlation=77),
        call(80, 81, 78),
        kernel(90, 95, ALL_REDUCE, correlation=78),
        groups=[PAIR],
    )
    assert [(row["kind"], row["group"], row["method"]) for row in rows] == [
        ("all_reduce", "stream:40", "kernel_name_order"),
        ("all_gather", "stream:40", "kernel_name_order"),
        ("all_reduce", "stream:40", "kernel_name_order"),
    ]
    assert {row["launch_start_ns"] for row in rows} == {at(10), at(80)}
    reasons = [gap.reason for gap in gaps if gap.what == "metadata of collectives"]
    assert [reason.startswith(count) for reason, count in zip(reasons, ("2 of 3", "1 of 3"), strict=True)]


SIGNAL = "c10d::symmetric_memory::barrier_kernel(unsigned int**, int, int, int, unsigned long)"


@pytest.mark.parametrize(
    ("operator", "kind"),
    [
        ("symm_mem::_low_contention_all_gather", "all_gather"),
        ("symm_mem::fused_all_gather_matmul", "all_gather"),
        ("symm_mem::fused_scaled_matmul_reduce_scatter", "reduce_scatter"),
    ],
)
def test_copies_between_barriers_are_the_collective_of_symmetric_memory(operator, kind):
    rows, _ = rows_of(
        span(operator, 5, 50, MAIN, "cpu_op"),
        call(10, 11, 1),
        call(12, 13, 2, "cudaMemcpyAsync"),
        call(14, 15, 3, "cudaMemcpyAsync"),
        call(16, 17, 4),
        kernel(20, 21, SIGNAL, correlation=1),
        copy(22, 30, 2),
        copy(30, 40, 3),
        kernel(41, 42, SIGNAL, correlation=4),
        kernel(22, 60, "sm90_xmma_gemm_bf16", 7, correlation=5),
    )
    assert [(row["kind"], row["start_ns"], row["end_ns"]) for row in rows] == [
        ("barrier", at(20), at(21)),
        (kind, at(22), at(40)),
        ("barrier", at(41), at(42)),
    ]
    assert rows[1]["bytes"] == 800


def test_compiled_functional_collectives_describe_their_kernel():
    """As inductor's generated code calls them, with Triton kernels beside."""
    shapes = {"Input Dims": [[16], [], []], "Input type": ["c10::BFloat16", "Scalar", ""]}
    row, _ = one(
        span("_c10d_functional::all_gather_into_tensor_out", 5, 18, MAIN, "cpu_op", **shapes),
        call(10, 12, 77),
        kernel(20, 30, GENERIC, correlation=77),
        kernel(30, 60, "triton_per_fused__fused_rms_norm_all_gather_into_tensor_wait_tensor_3", 7),
    )
    assert (row["kind"], row["dtype"]) == ("all_gather", "bfloat16")


def test_ranges_of_oneccl_describe_its_kernels():
    row, _ = one(
        span("xccl:all_reduce", 7, 16, MAIN, **{"Input Dims": [[16]], "Input type": ["float"]}),
        call(10, 12, 77, "urEnqueueKernelLaunch", "xpu_runtime"),
        kernel(20, 30, "typeinfo name for Allreduce_small_kernel_scalar<float, 4>", correlation=77),
    )
    assert (row["kind"], row["dtype"], row["bytes"]) == ("all_reduce", "float32", 64)
