"""The critical path in the text report: short, by rank, and nothing where there is none."""

from dataclasses import replace

from tests.support.reports import SITUATIONS
from zprof.model.report import Report
from zprof.model.time import CriticalPath, PathKind, PathShare
from zprof.reports.shown.path_presenter import path_kinds, path_ranks
from zprof.reports.text.critical_path import critical_path
from zprof.reports.text.report import render

MS = 1_000_000


def share(rank: int, what: PathKind, milliseconds: float) -> PathShare:
    return PathShare(rank=rank, what=what, ns=int(milliseconds * MS))


def with_path(*shares: PathShare) -> Report:
    report = SITUATIONS["straggler"]()
    path = CriticalPath(steps=8, wall_ns=sum(entry.ns for entry in shares), shares=shares)
    return replace(report, time=replace(report.time, critical_path=path))


def test_the_rank_with_most_of_it_comes_first() -> None:
    report = with_path(
        share(2, PathKind.COMPUTE, 60), share(0, PathKind.TRANSFER, 30), share(2, PathKind.DATA, 10)
    )
    lines = critical_path(report)
    assert len(lines) <= 8
    assert lines[1].startswith("CRITICAL PATH")
    assert lines[3].split() == ["2", "70.0", "70.0", "%", "compute", "60.0,", "data", "10.0"]
    assert lines[5].strip() == "in all compute 60.0 %, transfer 30.0 %, data 10.0 %"
    assert "CRITICAL PATH" in render(report)


def test_many_ranks_are_summed() -> None:
    lines = critical_path(with_path(*(share(rank, PathKind.COMPUTE, 10) for rank in range(1024))))
    assert len(lines) <= 8
    assert all(len(line) <= 80 for line in lines)
    assert "1020 other ranks 10,200.0 ms" in lines[-1] or "1020 other ranks 10200.0 ms" in lines[-1]


def test_without_a_path_or_with_one_rank_there_is_nothing() -> None:
    report = with_path(share(0, PathKind.COMPUTE, 10))
    assert critical_path(replace(report, run=replace(report.run, world_size=1))) == []
    assert critical_path(SITUATIONS["straggler"]()) == []
    assert critical_path(with_path()) == []


def test_sums_of_the_presenter() -> None:
    path = with_path(
        share(1, PathKind.HOST, 1), share(0, PathKind.HOST, 2), share(1, PathKind.COMPUTE, 7)
    ).time.critical_path
    assert path is not None
    assert [(entry.rank, entry.ns, entry.share) for entry in path_ranks(path)] == [
        (1, 8 * MS, 0.8),
        (0, 2 * MS, 0.2),
    ]
    assert path_kinds(path) == (("compute", 0.7), ("host", 0.3))
