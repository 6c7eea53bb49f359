"""When bytes are worth a finding, and how sure one can be of bytes whose owner is guessed."""

import pytest

from tests.support.peaks import MIB, memory_run, tenants, with_rank
from zprof.model.findings import Confidence
from zprof.rules.memory.largest_rank import LargestRank, find_largest_rank, is_worth, limit_confidence


def big(mib: float = 66, **fields: object) -> LargestRank:
    """A rank with a peak of so much."""
    found = find_largest_rank(with_rank(memory_run(tenants(activations=mib - 46)), **fields))
    assert found is not None
    return found


@pytest.mark.parametrize(("peak_mib", "least_mib"), [(66, 1), (1000, 10)])
def test_a_mebibyte_and_a_hundredth_of_the_peak_are_worth_it(peak_mib: float, least_mib: int) -> None:
    assert is_worth(least_mib * MIB, big(peak_mib))
    assert not is_worth(least_mib * MIB - 1, big(peak_mib))


@pytest.mark.parametrize(
    ("weak_ratio", "confidence"),
    [
        (0.09, Confidence.HIGH),
        (0.10, Confidence.HIGH),
        (0.11, Confidence.MEDIUM),
        (0.49, Confidence.MEDIUM),
        (0.50, Confidence.MEDIUM),
        (0.51, Confidence.LOW),
    ],
)
def test_what_is_guessed_is_no_certainty(weak_ratio: float, confidence: Confidence) -> None:
    assert limit_confidence(Confidence.HIGH, big(), weak_ratio) is confidence


def test_an_upper_bound_is_no_certainty_and_makes_nothing_surer() -> None:
    assert limit_confidence(Confidence.HIGH, big(upper_bound=True), 0.0) is Confidence.MEDIUM
    assert limit_confidence(Confidence.LOW, big(upper_bound=True), 0.0) is Confidence.LOW
