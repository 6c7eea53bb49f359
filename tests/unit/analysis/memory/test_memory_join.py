"""The join by address and time, on hand-made tables: each rule of ``join.py`` has a case."""

import numpy as np
from memory_tables import Tables, at

from zprof.model.tenants import Tenant


def test_a_storage_takes_the_block_that_holds_its_address_at_its_time() -> None:
    tables = Tables()
    tables.block(0x10, 100, 1, 50)
    tables.block(0x10, 200, 60, 90)
    tables.storage(7, 0x10, 200, 61, 90)
    lives = tables.lives()
    assert len(lives.blocks) == 2
    assert lives.blocks.bytes[lives.blocks.owner[0]] == 200


def test_a_note_up_to_two_microseconds_early_still_joins() -> None:
    early, too_early = Tables(), Tables()
    for tables, note in ((early, 8.5), (too_early, 7.5)):
        tables.block(0x10, 100, 10, 50)
        tables.storage(1, 0x10, 100, note, 50)
    assert len(early.lives().blocks) == 1
    assert len(too_early.lives().blocks) == 2


def test_a_note_up_to_two_hundred_microseconds_late_still_joins() -> None:
    late, too_late = Tables(), Tables()
    for tables, note in ((late, 249), (too_late, 251)):
        tables.block(0x10, 100, 10, 50)
        tables.storage(1, 0x10, 100, note, note)
    assert len(late.lives().blocks) == 1
    assert len(too_late.lives().blocks) == 2


def test_a_missing_free_is_closed_by_the_death_of_the_storage() -> None:
    tables = Tables()
    tables.block(0x10, 100, 10, None)
    tables.storage(1, 0x10, 100, 11, 40)
    lives = tables.lives()
    assert lives.blocks.end_ns.tolist() == [at(40)]
    assert not lives.blocks.open.any()


def test_a_missing_free_is_closed_where_the_address_is_handed_out_again() -> None:
    tables = Tables()
    tables.block(0x10, 100, 10, None)
    tables.block(0x10, 70, 30, 40)
    lives = tables.lives()
    assert lives.blocks.end_ns.tolist() == [at(30), at(40)]
    assert lives.peak().bytes == 100


def test_what_stays_open_is_an_upper_bound_and_named() -> None:
    tables = Tables()
    tables.block(0x10, 100, 10, None, operator="c10d::_reduce_scatter_base_")
    peak = tables.lives().peak()
    assert peak.open_bytes == 100
    assert peak.open_operators == ("c10d::_reduce_scatter_base_",)


def test_a_living_storage_is_no_open_end() -> None:
    tables = Tables()
    tables.block(0x10, 100, 10, None)
    tables.storage(1, 0x10, 100, 11, None)
    assert tables.lives().peak().open_bytes == 0


def test_memory_without_a_storage_is_told_by_its_operator() -> None:
    tables = Tables()
    tables.block(0x10, 1, 10, 20, operator="c10d::_reduce_scatter_base_")
    tables.block(0x20, 10, 10, 20, operator="aten::convolution")
    tables.block(0x30, 100, 10, 20, operator=None)
    peak = tables.lives().peak()
    assert peak.tenants[Tenant.COMMUNICATION_BUFFERS] == 1
    assert peak.tenants[Tenant.TEMPORARY_BUFFERS] == 10
    assert peak.untagged_bytes == 100


def test_what_was_there_before_is_untagged_until_a_role_claims_it() -> None:
    tables = Tables()
    tables.storage(1, 0x10, 100, -5, before=True, operator=None)
    tables.storage(2, 0x20, 30, -5, before=True, operator=None)
    tables.claim(2, -5, "parameters")
    peak = tables.lives().peak()
    assert peak.untagged_bytes == 100
    assert peak.tenants[Tenant.PARAMETERS] == 30


def test_a_storage_first_seen_late_was_there_from_the_begin() -> None:
    """DDP's buckets: born before the window, first seen as the operand of an all-reduce."""
    tables = Tables()
    tables.storage(1, 0x10, 100, 500, operator=None)
    tables.claim(1, 500, "communication_buffers")
    peak = tables.lives().peak()
    assert peak.time_ns == at(0)
    assert peak.tenants[Tenant.COMMUNICATION_BUFFERS] == 100


def test_two_storages_of_one_old_block_count_once() -> None:
    tables = Tables()
    tables.storage(1, 0x10, 100, -5, before=True, operator=None)
    tables.storage(2, 0x10, 60, 500, operator=None)
    tables.claim(2, 500, "gradients")
    peak = tables.lives().peak()
    assert peak.bytes == 100
    assert peak.tenants[Tenant.GRADIENTS] == 100


def test_an_address_handed_out_in_the_window_was_not_taken_before() -> None:
    tables = Tables()
    tables.block(0x10, 100, 10, 20)
    tables.storage(1, 0x10, 60, 500, operator=None)
    lives = tables.lives()
    assert sorted(lives.blocks.begin_ns.tolist()) == [at(10), at(500)]


def test_an_old_block_whose_death_was_not_seen_ends_where_its_address_is_handed_out() -> None:
    tables = Tables()
    tables.storage(1, 0x10, 100, -5, before=True, operator=None)
    tables.block(0x10, 40, 30, 60)
    lives = tables.lives()
    assert at(30) in lives.blocks.end_ns
    assert lives.peak().bytes == 100


def test_foreign_memory_stays_out_of_the_sum() -> None:
    tables = Tables()
    tables.storage(1, 0x10, 100, 5, source="foreign")
    tables.storage(2, 0x20, 7, 5)
    assert tables.lives().peak().bytes == 7


def test_without_allocator_events_the_storages_stand_for_themselves() -> None:
    tables = Tables()
    tables.storage(1, 0x10, 100, 5, 50)
    tables.storage(2, 0x10, 80, 60, 90)
    lives = tables.lives()
    assert not lives.has_allocator_events
    assert lives.blocks.bytes.tolist() == [100, 80]
    assert lives.peak().tenants[Tenant.TEMPORARY_BUFFERS] == 100


def test_join_scales_to_many_blocks_of_one_address() -> None:
    tables = Tables()
    for index in range(300):
        tables.block(0x10, index + 1, 2 * index, 2 * index + 1)
        tables.storage(index, 0x10, index + 1, 2 * index + 0.5, 2 * index + 1)
    owner = tables.lives().blocks.owner
    assert np.array_equal(owner, np.arange(300))
