"""The order of collectives is predicted from its repetitions."""

import random
from collections.abc import Sequence

import pytest

from zprof.reference_engine.comm.collective import RepeatedSequence

FORWARD = ["g0", "g1", "g2"]
BACKWARD = ["g2", "r2", "g1", "r1", "g0", "r0"]
NO_SYNC = ["g2", "g1", "g0"]


def missed(past: RepeatedSequence, items: Sequence[str]) -> int:
    count = 0
    for item in items:
        count += past.expected != item
        past.append(item)
    return count


@pytest.mark.parametrize(
    "step",
    [
        FORWARD + BACKWARD,
        (FORWARD + BACKWARD) * 4 + ["norm"],
        (FORWARD + NO_SYNC) * 3 + FORWARD + BACKWARD,
        ["a"] * 5 + ["b"],
    ],
    ids=["plain", "clipped", "no_sync", "equal items"],
)
def test_a_period_is_known_from_its_third_repetition_on(step: Sequence[str]):
    past = RepeatedSequence(min_items=100)  # bounded: forgetting loses no prediction
    assert missed(past, step) > 0
    missed(past, step)
    assert missed(past, list(step) * 50) == 0


def test_equal_pasts_predict_the_same():
    one, other = RepeatedSequence(min_items=300), RepeatedSequence(min_items=300)
    for item in random.Random(1).choices("abc", k=1000):
        assert one.expected == other.expected
        one.append(item)
        other.append(item)
