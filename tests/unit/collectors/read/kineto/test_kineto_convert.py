"""From the events of a trace to its tables: modelled collectives, NCCL's metadata, and events."""

from collections import Counter

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.kineto_traces import at, converted, span, thread_name, trace_of
from tests.support.real_traces import TRACES
from zprof.collectors.read.kineto.convert import convert_trace
from zprof.collectors.read.kineto.reading.reader import read_trace
from zprof.collectors.read.kineto.trace import Arguments, TraceProcessGroup
from zprof.run.schema import COLLECTIVES, EVENTS
from zprof.simulator.ground_truth import write_job
from zprof.simulator.job import VENDORS
from zprof.simulator.regular import make_job

COMM, WORKER = 20, 30
PAIR = TraceProcessGroup(name="0", description="default_pg", ranks=(0, 1))
GATHER = "zero::{} all_gather pg={} seq={} unit=b.1 bytes=800 dtype=bfloat16"


def rows_of(*events, groups=(PAIR,)):
    worker = thread_name(WORKER, f"thread {WORKER} (pt_gloo_runloop)")
    return converted(trace_of([worker, *events], groups, world_size=2))


def test_a_modelled_collective_comes_from_its_ranges():
    rows, gaps = rows_of(
        span(GATHER.format("launch", 0, 4), 10, 12),
        span(GATHER.format("comm", 0, 4), 15, 40, COMM),
        span("c10d::_allgather_base_", 16, 18, COMM, "cpu_op", **{"Input Dims": [[400], [200], []]}),
        span("gloo:all_gather", 17, 20, WORKER, **{"Input Dims": [[200]], "Input type": ["float"]}),
        span("zero::wait all_gather pg=0 seq=4 unit=b.1", 30, 41),
        span("zprof::wait", 31, 40),
        span("zero::wait all_gather pg=0 seq=4 unit=b.1", 50, 51),
        span("c10d::allreduce_", 60, 62, category="cpu_op", **{"Input Dims": [[[60]], [], []]}),
        span("gloo:all_reduce", 61, 63, WORKER, **{"Input Dims": [[60]], "Input type": ["float"]}),
    )
    assert not gaps
    modelled, plain = rows
    assert (plain["sequence"], plain["method"]) == (0, "gloo_fifo_order")
    assert modelled == {
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


def test_the_recorders_own_pings_are_no_collectives_of_the_program():
    """They are launched within a range of their own; other reductions of as little are counted as before."""
    rows, gaps = rows_of(
        span("zprof::ping", 10, 30),
        span("c10d::allreduce_", 11, 13, category="cpu_op", **{"Input Dims": [[[1]], [], []]}),
        span("gloo:all_reduce", 14, 16, WORKER, **{"Input Dims": [[1]], "Input type": ["float"]}),
        span("zprof::wait", 17, 29),
        span("c10d::allreduce_", 60, 62, category="cpu_op", **{"Input Dims": [[[1]], [], []]}),
        span("gloo:all_reduce", 61, 63, WORKER, **{"Input Dims": [[1]], "Input type": ["float"]}),
    )
    assert not gaps
    assert [(row["start_ns"], row["sequence"], row["wait_start_ns"]) for row in rows] == [(at(61), 0, None)]


def test_events_keep_operators_and_device_work_and_leave_out_bookkeeping():
    trace = trace_of(
        [
            span("caf\ud800é", 5, 9, category="cpu_op"),
            span("a", 1, 3, category="kernel", stream=7, correlation=8, **{"External id": 4}),
            span("Memcpy HtoD", 2, 3, category="gpu_memcpy", stream=7, bytes=64),
            span("PyTorch Profiler (0)", 0, 99, category="Trace"),
        ]
    )
    rows = pa.table(convert_trace(trace)[0]["events"], schema=EVENTS).to_pylist()
    columns = ("name", "category", "start_ns", "stream", "correlation", "external_id", "bytes")
    assert [tuple(row[column] for column in columns) for row in rows] == [
        ("a", "kernel", at(1), 7, 8, 4, None),
        ("Memcpy HtoD", "gpu_memcpy", at(2), 7, None, None, 64),
        ("caf?é", "cpu_op", at(5), None, None, None, None),
    ]


@pytest.mark.parametrize("vendor", VENDORS)
def test_collectives_of_a_simulated_rank_are_found_as_they_ran(vendor, tmp_path):
    truth = write_job(make_job(vendor=vendor, ranks=2, steps=1, units=3), tmp_path)
    rows, gaps = converted(read_trace(sorted(tmp_path.glob("rank*"))[0]))
    ran = [entry for entry in truth.collectives if entry.rank == 0]
    assert not gaps
    first = min(row["sequence"] for row in rows)  # numbers of NCCL go on from before the window
    found = Counter((r["kind"], r["group"], r["sequence"] - first, r["bytes"], r["dtype"]) for r in rows)
    assert found == Counter((t.kind, ",".join(map(str, t.ranks)), t.number, t.bytes, t.dtype) for t in ran)
    kinds = ("all_gather", "reduce_scatter")
    units = Counter(row["unit"] for row in rows if row["kind"] in kinds)
    assert units == {"layers.0": 3, "layers.1": 3, "layers.2": 2}  # the last is kept for its backward


needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="the public traces are not there")
#: Of public traces: (file, columns, how often each of their values occurs, what the gaps are about).
REAL = [
    (
        "hta_nccl_data.json.gz",
        ("kind", "group", "group_size", "stream", "method"),
        {("all_reduce", "0,1", 2, 40, "nccl_order"): 15, ("broadcast", "0,1", 2, 40, "nccl_order"): 6},
        [],
    ),
    (
        "hta_cpu_only_gloo_rank-34.pt.trace.json.gz",
        ("kind", "group_size", "method", "bytes"),
        {
            ("all_reduce", 300, "gloo_execution_order", 321_271 * 4): 5,
            ("all_reduce", 300, "gloo_execution_order", 2_082_411 * 4): 5,
        },
        ["launches of collectives"],
    ),
    (
        "hta_trace_filter_2of128/sampled_rank-1.json.gz",
        ("kind",),
        {("all_reduce",): 4, ("all_to_all",): 4, ("all_gather",): 2},
        ["process group of collectives"],
    ),
    ("hta_rank_non_gpu.json.gz", ("kind",), {}, ["collectives on the device"]),
    ("hta_mi250_minitoy.json.gz", ("kind",), {}, []),
]


