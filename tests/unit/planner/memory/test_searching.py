"""The search against a scan of all numbers."""

from hypothesis import given, settings
from hypothesis import strategies as st

from zprof.planner.memory.largest_model import largest_near, largest_that_fits


@settings(max_examples=60)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=60), st.integers(0, 2000), st.data())
def test_search_finds_what_a_scan_finds(growth: list[int], budget: int, data: st.DataObject) -> None:
    sizes = [0]
    for step in growth:
        sizes.append(sizes[-1] + step)
    most = data.draw(st.integers(0, len(growth)), label="most")
    expected = max((n for n in range(1, most + 1) if sizes[n] <= budget), default=0)
    assert largest_that_fits(sizes.__getitem__, budget, most=most) == expected
    if most:
        guess = data.draw(st.integers(1, most), label="guess")
        assert largest_near(sizes.__getitem__, budget, guess, most=most) == expected


def test_a_right_guess_asks_its_neighbour_only() -> None:
    asked: list[int] = []

    def size_of(count: int) -> int:
        asked.append(count)
        return 10 * count

    assert largest_near(size_of, 70_005, 7_000) == 7_000
    assert asked == [7_000, 7_001]


@settings(max_examples=50)
@given(st.integers(1, 10**15), st.integers(0, 10**18), st.integers(1, 1000))
def test_search_asks_seldom(rate: int, fixed: int, times: int) -> None:
    asked = []

    def size_of(count: int) -> int:
        asked.append(count)
        return fixed + rate * count

    budget = fixed + rate * times * times
    assert largest_that_fits(size_of, budget) == times * times
    assert len(asked) <= (times * times).bit_length() + 4
