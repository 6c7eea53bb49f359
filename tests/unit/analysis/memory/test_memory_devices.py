"""Several devices of a rank, the window before the first step, several ranks: what the report takes."""

from dataclasses import replace
from pathlib import Path

import pytest
from memory_runs import FACTS, T0, alloc, analyse, full, marks, role, write

from zprof.analysis.memory.analyse import analyse_memory
from zprof.model.tenants import Tenant
from zprof.run.reader import load


def test_the_host_of_a_rank_with_a_gpu_stands_apart(tmp_path: Path) -> None:
    tables = full()
    tables["alloc"].append(alloc(8, 10, device="cuda:0"))
    memory = analyse(tmp_path / "a.zprof", tables).memory
    assert [(entry.device, entry.peak_bytes) for entry in memory.per_rank] == [("cuda:0", 10)]
    (host,) = memory.host
    assert (host.device, host.peak_bytes, host.tenants[Tenant.PARAMETERS]) == ("cpu", 1207, 400)
    assert {entry.bytes for entry in memory.top} == {10}


def test_a_rank_without_a_gpu_has_no_host_beside_it(tmp_path: Path) -> None:
    memory = analyse(tmp_path / "a.zprof", full()).memory
    assert (memory.per_rank[0].device, memory.host) == ("cpu", ())


def test_of_several_gpus_the_fullest_counts_and_a_gap_names_the_others(tmp_path: Path) -> None:
    """Fullest at its peak, not the one that allocated most in sum."""
    tables = full()
    churn = {"before_window": False, "operator": "aten.add.Tensor", "device": "cuda:0"}
    tables["alloc"] += [
        alloc(10 + i, 60, allocated_ns=T0 + 10 * i, freed=T0 + 10 * i + 5, **churn) for i in range(9)
    ]
    tables["alloc"].append(alloc(30, 100, device="cuda:1"))
    analysis = analyse(tmp_path / "a.zprof", tables)
    assert [(entry.device, entry.peak_bytes) for entry in analysis.memory.per_rank] == [("cuda:1", 100)]
    (gap,) = [gap for gap in analysis.gaps if gap.what == "memory of cuda:0"]
    assert "60 B" in gap.reason
    assert [entry.device for entry in analysis.memory.host] == ["cpu"]


def test_tensors_without_memory_and_foreign_memory_are_no_device(tmp_path: Path) -> None:
    tables = full()
    tables["alloc"] += [alloc(8, 10, device="meta"), alloc(9, 10, device="cuda:0", source="foreign")]
    memory = analyse(tmp_path / "a.zprof", tables).memory
    assert (memory.per_rank[0].device, memory.host) == ("cpu", ())


INIT = [(T0 - 900, "window_begin", -1, "init"), (T0 - 400, "window_end", -1, "init")]


def test_the_time_before_the_first_step_has_a_peak_of_its_own(tmp_path: Path) -> None:
    born = {"before_window": False, "operator": "aten.empty.memory_format"}
    tables = full() | {"mark": marks(INIT)}
    tables["init_alloc"] = [
        alloc(0, 400, allocated_ns=T0 - 800, **born),
        alloc(1, 900, allocated_ns=T0 - 700, freed=T0 - 600, **born),
        alloc(2, 50, allocated_ns=T0 - 500, **born),
    ]
    tables["init_role"] = [role(0, "parameters", time_ns=T0 - 650)]
    memory = analyse(tmp_path / "a.zprof", tables).memory
    (init,) = memory.init
    assert (init.peak_bytes, init.peak_step, init.peak_phase) == (1300, -1, "init")
    assert (init.tenants[Tenant.PARAMETERS], init.state_bytes) == (400, None)
    assert sum(part.bytes for part in init.parts) == 1300
    assert memory.per_rank[0].peak_bytes == 1207


def test_phases_of_the_first_window_are_none_of_the_memory_window(tmp_path: Path) -> None:
    tables = full() | {"mark": marks([*INIT, (T0 - 600, "phase", 0, "forward")])}
    born = {"before_window": False, "operator": "aten.empty.memory_format"}
    tables["init_alloc"] = [alloc(0, 400, allocated_ns=T0 - 500, **born)]
    tables["init_role"] = []
    memory = analyse(tmp_path / "a.zprof", tables).memory
    assert memory.init[0].peak_phase == "forward"
    assert memory.per_rank[0].peak_phase == "other"
    assert {entry.phase for entry in memory.phases} == {"other", "optimizer"}


@pytest.mark.parametrize("left_out", ["mark", "init_alloc", "init_role"])
def test_without_its_window_or_tables_there_is_no_init(tmp_path: Path, left_out: str) -> None:
    tables = full() | {"mark": marks(INIT), "init_alloc": [alloc(0, 4)], "init_role": []}
    if left_out == "mark":
        tables["mark"] = marks()
    else:
        del tables[left_out]
    assert analyse(tmp_path / "a.zprof", tables).memory.init == ()


def test_an_init_window_without_memory_is_none(tmp_path: Path) -> None:
    tables = full() | {"mark": marks(INIT), "init_alloc": [], "init_role": []}
    assert analyse(tmp_path / "a.zprof", tables).memory.init == ()


