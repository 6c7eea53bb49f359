"""The allocator's own counters, and the peak judged by them."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.memory_runs import T0, alloc, analyse, marks, role, sample
from tests.support.run_tables import table_of_rows
from zprof.analysis.memory.analyse import MemoryAnalysis
from zprof.analysis.memory.live_bytes import read_counters
from zprof.model.memory import AllocatorCounters, Basis


def test_counters_are_the_highest_peaks_and_the_growth_of_retries() -> None:
    rows = [
        sample(30, peak_allocated_bytes=40, peak_reserved_bytes=99, retries=7, ooms=0),
        sample(20, peak_allocated_bytes=90, peak_reserved_bytes=70, retries=7, ooms=0),
        sample(10, peak_allocated_bytes=50, peak_reserved_bytes=60, retries=4, ooms=0),
        sample(20, device="cpu", process_bytes=5),
    ]
    assert read_counters(2, table_of_rows("samples", rows), []) == (
        AllocatorCounters(
            rank=2, device="cuda:0", peak_allocated_bytes=90, peak_reserved_bytes=99, retries=3, ooms=0
        ),
    )


@pytest.mark.parametrize(
    ("counts", "steps", "retries"),
    [
        ([2, 4, 6, 7], range(0, 4), 5),
        ([2, 4, 6, 7], range(1, 4), 5),
        ([2, 4, 6, 7], range(2, 4), 3),
        ([2, 4, 6, 7], range(3, 4), 1),
        ([7], [0], None),
        ([0], [0], 0),
        ([7, 0, 1], [], None),
        ([7, 0, 9], [], None),
    ],
    ids=str,
)
def test_retries_are_those_of_the_recorded_steps(counts: list[int], steps: Any, retries: int | None) -> None:
    """Samples are taken in each step; a counter that went back tells nothing."""
    rows = [sample(10 * step, retries=count) | {"step": step} for step, count in enumerate(counts)]
    (entry,) = read_counters(0, table_of_rows("samples", rows), steps)
    assert (entry.retries, entry.peak_allocated_bytes, entry.ooms) == (retries, None, None)


def on_gpu(folder: Path, *peaks: tuple[int, int | None], mode: str = "full") -> MemoryAnalysis:
    """A peak of 1000 bytes on cuda:0, and (time, the allocator's peak counter) of its samples."""
    tables = {"alloc": [alloc(0, 1000, device="cuda:0")], "role": [role(0, "parameters")], "mark": marks()}
    tables["alloc"].append(alloc(-1, 1, "profiler", freed=T0 - 2, device="cuda:0", address=7))
    tables["samples"] = [sample(time, peak_allocated_bytes=peak) for time, peak in peaks if peak is not None]
    return analyse(folder, tables, mode=mode)


def whats(analysis: MemoryAnalysis) -> list[str]:
    return [gap.what for gap in analysis.gaps]


BEFORE, WITHIN = -5, 999
AGREES, MORE, LESS = "agrees", "allocated peak", "part of the allocated peak"


@pytest.mark.parametrize(
    ("before", "within", "verdict"),
    [
        (500, 1009, AGREES),
        (500, 991, AGREES),
        (5000, 5000, AGREES),  # reached before the window
        (None, 700_000, AGREES),  # nobody knows when
        (None, None, AGREES),
        (500, 980, MORE),
        (980, 980, MORE),
        (None, 980, MORE),
        (500, 1020, LESS),
    ],
)
def test_the_peak_is_judged_by_a_counter_that_grew_in_the_window(
    tmp_path: Path, before: int | None, within: int | None, verdict: str
) -> None:
    analysis = on_gpu(tmp_path / "a.zprof", (BEFORE, before), (WITHIN, within))
    memory = analysis.memory.per_rank[0]
    assert memory.peak_bytes == 1000
    assert (memory.upper_bound, memory.lower_bound) == (verdict == MORE, verdict == LESS)
    assert {MORE, LESS} & set(whats(analysis)) == {verdict} - {AGREES}


@pytest.mark.parametrize("after", [300, 980])
def test_a_counter_that_the_program_reset_judges_nothing(tmp_path: Path, after: int) -> None:
    analysis = on_gpu(tmp_path / "a.zprof", (BEFORE, 1000), (400, 200), (WITHIN, after))
    assert not analysis.memory.per_rank[0].upper_bound
    assert MORE not in whats(analysis)


def test_in_light_mode_the_counter_is_the_peak_and_the_rest_has_no_owner(tmp_path: Path) -> None:
    analysis = on_gpu(tmp_path / "a.zprof", (BEFORE, 500), (WITHIN, 1300), mode="light")
    memory = analysis.memory.per_rank[0]
    assert (memory.peak_bytes, memory.untagged_bytes, memory.upper_bound) == (1300, 300, False)
    assert sum(part.bytes for part in memory.parts) == 1300
    assert memory.basis_bytes == {Basis.TAGGED: 1000, Basis.RULE: 0, Basis.UNKNOWN: 300}
    assert not {"coverage of memory", "allocator events"} & set(whats(analysis))


@pytest.mark.parametrize(("before", "within"), [(None, None), (1300, 1300), (None, 1300)])
def test_in_light_mode_without_such_a_counter_the_coverage_is_unknown(
    tmp_path: Path, before: int | None, within: int | None
) -> None:
    analysis = on_gpu(tmp_path / "a.zprof", (BEFORE, before), (WITHIN, within), mode="light")
    memory = analysis.memory.per_rank[0]
    assert (memory.peak_bytes, memory.untagged_bytes, memory.lower_bound) == (1000, 0, True)
    assert "coverage of memory" in whats(analysis)


@pytest.mark.parametrize(
    ("mode", "before", "unused"), [("light", 500, 200), ("light", 1300, None), ("full", 1300, None)]
)
def test_reserved_unused_memory_needs_all_live_bytes(
    tmp_path: Path, mode: str, before: int, unused: int | None
) -> None:
    """1500 reserved, 1000 seen: the allocator counted 1300 in the window, or nobody knows."""
    tables = {"alloc": [alloc(0, 1000, device="cuda:0")], "role": [role(0, "parameters")], "mark": marks()}
    counted = {"reserved_bytes": 1500, "peak_reserved_bytes": 1500, "retries": 0}
    tables["samples"] = [
        sample(BEFORE, peak_allocated_bytes=before, **counted),
        sample(WITHIN, peak_allocated_bytes=1300, **counted),
    ]
    assert analyse(tmp_path / "a.zprof", tables, mode=mode).memory.per_rank[0].reserved_unused_bytes == unused
