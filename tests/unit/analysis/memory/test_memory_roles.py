"""One tenant at each instant: precedence, backdating, drops, and what phases leave behind."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_tables import Tables, at

from zprof.analysis.memory import roles
from zprof.analysis.memory.live_bytes import compute_live_curve, sum_by_tenant
from zprof.analysis.memory.tables import TENANT_CODES
from zprof.model.tenants import PRECEDENCE, Tenant


def tenant_at(tables: Tables, time_us: float) -> set[Tenant]:
    held = sum_by_tenant(tables.lives().segments, at(time_us))
    return {tenant for tenant, code in TENANT_CODES.items() if held[code]}


def test_a_backdated_claim_holds_from_birth() -> None:
    tables = Tables()
    tables.storage(1, 0x10, 8, 10, 90, phase="backward")
    tables.claim(1, 60, "gradients")
    assert tenant_at(tables, 20) == {Tenant.GRADIENTS}


def test_any_other_claim_holds_from_its_own_time() -> None:
    tables = Tables()
    tables.storage(1, 0x10, 8, 10, 90)
    tables.claim(1, 20, "activations")
    tables.claim(1, 60, "communication_buffers", backdated=False)
    assert tenant_at(tables, 30) == {Tenant.ACTIVATIONS}
    assert tenant_at(tables, 70) == {Tenant.COMMUNICATION_BUFFERS}


@pytest.mark.parametrize("stronger", range(len(PRECEDENCE) - 1))
def test_the_stronger_claim_wins_whatever_their_order(stronger: int) -> None:
    pair = [PRECEDENCE[stronger], PRECEDENCE[stronger + 1]]
    for order in (pair, pair[::-1]):
        tables = Tables()
        tables.storage(1, 0x10, 8, 10, 90)
        for index, tenant in enumerate(order):
            tables.claim(1, 20 + index, tenant.value)
        assert tenant_at(tables, 50) == {pair[0]}


def test_precedence_is_that_of_the_model() -> None:
    """A bucket that is also the gradient is a gradient; one that is a parameter too, a parameter."""
    tables = Tables()
    tables.storage(1, 0x10, 8, 10, 90)
    tables.claim(1, 20, "communication_buffers", "allreduce")
    tables.claim(1, 30, "gradients", "grad")
    tables.claim(1, 40, "activations", "saved")
    assert tenant_at(tables, 50) == {Tenant.GRADIENTS}


def test_a_role_that_is_given_up_ends_there() -> None:
    tables = Tables()
    tables.storage(1, 0x10, 8, 10, 90)
    tables.claim(1, 20, "gradients")
    tables.claim(1, 60, "gradients", gained=False)
    assert tenant_at(tables, 50) == {Tenant.GRADIENTS}
    assert tenant_at(tables, 70) == {Tenant.TEMPORARY_BUFFERS}


def test_a_storage_gives_up_its_own_claim_only() -> None:
    """Two storage objects on one block, as a tensor shared through another library: both held a gradient."""
    tables = Tables()
    tables.block(0x10, 8, 9, 90)
    for generation in (1, 2):
        tables.storage(generation, 0x10, 8, 10, 90)
        tables.claim(generation, 20, "gradients")
    tables.claim(1, 60, "gradients", gained=False)
    assert tenant_at(tables, 70) == {Tenant.GRADIENTS}


def test_what_is_given_up_and_gained_at_one_time_is_held_on() -> None:
    for order in ((True, False), (False, True)):
        tables = Tables()
        tables.storage(1, 0x10, 8, 10, 90)
        tables.claim(1, 20, "gradients")
        for gained in order:
            tables.claim(1, 60, "gradients", backdated=False, gained=gained)
        assert tenant_at(tables, 50) == tenant_at(tables, 70) == {Tenant.GRADIENTS}


def test_a_claim_that_was_given_up_can_be_made_again() -> None:
    tables = Tables()
    tables.storage(1, 0x10, 8, 10, 90)
    tables.claim(1, 20, "gradients")
    tables.claim(1, 40, "gradients", gained=False)
    tables.claim(1, 60, "gradients", backdated=False)
    assert [tenant_at(tables, time_us) for time_us in (30, 50, 70)] == [
        {Tenant.GRADIENTS}, {Tenant.TEMPORARY_BUFFERS}, {Tenant.GRADIENTS},
    ]  # fmt: skip


def test_a_buffer_that_is_claimed_and_given_up_thousands_of_times() -> None:
    """One that every collective of a run uses; comparing each claim with each other took minutes."""
    tables, times = Tables(), 10_000
    tables.storage(1, 0x10, 8, 10, 10 * times)
    for index in range(1, times):
        tables.claim(1, 10 * index + 2, "communication_buffers", backdated=False)
        tables.claim(1, 10 * index + 6, "communication_buffers", gained=False)
    segments = tables.lives().segments
    assert len(segments.block) == 2 * times - 1
    assert (segments.tenant == TENANT_CODES[Tenant.COMMUNICATION_BUFFERS]).sum() == times - 1


def test_two_storages_of_one_block_share_their_claims() -> None:
    tables = Tables()
    tables.block(0x10, 8, 9, 90)
    tables.storage(1, 0x10, 8, 10, 90)
    tables.storage(2, 0x10, 8, 12, 90, operator=None)
    tables.claim(2, 20, "activations")
    assert tenant_at(tables, 15) == {Tenant.ACTIVATIONS}


def test_what_the_forward_leaves_for_the_backward_is_an_activation() -> None:
    tables = Tables()
    tables.phase(0, "forward")
    tables.phase(50, "backward")
    tables.storage(1, 0x10, 8, 10, 90, phase="forward")
    tables.storage(2, 0x20, 8, 10, 40, phase="forward")
    segments = tables.lives().segments
    assert segments.sub.tolist() == ["retained", "op_output"]
    assert segments.tenant.tolist() == [
        TENANT_CODES[Tenant.ACTIVATIONS],
        TENANT_CODES[Tenant.TEMPORARY_BUFFERS],
    ]


def test_what_a_recompute_leaves_is_an_activation_of_its_own_kind() -> None:
    tables = Tables()
    for time_us, phase in ((0, "forward"), (50, "backward"), (60, "recompute"), (70, "backward")):
        tables.phase(time_us, phase)
    tables.storage(1, 0x10, 8, 65, 90, phase="recompute")
    tables.storage(2, 0x20, 8, 65, 69, phase="recompute")
    assert tables.lives().segments.sub.tolist() == ["recomputed", "op_output"]


def test_an_activation_of_a_second_micro_batch_belongs_to_the_second_backward() -> None:
    tables = Tables()
    for time_us, phase in ((0, "forward"), (50, "backward"), (100, "forward"), (150, "backward")):
        tables.phase(time_us, phase)
    tables.storage(1, 0x10, 8, 110, 160, phase="forward")
    tables.storage(2, 0x20, 8, 110, 140, phase="forward")
    assert tables.lives().segments.sub.tolist() == ["retained", "op_output"]


def test_claimed_memory_is_not_called_retained() -> None:
    tables = Tables()
    tables.phase(0, "forward")
    tables.phase(50, "backward")
    tables.storage(1, 0x10, 8, 10, 90, phase="forward")
    tables.claim(1, 20, "communication_buffers", "gathered_param")
    assert tenant_at(tables, 60) == {Tenant.COMMUNICATION_BUFFERS}


def test_unknown_tenants_of_a_newer_run_are_left_out() -> None:
    tables = Tables()
    tables.storage(1, 0x10, 8, 10, 90)
    tables.claim(1, 20, "activations")
    tables.claim(1, 20, "a_tenant_of_tomorrow")
    assert tenant_at(tables, 50) == {Tenant.ACTIVATIONS}


_times = st.integers(0, 60)
_addresses = st.integers(1, 4)
_storages = st.lists(
    st.tuples(
        _addresses, st.integers(1, 9), _times, st.none() | st.integers(0, 30), st.booleans(), st.booleans()
    ),
    max_size=12,
)
_blocks = st.lists(
    st.tuples(_addresses, st.integers(1, 9), _times, st.none() | st.integers(0, 30)), max_size=12
)
_claims = st.lists(
    st.tuples(st.integers(0, 11), _times, st.sampled_from(PRECEDENCE), st.booleans(), st.booleans()),
    max_size=16,
)


def random_tables(storages: list, blocks: list, claims: list) -> Tables:
    tables = Tables()
    tables.phase(0, "forward")
    tables.phase(30, "backward")
    for generation, (address, size, begin, length, known, before) in enumerate(storages):
        begin = -1 if before else begin
        end = None if length is None else begin + length
        operator = "aten.add.Tensor" if known and not before else None
        tables.storage(generation, address, size, begin, end, operator=operator, before=before)
    for address, size, begin, length in blocks:
        tables.block(address, size, begin, None if length is None else begin + length)
    for generation, time_us, tenant, backdated, gained in claims:
        tables.claim(generation, time_us, tenant.value, backdated=backdated, gained=gained)
    return tables


@settings(max_examples=60)
@given(_storages, _blocks, _claims)
def test_tenants_sum_to_the_live_bytes_at_every_event(storages: list, blocks: list, claims: list) -> None:
    tables = random_tables(storages, blocks, claims)
    if not tables.alloc:
        return
    lives = tables.lives()
    times, live = compute_live_curve(lives.blocks.begin_ns, lives.blocks.end_ns, lives.blocks.bytes)
    claim_times = [at(time_us) for _, time_us, _, _, _ in claims]
    for time_ns in {*times.tolist(), *claim_times}:
        index = int(np.searchsorted(times, time_ns, side="right")) - 1
        expected = int(live[index]) if index >= 0 else 0
        held = sum_by_tenant(lives.segments, time_ns)
        assert held.sum() == expected
        assert (held >= 0).all()


def test_tenant_names() -> None:
    assert roles.tenant_name(0) == "parameters"
    assert roles.tenant_name(len(PRECEDENCE)) == "untagged"
