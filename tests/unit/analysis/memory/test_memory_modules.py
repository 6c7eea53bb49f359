"""What a module, with all inside of it, allocated: hand-made tables and the slow way beside the fast one."""

from hypothesis import given, settings
from memory_random import TABLES
from memory_tables import Tables, at

from zprof.analysis.memory.breakdown import MAX_MODULES, find_module_peaks
from zprof.analysis.memory.live_bytes import RankLives


def peaks_of(lives: RankLives, peak_ns: int) -> dict[str, tuple[int, int]]:
    return {p.module: (p.peak_bytes, p.at_rank_peak_bytes) for p in find_module_peaks(0, lives, peak_ns)}


def test_a_module_holds_what_is_inside_of_it() -> None:
    tables = Tables()
    tables.storage(1, 0x10, 8, 10, 50, module="blocks.0.mlp")
    tables.storage(2, 0x20, 16, 20, 40, module="blocks.0")
    tables.storage(3, 0x30, 32, 60, 90, module="blocks.1")
    tables.storage(4, 0x40, 64, 30, 35, module="blocks.00")
    assert peaks_of(tables.lives(), at(30)) == {
        "": (88, 88),
        "blocks": (88, 88),
        "blocks.00": (64, 64),
        "blocks.1": (32, 0),
        "blocks.0": (24, 24),
        "blocks.0.mlp": (8, 8),
    }


def test_a_free_and_an_allocation_at_one_time_do_not_add_up_in_a_module() -> None:
    tables = Tables()
    tables.storage(1, 0x10, 8, 10, 50, module="a")
    tables.storage(2, 0x20, 8, 50, 60, module="a")
    assert peaks_of(tables.lives(), at(55))["a"] == (8, 8)


def test_what_no_module_allocated_and_what_was_there_before_is_nobodys() -> None:
    tables = Tables()
    tables.storage(1, 0x10, 100, -5, before=True, operator=None, module="a")
    tables.storage(2, 0x20, 30, 10, 50, module=None)
    assert peaks_of(tables.lives(), at(20)) == {}
    tables.storage(3, 0x30, 7, 10, 50, module="a")
    assert peaks_of(tables.lives(), at(20)) == {"": (7, 7), "a": (7, 7)}


def test_the_root_alone() -> None:
    tables = Tables()
    tables.storage(1, 0x10, 8, 10, 50, module="")
    assert peaks_of(tables.lives(), at(60)) == {"": (8, 0)}


def test_the_largest_come_first_and_only_so_many() -> None:
    tables = Tables()
    for index in range(3 * MAX_MODULES):
        tables.storage(index, 0x10 * index, index + 1, 10, 50, module=f"m.{index:03d}")
    peaks = find_module_peaks(0, tables.lives(), at(20))
    assert len(peaks) == MAX_MODULES
    assert [peak.module for peak in peaks[:3]] == ["", "m", f"m.{3 * MAX_MODULES - 1:03d}"]


def test_a_name_of_ten_thousand_levels_counts_for_the_ones_above() -> None:
    tables = Tables()
    tables.storage(1, 0x10, 8, 10, 50, module="x." * 10_000)
    peaks = peaks_of(tables.lives(), at(20))
    assert peaks[""] == peaks["x"] == (8, 8)
    assert len(peaks) < 50


@settings(max_examples=50)
@given(TABLES)
def test_modules_are_what_counting_each_by_itself_gives(tables: Tables) -> None:
    lives = tables.lives(end_us=64)
    peak_ns = lives.peak().time_ns
    found = peaks_of(lives, peak_ns)
    blocks, window = lives.blocks, lives.timeline
    rows = [
        row
        for row in range(len(blocks))
        if blocks.module[row] is not None
        and window.begin_ns < blocks.begin_ns[row] <= window.end_ns
        and blocks.end_ns[row] > blocks.begin_ns[row]
    ]

    def live(module: str, time_ns: int) -> int:
        return sum(
            int(blocks.bytes[row])
            for row in rows
            if blocks.begin_ns[row] <= time_ns < blocks.end_ns[row]
            and (not module or f"{blocks.module[row]}.".startswith(f"{module}."))
        )

    for module, (highest, at_peak) in found.items():
        assert highest == max(live(module, int(blocks.begin_ns[row])) for row in rows)
        assert at_peak == live(module, peak_ns)
        assert found[""][0] >= highest >= at_peak
        assert found[""][1] >= at_peak
    assert bool(found) == bool(rows)
