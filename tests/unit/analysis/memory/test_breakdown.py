"""Peaks by phase, module, tenant and kind, and the largest allocations: each against the slow way."""

from hypothesis import given, settings

from tests.support.memory_tables import TABLES, Tables, at
from zprof.analysis.memory.breakdown import (
    MAX_ALLOCATIONS,
    find_largest_allocations,
    find_module_peaks,
    find_phase_peaks,
    list_parts,
    split_by_basis,
)
from zprof.analysis.memory.live_bytes import RankLives, compute_live_curve
from zprof.model.memory import Basis


@settings(max_examples=20)
@given(TABLES)
def test_each_phase_is_what_looking_at_every_event_gives(tables: Tables) -> None:
    lives = tables.lives(end_us=64)
    window, peak = lives.timeline, lives.peak()
    times, live = compute_live_curve(lives.blocks.begin_ns, lives.blocks.end_ns, lives.blocks.bytes)
    curve = dict(zip(times.tolist(), live.tolist(), strict=True))
    expected: dict[str, int] = {}
    for moment in sorted({window.begin_ns, *curve, *(time_ns for time_ns, _ in window.phases)}):
        if window.begin_ns <= moment < window.end_ns:
            size = curve[max(past for past in curve if past <= moment)] if min(curve) <= moment else 0
            phase = window.phase_at(moment)
            expected[phase] = max(expected.get(phase, 0), size)
    found = {entry.phase: entry for entry in find_phase_peaks(0, lives)}
    assert {phase: entry.peak_bytes for phase, entry in found.items()} == expected
    largest = found[window.phase_at(peak.time_ns)]
    assert (largest.peak_bytes, largest.tenants) == (peak.bytes, peak.tenants)
    for entry in found.values():
        assert entry.peak_bytes == sum(entry.tenants.values()) + entry.untagged_bytes


def modules_of(lives: RankLives, peak_ns: int) -> dict[str, tuple[int, int]]:
    return {p.module: (p.peak_bytes, p.at_rank_peak_bytes) for p in find_module_peaks(0, lives, peak_ns)}


@settings(max_examples=20)
@given(TABLES)
def test_modules_are_what_counting_each_by_itself_gives(tables: Tables) -> None:
    lives = tables.lives(end_us=64)
    blocks, window, peak_ns = lives.blocks, lives.timeline, lives.peak().time_ns
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

    found = modules_of(lives, peak_ns)
    assert bool(found) == bool(rows)
    for module, sizes in found.items():
        assert sizes == (max(live(module, int(blocks.begin_ns[row])) for row in rows), live(module, peak_ns))


def test_parts_are_told_by_tenant_and_kind() -> None:
    tables = Tables()
    kinds = [
        ("activations", "saved"),
        ("activations", "saved"),
        ("activations", "input"),
        ("gradients", "saved"),
    ]
    for generation, (kind, size) in enumerate(zip(kinds, (8, 4, 2, 1), strict=True)):
        tables.storage(generation, 0x10 * generation, size, 10, 50)
        tables.claim(generation, 20, *kind)
    tables.storage(9, 0x900, 64, -5, before=True, operator=None)
    found = [(part.tenant, part.sub, part.bytes, part.basis) for part in list_parts(tables.lives(), at(30))]
    assert found == [
        ("untagged", "", 64, Basis.UNKNOWN),
        ("activations", "saved", 12, Basis.TAGGED),
        ("activations", "input", 2, Basis.TAGGED),
        ("gradients", "saved", 1, Basis.TAGGED),
    ]


@settings(max_examples=20)
@given(TABLES)
def test_parts_sum_to_the_peak_by_tenant_and_by_basis(tables: Tables) -> None:
    lives = tables.lives(end_us=64)
    peak = lives.peak()
    parts = list_parts(lives, peak.time_ns)
    for tenant, held in (*peak.tenants.items(), ("untagged", peak.untagged_bytes)):
        assert sum(part.bytes for part in parts if part.tenant == tenant) == held
    basis = split_by_basis(peak.bytes, peak.untagged_bytes)
    for kind in Basis:
        assert sum(part.bytes for part in parts if part.basis is kind) == basis.get(kind, 0)


def test_the_largest_allocations_have_stack_operator_module_and_basis() -> None:
    """The stack is that of the storage which an operator made, not of one that was only seen."""
    tables = Tables()
    tables.block(0x10, 100, 9, 90, operator="aten::mm")
    tables.storage(3, 0x10, 60, 9.5, 90, operator=None)
    tables.storage(4, 0x10, 100, 10, 90, module="blocks.0")
    tables.block(0x20, 50, 10, 90, operator=None)
    stacks = {3: ("wrong",), 4: ("a.py:3 forward", "a.py:9 <module>")}
    first, second = find_largest_allocations(5, tables.lives(), at(30), lambda generations: stacks)
    assert (first.rank, first.bytes, first.module, first.operator) == (5, 100, "blocks.0", "aten::mm")
    assert (first.stack, first.basis) == (stacks[4], Basis.TAGGED)
    assert (second.tenant, second.basis, second.stack, second.operator) == ("untagged", Basis.UNKNOWN, (), "")
    for generation in range(2 * MAX_ALLOCATIONS):
        tables.storage(10 + generation, 0x100 * (1 + generation), 200 + generation, 10, 50)
    found = find_largest_allocations(0, tables.lives(), at(30), lambda generations: {})
    largest = 200 + 2 * MAX_ALLOCATIONS
    assert [entry.bytes for entry in found] == list(range(largest - 1, largest - 1 - MAX_ALLOCATIONS, -1))