def grown(rank: int) -> dict[str, list[dict[str, object]]]:
    tables = full()
    tables["alloc"].append(alloc(9, 1 + 10 * rank))
    tables["role"].append(role(9, "activations"))
    return tables


def test_the_difference_between_ranks(tmp_path: Path) -> None:
    path = write(tmp_path / "a.zprof", [grown(rank) for rank in (3, 9, 0)])
    spread = analyse_memory(load(path)).memory.spread
    assert spread is not None
    assert (spread.largest_rank, spread.smallest_rank, spread.difference_bytes) == (1, 2, 90)
    assert (spread.tenant, spread.delta_bytes["activations"]) == ("activations", 90)
    assert sum(spread.delta_bytes.values()) == spread.difference_bytes


def test_one_rank_alone_differs_from_nobody(tmp_path: Path) -> None:
    assert analyse(tmp_path / "a.zprof", full()).memory.spread is None


def test_two_ranks_swapped_give_the_same(tmp_path: Path) -> None:
    first = analyse_memory(load(write(tmp_path / "a.zprof", [grown(1), grown(4)]))).memory
    second = analyse_memory(load(write(tmp_path / "b.zprof", [grown(4), grown(1)]))).memory
    for leaf in ("per_rank", "top", "phases", "modules", "timelines", "laws"):
        sizes = [
            sorted(repr(entry).replace("rank=0", "rank=r").replace("rank=1", "rank=r") for entry in rows)
            for rows in (getattr(first, leaf), getattr(second, leaf))
        ]
        assert sizes[0] == sizes[1], leaf
    assert first.spread is not None
    assert second.spread is not None
    assert (first.spread.largest_rank, second.spread.largest_rank) == (1, 0)
    assert first.spread.delta_bytes == second.spread.delta_bytes


def test_timelines_are_of_the_largest_ranks_and_the_smallest(tmp_path: Path) -> None:
    path = write(tmp_path / "a.zprof", [grown(rank) for rank in (5, 1, 2, 3, 4, 0, 6, 7, 8, 9)])
    memory = analyse_memory(load(path)).memory
    assert [timeline.rank for timeline in memory.timelines] == [0, 3, 4, 5, 6, 7, 8, 9]
    assert all(len(timeline.time_ns) <= 240 for timeline in memory.timelines)


def test_laws_of_every_rank_and_a_gap_without_them(tmp_path: Path) -> None:
    memory = analyse(tmp_path / "a.zprof", full(), ranks=2).memory
    assert [(law.rank, law.tenant.value, law.cause) for law in memory.laws] == [
        (rank, tenant, "") for rank in (0, 1) for tenant in ("parameters", "gradients", "optimizer_state")
    ]


def test_counters_and_buffers_of_the_states_are_told_apart(tmp_path: Path) -> None:
    """A 4-byte block of optimizer state is a step counter; a module's buffer is no parameter."""
    tables = full()
    tables["alloc"] += [alloc(20, 4), alloc(21, 64)]
    tables["role"] += [role(20, "optimizer_state"), role(21, "parameters", sub="buffer")]
    laws = {law.tenant: law for law in analyse(tmp_path / "a.zprof", tables).memory.laws}
    assert laws[Tenant.PARAMETERS].measured_bytes == 400
    assert (laws[Tenant.OPTIMIZER_STATE].scalar_bytes, laws[Tenant.OPTIMIZER_STATE].unexplained_bytes) == (
        4,
        0,
    )


def test_what_the_allocator_adds_to_tensors_explains_a_difference(tmp_path: Path) -> None:
    """Born in the window, so that the allocator's own size of the block is known: 512 for 400."""
    tables = full()
    seen = {"address": 0x9000, "before_window": False, "operator": "aten.empty.memory_format"}
    tables["alloc"][0] = alloc(0, 400, allocated_ns=T0 + 2, **seen)
    tables["alloc"].append(alloc(-1, 512, "profiler", allocated_ns=T0 + 1, **seen))
    law = analyse(tmp_path / "a.zprof", tables).memory.laws[0]
    assert (law.measured_bytes, law.unexplained_bytes) == (512, 112)
    assert law.cause == "the allocator's blocks are larger than the tensors in them"


@pytest.mark.parametrize("step_counters", [0, 1])
def test_a_step_counter_that_takes_a_whole_block_is_one_of_four_bytes(
    tmp_path: Path, step_counters: int
) -> None:
    """As a fused optimizer makes it on a GPU; the engine may have counted it or not."""
    tables = full()
    seen = {"address": 0x9000, "before_window": False, "operator": "aten.zeros"}
    tables["alloc"].append(alloc(20, 4, allocated_ns=T0 + 2, **seen))
    tables["alloc"].append(alloc(-1, 512, "profiler", allocated_ns=T0 + 1, **seen))
    tables["role"].append(role(20, "optimizer_state"))
    facts = replace(FACTS, step_counters=step_counters)
    law = analyse(tmp_path / "a.zprof", tables, facts=facts).memory.laws[2]
    assert (law.measured_bytes, law.scalar_bytes, law.unexplained_bytes) == (912, 4, 508)
    assert law.cause == "the allocator's blocks are larger than the tensors in them"
