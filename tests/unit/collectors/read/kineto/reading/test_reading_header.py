"""The header of a trace: each of its variants, and nothing else of the file."""

import io
import json

import pytest

from zprof.collectors.read.kineto.reading.reader import read_text
from zprof.collectors.read.kineto.trace import TraceHeader, TraceProcessGroup

EVENT = {
    "ph": "X",
    "cat": "kernel",
    "name": "k",
    "ts": 1,
    "dur": 1,
    "pid": 0,
    "tid": 7,
    "args": {"x": "y" * 40},
}


def header(**keys):
    return read_text(io.BytesIO(json.dumps({"traceEvents": [EVENT], **keys}).encode())).header


def test_a_full_header_is_read_and_unknown_keys_are_not_kept():
    group = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [1, 0]}
    found = header(
        distributedInfo={
            "backend": "nccl",
            "rank": 3,
            "world_size": 8,
            "pg_config": [group],
            "token": "hunter2",
        },
        deviceProperties=[{"id": 0, "name": "NVIDIA H100", "numSms": 132}, {"id": 1, "name": ""}, 3],
        host_name="node7",
        baseTimeNanoseconds=5,
        metadata={"TOKEN": "hunter2"},
        env="hunter2",
    )
    assert found == TraceHeader(
        base_ns=5,
        rank=3,
        world_size=8,
        backend="nccl",
        groups=(TraceProcessGroup(name="0", description="default_pg", ranks=(0, 1)),),
        devices=("NVIDIA H100", ""),
        host="node7",
    )
    assert "hunter2" not in repr(found)


@pytest.mark.parametrize(
    ("info", "rank", "world_size", "backend", "groups"),
    [
        (None, None, None, "", []),
        ({"backend": "mtia:hccl,cpu:gloo", "rank": "5", "world_size": "6"}, 5, 6, "mtia:hccl,cpu:gloo", []),
        ({"rank": -1, "world_size": 2**70}, None, None, "", []),
        ({"rank": True, "world_size": 1.5, "backend": 7}, None, None, "7", []),
        ({"pg_config": [{"pg_name": 4, "uid": 0, "ranks": [0]}]}, None, None, "", [("4", "", (0,))]),
        (
            {"pg_config": [{"pg_name": "a", "pg_desc": "d", "ranks": "[2, 1]"}]},
            None,
            None,
            "",
            [("a", "d", (1, 2))],
        ),
        ({"pg_config": [{"pg_name": "a", "ranks": "[0, 1, ..."}, {"ranks": ["x"]}, 3]}, None, None, "", []),
        ({"pg_config": [{"pg_name": "a"}, {"pg_name": "b", "ranks": []}]}, None, None, "", []),
    ],
)
def test_variants_of_distributed_information(info, rank, world_size, backend, groups):
    found = header(distributedInfo=info)
    assert (found.rank, found.world_size, found.backend) == (rank, world_size, backend)
    assert [(group.name, group.description, group.ranks) for group in found.groups] == groups


@pytest.mark.parametrize("base", [None, "x", -5, 2**63, [], 1.5])
def test_a_base_time_that_is_none_is_zero(base):
    assert header(baseTimeNanoseconds=base).base_ns == 0
