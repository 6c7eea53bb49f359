"""The wrapped module of a collective, from the annotations around its launch."""

import numpy as np
import pytest

from tests.support.kineto_traces import MAIN, at, span, trace_of
from zprof.collectors.kineto.annotations import find_units, parse_unit


@pytest.mark.parametrize(
    ("annotation", "unit"),
    [
        ("FSDP::all_gather (blocks.0)", "blocks.0"),
        ("FSDP::pre_forward (model.layers.3.mlp)", "model.layers.3.mlp"),
        ("FSDP::post_backward_reduce (blocks.1) [pg=8]", "blocks.1 [pg=8]"),
        ("FSDP::all_gather (norm, output)", "norm, output"),
        ("FSDP::all_gather", "root"),
        ("FSDP::post_backward_reduce [pg=2]", "root [pg=2]"),
        ("FSDP::post_backward_rs_wait ()", "root"),
        ("FSDP::backward_prefetch for blocks.2", "blocks.2"),
        ("FSDP::forward_prefetch for blocks.3", "blocks.3"),
        ("FSDP::root_pre_forward", "FSDP.root_pre_forward"),
        ("FullyShardedDataParallel._pre_forward", "FSDP.pre_forward"),
        ("FullyShardedDataParallel._post_backward_hook", "FSDP.post_backward_hook"),
        ("DistributedDataParallel.forward", "DDP.forward"),
        ("zero::launch all_gather pg=0 seq=4 unit=b.1 bytes=8 dtype=float32", "b.1"),
        ("zero::compute forward unit=b.2", "b.2"),
        ("zprof::wait", None),
        ("ProfilerStep#3", None),
        ("nccl:all_reduce", None),
        ("aten::mm", None),
        ("FSDP::all_gather (" + "x" * 5000 + ")", None),
    ],
)
def test_units(annotation, unit):
    assert parse_unit(annotation) == unit


def test_the_innermost_annotation_of_the_thread_counts():
    trace = trace_of(
        [
            span("ProfilerStep#1", 0, 100),
            span("FSDP::pre_backward (blocks.1)", 1, 60),
            span("FSDP::pre_backward (other)", 1, 60, MAIN + 1),
            span("FSDP::backward_prefetch for blocks.0", 10, 50),
            span("FSDP::all_gather (blocks.0)", 11, 14),
            span("FSDP::all_gather_copy_out (blocks.1)", 52, 55),
        ]
    )
    times = np.array([at(t) for t in (0.5, 12, 30, 53, 58, 61)])
    found = find_units(trace, np.full(len(times), MAIN), times)
    assert found == [None, "blocks.0", "blocks.0", "blocks.1", "blocks.1", None]
