"""What holds for any tables: the order of rows means nothing, frees match, ranks are alike."""

from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from memory_runs import T0, alloc, marks, role, write
from memory_tables import Tables, at

from zprof.analysis.memory.analyse import analyse_memory
from zprof.analysis.memory.live_bytes import RankLives, compute_live_curve
from zprof.analysis.memory.tables import FOREVER
from zprof.model.memory import Memory
from zprof.model.tenants import Tenant
from zprof.run.reader import load


def pieces(lives: RankLives) -> list[tuple[Any, ...]]:
    parts = lives.segments
    columns = (parts.block, parts.begin_ns, parts.end_ns, parts.bytes, parts.tenant, parts.sub)
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


_crowded = st.lists(
    st.tuples(
        st.integers(0, 1), st.integers(1, 4), st.sampled_from([Tenant.GRADIENTS, Tenant.ACTIVATIONS]),
        st.sampled_from(["one", "other"]), st.booleans(), st.booleans(),
    ),
    max_size=8,
)  # fmt: skip


@settings(max_examples=60)
@given(_crowded, st.randoms(use_true_random=False))
def test_the_order_of_role_rows_means_nothing(crowded: list[Any], random: Random) -> None:
    """Many of them on one block at one time, gained and given up."""
    tables = Tables()
    for generation in (0, 1):
        tables.storage(generation, 0x10 + generation, 8, 2, 60)
    for generation, time_us, tenant, sub, backdated, gained in crowded:
        tables.claim(generation, time_us, tenant.value, sub, backdated=backdated, gained=gained)
    before = pieces(tables.lives())
    for reorder in (tables.role.reverse, lambda: random.shuffle(tables.role)):
        reorder()
        assert pieces(tables.lives()) == before


_stay = st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.booleans())
_addresses = st.lists(st.lists(_stay, min_size=1, max_size=5), min_size=1, max_size=4)


@settings(max_examples=50)
@given(_addresses)
def test_each_free_ends_its_own_block(addresses: list[list[tuple[int, int, int, bool]]]) -> None:
    """One address after the other: a block, a pause, the next block; some frees left no event."""
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


_rank = st.lists(
    st.tuples(st.integers(1, 999), st.sampled_from([*Tenant, None]), st.none() | st.integers(1, 900)),
    min_size=1,
    max_size=6,
)


def rank_of(rows: list[tuple[int, Tenant | None, int | None]]) -> dict[str, list[dict[str, Any]]]:
    return {
        "alloc": [
            alloc(number, size, freed=None if freed is None else T0 + freed)
            for number, (size, _, freed) in enumerate(rows)
        ],
        "role": [role(number, tenant.value) for number, (_, tenant, _) in enumerate(rows) if tenant],
        "mark": marks(),
    }


def analysed(folder: Path, *ranks: dict[str, list[dict[str, Any]]]) -> Memory:
    return analyse_memory(load(write(folder, list(ranks)))).memory


@settings(max_examples=8)
@given(_rank, _rank)
def test_two_ranks_may_change_places(first: Any, second: Any) -> None:
    with TemporaryDirectory() as folder:
        one = analysed(Path(folder) / "a.zprof", rank_of(first), rank_of(second))
        other = analysed(Path(folder) / "b.zprof", rank_of(second), rank_of(first))
    for memory, twin in zip(one.per_rank, reversed(other.per_rank), strict=True):
        assert memory == replace(twin, rank=memory.rank)
