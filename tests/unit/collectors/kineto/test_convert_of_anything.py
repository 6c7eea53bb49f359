"""Whatever stands in a trace, its tables fit the schema and nothing raises."""

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.kineto_traces import span, thread_name, trace_of
from zprof.collectors.kineto.convert import convert_trace
from zprof.collectors.kineto.trace import Group
from zprof.run.schema import COLLECTIVES, EVENTS

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
KEYS = [
    "Collective name",
    "In msg nelems",
    "Out msg nelems",
    "dtype",
    "In split size",
    "Process Group Name",
    "Process Group ID",
    "Process Group Description",
    "Process Group Ranks",
    "Group size",
    "Seq",
    "Rank",
    "Src Rank",
    "Dst Rank",
    "Global rank start",
    "Global rank stride",
    "Input Dims",
    "Input type",
    "Concrete Inputs",
]
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
    "zero::launch all_gather pg=0 seq=1 unit=b bytes=4 dtype=float32",
    "zero::comm all_gather pg=0 seq=1 unit=b bytes=4 dtype=float32",
    "zero::wait all_gather pg=0 seq=1 unit=b",
    "zprof::wait",
    "cudaLaunchKernel",
]
CATEGORIES = ["kernel", "gpu_memcpy", "cpu_op", "user_annotation", "cuda_runtime", "Trace", ""]


@st.composite
def events(draw):
    start = draw(st.integers(0, 40))
    args = draw(st.dictionaries(st.sampled_from(KEYS), ODD, max_size=6))
    for key in ("stream", "correlation", "External id", "bytes"):
        if draw(st.booleans()):
            args[key] = draw(st.sampled_from([-1, 0, 1, 2, 1 << 61]))
    return span(
        draw(st.sampled_from(NAMES)),
        start,
        start + draw(st.integers(0, 20)),
        draw(st.sampled_from([0, 1, 30])),
        draw(st.sampled_from(CATEGORIES)),
        **args,
    )


GROUPS = st.lists(
    st.builds(
        Group,
        name=st.sampled_from(["0", "1", "x"]),
        description=st.sampled_from(["", "undefined", "default_pg", "tp"]),
        ranks=st.sampled_from([(), (0,), (0, 1), (0, 2)]),
    ),
    max_size=3,
)


@settings(max_examples=150)
@given(st.lists(events(), max_size=12), GROUPS, st.sampled_from([None, 0, -1, 3, 1 << 50]), st.booleans())
def test_any_trace(spans, groups, world_size, named):
    names = [thread_name(30, "thread 30 (pt_gloo_runloop)")] if named else []
    tables, gaps = convert_trace(trace_of([*names, *spans], groups, world_size))
    made = pa.table(tables["events"], schema=EVENTS)
    assert made.num_rows == sum(event["cat"] not in ("Trace", "") for event in spans)
    rows = pa.table(tables["collectives"], schema=COLLECTIVES).to_pylist()
    for row in rows:
        assert row["start_ns"] <= row["end_ns"]
        assert row["bytes"] >= 0
        assert row["sequence"] >= 0
        assert row["group_size"] >= 0
    assert all(gap.what and gap.reason and gap.remedy for gap in gaps)
