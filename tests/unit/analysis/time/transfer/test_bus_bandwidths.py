"""Bus bandwidths of messages and all-to-alls in traces of two ranks, and the hosts that their group spans."""

import json

import pytest

import zprof

_BYTES = 4_000_000
#: Microseconds: the short kernel of a pair moves the data, the other one waited for 80 before.
_SHORT, _LONG = 50, 130


def _kernel(rank, at, kind, **args):
    waits = rank == 1
    start = at - (_LONG - _SHORT if waits else 0)
    metadata = {
        "Collective name": kind, "dtype": "Float", "Group size": 2, "stream": 20, "device": rank,
        "In msg nelems": _BYTES // 4, "Out msg nelems": _BYTES // 4,
        "Process Group Name": "0", "Process Group Ranks": "[0, 1]",
    }  # fmt: skip
    return {
        "ph": "X", "cat": "kernel", "name": "ncclDevKernel_SendRecv(x)", "pid": rank, "tid": 20, "ts": start,
        "dur": _LONG if waits else _SHORT, "args": metadata | args,
    }  # fmt: skip


def _write(folder, rank, kernels, host):
    steps = [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 9, "tid": 1, 
         "ts": 1000 * step, "dur": 1000, "args": {}}
        for step in (1, 2)
    ]  # fmt: skip
    compute = [
        {"ph": "X", "cat": "kernel", "name": "gemm", "pid": rank, "tid": 7, "ts": 1000 * step + 10,
         "dur": 100, "args": {"stream": 7, "device": rank}}
        for step in (1, 2)
    ]  # fmt: skip
    info = {"backend": "nccl", "rank": rank, "world_size": 2}
    document = {"distributedInfo": info, "host_name": host, "traceEvents": [*steps, *compute, *kernels]}
    (folder / f"rank{rank}.json").write_text(json.dumps(document))


def _load(folder, kinds, hosts=("a", "a")):
    """Two ranks: rank 1 is early by 80 µs in each of six operations, and both end at once."""
    for rank in (0, 1):
        kernels = [
            _kernel(rank, 1200 + 300 * number + (100 if number > 2 else 0), kinds[rank], Seq=number, **extra)
            for number in range(6)
            for extra in [{"Src Rank": 0} if kinds[rank] == "recv" else {"Dst Rank": 1}]
        ]
        _write(folder, rank, kernels, hosts[rank])
    return {entry.kind: entry for entry in zprof.load(folder).report.time.collectives}


def test_a_message_takes_as_long_as_the_shorter_kernel_of_its_pair(tmp_path):
    found = _load(tmp_path, ("send", "recv"))
    assert set(found) == {"send", "recv"}
    for entry in found.values():
        assert entry.busbw_bytes_per_s == pytest.approx(_BYTES / (_SHORT * 1e-6))
    # three messages per step, and the mean over both ranks, of which one waits
    assert found["recv"].wait_ns == pytest.approx(3 * (_LONG - _SHORT) * 1000 / 2)


def test_an_all_to_all_keeps_its_own_part(tmp_path):
    entry = _load(tmp_path, ("all_to_all", "all_to_all"))["all_to_all"]
    assert entry.busbw_bytes_per_s == pytest.approx(_BYTES / 2 / (_SHORT * 1e-6))


@pytest.mark.parametrize(("hosts", "count"), [(("a", "a"), 1), (("a", "b"), 2), (("a", ""), None)])
def test_a_group_spans_the_hosts_of_its_ranks(tmp_path, hosts, count):
    assert _load(tmp_path, ("all_to_all", "all_to_all"), hosts)["all_to_all"].hosts == count
