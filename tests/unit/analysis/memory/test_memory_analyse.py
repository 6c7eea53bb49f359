"""From a run directory to the memory side of the report: values, and gaps where something is missing."""

import time
from pathlib import Path
from typing import Any

import pytest

from zprof.analysis.memory.analyse import MemoryAnalysis, analyse_memory
from zprof.model.tenants import Tenant
from zprof.model.training import TrainingFacts
from zprof.run.manifest import RunManifest
from zprof.run.reader import load
from zprof.run.schema import TABLES
from zprof.run.writer import RankWriter

T0 = 1_700_000_000_000_000_000
MARKS = [
    (T0, "window_begin", 2, "memory"),
    (T0, "step_begin", 2, ""),
    (T0 + 500, "phase", 0, "optimizer"),
    (T0 + 1000, "step_end", 2, ""),
    (T0 + 1000, "window_end", 3, "memory"),
]
FACTS = TrainingFacts(
    engine="zero",
    stage=1,
    parameters=100,
    shard_ranks=2,
    parameter_bytes=4,
    gradient_bytes=4,
    optimizer_state_bytes=8,
)


def alloc(
    generation: int, size: int, source: str = "storage", freed: int | None = None, **changed: Any
) -> dict[str, Any]:
    row = dict.fromkeys(TABLES["alloc"].names)
    row |= {"generation": generation, "source": source, "device": "cpu", "address": 64 * (generation + 2)}
    row |= {"bytes": size, "allocated_ns": T0 - 5, "freed_ns": freed, "before_window": True, "phase": "other"}
    return row | changed


def role(generation: int, tenant: str) -> dict[str, Any]:
    row = {"generation": generation, "time_ns": T0, "tenant": tenant, "sub": "s", "gained": True}
    return row | {"backdated": True, "via": "test"}


def analyse(folder: Path, tables: dict[str, list[dict[str, Any]]], ranks: int = 1) -> MemoryAnalysis:
    manifest = RunManifest(
        zprof_version="0", created_ns=time.time_ns(), world_size=ranks, backend="gloo", device="cpu",
        training=FACTS,
    )  # fmt: skip
    for rank in range(ranks):
        writer = RankWriter(folder, rank, manifest)
        for name, rows in tables.items():
            writer.write_table(name, {column: [row[column] for row in rows] for column in TABLES[name].names})
        writer.finish(memory_steps=[2], time_steps=[], gaps=[], status="complete")
    return analyse_memory(load(folder))


def marks() -> list[dict[str, Any]]:
    return [dict(zip(TABLES["mark"].names, mark, strict=True)) for mark in MARKS]


def full() -> dict[str, list[dict[str, Any]]]:
    states = [alloc(0, 400), alloc(1, 400), alloc(2, 400), alloc(3, 7)]
    roles = [role(0, "parameters"), role(1, "gradients"), role(2, "optimizer_state")]
    return {"alloc": states, "role": roles, "mark": marks()}


def test_a_rank_of_the_report(tmp_path: Path) -> None:
    analysis = analyse(tmp_path / "a.zprof", full(), ranks=2)
    first, second = analysis.memory.per_rank
    assert (first.rank, second.rank, first.device) == (0, 1, "cpu")
    assert (first.peak_bytes, first.untagged_bytes, first.peak_step) == (1207, 7, 2)
    assert first.state_bytes == {
        Tenant.PARAMETERS: 400,
        Tenant.GRADIENTS: 400,
        Tenant.OPTIMIZER_STATE: 400,
    }
    assert first.formula is not None
    assert (first.formula.parameters, first.formula.optimizer_state) == (400, 400)
    assert (first.reserved_unused_bytes, first.non_pytorch_bytes) == (None, None)
    assert set(first.tenants) == set(Tenant)


def test_the_largest_allocations_come_first(tmp_path: Path) -> None:
    tables = full()
    tables["alloc"].append(alloc(9, 5000, module="blocks.0"))
    top = analyse(tmp_path / "a.zprof", tables).memory.top
    assert (top[0].bytes, top[0].tenant, top[0].module) == (5000, "untagged", "blocks.0")
    assert [allocation.bytes for allocation in top] == [5000, 400, 400, 400, 7]


@pytest.mark.parametrize("missing", ["alloc", "role", "mark"])
def test_a_missing_table_is_a_gap_and_no_number(tmp_path: Path, missing: str) -> None:
    tables = full()
    del tables[missing]
    analysis = analyse(tmp_path / "a.zprof", tables)
    assert analysis.memory.per_rank == ()
    assert [(gap.what, gap.rank) for gap in analysis.gaps] == [("memory", 0)]


def test_a_run_without_a_memory_window_is_a_gap(tmp_path: Path) -> None:
    tables = full() | {"mark": []}
    assert [gap.what for gap in analyse(tmp_path / "a.zprof", tables).gaps] == ["memory"]


def test_an_unseen_free_makes_an_upper_bound_and_says_where(tmp_path: Path) -> None:
    tables = full()
    block = {"allocated_ns": T0 + 10, "before_window": False, "operator": "c10d::allreduce_"}
    tables["alloc"].append(alloc(-1, 64, "profiler", **block))
    analysis = analyse(tmp_path / "a.zprof", tables)
    assert analysis.memory.per_rank[0].upper_bound
    assert any("c10d::allreduce_" in gap.reason for gap in analysis.gaps)


def test_storages_alone_are_named_as_such(tmp_path: Path) -> None:
    analysis = analyse(tmp_path / "a.zprof", full())
    assert analysis.memory.per_rank[0].method.startswith("tensor storages only")
    assert "allocator events" in [gap.what for gap in analysis.gaps]


def test_an_accelerator_comes_before_the_host(tmp_path: Path) -> None:
    tables = full()
    tables["alloc"].append(alloc(8, 10, device="cuda:0"))
    analysis = analyse(tmp_path / "a.zprof", tables)
    assert (analysis.memory.per_rank[0].device, analysis.memory.per_rank[0].peak_bytes) == ("cuda:0", 10)
