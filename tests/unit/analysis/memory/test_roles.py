"""One tenant at each instant: the strongest claim, from birth where it is backdated, until it is given up."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.memory_tables import TABLES, Tables, at
from zprof.analysis.memory.live_bytes import RankLives, compute_live_curve, sum_by_tenant
from zprof.analysis.memory.tables import TENANT_CODES
from zprof.model.tenants import PRECEDENCE, Tenant


def tenants_at(lives: RankLives, time_us: float) -> set[Tenant]:
    held = sum_by_tenant(lives.segments, at(time_us))
    return {tenant for tenant, code in TENANT_CODES.items() if held[code]}


BORN, DIES = 10, 30
#: Storages by block: the second block has two, as a tensor shared through another library has.
BLOCK_OF = {0: 0, 1: 1, 2: 1, 3: 2}
claims = st.lists(
    st.tuples(
        st.sampled_from(sorted(BLOCK_OF)), st.integers(BORN + 1, DIES - 1), st.sampled_from(PRECEDENCE),
        st.booleans(), st.booleans(),
    ),
    max_size=14,
)  # fmt: skip


def claimed(drawn: list[Any]) -> Tables:
    tables = Tables()
    for generation, block in BLOCK_OF.items():
        if generation != 2:
            tables.block(0x10 * (block + 1), 1 << block, BORN, DIES)
        tables.storage(generation, 0x10 * (block + 1), 1 << block, BORN, DIES)
    for generation, time_us, tenant, backdated, gained in drawn:
        tables.claim(generation, time_us, tenant.value, f"{tenant}", backdated=backdated, gained=gained)
    return tables


def owner(drawn: list[Any], block: int, time_us: float) -> Tenant:
    """A claim holds until its own storage gives that tenant up later than it was made."""
    held = [Tenant.TEMPORARY_BUFFERS]
    for generation, made, tenant, backdated, gained in drawn:
        if not gained or BLOCK_OF[generation] != block:
            continue
        lost = [t for g, t, n, _, still in drawn if not still and (g, n) == (generation, tenant) and t > made]
        if (BORN if backdated else made) <= time_us < min(lost, default=DIES):
            held.append(tenant)
    return min(held, key=PRECEDENCE.index)


@settings(max_examples=30)
@given(claims, st.randoms(use_true_random=False))
def test_each_block_has_the_strongest_claim_that_holds(drawn: list[Any], random: Any) -> None:
    tables = claimed(drawn)
    random.shuffle(tables.role)
    segments = tables.lives().segments
    for time_us in range(BORN, DIES):
        held = sum_by_tenant(segments, at(time_us))
        expected = np.zeros_like(held)
        for block in range(3):
            expected[TENANT_CODES[owner(drawn, block, time_us)]] += 1 << block
        assert held.tolist() == expected.tolist(), time_us


@settings(max_examples=20)
@given(TABLES)
def test_tenants_sum_to_the_live_bytes_at_every_event(tables: Tables) -> None:
    lives = tables.lives(end_us=64)
    times, live = compute_live_curve(lives.blocks.begin_ns, lives.blocks.end_ns, lives.blocks.bytes)
    for time_ns in {*times.tolist(), *(row["time_ns"] for row in tables.role)}:
        index = int(np.searchsorted(times, time_ns, side="right")) - 1
        held = sum_by_tenant(lives.segments, time_ns)
        assert held.sum() == (int(live[index]) if index >= 0 else 0)
        assert (held >= 0).all()


def test_tenants_of_a_newer_version_are_left_out() -> None:
    tables = Tables()
    tables.storage(1, 0x10, 8, 10, 90)
    tables.claim(1, 20, "activations")
    tables.claim(1, 20, "a_tenant_of_tomorrow")
    assert tenants_at(tables.lives(), 50) == {Tenant.ACTIVATIONS}


def test_what_a_phase_leaves_for_the_backward_is_an_activation() -> None:
    tables = Tables()
    phases = ((0, "forward"), (50, "backward"), (60, "recompute"), (70, "backward"), (100, "forward"))
    for time_us, phase in (*phases, (150, "backward")):
        tables.phase(time_us, phase)
    spans = [(10, 90), (10, 40), (65, 90), (65, 69), (110, 160), (110, 140)]
    for number, (begin, end) in enumerate(spans):
        phase = "recompute" if begin == 65 else "forward"
        tables.storage(number, 0x10 * number, 8, begin, end, phase=phase)
    segments = tables.lives().segments
    subs = {int(block): str(sub) for block, sub in zip(segments.block, segments.sub, strict=True)}
    assert [subs[number] for number in range(6)] == [
        "retained", "op_output", "recomputed", "op_output", "retained", "op_output",
    ]  # fmt: skip
    tables.claim(0, 20, "communication_buffers", "gathered_param")
    assert tenants_at(tables.lives(), 60) == {Tenant.COMMUNICATION_BUFFERS}, "a claim comes first"
    assert tenants_at(tables.lives(), 120) == {Tenant.ACTIVATIONS, Tenant.TEMPORARY_BUFFERS}
