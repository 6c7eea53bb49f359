"""The peak by kind, what that rests on, and the largest allocations with their stacks."""

from hypothesis import given, settings
from memory_random import TABLES
from memory_tables import Tables, at

from zprof.analysis.memory.breakdown import (
    MAX_ALLOCATIONS,
    MAX_PARTS,
    find_largest_allocations,
    list_parts,
    split_by_basis,
)
from zprof.model.memory import Basis


def test_parts_are_told_by_tenant_and_kind() -> None:
    tables = Tables()
    for generation, (tenant, sub, size) in enumerate(
        (
            ("activations", "saved", 8),
            ("activations", "saved", 4),
            ("activations", "input", 2),
            ("gradients", "saved", 1),
        )
    ):
        tables.storage(generation, 0x10 * generation, size, 10, 50)
        tables.claim(generation, 20, tenant, sub)
    tables.storage(9, 0x900, 64, -5, before=True, operator=None)
    found = [(part.tenant, part.sub, part.bytes, part.basis) for part in list_parts(tables.lives(), at(30))]
    assert found == [
        ("untagged", "", 64, Basis.UNKNOWN),
        ("activations", "saved", 12, Basis.TAGGED),
        ("activations", "input", 2, Basis.TAGGED),
        ("gradients", "saved", 1, Basis.TAGGED),
    ]


def test_more_kinds_than_can_be_shown_are_one_kind_of_their_tenant() -> None:
    tables = Tables()
    for generation in range(3 * MAX_PARTS):
        tables.storage(generation, 0x10 * generation, generation + 1, 10, 50)
        tables.claim(generation, 20, "activations", f"kind {generation}")
    parts = list_parts(tables.lives(), at(30))
    assert len(parts) == MAX_PARTS + 1
    assert (parts[-1].tenant, parts[-1].sub) == ("activations", "other")
    assert sum(part.bytes for part in parts) == tables.lives().peak().bytes


@settings(max_examples=50)
@given(TABLES)
def test_parts_sum_to_the_peak_and_so_does_what_they_rest_on(tables: Tables) -> None:
    lives = tables.lives(end_us=64)
    peak = lives.peak()
    parts = list_parts(lives, peak.time_ns)
    assert sum(part.bytes for part in parts) == peak.bytes
    for tenant, held in (*peak.tenants.items(), ("untagged", peak.untagged_bytes)):
        assert sum(part.bytes for part in parts if part.tenant == tenant) == held
    basis = split_by_basis(peak.bytes, peak.untagged_bytes)
    assert sum(basis.values()) == peak.bytes
    for kind in Basis:
        assert sum(part.bytes for part in parts if part.basis is kind) == basis[kind]


def test_the_largest_have_stack_operator_module_and_basis() -> None:
    """The stack is that of the storage which an operator made, not of one that was only seen."""
    tables = Tables()
    tables.block(0x10, 100, 9, 90, operator="aten::mm")
    tables.storage(3, 0x10, 60, 11, 90, operator=None)
    tables.storage(4, 0x10, 100, 10, 90, module="blocks.0")
    tables.block(0x20, 50, 10, 90, operator=None)
    asked: list[frozenset[int]] = []

    def stacks(generations: frozenset[int]) -> dict[int, tuple[str, ...]]:
        asked.append(generations)
        return {3: ("wrong",), 4: ("a.py:3 forward", "a.py:9 <module>")}

    first, second = find_largest_allocations(5, tables.lives(), at(30), stacks)
    assert asked == [frozenset({4})]
    assert (first.rank, first.bytes, first.module, first.operator) == (5, 100, "blocks.0", "aten::mm")
    assert first.stack == ("a.py:3 forward", "a.py:9 <module>")
    assert first.basis is Basis.TAGGED
    assert (second.tenant, second.basis, second.stack, second.operator) == ("untagged", Basis.UNKNOWN, (), "")


def test_only_the_largest_are_shown() -> None:
    tables = Tables()
    for generation in range(2 * MAX_ALLOCATIONS):
        tables.storage(generation, 0x10 * generation, generation + 1, 10, 50)
    found = find_largest_allocations(0, tables.lives(), at(30), lambda generations: {})
    assert [entry.bytes for entry in found] == list(range(2 * MAX_ALLOCATIONS, MAX_ALLOCATIONS, -1))
