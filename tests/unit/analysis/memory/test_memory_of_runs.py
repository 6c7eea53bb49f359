"""From a run directory to the memory side of the report: values, and gaps where something is missing."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.memory_runs import (
    FACTS,
    T0,
    Tables,
    alloc,
    analyse,
    full,
    marks,
    role,
    write,
)
from zprof.analysis.memory.analyse import MemoryAnalysis, analyse_memory
from zprof.analysis.memory.state_checks import COUNTERS
from zprof.model.memory import NOT_EXPLAINED
from zprof.model.tenants import Tenant
from zprof.run.reader import load
from zprof.run.schema import TABLES


def whats(analysis: MemoryAnalysis) -> list[str]:
    return [gap.what for gap in analysis.gaps]


def test_ranks_of_a_cpu_run(tmp_path: Path) -> None:
    tables = full()
    tables["alloc"].append(alloc(9, 5000, module="blocks.0"))
    tables["role"].append(role(9, "activations"))
    analysis = analyse(tmp_path / "a.zprof", tables, ranks=2)
    memory = analysis.memory
    first, second = memory.per_rank
    assert (first.rank, second.rank, first.device, memory.host) == (0, 1, "cpu", ())
    assert (first.peak_bytes, first.untagged_bytes, first.peak_step) == (6207, 7, 2)
    assert first.state_bytes == dict.fromkeys(
        (Tenant.PARAMETERS, Tenant.GRADIENTS, Tenant.OPTIMIZER_STATE), 400
    )
    assert first.formula is not None
    assert (first.formula.parameters, first.formula.optimizer_state) == (400, 400)
    assert (first.reserved_unused_bytes, first.non_pytorch_bytes) == (None, None)
    assert set(first.tenants) == set(Tenant)
    top = [entry for entry in memory.top if entry.rank == 0]
    assert (top[0].tenant, top[0].module) == ("activations", "blocks.0")
    assert [entry.bytes for entry in top] == [5000, 400, 400, 400, 7]
    assert [(check.rank, check.tenant, check.cause) for check in memory.formulas] == [
        (rank, tenant, "") for rank in (0, 1) for tenant in first.state_bytes or ()
    ]
    assert "allocator events" in whats(analysis), "storages alone"


@pytest.mark.parametrize(("size", "is_gap"), [(5, False), (6, True)])
def test_memory_without_an_owner_is_a_gap_from_one_percent_on(
    tmp_path: Path, size: int, *, is_gap: bool
) -> None:
    """7 bytes of 1207 are less, and so are 12 of 1212; 13 of 1213 are more."""
    tables = full()
    tables["alloc"].append(alloc(9, size))
    found = [what for what in whats(analyse(tmp_path / "a.zprof", tables)) if what.startswith("owner of")]
    assert len(found) == is_gap


@pytest.mark.parametrize(
    "damage", ["no alloc", "no role", "no mark", "no window", "window backwards", "no memory"]
)
def test_without_tables_window_or_memory_there_is_a_gap_and_no_number(tmp_path: Path, damage: str) -> None:
    tables = full()
    if damage == "no window":
        tables["mark"] = []
    elif damage == "window backwards":
        tables["mark"][0]["time_ns"] = T0 + 2000
    elif damage == "no memory":
        tables["alloc"] = [alloc(0, 0), alloc(1, 5, source="foreign"), alloc(2, 5, device="meta")]
    else:
        del tables[damage.split()[1]]
    analysis = analyse(tmp_path / "a.zprof", tables)
    assert analysis.memory.per_rank == ()
    assert [(gap.what, gap.rank) for gap in analysis.gaps] == [("memory", 0)]


def test_of_several_gpus_the_fullest_counts_and_the_host_is_separate(tmp_path: Path) -> None:
    """Fullest at its peak, not the one that allocated most in sum."""
    tables = full()
    churn = {"before_window": False, "operator": "aten.add.Tensor", "device": "cuda:0"}
    tables["alloc"] += [
        alloc(10 + i, 60, allocated_ns=T0 + 10 * i, freed=T0 + 10 * i + 5, **churn) for i in range(9)
    ]
    tables["alloc"] += [alloc(30, 100, device="cuda:1"), alloc(31, 900, device="cuda:2", source="foreign")]
    analysis = analyse(tmp_path / "a.zprof", tables)
    assert [(entry.device, entry.peak_bytes) for entry in analysis.memory.per_rank] == [("cuda:1", 100)]
    assert [what for what in whats(analysis) if what.startswith("memory of")] == ["memory of cuda:0"]
    (host,) = analysis.memory.host
    assert (host.device, host.peak_bytes, host.tenants[Tenant.PARAMETERS]) == ("cpu", 1207, 400)
    assert {entry.bytes for entry in analysis.memory.top} == {100}


INIT = [(T0 - 900, "window_begin", -1, "init"), (T0 - 400, "window_end", -1, "init")]
BORN = {"before_window": False, "operator": "aten.empty.memory_format"}


def test_the_time_before_the_first_step_has_a_peak_of_its_own(tmp_path: Path) -> None:
    tables = full() | {"mark": marks([*INIT, (T0 - 600, "phase", 0, "forward")])}
    tables["init_alloc"] = [
        alloc(0, 400, allocated_ns=T0 - 800, **BORN),
        alloc(1, 900, allocated_ns=T0 - 700, freed=T0 - 600, **BORN),
        alloc(2, 50, allocated_ns=T0 - 500, **BORN),
    ]
    tables["init_role"] = [role(0, "parameters", time_ns=T0 - 650)]
    memory = analyse(tmp_path / "a.zprof", tables).memory
    (init,) = memory.init
    assert (init.peak_bytes, init.peak_step, init.peak_phase) == (1300, -1, "init")
    assert (init.tenants[Tenant.PARAMETERS], init.state_bytes) == (400, None)
    assert sum(part.bytes for part in init.parts) == 1300
    assert (memory.per_rank[0].peak_bytes, memory.per_rank[0].peak_phase) == (1207, "other")
    assert {entry.phase for entry in memory.phases} == {"other", "optimizer"}


@pytest.mark.parametrize("damage", ["mark", "init_alloc", "init_role", "empty"])
def test_without_its_window_tables_or_memory_there_is_no_init(tmp_path: Path, damage: str) -> None:
    tables = full() | {"mark": marks(INIT), "init_alloc": [alloc(0, 4)], "init_role": []}
    if damage == "empty":
        tables["init_alloc"] = []
    elif damage == "mark":
        tables["mark"] = marks()
    else:
        del tables[damage]
    assert analyse(tmp_path / "a.zprof", tables).memory.init == ()


def grown(size: int) -> Tables:
    tables = full()
    tables["alloc"].append(alloc(9, 1 + 10 * size))
    tables["role"].append(role(9, "activations"))
    return tables


def test_the_difference_between_ranks(tmp_path: Path) -> None:
    sizes = [5, 1, 2, 3, 4, 0, 6, 7, 8, 9]
    memory = analyse_memory(load(write(tmp_path / "a.zprof", [grown(size) for size in sizes]))).memory
    spread = memory.spread
    assert spread is not None
    assert (spread.largest_rank, spread.smallest_rank, spread.difference_bytes) == (9, 5, 90)
    assert (spread.tenant, spread.delta_bytes["activations"]) == ("activations", 90)
    assert sum(spread.delta_bytes.values()) == spread.difference_bytes
    assert [timeline.rank for timeline in memory.timelines] == [0, 3, 4, 5, 6, 7, 8, 9], (
        "largest and smallest"
    )
    assert analyse(tmp_path / "b.zprof", full()).memory.spread is None


def test_step_counters_and_buffers_are_no_states(tmp_path: Path) -> None:
    tables = full()
    tables["alloc"] += [alloc(20, 4), alloc(21, 64)]
    tables["role"] += [role(20, "optimizer_state"), role(21, "parameters", sub="buffer")]
    checks = {check.tenant: check for check in analyse(tmp_path / "a.zprof", tables).memory.formulas}
    assert checks[Tenant.PARAMETERS].measured_bytes == 400
    state = checks[Tenant.OPTIMIZER_STATE]
    assert (state.scalar_bytes, state.unexplained_bytes, state.cause) == (4, 0, COUNTERS)


@pytest.mark.parametrize("step_counters", [0, 1])
def test_a_step_counter_in_a_block_of_the_allocator_is_one_of_four_bytes(
    tmp_path: Path, step_counters: int
) -> None:
    """As a fused optimizer makes it on a GPU: 512 bytes; the program may have counted it or not."""
    tables = full()
    seen = BORN | {"address": 0x9000}
    tables["alloc"].append(alloc(20, 4, allocated_ns=T0 + 2, **seen))
    tables["alloc"].append(alloc(-1, 512, "profiler", allocated_ns=T0 + 1, **seen))
    tables["role"].append(role(20, "optimizer_state"))
    facts = replace(FACTS, step_counters=step_counters)
    check = analyse(tmp_path / "a.zprof", tables, facts=facts).memory.formulas[2]
    assert (check.measured_bytes, check.scalar_bytes, check.unexplained_bytes) == (912, 4, 508)
    assert check.cause not in ("", NOT_EXPLAINED)


def history() -> Tables:
    """One block of 400 in 512 bytes, alone in a segment of 2048."""
    place = {"device": "cuda:0", "address": 0x1000, "stream": 0, "pool": "0,0"}
    block = dict.fromkeys(TABLES["block"].names) | place
    block |= {"requested_bytes": 400, "block_bytes": 512, "allocated_ns": T0 - 5, "before_history": True}
    segment = dict.fromkeys(TABLES["segment"].names) | place | {"bytes": 2048, "mapped_ns": T0 - 5}
    segment |= {"before_history": True, "expandable": False}
    return {"block": [block], "segment": [segment], "stack": []}


def test_a_live_recording_with_a_history_knows_owners_and_reserved_memory(tmp_path: Path) -> None:
    tables = full() | history()
    gone = alloc(-1, 8, "profiler", freed=T0 - 2, device="cuda:0", address=7)
    tables["alloc"] = [alloc(0, 512, device="cuda:0", address=0x1000), gone]
    tables["role"] = [role(0, "parameters")]
    memory = analyse(tmp_path / "a.zprof", tables).memory
    (rank,) = memory.per_rank
    assert (rank.peak_bytes, rank.untagged_bytes, rank.reserved_unused_bytes) == (512, 0, 1536)
    assert rank.non_pytorch_bytes is None
    assert {leaf.moment for leaf in memory.devices} == {"allocated peak", "reserved peak"}
    assert sum(memory.devices[0].tenants.values()) == 400
