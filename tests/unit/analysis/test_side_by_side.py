"""Leaves of two runs paired by what they are of; absent is zero only where it was looked for."""

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from tests.support.analyses import Scenario, analysis_of
from tests.support.diagnosis_reports import GUESS, LATE, against_baseline
from tests.support.reports import slower
from tests.support.schedules import Spec, play, write
from zprof.analysis.columns import Columns, Texts
from zprof.analysis.compare.rows import (
    build_finding_section,
    build_kernel_section,
    build_time_sections,
    list_settings,
)
from zprof.model.comparison import ComparedSection, ComparedValue
from zprof.model.gaps import Gap
from zprof.model.report import Report
from zprof.model.time import LEDGER_TERMS, CollectiveTime, Time
from zprof.run.reader import load

B = slower()
A = replace(B, time=replace(B.time, per_rank=B.comparison.baseline_time if B.comparison else ()), findings=())


def pairs(section: ComparedSection) -> dict[str, tuple[ComparedValue, ComparedValue]]:
    return {row.name: (row.a, row.b) for row in section.rows}


def rows(a: Report, b: Report, title: str) -> dict[str, tuple[ComparedValue, ComparedValue]]:
    (section,) = [section for section in build_time_sections(a, b) if section.title == title]
    return pairs(section)


def test_means_sum_as_the_ledger_does() -> None:
    step = rows(A, B, "step")
    for side in (0, 1):
        terms = [step[term][side] for term in LEDGER_TERMS]
        assert sum(term for term in terms if isinstance(term, int)) == pytest.approx(
            step["wall_ns"][side], abs=4
        )
    assert step["wall_ns"][0] != step["wall_ns"][1]


def with_collectives(report: Report, *entries: CollectiveTime, world_size: int = 2) -> Report:
    run = replace(report.run, world_size=world_size)
    return replace(report, run=run, time=replace(report.time, collectives=entries, fits=()))


ONE = B.time.collectives[0]
GATHER = replace(ONE, kind="all_gather", group="0,1", group_size=2, dtype="bfloat16", bytes=100, count=2.0)


def test_groups_of_all_ranks_are_paired_and_dtypes_summed() -> None:
    small = replace(GATHER, dtype="float32", bytes=10, count=1.0, busbw_bytes_per_s=1.0)
    other = replace(GATHER, group="0,1,2,3", group_size=4)
    found = rows(
        with_collectives(A, small, GATHER), with_collectives(B, other, world_size=4), "all_gather, all ranks"
    )
    assert found["bytes"] == (110, 100)
    assert found["count"] == (3.0, 2.0)
    assert found["busbw_bytes_per_s"][0] == GATHER.busbw_bytes_per_s, "that of most bytes"
    titles = [
        section.title
        for section in build_time_sections(with_collectives(A), with_collectives(B, GATHER, world_size=4))
    ]
    assert "all_gather, group 0,1" in titles


def test_a_kind_that_did_not_run_is_zero_and_unknown_if_nothing_was_timed() -> None:
    both = with_collectives(B, GATHER)
    found = rows(with_collectives(A), both, "all_gather, all ranks")
    assert found["bytes"] == (0, 100)
    assert found["busbw_bytes_per_s"][0] is None
    assert rows(replace(A, time=Time()), both, "all_gather, all ranks")["bytes"] == (None, 100)


def test_kernels_are_means_of_a_step() -> None:
    a = analysis_of(Scenario(steps=2, ranks=2))
    table = Columns({"name": Texts.of(["k", "k", "b"]), "total_ns": np.array([400, 800, 40])})
    b = replace(a, kernels=table)
    assert pairs(build_kernel_section(b, replace(a, kernels=table.at(slice(2))))) == {
        "k": (300, 300),
        "b": (10, 0),
    }
    assert pairs(build_kernel_section(a, b)) == {"k": (None, 300), "b": (None, 10)}


def test_a_cause_is_found_or_not_or_not_tested() -> None:
    gap = Gap(causes=("no_prefetch",), what="rule no_prefetch not tested", reason="", remedy="")
    a, b = replace(A, gaps=(gap,)), replace(against_baseline(), findings=(LATE, GUESS))
    found = {name.split()[-1]: values for name, values in pairs(build_finding_section(a, b)).items()}
    assert found["no_prefetch"][0] is None
    assert found["straggler_rank"][0] == "not found"
    assert all(values[1] for values in found.values())


def test_settings_that_differ_and_those_not_known(tmp_path: Path) -> None:
    specs = (Spec(ranks=2, steps=4), Spec(ranks=2, steps=5))
    a, b = (load(write(tmp_path / f"{spec.steps}.zprof", spec, play(spec))) for spec in specs)
    a.manifest = replace(a.manifest, environment={"torch": "2.8", "NCCL_ALGO": "Ring"})
    b.manifest = replace(b.manifest, environment={"torch": "2.9"})
    found = {(entry.where, entry.name): (entry.a, entry.b) for entry in list_settings(a, b)}
    assert found["environment", "torch"] == ("2.8", "2.9")
    assert found["environment", "NCCL_ALGO"] == ("Ring", "not set")
    assert found["run", "timed steps"][0] != found["run", "timed steps"][1]
    assert found["training", "samples_per_step"] == (None, None)
    b.manifest = replace(b.manifest, environment={})
    bare = {(entry.where, entry.name): (entry.a, entry.b) for entry in list_settings(a, b)}
    assert bare["environment", "NCCL_ALGO"] == ("Ring", None), "nothing is known of an imported run"
