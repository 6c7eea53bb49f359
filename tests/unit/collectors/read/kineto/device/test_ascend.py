"""Ascend traces as msprof writes them: streams compute, communicators are collectives, planes repeat both."""

import io
import json

import pytest

import zprof
from tests.support.kineto_traces import converted
from zprof.collectors.read.kineto.device.ascend import read_ascend_lanes
from zprof.collectors.read.kineto.reading.reader import read_text
from zprof.model.gap_texts import make_gap

HARDWARE, COMMUNICATION, OVERLAP, CANN, PYTHON = 10327488, 10327520, 10327552, 10327584, 77
GROUP = "16898834563344171674"
#: Microseconds since 1970, as msprof writes them: three decimals, as text.
START = 1717575960000000


def named(process, name, threads=()):
    meta = [("process_name", 0, name), *(("thread_name", thread, text) for thread, text in threads)]
    return [
        {"ph": "M", "name": kind, "pid": process, "tid": tid, "args": {"name": text}}
        for kind, tid, text in meta
    ]


def event(process, thread, name, start, end, cat=None, **args):
    found = {
        "name": name, "pid": process, "tid": thread, "ts": f"{START + start}.125", "dur": float(end - start),
        "ph": "X", "args": args,
    }  # fmt: skip
    return found if cat is None else found | {"cat": cat}


def task(stream, name, start, end, kind):
    return event(HARDWARE, stream, name, start, end, **{"Task Type": kind, "Physic Stream Id": stream})


#: 100 to 400 and 500 to 700 compute, 300 to 500 and 700 to 900 communicate, 900 to 950 copies.
EVENTS = [
    *named(HARDWARE, "Ascend Hardware", [(2, "Stream 2"), (5, "Stream 5")]),
    *named(
        COMMUNICATION,
        "Communication",
        [(0, f"Group {GROUP} Communication"), (1, "Plane 0"), (2, "Plane 1")],
    ),
    *named(OVERLAP, "Overlap Analysis", [(0, "Computing"), (1, "Communication"), (3, "Free")]),
    *named(CANN, "CANN"),
    *named(PYTHON, "Python"),
    event(PYTHON, 1, "ProfilerStep#4", 0, 1000, "cpu_op"),
    event(PYTHON, 1, "aten::mm", 50, 60, "cpu_op"),
    event(PYTHON, 1, "aten::mm", 50, 60, "enqueue"),
    event(CANN, 9, "AscendCL@aclnnMatmul", 60, 70, connection_id=7),
    task(2, "aclnnMatmul_MatMulV2", 100, 400, "AI_CORE"),
    task(2, "EVENT_WAIT", 400, 500, "EVENT_WAIT_SQE"),
    task(2, "aclnnMul_Mul", 500, 700, "KERNEL_AIVEC"),
    task(5, "Notify_Wait", 300, 480, "NOTIFY_WAIT_SQE"),
    task(5, "hcom_allReduce_AicpuKernel_674_0_1", 300, 310, "AI_CPU"),
    task(2, "MEMCPY_ASYNC", 900, 950, "PCIE_DMA_SQE"),
    event(
        COMMUNICATION, 0, "hcom_allReduce__674_0_1", 300, 500,
        data_type="BFP16", alg_type="MESH-RING", count=1024, rank_size=8, connection_id=8,
    ),
    event(COMMUNICATION, 0, "hcom_allGather__674_1_1", 700, 900, data_type="FP32", count=256, rank_size=8),
    event(COMMUNICATION, 1, "Notify_Wait", 300, 480, **{"task type": "Notify_Wait", "size(Byte)": 3200}),
    event(COMMUNICATION, 2, "Memcpy", 480, 500, **{"task type": "Memcpy", "size(Byte)": 3200}),
    event(OVERLAP, 0, "Computing", 100, 400),
    event(OVERLAP, 1, "Communication", 300, 500),
    event(OVERLAP, 3, "Free", 950, 1000),
]  # fmt: skip


def write(path, events, process="Communication"):
    renamed = [
        one | {"args": {"name": process}}
        if one["ph"] == "M" and (one["pid"], one["name"]) == (COMMUNICATION, "process_name")
        else one
        for one in events
    ]
    path.write_text(json.dumps(renamed))
    return zprof.load(path)


@pytest.mark.parametrize("process", ["Communication", "HCCL"])
def test_streams_and_communicators_are_the_device(tmp_path, process):
    report = write(tmp_path / "rank0.json", EVENTS, process).report
    assert (report.run.device, report.run.world_size) == ("npu", 8)
    (step,) = report.time.steps
    assert (step.wall_ns, step.compute_ns, step.idle_ns) == (1_000_000, 500_000, 150_000)
    assert (step.exposed_transfer_ns, step.exposed_memcpy_ns) == (300_000, 50_000)
    assert (step.collective_ns, step.overlapped_ns) == (400_000, 100_000)


def test_operations_have_kind_communicator_and_certain_size():
    trace, gaps = read_ascend_lanes(read_text(io.BytesIO(json.dumps(EVENTS).encode())))
    rows, _ = converted(trace)
    assert [(row["kind"], row["group"], row["group_size"], row["dtype"], row["bytes"]) for row in rows] == [
        ("all_reduce", f"0,1,2,3,4,5,6,7#{GROUP}", 8, "bfloat16", 2048),
        ("all_gather", f"0,1,2,3,4,5,6,7#{GROUP}", 8, "float32", 0),  # the count may be that of a shard
    ]
    assert trace.report.without_name == 0
    assert not gaps


def test_an_unknown_type_of_task_is_a_gap():
    events = [*EVENTS, task(2, "Quantum_1", 950, 960, "QUANTUM_SQE")]
    _, gaps = read_ascend_lanes(read_text(io.BytesIO(json.dumps(events).encode())))
    (gap,) = gaps
    assert gap == make_gap("ascend_tasks_unknown", count=1, tasks=["QUANTUM_SQE"])


def test_two_ranks_of_a_communicator_are_compared(tmp_path):
    """Rank 1 enters the second of six operations 60 µs after rank 0, and all end together."""
    for rank, late in ((0, 0), (1, 60)):
        operations = [
            event(
                COMMUNICATION, 0, f"hcom_allReduce__674_{number}_1",
                1100 + 300 * number + (late if number == 1 else 0), 1200 + 300 * number,
                data_type="FP32", count=1 << 20, rank_size=2,
            )
            for number in range(6)
        ]  # fmt: skip
        compute = [task(2, "MatMul", 1010 + 1000 * step, 1060 + 1000 * step, "AI_CORE") for step in range(2)]
        meta = [one for one in EVENTS if one["ph"] == "M"]
        steps = [event(PYTHON, 1, f"ProfilerStep#{n}", 1000 * n, 1000 * n + 1000, "cpu_op") for n in (1, 2)]
        (tmp_path / f"rank{rank}.json").write_text(json.dumps([*meta, *steps, *compute, *operations]))
    report = zprof.load(tmp_path).report
    assert report.time.alignment.matched == 6
    (found,) = report.time.collectives
    assert found.group == f"0,1#{GROUP}"
    assert found.wait_ns == 60_000 / 2 / 2  # one of two ranks, in one of two steps
