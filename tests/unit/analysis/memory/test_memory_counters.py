"""The allocator's own counters, and the peak judged by them."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from memory_runs import T0, alloc, analyse, full, marks, role, sample

from zprof.analysis.memory.analyse import MemoryAnalysis
from zprof.analysis.memory.peak_reconciliation import read_counters
from zprof.model.memory import AllocatorCounters, Basis


def frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    counters = ["peak_allocated_bytes", "peak_reserved_bytes", "retries", "ooms"]
    return pd.DataFrame(rows).astype(dict.fromkeys(counters, "Int64"))


def test_the_highest_sample_tells_the_peaks_and_the_growth_tells_the_retries() -> None:
    rows = [
        sample(30, peak_allocated_bytes=40, peak_reserved_bytes=99, retries=7, ooms=0),
        sample(20, peak_allocated_bytes=90, peak_reserved_bytes=70, retries=7, ooms=0),
        sample(10, peak_allocated_bytes=50, peak_reserved_bytes=60, retries=4, ooms=0),
        sample(20, device="cpu", process_bytes=5),
    ]
    assert read_counters(2, frame(rows), []) == (
        AllocatorCounters(
            rank=2, device="cuda:0", peak_allocated_bytes=90, peak_reserved_bytes=99, retries=3, ooms=0
        ),
    )


@pytest.mark.parametrize(("first", "retries"), [(0, 5), (1, 5), (2, 3), (3, 1)])
def test_what_is_counted_lies_in_the_recorded_steps(first: int, retries: int) -> None:
    """The recorder samples in every step; of the very first one there is no sample before."""
    rows = [sample(10 * step, retries=[2, 4, 6, 7][step]) | {"step": step} for step in range(4)]
    (entry,) = read_counters(0, frame(rows), range(first, 4))
    assert entry.retries == retries


@pytest.mark.parametrize(("count", "retries"), [(7, None), (0, 0)])
def test_one_sample_does_not_tell_when_it_was_counted(count: int, retries: int | None) -> None:
    (entry,) = read_counters(0, frame([sample(30, retries=count)]), [2])
    assert (entry.retries, entry.peak_allocated_bytes, entry.ooms) == (retries, None, None)


@pytest.mark.parametrize("last", [1, 9])
def test_a_counter_that_went_back_is_unknown(last: int) -> None:
    rows = [sample(10, retries=7, ooms=1), sample(20, retries=0, ooms=1), sample(30, retries=last, ooms=1)]
    (entry,) = read_counters(0, frame(rows), [])
    assert (entry.retries, entry.ooms) == (None, 0)


@pytest.mark.parametrize("after", [300, 980])
def test_a_peak_that_the_program_set_back_accuses_nobody(tmp_path: Path, after: int) -> None:
    """As many do in each step: what the allocator then counts is not the most that it ever had."""
    tables = {"alloc": [alloc(0, 1000, device="cuda:0")], "role": [], "mark": marks()}
    tables["samples"] = [
        sample(-5, peak_allocated_bytes=1000),
        sample(400, peak_allocated_bytes=200),
        sample(999, peak_allocated_bytes=after),
    ]
    analysis = analyse(tmp_path / "a.zprof", tables)
    assert not analysis.memory.per_rank[0].upper_bound
    assert "allocated peak" not in whats(analysis)


def on_gpu(
    folder: Path, before: int | None, after: int | None, mode: str = "full", size: int = 1000
) -> MemoryAnalysis:
    """A peak of ``size`` bytes on cuda:0; the allocator's counter before the window and within it."""
    tables = {"alloc": [alloc(0, size, device="cuda:0")], "role": [role(0, "parameters")], "mark": marks()}
    tables["alloc"].append(alloc(-1, 1, "profiler", freed=T0 - 2, device="cuda:0", address=7))
    tables["samples"] = [
        sample(time_ns, peak_allocated_bytes=peak)
        for time_ns, peak in ((-5, before), (999, after))
        if peak is not None
    ]
    return analyse(folder, tables, mode=mode)


def whats(analysis: MemoryAnalysis) -> list[str]:
    return [gap.what for gap in analysis.gaps]


