"""Storages and allocator blocks joined by address and time."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.memory_tables import Tables, at
from zprof.analysis.memory.live_bytes import RankLives, compute_live_curve
from zprof.analysis.memory.tables import FOREVER
from zprof.model.tenants import Tenant

OLD = {"before": True, "operator": None}
SEEN = {"operator": None}


def lives_of(*rows: tuple[Any, ...]) -> RankLives:
    """Blocks are (address, size, begin, end), storages (generation, address, size, begin, end, options)."""
    tables = Tables()
    for row in rows:
        if len(row) == 4:
            tables.block(*row)
        else:
            tables.storage(*row[:5], **row[5])
    return tables.lives()


def lifetimes(lives: RankLives) -> list[tuple[float, float | None]]:
    """Begin and end of each block in microseconds after the window's begin."""
    blocks = lives.blocks
    ends = [None if end == FOREVER else (end - at(0)) / 1000 for end in blocks.end_ns.tolist()]
    begins = [max(0, begin - at(0)) / 1000 for begin in blocks.begin_ns.tolist()]
    return sorted(zip(begins, ends, strict=True), key=lambda life: life[0])


CASES: dict[str, tuple[list[tuple[Any, ...]], list[tuple[float, float | None]]]] = {
    "a storage takes the block that is live at its time": (
        [(0x10, 100, 1, 50), (0x10, 200, 60, 90), (7, 0x10, 200, 61, 90, {})],
        [(1, 50), (60, 90)],
    ),
    "noted 1.5 us early": ([(0x10, 100, 10, 50), (1, 0x10, 100, 8.5, 50, {})], [(10, 50)]),
    "noted 2.5 us early": ([(0x10, 100, 10, 50), (1, 0x10, 100, 7.5, 50, {})], [(7.5, 10), (10, 50)]),
    "noted 199 us late": ([(0x10, 100, 10, 50), (1, 0x10, 100, 249, 249, {})], [(10, 50)]),
    "noted 201 us late": ([(0x10, 100, 10, 50), (1, 0x10, 100, 251, 251, {})], [(10, 50), (251, 251)]),
    "the death of the storage ends a block without a free": (
        [(0x10, 100, 10, None), (1, 0x10, 100, 11, 40, {})],
        [(10, 40)],
    ),
    "the reuse of the address ends a block without a free": (
        [(0x10, 100, 10, None), (0x10, 70, 30, 40)],
        [(10, 30), (30, 40)],
    ),
    "the reuse of the address ends an old block": (
        [(1, 0x10, 100, -5, None, OLD), (0x10, 40, 30, 60)],
        [(0, 30), (30, 60)],
    ),
    "a storage first seen late was there from the begin": ([(1, 0x10, 100, 500, None, SEEN)], [(0, None)]),
    "but not where its address was handed out in the window": (
        [(0x10, 100, 10, 20), (1, 0x10, 60, 500, None, SEEN)],
        [(10, 20), (500, None)],
    ),
    "two storages of one old block": (
        [(1, 0x10, 100, -5, None, OLD), (2, 0x10, 60, 500, None, SEEN)],
        [(0, None)],
    ),
    "foreign memory is left out": (
        [(1, 0x10, 100, 5, None, {"source": "foreign"}), (2, 0x20, 7, 5, None, {})],
        [(5, None)],
    ),
    "without allocator events storages stand for themselves": (
        [(1, 0x10, 100, 5, 50, {}), (2, 0x10, 80, 60, 90, {})],
        [(5, 50), (60, 90)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_lifetimes_of_blocks(name: str) -> None:
    rows, expected = CASES[name]
    assert lifetimes(lives_of(*rows)) == expected


def test_a_block_without_any_end_is_open_and_named_by_its_operator() -> None:
    tables = Tables()
    tables.block(0x10, 100, 10, None, operator="c10d::_reduce_scatter_base_")
    peak = tables.lives().peak()
    assert (peak.open_bytes, peak.open_operators) == (100, ("c10d::_reduce_scatter_base_",))
    tables.storage(1, 0x10, 100, 11)
    assert tables.lives().peak().open_bytes == 0, "a living storage holds it"


def test_memory_without_a_claim_is_told_by_its_operator() -> None:
    tables = Tables()
    tables.block(0x10, 1, 10, 20, operator="c10d::_reduce_scatter_base_")
    tables.block(0x20, 10, 10, 20, operator="aten::convolution")
    tables.block(0x30, 100, 10, 20, operator=None)
    tables.storage(1, 0x40, 1_000, -5, **OLD)
    tables.storage(2, 0x50, 10_000, -5, **OLD)
    tables.claim(2, -5, "parameters")
    peak = tables.lives().peak()
    held = {tenant: size for tenant, size in peak.tenants.items() if size}
    assert held == {
        Tenant.COMMUNICATION_BUFFERS: 1, Tenant.TEMPORARY_BUFFERS: 10, Tenant.PARAMETERS: 10_000,
    }  # fmt: skip
    assert peak.untagged_bytes == 1_100


_stay = st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.booleans())


@settings(max_examples=25)
@given(st.lists(st.lists(_stay, min_size=1, max_size=5), min_size=1, max_size=4))
def test_each_free_ends_its_own_block(addresses: list[list[tuple[int, int, int, bool]]]) -> None:
    """On each address a block, a pause, the next block; some frees left no event."""
    tables, expected = Tables(), []
    for number, stays in enumerate(addresses):
        time_us = 0
        for index, (size, pause, length, seen) in enumerate(stays):
            begin_us, end_us = time_us + pause, time_us + pause + length
            tables.block(number + 1, size, begin_us, end_us if seen else None)
            following = index + 1 < len(stays)
            reused_us = end_us + stays[index + 1][1] if following else None
            end_ns = at(end_us) if seen else FOREVER if reused_us is None else at(reused_us)
            expected.append((at(begin_us), size, end_ns, not seen and not following))
            time_us = end_us
    blocks = tables.lives().blocks
    columns = (blocks.begin_ns, blocks.bytes, blocks.end_ns, blocks.open)
    assert sorted(zip(*(column.tolist() for column in columns), strict=True)) == sorted(expected)
    if not any(still_open for *_, still_open in expected):
        assert compute_live_curve(blocks.begin_ns, blocks.end_ns, blocks.bytes)[1][-1] == 0
