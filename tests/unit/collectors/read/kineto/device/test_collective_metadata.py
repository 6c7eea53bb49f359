"""Every spelling of a collective's metadata, on the kernel that carries it."""

import pytest

from tests.support.kineto_traces import converted, span, trace_of
from zprof.collectors.read.kineto.trace import TraceProcessGroup

KERNEL = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"
RANKS = "[0, 1, 2, 3]"


def one(groups=(), world_size=None, **args):
    args = {"stream": 40, "correlation": 7, "Process Group Name": "5", "Group size": 4} | args
    args = {key: value for key, value in args.items() if value is not None}
    (row,), gaps = converted(trace_of([span(KERNEL, 20, 50, 40, "kernel", **args)], groups, world_size))
    return row, gaps


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("all_reduce", ["allreduce", "all_reduce", "allreduce_coalesced"]),
        ("all_gather", ["_allgather_base", "all_gather_into_tensor", "allgather_into_tensor_coalesced"]),
        ("reduce_scatter", ["_reduce_scatter_base", "reduce_scatter_tensor_coalesced"]),
        ("all_to_all", ["all_to_all", "all_to_allv", "alltoall_base"]),
        ("broadcast", ["broadcast", "_broadcast_oop"]),
        ("reduce", ["reduce", "_reduce_oop"]),
        ("gather", ["gather"]),
        ("scatter", ["scatter"]),
        ("send", ["send"]),
        ("recv", ["recv"]),
        ("barrier", ["barrier", "all_reduce_barrier"]),
        ("other", ["batch_isend_irecv", "something_new"]),
    ],
)
def test_kinds(kind, names):
    rows = [one(**{"Collective name": name})[0] for name in names]
    assert [(row["kind"], row["method"]) for row in rows] == [(kind, "nccl_order")] * len(names)


@pytest.mark.parametrize("name", ["wait", "init", "", None, 3, [], "comm_split"])
def test_entries_that_move_nothing_describe_no_kernel(name):
    row, gaps = one(**{"Collective name": name, "Process Group Ranks": RANKS})
    assert (row["kind"], row["group"], row["group_size"]) == ("other", "stream:40", 0)
    assert row["method"] == "kernel_name_order"
    assert gaps[0].what == "metadata of collectives"


@pytest.mark.parametrize(
    ("name", "given", "result", "dtype", "expected", "shown"),
    [
        ("_allgather_base", 25136, 201088, "BFloat16", 402176, "bfloat16"),
        ("_reduce_scatter_base", 800, 200, "Float", 3200, "float32"),
        ("_allgather_base", 200, None, "Half", 1600, "float16"),
        ("_reduce_scatter_base", None, 200, "Double", 6400, "float64"),
        ("allreduce", 10, 10, "Float8_e4m3fn", 10, "float8_e4m3fn"),
        ("allreduce", 10, 10, "Long", 80, "int64"),
        ("allreduce", 10, 10, "ComplexFloat", 80, "complex64"),
        ("all_to_all", 12, 40, "Int", 48, "int32"),
        ("gather", 10, 40, "Float", 160, "float32"),
        ("barrier", 3, 3, "Byte", 0, "uint8"),
        ("allreduce", 10, 10, "Quaternion", 0, "unknown"),
        ("allreduce", "many", None, "Float", 0, "float32"),
    ],
)
def test_bytes_are_those_of_the_full_tensor(name, given, result, dtype, expected, shown):
    args = {"Collective name": name, "In msg nelems": given, "Out msg nelems": result, "dtype": dtype}
    row, _ = one(**args, **{"Process Group Ranks": RANKS})
    assert (row["bytes"], row["dtype"]) == (expected, shown)


@pytest.mark.parametrize(
    ("args", "size"),
    [({}, 36), ({"In msg nelems": 90}, 360), ({"In split size": "[3, 0, ...]"}, 0)],
)
def test_an_uneven_all_to_all_counts_what_it_sends(args, size):
    sent = {"Collective name": "all_to_allv", "dtype": "Float", "In split size": "[3, 0, 5, 1]"}
    assert one(**sent | args)[0]["bytes"] == size


