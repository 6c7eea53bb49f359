"""From a run directory to the memory side of the report: values, and gaps where something is missing."""

from pathlib import Path

import pytest
from memory_runs import T0, alloc, analyse, full

from zprof.model.tenants import Tenant


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


@pytest.mark.parametrize(("size", "is_said"), [(0, False), (10, True)])
def test_memory_without_an_owner_is_a_gap_from_a_hundredth_on(
    tmp_path: Path, size: int, *, is_said: bool
) -> None:
    """7 bytes of 1207 are less, 17 of 1217 are more."""
    tables = full()
    tables["alloc"] += [alloc(9, size)] * bool(size)
    analysis = analyse(tmp_path / "a.zprof", tables)
    assert [gap.what for gap in analysis.gaps if gap.what.startswith("owner of")] == (
        ["owner of 17 B of the peak"] if is_said else []
    )


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
