"""Lateness of a rank in a step: against a plain loop over the collectives, and what is left out of it."""

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.matched_rows import collective
from tests.unit.analysis.time.blame.test_wait_shares import judged
from zprof.analysis.time.blame.judge import measure_lateness
from zprof.model.time import StepLateness

RANKS = (0, 1, 2)
begins = st.fixed_dictionaries({rank: st.integers(0, 5_000) for rank in RANKS})


def at(begin, instance=1, **more):
    """One collective, by the start of each rank."""
    spans = {rank: (instance * 10_000 + start, instance * 10_000 + 6_000) for rank, start in begin.items()}
    return collective(instance, spans, **{"ranks": RANKS, "step": 0, **more})


def found(*collectives):
    return measure_lateness(judged(*collectives))


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 3), begins), min_size=1, max_size=9))
def test_it_is_the_mean_over_the_collectives_of_a_step(drawn):
    expected = defaultdict(list)
    for step, begin in drawn:
        for rank, start in begin.items():
            expected[rank, step].append(start - min(begin.values()))
    entries = found(*(at(begin, number, step=step) for number, (step, begin) in enumerate(drawn)))
    assert {(e.rank, e.step): (e.collectives, e.mean_ns, e.largest_ns) for e in entries} == {
        place: (len(late), sum(late) // len(late), max(late)) for place, late in expected.items()
    }
    assert [(e.rank, e.step) for e in entries] == sorted(expected)


def test_a_late_rank_is_late_by_so_much():
    entries = found(at({0: 0, 1: 400, 2: 100}), at({0: 200, 1: 800, 2: 0}, 2))
    assert entries[1] == StepLateness(rank=1, step=0, collectives=2, mean_ns=600, largest_ns=800)


@pytest.mark.parametrize(
    "left_out",
    [
        {"kind": "recv", "peer_rank": 0},
        {"kind": "broadcast", "peer_rank": 0},
        {"first_of_window": True},
        {"ranks": (0, 1, 2, 3)},
    ],
    ids=str,
)
def test_what_tells_nothing_is_left_out(left_out):
    assert found(at({0: 0, 1: 4_000, 2: 100}, **left_out)) == ()
    both = found(at({0: 0, 1: 4_000, 2: 100}, **left_out), at({0: 0, 1: 500, 2: 0}, 2))
    assert [(e.rank, e.mean_ns) for e in both] == [(0, 0), (1, 500), (2, 0)]


def test_without_collectives_there_is_none():
    assert measure_lateness(judged(at({0: 0, 1: 1, 2: 2}))[:0]) == ()