@pytest.mark.parametrize(
    ("stated", "sequence", "method"),
    [(6, 6, "nccl"), *((bad, 0, "nccl_order") for bad in (-1, "6", None, True, 1 << 70))],
)
def test_the_sequence_number(stated, sequence, method):
    row, _ = one(**{"Collective name": "allreduce", "Seq": stated, "Process Group Ranks": RANKS})
    assert (row["sequence"], row["method"]) == (sequence, method)


@pytest.mark.parametrize(
    ("args", "group", "size"),
    [
        ({"Process Group Ranks": "[3, 1]"}, "1,3", 2),
        ({"Process Group Ranks": "[0, 1, ...]"}, "4,5,6,7", 4),
        ({"Process Group Ranks": "[1, 1]"}, "4,5,6,7", 4),
        ({"Process Group Name": "9", "Process Group Ranks": "[0, ...]"}, "pg:9", 4),
        ({"Process Group Name": "9", "Global rank start": 2, "Global rank stride": 2}, "2,4,6,8", 4),
        ({"Process Group Name": "9", "Global rank start": -1, "Global rank stride": -1}, "pg:9", 4),
        ({"Process Group Name": None, "Process Group ID": 0}, "0,1,2,3,4,5,6,7", 8),
        ({"Process Group Name": "0"}, "0,1,2,3,4,5,6,7", 8),
        ({"Process Group Name": 5}, "4,5,6,7", 4),
        ({"Process Group Name": "9", "Group size": 1 << 40}, "pg:9", 0),
        ({"Process Group Name": "9", "Group size": -4}, "pg:9", 0),
        ({"Process Group Name": None, "Group size": None}, "stream:40", 0),
    ],
)
def test_groups(args, group, size):
    groups = [
        TraceProcessGroup(name="0", description="default_pg", ranks=()),
        TraceProcessGroup(name="5", description="tp", ranks=(4, 5, 6, 7)),
    ]
    row, _ = one(groups=groups, world_size=8, **{"Collective name": "allreduce"} | args)
    assert (row["group"], row["group_size"]) == (group, size)


@pytest.mark.parametrize(
    ("name", "args", "peer"),
    [
        ("broadcast", {"Rank": 1}, 5),
        ("reduce", {"Rank": 0}, 4),
        ("broadcast", {"Rank": 3}, None),
        ("broadcast", {"Rank": -1}, None),
        ("send", {"Dst Rank": 6, "Rank": 2}, 6),
        ("recv", {"Src Rank": 5}, 5),
        ("allreduce", {"Rank": 1}, None),
        ("send", {}, None),
    ],
)
def test_roots_and_peers_are_global_ranks(name, args, peer):
    row, _ = one(**{"Collective name": name, "Process Group Ranks": "[4, 5, 6]"} | args)
    assert row["peer_rank"] == peer


def test_messages_are_numbered_per_peer_as_the_other_side_counts_them():
    """torch counts per process: rank 1 of a pipeline has sent to 2 as often as it received from 0."""
    keys = {"send": "Dst Rank", "recv": "Src Rank"}
    stated = [("recv", 0), ("send", 2), ("recv", 0), ("send", 3)]
    events = [
        span(KERNEL, seq, seq + 1, 40, "kernel", **{"Collective name": name, keys[name]: peer, "Seq": seq})
        for seq, (name, peer) in enumerate(stated, start=1)
    ]
    rows, _ = converted(trace_of(events))
    assert [(row["kind"], row["peer_rank"], row["sequence"], row["method"]) for row in rows] == [
        ("recv", 0, 0, "nccl_order"),
        ("send", 2, 0, "nccl_order"),
        ("recv", 0, 1, "nccl_order"),
        ("send", 3, 0, "nccl_order"),
    ]
