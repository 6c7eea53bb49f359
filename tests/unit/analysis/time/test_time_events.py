"""Which events of a rank are compute, wait or neither."""

import numpy as np
import pyarrow as pa

from zprof.analysis.time.activity_from_events import read_device_activity, read_host_activity
from zprof.analysis.time.steps import StepWindows, move_behind_work
from zprof.model.kernels import is_collective_kernel
from zprof.run.schema import COLLECTIVES, EVENTS

MAIN, OTHER = 1, 2


def table(*rows):
    columns = {
        "start_ns": [row[0] for row in rows],
        "duration_ns": [row[1] - row[0] for row in rows],
        "category": [row[2] for row in rows],
        "name": [row[3] for row in rows],
        "thread": [row[4] if len(row) > 4 else MAIN for row in rows],
        "stream": [None] * len(rows),
        "correlation": [row[5] if len(row) > 5 else None for row in rows],
    }
    return pa.table(columns, schema=pa.schema([EVENTS.field(name) for name in columns]))


def collective_rows(*rows):
    names = ("start_ns", "end_ns", "stream")
    columns = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    return pa.table(columns, schema=pa.schema([COLLECTIVES.field(name) for name in names]))


def test_operators_compute_wrappers_do_not():
    activity = read_host_activity(
        table(
            (0, 100, "cpu_op", "autograd::engine::evaluate_function: AddmmBackward0"),
            (5, 95, "cpu_op", "AddmmBackward0"),
            (10, 20, "cpu_op", "aten::mm"),
            (30, 40, "cpu_op", "c10d::_allgather_base_"),
            (50, 60, "cpu_op", "fsdp::chunk_cat"),
            (70, 80, "cpu_op", "_c10d_functional::wait_tensor"),
            (85, 90, "user_annotation", "FSDP::all_gather (blocks.0)"),
            (10, 90, "cpu_op", "aten::mm", OTHER),
        )
    )
    assert activity.compute.tolist() == [[10, 20], [50, 60]]
    assert activity.coverage.tolist() == [[0, 100]]


def test_waits_are_no_compute_and_compute_ranges_are():
    activity = read_host_activity(
        table(
            (0, 50, "user_annotation", "sim::compute forward unit=0"),
            (10, 20, "cpu_op", "aten::mm"),
            (40, 70, "user_annotation", "sim::wait all_gather pg=0 seq=0 unit=0"),
            (45, 60, "user_annotation", "zprof::wait"),
            (80, 90, "user_annotation", "zprof::wait"),
            (92, 99, "user_annotation", "zprof::wait", OTHER),
        )
    )
    assert activity.compute.tolist() == [[0, 40]]
    assert activity.waits.tolist() == [[40, 70], [80, 90]]
    assert activity.anonymous_waits.tolist() == [[80, 90]]


def test_copy_ranges_are_copies_with_all_that_runs_in_them():
    activity = read_host_activity(
        table(
            (0, 10, "cpu_op", "aten::mm"),
            (10, 40, "user_annotation", "zero::copy checkpoint unit=blocks.0 bytes=64"),
            (12, 20, "cpu_op", "aten::copy_"),
            (30, 35, "user_annotation", "zprof::wait"),
            (60, 90, "user_annotation", "zero::copy checkpoint unit=blocks.0 bytes=64", OTHER),
        )
    )
    assert activity.copies.tolist() == [[10, 30], [35, 40]]
    assert activity.compute.tolist() == [[0, 10]]


def test_an_operator_named_like_a_range_is_no_range():
    activity = read_host_activity(
        table(
            (0, 9, "cpu_op", "aten::mm"),
            (10, 20, "cpu_op", "mylib::wait"),
            (30, 40, "cpu_op", "mylib::compute"),
        )
    )
    assert not len(activity.waits)
    assert activity.compute.tolist() == [[0, 9], [10, 20], [30, 40]]


def test_on_a_device_kernels_compute():
    activity = read_device_activity(
        table(
            (0, 10, "kernel", "gemm"),
            (5, 30, "kernel", "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
            (40, 50, "gpu_memcpy", "Memcpy HtoD"),
            (0, 90, "cpu_op", "aten::mm"),
        ),
        collective_rows(),
    )
    assert activity.on_device
    assert activity.compute.tolist() == [[0, 10]]
    assert activity.copies.tolist() == [[40, 50]]


def test_work_of_a_device_belongs_to_the_step_that_launched_it():
    """The host's step ends at 100, the device works for it until 150."""
    activity = read_device_activity(
        table(
            (90, 95, "cuda_runtime", "cudaLaunchKernel", MAIN, 7),
            (105, 110, "cuda_runtime", "cudaLaunchKernel", MAIN, 8),
            (120, 150, "kernel", "gemm", 7, 7),
            (150, 230, "kernel", "gemm", 7, 8),
            (130, 135, "kernel", "launched before the window", 7, 3),
        ),
        collective_rows(),
    )
    assert activity.launched.tolist() == [[90, 150], [105, 230]]
    host = StepWindows(number=np.array([0, 1]), begin_ns=np.array([0, 100]), end_ns=np.array([100, 200]))
    moved = move_behind_work(host, *activity.launched.T)
    assert moved.begin_ns.tolist() == [0, 150]
    assert moved.end_ns.tolist() == [150, 230]


def test_collective_kernels_of_the_vendors():
    for name in ("ncclKernel_AllReduce", "ncclDevKernel_Generic", "rcclThing", "multimem_all_gather_kernel"):
        assert is_collective_kernel(name)
    for name in ("gemm_dma_copy", "void at::native::elementwise_kernel", "Memcpy DtoD"):
        assert not is_collective_kernel(name)


def test_no_events():
    for activity in (read_host_activity(table()), read_device_activity(table(), collective_rows())):
        assert not len(activity.compute)
        assert not len(activity.coverage)