@needs_traces
@pytest.mark.parametrize(("name", "columns", "counts", "gaps"), REAL, ids=[row[0] for row in REAL])
def test_collectives_of_a_public_trace(name, columns, counts, gaps):
    rows, found = converted(read_trace(TRACES / name))
    assert Counter(tuple(row[column] for column in columns) for row in rows) == counts
    assert [gap.what for gap in found] == gaps


NUMBERS = st.sampled_from([-5, -1, 0, 1, 2, 7, 1 << 20, 1 << 61])
ODD = st.one_of(
    st.none(),
    st.booleans(),
    NUMBERS,
    st.sampled_from(["", "0", "[0, 1]", "[0, ...]", "allreduce", "_allgather_base", "send", "wait", "Float"]),
    st.lists(NUMBERS, max_size=3),
    st.lists(st.lists(NUMBERS, max_size=3), max_size=3),
    st.just({"a": [1]}),
)
IDENTITIES = ("stream", "correlation", "External id", "bytes")
KEYS = [field.encode_name for field in msgspec.structs.fields(Arguments)]
NAMES = [
    "ncclDevKernel_AllGather_RING_LL(x)",
    "ncclDevKernel_Generic_1()",
    "Memcpy PtoP (Device -> Device)",
    "Memcpy DtoD (Device -> Device)",
    "record_param_comms",
    "c10d::allreduce_",
    "c10d::reduce_scatter_",
    "gloo:all_reduce",
    "nccl:all_gather",
    "symm_mem::multimem_all_reduce_",
    "FSDP::all_gather (b.0)",
    *(GATHER.format(what, 0, 1) for what in ("launch", "comm", "wait")),
    "zprof::wait",
    "cudaLaunchKernel",
]
CATEGORIES = ["kernel", "gpu_memcpy", "cpu_op", "user_annotation", "cuda_runtime", "Trace", ""]
SPANS = st.builds(
    lambda name, start, length, thread, category, args, ids: (
        span(name, start, start + length, thread, category) | {"args": args | ids}
    ),
    st.sampled_from(NAMES),
    st.integers(0, 40),
    st.integers(0, 20),
    st.sampled_from([0, 1, WORKER]),
    st.sampled_from(CATEGORIES),
    st.dictionaries(st.sampled_from(sorted({*KEYS} - {*IDENTITIES})), ODD, max_size=6),
    st.fixed_dictionaries({}, optional=dict.fromkeys(IDENTITIES, st.sampled_from([-1, 0, 1, 2, 1 << 61]))),
)
GROUPS = st.lists(
    st.builds(
        TraceProcessGroup,
        name=st.sampled_from(["0", "1", "x"]),
        description=st.sampled_from(["", "undefined", "default_pg", "tp"]),
        ranks=st.sampled_from([(), (0,), (0, 1), (0, 2)]),
    ),
    max_size=3,
)


@settings(max_examples=75)
@given(st.lists(SPANS, max_size=12), GROUPS, st.sampled_from([None, 0, -1, 3, 1 << 50]), st.booleans())
def test_tables_of_any_trace_fit_the_schema(spans, groups, world_size, named):
    names = [thread_name(WORKER, f"thread {WORKER} (pt_gloo_runloop)")] if named else []
    tables, gaps = convert_trace(trace_of([*names, *spans], groups, world_size))
    made = pa.table(tables["events"], schema=EVENTS)
    assert made.num_rows == sum(event["cat"] not in ("Trace", "") for event in spans)
    for row in pa.table(tables["collectives"], schema=COLLECTIVES).to_pylist():
        assert row["start_ns"] <= row["end_ns"]
        assert min(row["bytes"], row["sequence"], row["group_size"]) >= 0
    assert all(gap.what and gap.reason and gap.remedy for gap in gaps)
