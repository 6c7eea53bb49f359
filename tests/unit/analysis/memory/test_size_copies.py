"""Copies of a set of sizes: found again whatever the set, and not found where there are none."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from zprof.analysis.memory.attribution.census import find_repeated_set, fit_copies, select_model_sizes

KIB = 1 << 10
#: Sizes that are no multiples of one another by 2 or 4, so that a copy has one explanation.
SETS = st.dictionaries(
    st.integers(3, 4000).map(lambda size: (2 * size + 1) * 4 * KIB),
    st.integers(1, 48),
    min_size=3,
    max_size=9,
)


@given(SETS, st.integers(0, 2), st.integers(0, 3), st.integers(0, 2))
def test_copies_of_a_set_are_found_by_scale(
    base: dict[int, int], same: int, double: int, quarter: int
) -> None:
    held: Counter[int] = Counter()
    for size, count in base.items():
        held.update({size: same * count, 2 * size: double * count, size // 4: quarter * count})
    fit = fit_copies(held, base)
    assert fit.copies == (same, double, 0, quarter)
    assert +Counter(fit.counts) == +held
    assert fit.matched_ratio == (1 if same + double + quarter else 0)


@given(SETS, st.integers(1, 4000))
def test_what_repeats_no_set_is_no_copy(base: dict[int, int], other: int) -> None:
    stranger = (2 * other + 1) * 3 * KIB * 64
    assert fit_copies({stranger: 5}, base).counts == {}


@given(SETS, st.integers(2, 3))
def test_a_set_that_repeats_is_divided(base: dict[int, int], copies: int) -> None:
    held = {size: copies * count for size, count in base.items()}
    found = find_repeated_set(held)
    assert (found.copies + 1) * sum(found.base.values()) == sum(held.values())
    assert found.copies + 1 >= copies


def test_one_model_is_one_set() -> None:
    layers = {9 << 20: 36, 9 << 18: 48, 30_720_000: 2, 3072: 25}
    assert find_repeated_set(layers).copies == 0


def test_masters_and_moments_in_fp32_are_three_copies_of_twice_the_size() -> None:
    weights = {9 << 20: 36, 9 << 17: 48, 30_720_000: 2, 3072: 25}
    held = weights | {2 * size: 3 * count for size, count in weights.items()}
    found = find_repeated_set(held)
    assert (found.base, found.copies, found.doubled) == (weights, 3, True)


def test_tables_and_single_small_blocks_are_no_part_of_a_model() -> None:
    weights = {9 << 20: 36, 9 << 18: 48, 30_720_000: 2, 3072: 25}
    assert select_model_sizes(weights | {32 * KIB: 24, 4 * KIB: 1}) == weights
