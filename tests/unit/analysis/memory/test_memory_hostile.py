"""Tables that no recorder writes: refused in one line, or analysed; never a crash, never a wrong sum."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_runs import T0, alloc, full, marks, put_table, role, sample, write

from zprof.analysis.memory.analyse import MemoryAnalysis, analyse_memory
from zprof.model.errors import BadInput
from zprof.model.json_format import to_json
from zprof.run.reader import load

HUGE = 1 << 62


def damaged(folder: Path, name: str, change: dict[str, Any]) -> MemoryAnalysis:
    tables = full() | {"samples": [sample(0, peak_allocated_bytes=4)]}
    path = write(folder, [tables])
    rows = tables[name]
    put_table(path, name, [rows[0] | change, *rows[1:]])
    return analyse_memory(load(path))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("alloc", {"bytes": None}),
        ("alloc", {"bytes": -1}),
        ("alloc", {"bytes": HUGE}),
        ("alloc", {"allocated_ns": None}),
        ("alloc", {"allocated_ns": -1}),
        ("alloc", {"freed_ns": HUGE}),
        ("alloc", {"freed_ns": -HUGE}),
        ("alloc", {"source": None}),
        ("alloc", {"device": None}),
        ("alloc", {"generation": None}),
        ("alloc", {"phase": None}),
        ("alloc", {"before_window": None}),
        ("role", {"generation": None}),
        ("role", {"time_ns": HUGE}),
        ("role", {"tenant": None}),
        ("role", {"sub": None}),
        ("role", {"gained": None}),
        ("mark", {"time_ns": None}),
        ("mark", {"time_ns": -5}),
        ("mark", {"kind": None}),
        ("mark", {"number": None}),
        ("samples", {"time_ns": HUGE}),
        ("samples", {"device": None}),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_with_its_file_and_column(
    tmp_path: Path, name: str, change: dict[str, Any]
) -> None:
    with pytest.raises(BadInput) as refusal:
        damaged(tmp_path / "a.zprof", name, change)
    assert f"rank00000/{name}.parquet" in refusal.value.message
    assert next(iter(change)) in refusal.value.message
    assert "\n" not in refusal.value.message


def test_sizes_that_only_overflow_together_are_refused(tmp_path: Path) -> None:
    tables = full()
    tables["alloc"] += [alloc(10 + i, 1 << 60) for i in range(9)]
    with pytest.raises(BadInput, match="sizes that no device has"):
        analyse_memory(load(write(tmp_path / "a.zprof", [tables])))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("alloc", {"bytes": 0}),
        ("alloc", {"freed_ns": T0 - 900}),
        ("alloc", {"address": -(1 << 63)}),
        ("alloc", {"generation": -(1 << 63)}),
        ("alloc", {"generation": 1}),
        ("alloc", {"source": "\x1b[2J"}),
        ("alloc", {"device": "\x1b[31mcuda:0"}),
        ("alloc", {"phase": "tomorrow"}),
        ("alloc", {"module": "." * 5000}),
        ("alloc", {"operator": "\n", "stack": (1 << 63) - 1}),
        ("role", {"tenant": "landlord"}),
        ("role", {"sub": "\u202e" * 3000}),
        ("role", {"generation": 1 << 62}),
        ("role", {"gained": False}),
        ("mark", {"kind": "window_middle"}),
        ("mark", {"number": -(1 << 63)}),
        ("samples", {"peak_allocated_bytes": -4, "retries": -1}),
        ("samples", {"peak_allocated_bytes": (1 << 63) - 1}),
    ],
    ids=str,
)
def test_what_is_only_odd_is_analysed(tmp_path: Path, name: str, change: dict[str, Any]) -> None:
    analysis = damaged(tmp_path / "a.zprof", name, change)
    for memory in analysis.memory.per_rank:
        assert memory.peak_bytes == sum(memory.tenants.values()) + memory.untagged_bytes
        assert memory.peak_bytes == sum(part.bytes for part in memory.parts)
    assert to_json(analysis.memory).isascii()
    assert analysis.memory.per_rank or analysis.gaps


def test_no_row_of_memory_is_a_gap(tmp_path: Path) -> None:
    tables = full() | {"alloc": [alloc(0, 0), alloc(1, 5, source="foreign"), alloc(2, 5, device="meta")]}
    analysis = analyse_memory(load(write(tmp_path / "a.zprof", [tables])))
    assert analysis.memory.per_rank == ()
    assert [gap.what for gap in analysis.gaps] == ["memory"]


def test_a_window_that_ends_before_it_begins_is_none(tmp_path: Path) -> None:
    tables = full()
    tables["mark"][0]["time_ns"] = T0 + 2000
    analysis = analyse_memory(load(write(tmp_path / "a.zprof", [tables])))
    assert [gap.what for gap in analysis.gaps] == ["memory"]


def test_a_window_without_steps_has_no_states(tmp_path: Path) -> None:
    tables = full() | {"mark": [mark for mark in marks() if not mark["kind"].startswith("step")]}
    memory = analyse_memory(load(write(tmp_path / "a.zprof", [tables]))).memory
    assert (memory.per_rank[0].peak_step, memory.per_rank[0].state_bytes, memory.laws) == (-1, None, ())
    assert memory.timelines[0].steps == ()


def test_a_thousand_devices_are_not_all_looked_at(tmp_path: Path) -> None:
    tables = full()
    tables["alloc"] += [alloc(10 + i, 10 + i, device=f"cuda:{i}") for i in range(1000)]
    analysis = analyse_memory(load(write(tmp_path / "a.zprof", [tables])))
    assert analysis.memory.per_rank[0].device == "cuda:999"
    assert len([gap for gap in analysis.gaps if gap.what.startswith("memory of")]) < 20


def stacked(depth: int, **changed: Any) -> dict[str, Any]:
    row = {"stack": 5, "depth": depth, "file": f"f{depth}.py", "line": depth, "function": "g"}
    return row | changed


def test_stacks_are_read_innermost_first_and_bounded(tmp_path: Path) -> None:
    tables = full()
    tables["alloc"][0] |= {"stack": 5, "bytes": 800}
    tables["stack"] = [stacked(depth) for depth in (2, 0, 1)] + [stacked(0, stack=6, file="other")]
    top = analyse_memory(load(write(tmp_path / "a.zprof", [tables]))).memory.top
    assert top[0].stack == ("f0.py:0 g", "f1.py:1 g", "f2.py:2 g")
    assert top[1].stack == ()
    tables["stack"] = [stacked(depth, function="\x1b[2J" * 999) for depth in range(5000)]
    top = analyse_memory(load(write(tmp_path / "b.zprof", [tables]))).memory.top
    assert len(top[0].stack) == 64
    assert max(len(line) for line in top[0].stack) == 400


_words = st.sampled_from(
    ["", "storage", "profiler", "forward", "backward", "init", "\x00", "activations", "cpu"]
)
_numbers = st.one_of(
    st.integers(0, 9), st.integers(T0 - 9, T0 + 1009), st.integers(-(1 << 63), (1 << 63) - 1)
)


def _rows(good: list[dict[str, Any]]) -> st.SearchStrategy[list[dict[str, Any]]]:
    names = [name for name, value in good[0].items() if isinstance(value, int | str) or value is None]

    def value(name: str) -> st.SearchStrategy[Any]:
        if name in (
            "source",
            "device",
            "operator",
            "phase",
            "module",
            "kind",
            "name",
            "tenant",
            "sub",
            "via",
        ):
            return _words | st.none()
        if name in ("before_window", "gained", "backdated"):
            return st.booleans() | st.none()
        return _numbers | st.none()

    damage = st.sampled_from(names).flatmap(lambda name: st.tuples(st.just(name), value(name)))
    changes = st.lists(st.tuples(st.integers(0, len(good) - 1), damage), max_size=3)
    return changes.map(
        lambda made: [
            row | {name: new for at, (name, new) in made if at == index} for index, row in enumerate(good)
        ]
    )


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(_rows(full()["alloc"]), _rows([role(0, "parameters"), role(1, "gradients")]), _rows(marks()))
def test_any_damage_is_refused_or_sums(tmp_path: Path, allocs: Any, roles: Any, marked: Any) -> None:
    path = write(tmp_path / "a.zprof", [full()])
    for name, rows in (("alloc", allocs), ("role", roles), ("mark", marked)):
        put_table(path, name, rows)
    try:
        analysis = analyse_memory(load(path))
    except BadInput:
        return
    for memory in analysis.memory.per_rank:
        assert memory.peak_bytes == sum(memory.tenants.values()) + memory.untagged_bytes
        assert all(size >= 0 for size in memory.tenants.values())
    assert analysis.memory.per_rank or analysis.gaps
