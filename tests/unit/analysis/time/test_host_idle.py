"""Idle time in disjoint parts that sum to it, each given to what the host did meanwhile."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.device_plays import MS, US, Collect, Drain, Host, Join, Kernel, Op, write
from tests.support.device_ranks import Rows, write_run
from zprof.analysis.intervals import EMPTY, intervals, measure, union
from zprof.analysis.time.analyse import analyse_time
from zprof.analysis.time.host_calls import HostCalls, select_host_calls
from zprof.analysis.time.host_idle import MAX_GAP_AFTER_NS, IdlePart, split_cpu_idle, split_device_idle
from zprof.run.reader import load


def spans(*pairs):
    return intervals(*zip(*pairs, strict=True)) if pairs else EMPTY


#: A host whose events never pause.
ALWAYS = spans((0, 1 << 60))


def calls(**named) -> HostCalls:
    return HostCalls(**({"allocator": EMPTY, "sync": EMPTY, "loader": EMPTY, "active": ALWAYS} | named))


def lengths(shares) -> dict[IdlePart, int]:
    return {part: measure(found) for part, found in shares.items() if measure(found)}


def device_idle(*idle, pending=EMPTY, **named) -> dict[IdlePart, int]:
    return lengths(split_device_idle(spans(*idle), EMPTY, pending, calls(**named)).idle)


drawn = st.lists(st.tuples(st.integers(0, 400), st.integers(1, 60)), max_size=8).map(
    lambda pairs: union(spans(*((begin, begin + length) for begin, length in pairs)))
)
HOST_CALLS = ("allocator", "sync", "loader", "limiter", "optimizer", "collective")


@settings(max_examples=40)
@given(drawn, drawn, drawn, st.fixed_dictionaries(dict.fromkeys(HOST_CALLS, drawn)))
def test_the_parts_are_disjoint_and_sum_to_the_idle_time(idle, moving, pending, given_calls) -> None:
    host = HostCalls(**given_calls)
    for shares in (split_device_idle(idle, moving, pending, host), split_cpu_idle(idle, moving, host)):
        assert sum(measure(part) for part in shares.idle.values()) == measure(idle)
        assert np.array_equal(union(*shares.idle.values()), idle)
    exposed = split_device_idle(idle, moving, pending, host).exposed
    assert sum(measure(part) for part in exposed.values()) <= measure(moving)


def test_an_empty_queue_is_the_hosts_and_a_launch_on_its_way_is_not() -> None:
    found = device_idle((10, 30), (50, 60), pending=spans((25, 30), (40, 60)))
    assert found == {IdlePart.LAUNCH: 20, IdlePart.OTHER: 10}


@pytest.mark.parametrize(
    ("idle", "wait", "sync_ns"),
    [
        ((4 * MS, 14 * MS), (0, 5 * MS), MS + MAX_GAP_AFTER_NS),  # the host would have been 4 ms ahead
        ((100_000, 14 * MS), (0, 5 * MS), 5 * MS),  # by 0.1 ms only
        ((0, 14 * MS), (MS, 2 * MS), MS),  # the queue was empty already
    ],
)
def test_the_gap_behind_a_wait_is_as_long_as_the_lead_that_was_lost(idle, wait, sync_ns: int) -> None:
    found = device_idle(idle, sync=spans(wait))
    assert found == {IdlePart.SYNC: sync_ns, IdlePart.LAUNCH: idle[1] - idle[0] - sync_ns}


def test_calls_that_overlap_take_the_time_in_order() -> None:
    found = device_idle((0, 10), loader=spans((0, 2)), allocator=spans((1, 4)), sync=spans((3, 6)))
    assert found == {IdlePart.LOADER: 2, IdlePart.ALLOCATOR: 2, IdlePart.SYNC: 2, IdlePart.LAUNCH: 4}
    limited = device_idle((0, 10), sync=spans((3, 6)), limiter=spans((0, 10)))
    assert limited == {IdlePart.LIMITER: 3, IdlePart.LAUNCH: 7}


def test_only_an_optimizer_that_launches_nothing_for_a_while_is_on_the_host() -> None:
    found = device_idle((0, MS), (6 * MS, 7 * MS - 1), optimizer=spans((0, 9 * MS)))
    assert found == {IdlePart.OPTIMIZER: MS, IdlePart.LAUNCH: MS - 1}


def test_nobody_can_tell_what_a_host_without_events_does() -> None:
    found = device_idle((10, 40), active=spans((0, 15), (20, 22)), loader=spans((30, 32)))
    assert found == {IdlePart.LAUNCH: 7, IdlePart.UNSEEN: 21, IdlePart.LOADER: 2}


def test_a_thread_is_active_between_events_that_are_close() -> None:
    rows = Rows().call(0, 1).call(MS, 2).event(5 * MS, 8 * MS, "cuda_runtime", "cudaMalloc").call(9 * MS, 3)
    assert select_host_calls(rows.events_table()).active.tolist() == [[0, MS + 1], [8 * MS, 9 * MS + 1]]


def test_the_main_thread_of_a_cpu_rank() -> None:
    host = calls(loader=spans((0, 10)), collective=spans((20, 25)))
    found = lengths(split_cpu_idle(spans((5, 40)), spans((30, 33)), host).idle)
    assert found == {IdlePart.LOADER: 5, IdlePart.OTHER: 5, IdlePart.COPY: 3, IdlePart.UNSEEN: 22}


def test_the_longest_occurrence_of_a_part_is_that_of_one_call_with_its_gap() -> None:
    """A wait of 5 ms in pieces, kernels between, is one; another step has a shorter one."""
    idle = spans((0, 2 * MS), (3 * MS, 5 * MS), (20 * MS, 21 * MS), (100 * MS, 101 * MS))
    waits = calls(sync=spans((0, 5 * MS), (20 * MS, 21 * MS), (100 * MS, 101 * MS)))
    steps = np.array([0, 50 * MS])
    shares = split_device_idle(idle, EMPTY, EMPTY, waits)
    assert shares.find_largest_ns(IdlePart.SYNC, steps).tolist() == [4 * MS, MS]
    shares = split_device_idle(idle, EMPTY, EMPTY, calls())
    assert shares.find_largest_ns(IdlePart.LAUNCH, steps).tolist() == [2 * MS, MS]


def test_a_copy_whose_call_returns_with_it_is_a_wait() -> None:
    rows = Rows().call(0, 9).event(10, 60, "cuda_runtime", "cudaMemcpyAsync", correlation=1)
    rows.event(30, 60, "gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", stream=7, thread=7, correlation=1)
    rows.event(100, 105, "cuda_runtime", "cudaMemcpyAsync", correlation=2)
    rows.event(120, 150, "gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", stream=7, thread=7, correlation=2)
    sizes = pa.array([None, None, 64, None, 128], pa.int64())
    found = select_host_calls(rows.events_table().append_column("bytes", sizes))
    assert found.sync.tolist() == [[10, 60]]
    assert found.copies.pending.tolist() == [[10, 30], [100, 120]]
    assert found.copies.to_host.tolist() == [True, False]
    assert found.copies.size_bytes.tolist() == [64, 128]


def host_table(folder: Path, planted: list[Op]) -> pd.DataFrame:
    ops = [Collect(key="g", group=(0, 1)), Join(key="g"), Kernel(ns=3 * MS), Drain(), *planted, Kernel(ns=MS)]
    analysis = analyse_time(load(write(folder / "x.zprof", {0: ops, 1: ops})))
    host = analysis.host.to_frame()
    assert host["idle_ns"].tolist() == analysis.steps.ints("idle_ns").tolist()
    parts = host[[f"{part}_ns" for part in IdlePart]].sum(axis=1)
    assert parts.tolist() == host["idle_ns"].tolist()
    return host


NEXT = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
LOADER = Host(ns=5 * MS, name=NEXT, category="user_annotation")
PLANTED: dict[str, list[Op]] = {
    "loader": [LOADER],
    "allocator": [Host(ns=2 * MS, name="cudaFree"), Host(ns=3 * MS, name="hipMalloc")],
    "launch": [Host(ns=MS // 2, name="aten::add", category="cpu_op") for _ in range(10)],
    "unseen": [Host(ns=5 * MS)],
    "optimizer": [Host(ns=5 * MS, name="Optimizer.step#AdamW.step", category="user_annotation")],
}


@pytest.mark.parametrize("part", PLANTED)
def test_what_the_host_did_gets_the_time(tmp_path: Path, part: str) -> None:
    rows = host_table(tmp_path, PLANTED[part])
    # the lead that was lost at the wait is its own
    lead = 1.1 * MS if part in ("launch", "unseen") else 0.01 * MS
    assert rows[f"{part}_ns"].tolist() == pytest.approx([5 * MS] * 2, abs=lead)


@pytest.mark.parametrize(
    ("cpu_ms", "queued_ms", "backend", "ran_ms"),
    [
        (None, None, "gloo", 0),  # an imported trace
        (8, 0, "gloo", 0),  # it slept: the operators alone account for this
        (8, None, "gloo", 0),
        (13, 0, "gloo", 3),  # Python for at least 3 ms of 6
        (13, None, "gloo", 3),
        (13, 0, "mpi", 0),  # the wait of 4 ms may have used the processor
        (16, 0, "gloo", 6),
        (8, 8, "gloo", 1),  # half of 2 ms: it had no processor for half of the time, and may wait 4 ms more
        (12, 8, "gloo", 3.6),  # never blocked
    ],
)
def test_a_thread_of_a_cpu_rank_surely_ran_what_nothing_else_explains(
    tmp_path: Path, cpu_ms: int | None, queued_ms: int | None, backend: str, ran_ms: float
) -> None:
    """Steps of 20 ms: 10 ms of operators, 4 ms in a wait, 6 ms of which only the processor time is known."""
    rows = Rows()
    used, queued = (None if each is None else each * MS for each in (cpu_ms, queued_ms))
    for step in range(2):
        begin = step * 20 * MS
        rows.step(step, begin, begin + 20 * MS, cpu_ns=used, queued_ns=queued)
        for start_ms, end_ms, category, name in (
            (0, 5, "cpu_op", "aten::mm"),
            (8, 12, "user_annotation", "zprof::wait"),
            (15, 20, "cpu_op", "aten::mm"),
        ):
            rows.event(begin + start_ms * MS, begin + end_ms * MS, category, name)
    run = load(write_run(tmp_path / "x.zprof", {0: rows}, backend=backend, device="cpu", source="recorder"))
    host = analyse_time(run).host
    assert host["launch_ns"].tolist() == [ran_ms * MS] * 2
    assert host["unseen_ns"].tolist() == [(6 - ran_ms) * MS] * 2
    assert host["is_timed"].tolist() == [cpu_ms is not None] * 2


def test_calls_are_counted(tmp_path: Path) -> None:
    rows = host_table(tmp_path, [*PLANTED["allocator"], LOADER, Drain(), Kernel(ns=MS), Drain()])
    counts = {name: rows[name].tolist() for name in ("takes", "gives", "loads", "syncs")}
    assert counts == {"takes": [1, 1], "gives": [1, 1], "loads": [1, 1], "syncs": [3, 3]}
    assert rows[["on_device", "launches_seen"]].all(axis=None)
    rows = host_table(tmp_path / "dry", [op for _ in range(5) for op in (Kernel(ns=200 * US), Drain())])
    assert rows["dry_syncs"].tolist() == [6, 6]
    assert rows["sync_ns"].min() >= 5 * 3 * US


@pytest.mark.parametrize(
    ("names", "compiled", "inference"),
    [
        ([], False, False),
        (["aten::mm"], False, True),
        (["aten::mm", "autograd::engine::evaluate_function: MmBackward0"], False, False),
        (["aten::mm", "Optimizer.step#SGD.step"], False, False),
        (["my.CompiledFunctions"], False, None),
        (["Torch-Compiled Region: 0/0"], True, None),
        (["CompiledFunctionBackward"], True, None),
        (["## Call CompiledFxGraph fabc ##"], True, None),
        (["triton_poi_fused_add_0"], True, None),
    ],
)
def test_compiled_regions_and_inference(
    tmp_path: Path, names: list[str], compiled: bool, inference: bool | None
) -> None:
    rows = host_table(tmp_path, [Host(ns=MS, name=name, category="cpu_op") for name in names])
    assert set(rows["is_compiled"]) == {compiled}
    assert inference is None or set(rows["is_inference"]) == {inference}
