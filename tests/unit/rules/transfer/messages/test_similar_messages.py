"""Which messages are large, and which of a similar size, on the thresholds."""

import numpy as np
import pytest

from tests.support.link_runs import MS, gathers, link_run
from zprof.rules.transfer.bandwidth import ReachedBandwidth, is_similar, measure_group_rates

MIB = 1 << 20


@pytest.mark.parametrize(("small_mib", "large"), [(7, 4), (7.9, 4), (8, 8), (9, 8)])
def test_a_quarter_of_the_largest_is_large(small_mib: float, large: int) -> None:
    analysis = link_run(
        gathers(1, 32 * MIB, 4 * MS), gathers(1, round(small_mib * MIB), MS, begins_ns=100 * MS)
    )
    (rate,) = measure_group_rates(ReachedBandwidth(analysis))
    assert rate.count == large


def test_within_a_factor_of_four_sizes_are_similar() -> None:
    sizes = np.array([24.0, 24.9, 25.0, 30.0, 100.0, 380.0, 400.0, 401.0, 450.0])
    assert is_similar(sizes, 100).tolist() == [False, False, True, True, True, True, True, False, False]
