"""Tables that no recorder writes: refused in one line, or analysed; never a crash, never a wrong sum."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.memory_runs import T0, full, marks, put_table, role, sample, write
from zprof.analysis.memory.analyse import MemoryAnalysis, analyse_memory
from zprof.base.errors import BadInput
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
        ("alloc", {"bytes": -1}),
        ("alloc", {"bytes": HUGE}),
        ("alloc", {"allocated_ns": -1}),
        ("alloc", {"freed_ns": HUGE}),
        ("alloc", {"source": None}),
        ("alloc", {"before_window": None}),
        ("role", {"time_ns": HUGE}),
        ("role", {"tenant": None}),
        ("mark", {"time_ns": -5}),
        ("mark", {"kind": None}),
        ("samples", {"time_ns": HUGE}),
    ],
    ids=str,
)
def test_impossible_values_are_refused_with_file_and_column(
    tmp_path: Path, name: str, change: dict[str, Any]
) -> None:
    with pytest.raises(BadInput) as refusal:
        damaged(tmp_path / "a.zprof", name, change)
    assert f"rank00000/{name}.parquet" in refusal.value.message
    assert next(iter(change)) in refusal.value.message
    assert "\n" not in refusal.value.message


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("alloc", {"bytes": 0}),
        ("alloc", {"freed_ns": T0 - 900}),
        ("alloc", {"generation": 1}),
        ("alloc", {"device": "\x1b[31mcuda:0"}),
        ("alloc", {"module": "." * 5000}),
        ("role", {"tenant": "landlord"}),
        ("role", {"sub": "\u202e" * 3000}),
        ("role", {"gained": False}),
        ("mark", {"kind": "window_middle"}),
        ("samples", {"peak_allocated_bytes": (1 << 63) - 1}),
    ],
    ids=str,
)
def test_odd_values_are_analysed(tmp_path: Path, name: str, change: dict[str, Any]) -> None:
    analysis = damaged(tmp_path / "a.zprof", name, change)
    for memory in analysis.memory.per_rank:
        assert memory.peak_bytes == sum(memory.tenants.values()) + memory.untagged_bytes
        assert memory.peak_bytes == sum(part.bytes for part in memory.parts)
    assert to_json(analysis.memory).isascii()
    assert analysis.memory.per_rank or analysis.gaps


TEXTS = {"source", "device", "operator", "phase", "module", "kind", "name", "tenant", "sub", "via"}
FLAGS = {"before_window", "gained", "backdated"}
words = st.sampled_from(
    ["", "storage", "profiler", "forward", "backward", "init", "\x00", "activations", "cpu"]
)
numbers = st.integers(0, 9) | st.integers(T0 - 9, T0 + 1009) | st.integers(-(1 << 63), (1 << 63) - 1)


def damaged_rows(good: list[dict[str, Any]]) -> st.SearchStrategy[list[dict[str, Any]]]:
    def change(name: str) -> st.SearchStrategy[Any]:
        value = words if name in TEXTS else st.booleans() if name in FLAGS else numbers
        return st.tuples(st.just(name), value | st.none())

    names = [name for name, value in good[0].items() if isinstance(value, int | str) or value is None]
    places = st.integers(0, len(good) - 1)
    changes = st.lists(st.tuples(places, st.sampled_from(names).flatmap(change)), max_size=3)
    return changes.map(
        lambda made: [
            row | {name: new for at, (name, new) in made if at == index} for index, row in enumerate(good)
        ]
    )


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    damaged_rows(full()["alloc"]),
    damaged_rows([role(0, "parameters"), role(1, "gradients")]),
    damaged_rows(marks()),
)
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
