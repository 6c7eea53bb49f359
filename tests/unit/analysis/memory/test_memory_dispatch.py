"""A rank with a live recording is analysed as such, one with a history alone as a snapshot."""

from pathlib import Path
from typing import Any

from memory_runs import T0, alloc, full, role, write

from zprof.analysis.memory.analyse import MemoryAnalysis, analyse_memory
from zprof.run.reader import load
from zprof.run.schema import TABLES


def history() -> dict[str, list[dict[str, Any]]]:
    """One block of 400 in 512 bytes, alone in a segment of 2048."""
    place = {"device": "cuda:0", "address": 0x1000, "stream": 0, "pool": "0,0"}
    block = dict.fromkeys(TABLES["block"].names) | place
    block |= {"requested_bytes": 400, "block_bytes": 512, "allocated_ns": T0 - 5, "before_history": True}
    segment = dict.fromkeys(TABLES["segment"].names) | place | {"bytes": 2048, "mapped_ns": T0 - 5}
    return {
        "block": [block],
        "segment": [segment | {"before_history": True, "expandable": False}],
        "stack": [],
    }


def analysed(folder: Path, tables: dict[str, list[dict[str, Any]]]) -> MemoryAnalysis:
    return analyse_memory(load(write(folder, [tables])))


def test_a_history_alone_is_a_snapshot(tmp_path: Path) -> None:
    (memory,) = analysed(tmp_path / "a.zprof", history()).memory.per_rank
    assert (memory.device, memory.peak_bytes, memory.reserved_unused_bytes) == ("cuda:0", 400, 1648)
    assert memory.method.startswith("rules on stacks")


def test_a_live_recording_with_a_history_knows_its_owners_and_what_is_reserved(tmp_path: Path) -> None:
    tables = full() | history()
    gone = alloc(-1, 8, "profiler", freed=T0 - 2, device="cuda:0", address=7)
    tables["alloc"] = [alloc(0, 512, device="cuda:0", address=0x1000), gone]
    tables["role"] = [role(0, "parameters")]
    memory = analysed(tmp_path / "a.zprof", tables).memory
    (rank,) = memory.per_rank
    assert (rank.peak_bytes, rank.untagged_bytes, rank.reserved_unused_bytes) == (512, 0, 1536)
    assert rank.non_pytorch_bytes is None
    assert {leaf.moment for leaf in memory.devices} == {"allocated peak", "reserved peak"}
    assert sum(memory.devices[0].tenants.values()) == 400


def test_neither_is_a_gap(tmp_path: Path) -> None:
    analysis = analysed(tmp_path / "a.zprof", {"mark": full()["mark"]})
    assert analysis.memory.per_rank == ()
    assert [gap.what for gap in analysis.gaps] == ["memory"]
