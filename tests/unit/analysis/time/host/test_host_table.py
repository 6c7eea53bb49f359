"""The table ``host`` of played device ranks and of simulated jobs: idle as in the ledger, and why."""

import pytest

from tests.support.device_plays import MS, US, Collect, Drain, Host, Join, Kernel, write
from zprof.analysis.time.analyse import analyse_time
from zprof.analysis.time.host_idle import IdlePart
from zprof.run.reader import load

LOADER = Host(
    ns=5 * MS,
    name="enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
    category="user_annotation",
)
PLANTED = {
    "loader": [LOADER],
    "allocator": [Host(ns=2 * MS, name="cudaFree"), Host(ns=3 * MS, name="hipMalloc")],
    "launch": [Host(ns=5 * MS)],
    "optimizer": [Host(ns=5 * MS, name="Optimizer.step#AdamW.step", category="user_annotation")],
}


def rows_of(tmp_path, planted):
    ops = [Collect(key="g", group=(0, 1)), Join(key="g"), Kernel(ns=3 * MS), Drain(), *planted, Kernel(ns=MS)]
    analysis = analyse_time(load(write(tmp_path / "x.zprof", {0: ops, 1: ops})))
    assert analysis.host["idle_ns"].tolist() == analysis.steps["idle_ns"].tolist()
    parts = analysis.host[[f"{part}_ns" for part in IdlePart]].sum(axis=1)
    assert parts.tolist() == analysis.host["idle_ns"].tolist()
    return analysis.host


@pytest.mark.parametrize("part", PLANTED)
def test_what_the_host_did_gets_the_time(tmp_path, part):
    rows = rows_of(tmp_path, PLANTED[part])
    before = 0.01 * MS if part != "launch" else 1.1 * MS  # behind the wait, its lost lead is its own
    assert rows[f"{part}_ns"].tolist() == pytest.approx([5 * MS] * 2, abs=before)


def test_calls_are_counted(tmp_path):
    rows = rows_of(tmp_path, [*PLANTED["allocator"], LOADER, Drain(), Kernel(ns=MS), Drain()])
    for name, count in (("takes", 1), ("gives", 1), ("loads", 1), ("syncs", 3)):
        assert rows[name].tolist() == [count, count], name
    assert rows["on_device"].all()
    assert rows["launches_seen"].all()


@pytest.mark.parametrize(
    ("name", "compiled"),
    [
        ("Torch-Compiled Region: 0/0", True),
        ("CompiledFunction", True),
        ("CompiledFunctionBackward", True),
        ("## Call CompiledFxGraph fabc ##", True),
        ("triton_poi_fused_add_0", True),
        ("aten::add", False),
        ("my.CompiledFunctions", False),
    ],
)
def test_compiled_regions_are_seen(tmp_path, name, compiled):
    rows = rows_of(tmp_path, [Host(ns=MS, name=name, category="cpu_op")])
    assert set(rows["is_compiled"]) == {compiled}


def test_a_wait_that_leaves_the_queue_empty(tmp_path):
    rows = rows_of(tmp_path, [op for _ in range(5) for op in (Kernel(ns=200 * US), Drain())])
    assert rows["dry_syncs"].tolist() == [6, 6]
    assert rows["sync_ns"].min() >= 5 * 3 * US


@pytest.mark.parametrize(
    ("names", "inference"),
    [
        (["aten::mm"], True),
        (["aten::mm", "autograd::engine::evaluate_function: MmBackward0"], False),
        (["aten::mm", "Optimizer.step#SGD.step"], False),
        ([], False),
    ],
)
def test_operators_without_backward_and_optimizer_are_inference(tmp_path, names, inference):
    rows = rows_of(tmp_path, [Host(ns=MS, name=name, category="cpu_op") for name in names])
    assert rows["is_inference"].tolist() == [inference] * 2
