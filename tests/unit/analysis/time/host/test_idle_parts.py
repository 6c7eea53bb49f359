"""Idle time is split into disjoint parts that sum to it, each given to what the host did meanwhile."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from zprof.analysis.intervals import EMPTY, intervals, measure, union
from zprof.analysis.time.host_calls import HostCalls
from zprof.analysis.time.host_idle import MAX_GAP_AFTER_NS, IdlePart, split_cpu_idle, split_device_idle

MS = 1_000_000


def spans(*pairs):
    return intervals(*zip(*pairs, strict=True)) if pairs else EMPTY


def calls(**named):
    return HostCalls(**({"allocator": EMPTY, "sync": EMPTY, "loader": EMPTY} | named))


def lengths(shares):
    return {part: measure(found) for part, found in shares.items() if measure(found)}


drawn = st.lists(st.tuples(st.integers(0, 400), st.integers(1, 60)), max_size=8).map(
    lambda pairs: union(spans(*((begin, begin + length) for begin, length in pairs)))
)


@settings(max_examples=80)
@given(drawn, drawn, drawn, st.fixed_dictionaries(dict.fromkeys(
    ("allocator", "sync", "loader", "limiter", "optimizer", "collective"), drawn
)))  # fmt: skip
def test_the_parts_are_disjoint_and_sum_to_the_idle_time(idle, moving, pending, given_calls):
    host = HostCalls(**given_calls)
    for shares in (split_device_idle(idle, moving, pending, host), split_cpu_idle(idle, moving, host)):
        assert sum(measure(part) for part in shares.idle.values()) == measure(idle)
        assert np.array_equal(union(*shares.idle.values()), idle)
    exposed = split_device_idle(idle, moving, pending, host).exposed
    assert sum(measure(part) for part in exposed.values()) <= measure(moving)


def test_an_empty_queue_is_the_hosts_and_a_launch_on_its_way_is_not():
    idle = spans((10, 30), (50, 60))
    shares = split_device_idle(idle, EMPTY, spans((25, 30), (40, 60)), calls())
    assert lengths(shares.idle) == {IdlePart.LAUNCH: 20, IdlePart.OTHER: 10}


def test_the_gap_behind_a_wait_is_as_long_as_the_lead_that_was_lost():
    """The device ran 4 ms of the wait's 5; without the wait the host would have been 4 ms ahead."""
    idle = spans((4 * MS, 14 * MS))
    wait = calls(sync=spans((0, 5 * MS)))
    shares = lengths(split_device_idle(idle, EMPTY, EMPTY, wait).idle)
    assert shares == {IdlePart.SYNC: MS + MAX_GAP_AFTER_NS, IdlePart.LAUNCH: 9 * MS - MAX_GAP_AFTER_NS}
    idle = spans((100_000, 14 * MS))
    shares = lengths(split_device_idle(idle, EMPTY, EMPTY, wait).idle)
    assert shares[IdlePart.SYNC] == 5 * MS - 100_000 + 100_000


def test_a_wait_while_the_queue_was_empty_already_loses_nothing_behind_it():
    idle = spans((0, 14 * MS))
    shares = lengths(split_device_idle(idle, EMPTY, EMPTY, calls(sync=spans((MS, 2 * MS)))).idle)
    assert shares == {IdlePart.SYNC: MS, IdlePart.LAUNCH: 13 * MS}


def test_who_is_asked_first_takes_the_time():
    idle, all_of_it = spans((0, 10)), spans((0, 10))
    one = calls(loader=spans((0, 2)), allocator=spans((1, 4)), sync=spans((3, 6)), limiter=EMPTY)
    assert lengths(split_device_idle(idle, EMPTY, EMPTY, one).idle) == {
        IdlePart.LOADER: 2, IdlePart.ALLOCATOR: 2, IdlePart.SYNC: 2, IdlePart.LAUNCH: 4,
    }  # fmt: skip
    limited = calls(sync=spans((3, 6)), limiter=all_of_it)
    assert lengths(split_device_idle(idle, EMPTY, EMPTY, limited).idle) == {
        IdlePart.LIMITER: 3,
        IdlePart.LAUNCH: 7,
    }


def test_only_an_optimizer_that_launches_nothing_for_a_while_is_on_the_host():
    step = calls(optimizer=spans((0, 9 * MS)))
    idle = spans((0, MS), (6 * MS, 7 * MS - 1))
    assert lengths(split_device_idle(idle, EMPTY, EMPTY, step).idle) == {
        IdlePart.OPTIMIZER: MS, IdlePart.LAUNCH: MS - 1,
    }  # fmt: skip


def test_transfer_with_nothing_queued_behind_it_is_kept_beside_the_part():
    shares = split_device_idle(EMPTY, spans((0, 10)), spans((6, 9)), calls(loader=spans((0, 2))))
    assert lengths(shares.exposed) == {IdlePart.LOADER: 2, IdlePart.LAUNCH: 5}


def test_the_main_thread_of_a_cpu_rank():
    one = calls(loader=spans((0, 10)), collective=spans((20, 25)))
    shares = lengths(split_cpu_idle(spans((5, 40)), spans((30, 33)), one).idle)
    assert shares == {IdlePart.LOADER: 5, IdlePart.OTHER: 5, IdlePart.COPY: 3, IdlePart.LAUNCH: 22}


def test_the_longest_occurrence_of_a_part_is_that_of_one_call_with_its_gap():
    """A wait of 5 ms in pieces, kernels between, is one; another step has a shorter one."""
    idle = spans((0, 2 * MS), (3 * MS, 5 * MS), (20 * MS, 21 * MS), (100 * MS, 101 * MS))
    waits = calls(sync=spans((0, 5 * MS), (20 * MS, 21 * MS), (100 * MS, 101 * MS)))
    shares = split_device_idle(idle, EMPTY, EMPTY, waits)
    assert shares.largest_ns(IdlePart.SYNC, np.array([0, 50 * MS])).tolist() == [4 * MS, MS]
    shares = split_device_idle(idle, EMPTY, EMPTY, calls())
    assert shares.largest_ns(IdlePart.LAUNCH, np.array([0, 50 * MS])).tolist() == [2 * MS, MS]
