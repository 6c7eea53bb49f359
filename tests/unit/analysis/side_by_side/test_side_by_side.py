"""Leaves of two runs paired by what they are of; absent is zero only where it was looked for."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from tests.support.analyses import Scenario, analysis_of
from tests.support.diagnosis_reports import GUESS, LATE, against_baseline, larger_batch
from tests.support.reports import ZERO3, memory_only, slower, straggler
from tests.support.schedules import Spec, play, write
from zprof.analysis.side_by_side import (
    build_finding_section,
    build_kernel_section,
    build_memory_section,
    build_time_sections,
    list_settings,
)
from zprof.model.gaps import Gap
from zprof.model.report import Report
from zprof.model.side_by_side import Figure, Section
from zprof.model.time import LEDGER_TERMS, CollectiveTime, Time
from zprof.rules.diagnose import diagnose
from zprof.run.reader import Run, load

B = slower()
A = replace(B, time=replace(B.time, per_rank=B.comparison.baseline_time if B.comparison else ()), findings=())


def rows(sections: list[Section], title: str) -> dict[str, tuple[Figure, Figure]]:
    (section,) = [entry for entry in sections if entry.title == title]
    return {row.name: (row.a, row.b) for row in section.rows}


def test_means_sum_as_the_ledger_does() -> None:
    step = rows(build_time_sections(A, B), "step")
    for side in (0, 1):
        whole, terms = step["wall_ns"][side], [step[term][side] for term in LEDGER_TERMS]
        assert isinstance(whole, int)
        assert sum(term for term in terms if isinstance(term, int)) == pytest.approx(whole, abs=4)
    assert step["wall_ns"] != (step["wall_ns"][1], step["wall_ns"][1])


def test_each_rank_stands_beside_itself() -> None:
    found = rows(build_time_sections(A, B), "rank 1")
    before, after = A.time.per_rank[1], B.time.per_rank[1]
    assert found["compute_ns"] == (before.compute_ns, after.compute_ns)
    more = rows(build_time_sections(A, straggler()), "rank 3")
    assert more["wall_ns"][0] is None, "A has no such rank"
    assert more["wall_ns"][1]


def with_collectives(report: Report, *entries: CollectiveTime, world_size: int = 2) -> Report:
    run = replace(report.run, world_size=world_size)
    return replace(report, run=run, time=replace(report.time, collectives=entries, fits=()))


ONE = B.time.collectives[0]
GATHER = replace(ONE, kind="all_gather", group="0,1", group_size=2, dtype="bfloat16", bytes=100, count=2.0)


def test_a_kind_in_two_types_is_summed_and_groups_of_all_ranks_meet() -> None:
    small = replace(GATHER, dtype="float32", bytes=10, count=1.0, busbw_bytes_per_s=1.0)
    other = replace(GATHER, group="0,1,2,3", group_size=4)
    a, b = with_collectives(A, small, GATHER), with_collectives(B, other, world_size=4)
    found = rows(build_time_sections(a, b), "all_gather, all ranks")
    assert found["bytes"] == (110, 100)
    assert found["count"] == (3.0, 2.0)
    assert found["busbw_bytes_per_s"][0] == GATHER.busbw_bytes_per_s, "that of most bytes"
    assert found["data type"] == ("float32, bfloat16", "bfloat16")


def test_a_group_of_some_ranks_is_named() -> None:
    titles = [
        entry.title
        for entry in build_time_sections(with_collectives(A), with_collectives(B, GATHER, world_size=4))
    ]
    assert "all_gather, group 0,1" in titles


def test_a_kind_that_did_not_run_is_zero_and_its_bandwidth_unknown() -> None:
    sections = build_time_sections(with_collectives(A), with_collectives(B, GATHER))
    found = rows(sections, "all_gather, all ranks")
    assert found["bytes"] == (0, 100)
    assert found["busbw_bytes_per_s"][0] is None
    untimed = replace(A, time=Time())
    assert rows(build_time_sections(untimed, with_collectives(B, GATHER)), "all_gather, all ranks")[
        "bytes"
    ] == (
        None,
        100,
    )


def test_equal_work_stands_there() -> None:
    found = rows(build_time_sections(A, larger_batch()), "equal work")
    assert found["tokens a step"] == (8192, 32768)
    assert found["step_at_equal_work_ns"][1] != found["step_at_equal_work_ns"][0]


def test_what_neither_run_knows_is_left_out() -> None:
    nothing = replace(B, time=Time(), volume=None, comparison=None)
    assert build_time_sections(nothing, nothing) == []


def test_memory_is_that_of_the_largest_rank() -> None:
    found = {row.name: (row.a, row.b) for row in build_memory_section(A, memory_only()).rows}
    ranks = memory_only().memory.per_rank
    assert found["peak_bytes"][1] == max(rank.peak_bytes for rank in ranks)
    assert found["non_pytorch_bytes"] == (None, None) or found["non_pytorch_bytes"][0] is None
    none = {row.name: row.a for row in build_memory_section(replace(A, memory=type(A.memory)()), B).rows}
    assert set(none.values()) == {None}


def test_kernels_are_means_of_a_step() -> None:
    a = analysis_of(Scenario(steps=2, ranks=2))
    table = pd.DataFrame({"rank": [0, 1, 1], "name": ["k", "k", "b"], "total_ns": [400, 800, 40]})
    b = replace(a, kernels=table)
    found = {
        row.name: (row.a, row.b) for row in build_kernel_section(b, replace(a, kernels=table.iloc[:2])).rows
    }
    assert found == {"k": (300, 300), "b": (10, 0)}
    unknown = {row.name: (row.a, row.b) for row in build_kernel_section(a, b).rows}
    assert unknown == {"k": (None, 300), "b": (None, 10)}


def test_a_cause_is_found_or_not_or_not_tested() -> None:
    gap = Gap(what="rules no_prefetch, other not tested", reason="", remedy="")
    a, b = replace(A, gaps=(gap,)), replace(against_baseline(), findings=(LATE, GUESS))
    found = {row.name: (row.a, row.b) for row in build_finding_section(a, b).rows}
    assert found["ZP401 no_prefetch"] == (None, "60.0 ms to 130.0 ms, high")
    assert found["ZP301 straggler_rank"] == ("not found", "0 ns to 5.0 ms, low")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    folder: Path = tmp_path_factory.mktemp("runs")
    specs = (Spec(ranks=2, steps=4), Spec(ranks=2, steps=5))
    one, other = (
        load(write(folder / f"{index}.zprof", spec, play(spec))) for index, spec in enumerate(specs)
    )
    return one, other


def test_settings(runs: tuple[Run, Run]) -> None:
    a, b = runs
    a.manifest = replace(a.manifest, environment={"torch": "2.8", "NCCL_ALGO": "Ring"})
    b.manifest = replace(b.manifest, environment={"torch": "2.9"})
    found = {(entry.where, entry.name): (entry.a, entry.b) for entry in list_settings(a, b)}
    assert found["environment", "torch"] == ("2.8", "2.9")
    assert found["environment", "NCCL_ALGO"] == ("Ring", "not set")
    assert found["run", "world_size"] == ("2", "2")
    assert found["run", "timed steps"][0] != found["run", "timed steps"][1]
    assert found["training", "samples_per_step"] == (None, None)
    b.manifest = replace(b.manifest, environment={})
    bare = {(entry.where, entry.name): (entry.a, entry.b) for entry in list_settings(a, b)}
    assert bare["environment", "NCCL_ALGO"] == ("Ring", None), "nothing is known of an imported run"


def test_the_report_of_b_is_against_a() -> None:
    assert diagnose(ZERO3, analysis_of(Scenario(name="ddp", stage=0))).comparison is not None
