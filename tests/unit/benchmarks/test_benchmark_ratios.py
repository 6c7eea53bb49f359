"""Paired ratios: the median of rounds, and an interval that holds without assumptions."""

import math
import random
from collections import Counter
from statistics import median

import pytest

from benchmarks.engine import compute_paired_ratio, find_interval_rank
from benchmarks.steps.measure import order_visits


def test_a_ratio_pairs_each_round_with_its_own() -> None:
    # Both rounds slow down together: the ratio must not see it.
    ratio = compute_paired_ratio([1.0, 10.0, 100.0], [2.0, 20.0, 200.0])
    assert ratio.median == 0.5


def test_the_ratio_is_of_rounds_not_of_medians() -> None:
    subject, peer = [1.0, 2.0, 30.0], [10.0, 2.0, 3.0]
    assert compute_paired_ratio(subject, peer).median == 1.0
    assert median(subject) / median(peer) != 1.0


@pytest.mark.parametrize(("rounds", "rank"), [(1, None), (5, None), (6, 1), (8, 1), (9, 2), (12, 3), (20, 6)])
def test_interval_ranks_are_those_of_the_binomial(rounds: int, rank: int | None) -> None:
    assert find_interval_rank(rounds) == rank
    if rank is not None:
        outside = 2 * sum(math.comb(rounds, k) for k in range(rank)) / 2**rounds
        assert outside <= 0.05 < outside + 2 * math.comb(rounds, rank) / 2**rounds


def test_intervals_enclose_the_median_as_often_as_they_say() -> None:
    drawn = random.Random(1)
    hits = 0
    for _ in range(2000):
        ratio = compute_paired_ratio([drawn.lognormvariate(0.0, 0.5) for _ in range(12)], [1.0] * 12)
        assert ratio.interval is not None
        hits += ratio.interval[0] <= 1.0 <= ratio.interval[1]
    assert 0.94 <= hits / 2000 <= 0.98  # 0.961 by the binomial


def test_rounds_that_do_not_pair_up_are_refused() -> None:
    with pytest.raises(ValueError, match="3 rounds of the subject and 2 of the peer"):
        compute_paired_ratio([1.0, 2.0, 3.0], [1.0, 2.0])


def test_a_round_visits_all_twice_around_its_middle() -> None:
    order = order_visits(["a", "b", "c"], seed=0, round_=4)
    assert order == order[::-1]
    assert Counter(order) == {"a": 2, "b": 2, "c": 2}
    # Each stands on average in the middle: what drifts evenly in a round weighs the same for all.
    places = {name: sum(place for place, other in enumerate(order) if other == name) for name in "abc"}
    assert set(places.values()) == {5}


def test_rounds_differ_and_ranks_agree() -> None:
    orders = [tuple(order_visits(list("abcdef"), seed=7, round_=round_)) for round_ in range(10)]
    assert len(set(orders)) > 5
    assert orders == [tuple(order_visits(list("abcdef"), seed=7, round_=round_)) for round_ in range(10)]
