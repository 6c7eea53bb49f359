"""The short way over whole lives gives what the long way over single claims gives."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_tables import Tables, at

from zprof.analysis.memory import roles
from zprof.analysis.memory.roles import Segments, SingleOwnerBlocks, split_single_owner_blocks
from zprof.analysis.memory.tables import TENANT_CODES, Claims
from zprof.model.tenants import PRECEDENCE, Tenant

_claims = st.lists(
    st.tuples(
        st.integers(0, 6), st.integers(0, 5), st.sampled_from(PRECEDENCE), st.booleans(), st.booleans()
    ),
    max_size=20,
)


def tables_with(claims: list) -> Tables:
    tables = Tables()
    for generation in range(5):
        operator = None if generation == 4 else "aten.add.Tensor"
        tables.storage(generation, 0x10 * generation, 8, 10, 30 + generation, operator=operator)
    tables.storage(5, 0, 8, 12, 40, operator=None)  # a second storage of the block of generation 0
    tables.block(0x900, 8, 9, 40, operator="c10d::_reduce_scatter_base_")
    tables.storage(6, 0x900, 8, 12, 40, operator=None)
    for generation, time_us, tenant, backdated, gained in claims:
        tables.claim(
            generation, 10 + time_us, tenant.value, f"{tenant}{time_us}", backdated=backdated, gained=gained
        )
    return tables


def pieces(segments: Segments) -> set[tuple[object, ...]]:
    columns = (segments.block, segments.begin_ns, segments.end_ns, segments.tenant, segments.sub)
    return set(zip(*(column.tolist() for column in columns), strict=True))


def nothing_whole(blocks: object, claims: Claims, generation: object) -> SingleOwnerBlocks:
    none = np.empty(0, dtype=np.int64)
    return SingleOwnerBlocks(block=none, tenant=none, sub=none.astype(object), others=claims)


@settings(max_examples=40)
@given(_claims)
def test_both_ways_agree(claims: list) -> None:
    tables = tables_with(claims)
    short = tables.lives().segments
    usual, roles.split_single_owner_blocks = roles.split_single_owner_blocks, nothing_whole  # type: ignore[assignment]
    try:
        long = tables.lives().segments
    finally:
        roles.split_single_owner_blocks = usual
    assert pieces(short) == pieces(long)


def test_a_claim_weaker_than_what_the_block_is_anyway_changes_nothing() -> None:
    tables = tables_with([(6, 3, Tenant.ACTIVATIONS, True, True)])
    scratch = [segment for segment in pieces(tables.lives().segments) if segment[4] == "backend_scratch"]
    assert [segment[3] for segment in scratch] == [TENANT_CODES[Tenant.COMMUNICATION_BUFFERS]]


def test_claims_for_life_need_no_loop() -> None:
    tables = tables_with([(0, 3, Tenant.ACTIVATIONS, True, True), (1, 1, Tenant.GRADIENTS, False, True)])
    lives, claims = tables.lives(), tables.claims()
    whole = split_single_owner_blocks(lives.blocks, claims, np.arange(7))
    assert whole.tenant.tolist() == [TENANT_CODES[Tenant.ACTIVATIONS]]
    assert whole.others.generation.tolist() == [1]
    assert lives.blocks.begin_ns[whole.block].tolist() == [at(10)]
