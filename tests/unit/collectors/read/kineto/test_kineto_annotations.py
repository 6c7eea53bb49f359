"""Wrapped modules, reduced types and shapes from the names and arguments around a collective."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.kineto_traces import at, span, trace_of
from zprof.collectors.read.kineto.annotations import IntervalIndex, find_rows, parse_unit


@pytest.mark.parametrize(
    ("annotation", "unit"),
    [
        ("FSDP::all_gather (blocks.0)", "blocks.0"),
        ("FSDP::post_backward_reduce (blocks.1) [pg=8]", "blocks.1 [pg=8]"),
        ("FSDP::all_gather (norm, output)", "norm, output"),
        ("FSDP::all_gather", "root"),
        ("FSDP::post_backward_reduce [pg=2]", "root [pg=2]"),
        ("FSDP::post_backward_rs_wait ()", "root"),
        ("FSDP::backward_prefetch for blocks.2", "blocks.2"),
        ("FSDP::root_pre_forward", "FSDP.root_pre_forward"),
        ("FullyShardedDataParallel._post_backward_hook", "FSDP.post_backward_hook"),
        ("DistributedDataParallel.forward", "DDP.forward"),
        ("zero::launch all_gather pg=0 seq=4 unit=b.1 bytes=8 dtype=float32", "b.1"),
        ("zprof::wait", None),
        ("ProfilerStep#3", None),
        ("nccl:all_reduce", None),
        ("FSDP::all_gather (" + "x" * 5000 + ")", None),
    ],
)
def test_the_unit_of_an_annotation(annotation, unit):
    assert parse_unit(annotation) == unit


NESTED = st.recursive(
    st.just([]), lambda inner: st.lists(st.tuples(st.integers(0, 3), inner), max_size=4), max_leaves=12
)


def lay_out(tree, begin, thread):
    """Return intervals that nest as the tree does, with gaps of its numbers, and the end of the last one."""
    found, now = [], begin
    for gap, inner in tree:
        start = now + gap
        below, end = lay_out(inner, start, thread)
        found += [(thread, start, end + 1), *below]
        now = end + 2
    return found, now


@settings(max_examples=50)
@given(NESTED, NESTED, st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 60)), max_size=20))
def test_the_innermost_interval_against_a_search_of_all(first, second, instants):
    intervals = lay_out(first, 0, 0)[0] + lay_out(second, 0, 1)[0]
    trace = trace_of([span("r", start, end, thread) for thread, start, end in reversed(intervals)])
    rows = find_rows(trace, ("user_annotation",), "r".__eq__)
    threads = np.array([thread for thread, _ in instants], dtype=np.int64)
    times = np.array([at(time) for _, time in instants], dtype=np.int64)
    for (thread, time), row in zip(
        instants, IntervalIndex(trace, rows).find_innermost(threads, times).tolist(), strict=True
    ):
        around = [end - start for t, start, end in intervals if t == thread and start <= time <= end]
        assert (trace.duration_ns[row] if row >= 0 else None) == (min(around) * 1000 if around else None)
        assert row < 0 or trace.thread[row] == thread