@pytest.mark.parametrize(
    ("before", "after"), [(500, 1009), (500, 991), (5000, 5000), (None, 700000), (None, None)]
)
def test_an_agreeing_counter_or_none_that_tells_is_no_gap(
    tmp_path: Path, before: int | None, after: int | None
) -> None:
    """5000 was reached before the window; without a sample before it, nobody knows when."""
    analysis = on_gpu(tmp_path / "a.zprof", before, after)
    assert not analysis.memory.per_rank[0].upper_bound
    assert not analysis.memory.per_rank[0].lower_bound
    assert not {"allocated peak", "part of the allocated peak"} & set(whats(analysis))


@pytest.mark.parametrize(("before", "after"), [(500, 980), (980, 980), (None, 980)])
def test_more_than_the_allocator_ever_had_is_an_upper_bound(
    tmp_path: Path, before: int | None, after: int
) -> None:
    analysis = on_gpu(tmp_path / "a.zprof", before, after)
    assert analysis.memory.per_rank[0].upper_bound
    assert "allocated peak" in whats(analysis)


def test_less_than_the_allocator_reached_in_the_window_is_a_gap(tmp_path: Path) -> None:
    analysis = on_gpu(tmp_path / "a.zprof", 500, 1020)
    memory = analysis.memory.per_rank[0]
    assert (memory.peak_bytes, memory.upper_bound, memory.lower_bound) == (1000, False, True)
    (gap,) = [gap for gap in analysis.gaps if gap.what == "part of the allocated peak"]
    assert "20 B more" in gap.reason


def test_in_light_mode_the_counter_is_the_truth_and_the_rest_is_nobodys(tmp_path: Path) -> None:
    analysis = on_gpu(tmp_path / "a.zprof", 500, 1300, mode="light")
    memory = analysis.memory.per_rank[0]
    assert (memory.peak_bytes, memory.untagged_bytes, memory.upper_bound) == (1300, 300, False)
    assert sum(part.bytes for part in memory.parts) == 1300
    assert memory.basis_bytes == {Basis.TAGGED: 1000, Basis.RULE: 0, Basis.UNKNOWN: 300}
    assert memory.method.startswith("light mode")
    assert not {"coverage of memory", "allocator events"} & set(whats(analysis))


@pytest.mark.parametrize(("before", "after"), [(None, None), (1300, 1300), (None, 1300)])
def test_in_light_mode_without_a_counter_that_tells_the_coverage_is_unknown(
    tmp_path: Path, before: int | None, after: int | None
) -> None:
    analysis = on_gpu(tmp_path / "a.zprof", before, after, mode="light")
    memory = analysis.memory.per_rank[0]
    assert (memory.peak_bytes, memory.untagged_bytes, memory.lower_bound) == (1000, 0, True)
    assert "lower bound" in memory.method
    assert "coverage of memory" in whats(analysis)


def test_a_light_recording_of_a_cpu_is_a_lower_bound(tmp_path: Path) -> None:
    analysis = analyse(tmp_path / "a.zprof", full(), mode="light")
    assert "lower bound" in analysis.memory.per_rank[0].method
    assert whats(analysis).count("coverage of memory") == 1
    assert "allocator events" not in whats(analysis)


@pytest.mark.parametrize(
    ("mode", "before", "unused"), [("light", 500, 200), ("light", 1300, None), ("full", 1300, None)]
)
def test_what_no_hook_saw_is_not_reserved_and_unused(
    tmp_path: Path, mode: str, before: int, unused: int | None
) -> None:
    """1500 reserved, 1000 seen: the allocator counted 1300 in the window, or nobody knows."""
    tables = {"alloc": [alloc(0, 1000, device="cuda:0")], "role": [role(0, "parameters")], "mark": marks()}
    counted = {"reserved_bytes": 1500, "peak_reserved_bytes": 1500, "retries": 0}
    tables["samples"] = [
        sample(-5, peak_allocated_bytes=before, **counted),
        sample(999, peak_allocated_bytes=1300, **counted),
    ]
    assert analyse(tmp_path / "a.zprof", tables, mode=mode).memory.per_rank[0].reserved_unused_bytes == unused
