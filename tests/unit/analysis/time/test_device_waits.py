"""What counts as a wait for the device: a blocking runtime call, not the name of an operator."""

from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.device_ranks import Rows, write_run
from tests.support.rule_runs import fires, found
from zprof.analysis.analysis import analyse_time_only
from zprof.analysis.time.host_calls import HostCalls, WaitKind, select_host_calls
from zprof.analysis.time.host_time import list_wait_groups
from zprof.causes.blocking_sync import CAUSE as blocking_sync
from zprof.run.reader import load

MS = 1_000_000
PAGEABLE = "Memcpy DtoH (Device -> Pageable)"
FROM_PAGEABLE = "Memcpy HtoD (Pageable -> Device)"


def copied(name: str, call: tuple[int, int], copy: tuple[int, int], runtime: str = "cudaMemcpyAsync") -> Rows:
    """A thread that launches, and one call with the copy that it requests."""
    rows = Rows().call(0, 1).event(*call, "cuda_runtime", runtime, correlation=2)
    return rows.event(*copy, "gpu_memcpy", name, stream=7, thread=7, correlation=2)


def select(rows: Rows) -> HostCalls:
    table = rows.events_table()
    return select_host_calls(table.append_column("bytes", pa.nulls(len(table), pa.int64())))


def list_kinds(rows: Rows) -> list[str]:
    members = list(WaitKind)
    return [members[kind] for kind in select(rows).waits.kind.tolist()]


def test_a_read_of_a_host_tensor_is_no_wait() -> None:
    rows = Rows().call(0, 1).event(10, 60, "cpu_op", "aten::item")
    found = select(rows.event(12, 50, "cpu_op", "aten::_local_scalar_dense"))
    assert found.sync.tolist() == []
    assert found.read.tolist() == [[10, 60]]


def test_the_calls_of_an_operator_are_one_wait_named_by_its_copy() -> None:
    rows = copied("Memcpy DtoH (Device -> Pinned)", (20, 22), (30, 40))
    rows.event(23, 50, "cuda_runtime", "cudaStreamSynchronize").event(70, 80, "cuda_runtime", "cudaFree")
    rows.event(10, 60, "cpu_op", "aten::item").event(12, 58, "cpu_op", "aten::_local_scalar_dense")
    rows.event(90, 95, "cuda_runtime", "cudaDeviceSynchronize")
    waits = select(rows).waits
    assert waits.spans.tolist() == [[23, 50], [90, 95]]
    assert [waits.names[code] for code in waits.operator] == ["aten::item", "cudaDeviceSynchronize"]
    assert list_kinds(rows) == [WaitKind.TO_HOST_PINNED, WaitKind.DEVICE]


@pytest.mark.parametrize(
    ("name", "call", "copy", "runtime", "kind"),
    [
        (PAGEABLE, (10, 60), (30, 61), "cudaMemcpyAsync", WaitKind.TO_HOST_PAGEABLE),  # clocks differ by 1
        ("Memcpy DtoH (Device -> Pinned)", (10, 60), (20, 50), "cudaMemcpyAsync", None),
        ("Memcpy DtoH (Device -> Pinned)", (10, 60), (20, 50), "cudaMemcpy", WaitKind.TO_HOST_PINNED),
        (FROM_PAGEABLE, (10, 15), (20, 50), "cudaMemcpyAsync", None),
        (FROM_PAGEABLE, (10, 45), (20, 50), "cudaMemcpyAsync", WaitKind.TO_DEVICE_PAGEABLE),
        ("Memcpy DtoH (Device -> Host)", (10, 60), (20, 50), "hipMemcpyAsync", WaitKind.TO_HOST),
        ("Memcpy DtoH (Device -> Host)", (10, 15), (20, 50), "hipMemcpyAsync", None),
        ("Memcpy HtoD (Host -> Device)", (10, 60), (20, 50), "hipMemcpyWithStream", WaitKind.TO_DEVICE),
        ("Memcpy DtoD (Device -> Device)", (10, 60), (20, 50), "cudaMemcpyAsync", None),
        ("Memcpy DtoD (Device -> Device)", (10, 60), (20, 50), "hipMemcpyWithStream", WaitKind.COPY),
    ],
)  # fmt: skip
def test_which_copies_block_their_caller(
    name: str, call: tuple[int, int], copy: tuple[int, int], runtime: str, kind: WaitKind | None
) -> None:
    assert list_kinds(copied(name, call, copy, runtime)) == ([] if kind is None else [kind])


def test_a_long_copy_call_whose_copy_is_outside_of_the_file_is_a_wait() -> None:
    """A capture that ends while the host is blocked holds the call, and not the copy."""
    rows = Rows().call(0, 1).event(10, 15, "cuda_runtime", "cudaMemcpyAsync", correlation=3)
    rows.event(100, 100 + 463 * MS, "cuda_runtime", "cudaMemcpyAsync", correlation=4)
    assert select(rows).sync.tolist() == [[100, 100 + 463 * MS]]
    assert list_kinds(rows) == [WaitKind.COPY]


def play_reads(step_count: int, copy_count: int, item_count: int) -> Rows:
    """Steps with pageable copies of 2 ms, and many reads of host tensors while the device is idle."""
    rows, now, correlation = Rows(), MS, 0

    def launch(at: int, length: int) -> int:
        nonlocal correlation
        correlation += 1
        rows.call(at, correlation).kernel(at + 5_000, at + 5_000 + length, correlation=correlation)
        return at + 5_000

    for number in range(step_count):
        begin = now
        for _ in range(copy_count):
            launch(now, MS)
            correlation += 1
            rows.event(now + 10_000, now + 3 * MS, "cpu_op", "aten::to")
            rows.event(
                now + 20_000, now + 3 * MS - 9_000, "cuda_runtime", "cudaMemcpyAsync", correlation=correlation
            )
            rows.event(
                now + MS + 6_000,
                now + 2 * MS,
                "gpu_memcpy",
                PAGEABLE,
                stream=7,
                thread=7,
                correlation=correlation,
            )
            now += 4 * MS
        for _ in range(item_count):
            rows.event(now, now + 2_000, "cpu_op", "aten::item")
            now += 20_000
        rows.event(now, now + 9_000, "user_annotation", "Optimizer.step#AdamW.step")
        now = launch(now, MS) + MS
        rows.step(number, begin, now)
    return rows


def test_the_costliest_wait_leads_evidence_and_fix(tmp_path: Path) -> None:
    analysis = analyse_time_only(load(write_run(tmp_path / "x.zprof", {0: play_reads(4, 3, 40)})))
    groups = list_wait_groups(analysis)
    assert [(group.operator, group.kind, group.count) for group in groups] == [
        ("aten::to", WaitKind.TO_HOST_PAGEABLE, 3)
    ]
    assert groups[0].wait_ns == pytest.approx(9 * MS, rel=0.01)
    finding = found(blocking_sync, analysis)
    values = {each.key: each.value for each in finding.evidence}
    assert values["blocking_waits_per_step"] == 3
    assert values["wait_1_host_blocked_per_step"] == groups[0].wait_ns
    assert ".item()" not in finding.fix
    assert "non_blocking=True" in finding.fix


def test_reads_of_host_tensors_alone_are_no_finding(tmp_path: Path) -> None:
    analysis = analyse_time_only(load(write_run(tmp_path / "x.zprof", {0: play_reads(4, 0, 400)})))
    assert not fires(blocking_sync, analysis)
