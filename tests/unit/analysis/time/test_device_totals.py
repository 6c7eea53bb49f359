"""What a device did in all of its trace, against a sweep of its own and against the report of that window."""

from pathlib import Path

import pytest

from tests.support.device_ranks import Rows, write_run
from tests.support.schedules import Spec, play, write
from zprof.analysis.time.analyse import analyse_time
from zprof.analysis.time.device_totals import measure_device_totals
from zprof.model.time import WindowPolicy
from zprof.run.reader import Run, load


def device_rows() -> Rows:
    """Two compute streams that overlap, a collective half under them, copies beside and under it."""
    rows = Rows().step(0, 0, 900)
    rows.kernel(100, 200).kernel(150, 300, stream=8).kernel(500, 600)
    rows.collective(250, 450)
    rows.copy(400, 480).copy(550, 650, kind="gpu_memset").copy(900, 950)
    return rows


def ticks(spans: list[tuple[int, int]]) -> set[int]:
    return {tick for start, end in spans for tick in range(start, end)}


COMPUTE = ticks([(100, 200), (150, 300), (500, 600)])
COMMUNICATION = ticks([(250, 450)])
MEMORY = ticks([(400, 480), (550, 650), (900, 950)])


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return load(write_run(tmp_path / "device.zprof", {0: device_rows(), 1: device_rows()}))


def test_unions_are_those_of_a_sweep(run):
    totals, gaps = measure_device_totals(run)
    assert [entry.rank for entry in totals] == [0, 1]
    busy = COMPUTE | COMMUNICATION | MEMORY
    for entry in totals:
        assert entry.span_ns == max(busy) + 1 - min(busy)
        assert entry.compute_ns == len(COMPUTE)
        assert entry.communication_ns == len(COMMUNICATION)
        assert entry.memory_ns == len(MEMORY)
        assert entry.overlapped_ns == len(COMPUTE & COMMUNICATION)
        assert entry.idle_ns == entry.span_ns - len(busy)
        assert entry.overlap_ratio == pytest.approx(50 / 200)
    assert not gaps


def test_the_report_of_the_whole_trace_says_the_same(run):
    (entry,), _ = measure_device_totals(run, ranks=[1])
    leaf = analyse_time(run, WindowPolicy.TRACE).time.per_rank[1]
    assert entry.rank == leaf.rank == 1
    assert (entry.compute_ns, entry.communication_ns) == (leaf.compute_ns, leaf.collective_ns)
    assert (entry.memory_ns, entry.overlap_ratio) == (leaf.memcpy_ns, leaf.overlap_ratio)


def test_a_rank_without_a_device_is_a_gap(tmp_path):
    spec = Spec(ranks=2, steps=1)
    totals, gaps = measure_device_totals(load(write(tmp_path / "cpu.zprof", spec, play(spec))))
    assert totals == []
    assert [gap.rank for gap in gaps] == [0, 1]


def test_nothing_communicates_is_no_overlap(tmp_path):
    rows = Rows().step(0, 0, 10).kernel(1, 5)
    (entry,), _ = measure_device_totals(load(write_run(tmp_path / "quiet.zprof", {0: rows})))
    assert (entry.communication_ns, entry.overlap_ratio) == (0, None)
