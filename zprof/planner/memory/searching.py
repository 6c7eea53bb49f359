"""The largest whole number that fits, where what fits at n fits at every smaller number."""

from collections.abc import Callable

#: A size at which the search stops growing: more than any machine holds.
MOST = 10**18


def largest_that_fits(size_of: Callable[[int], int], budget: int, *, most: int = MOST) -> int:
    """The largest n in 0..most with ``size_of(n) <= budget``; 0 where not even 1 fits.

    ``size_of`` does not fall.  Asks it about log2(n) times, first at powers of two and then between the last
    that fits and the first that does not: twice where a straight line through both crosses the budget
    (on a line that is the answer and its neighbour), then in their middle.
    """
    low, low_size, high = 0, 0, 1
    while high <= most and (high_size := size_of(high)) <= budget:
        low, low_size, high = high, high_size, high * 2
    if high > most:
        high, high_size = most + 1, budget + 1
        if low == most:
            return most
    return _between(size_of, budget, (low, low_size), (high, high_size))


def largest_near(size_of: Callable[[int], int], budget: int, guess: int, *, most: int = MOST) -> int:
    """As ``largest_that_fits``, from a guess in 1..most: asks it, its neighbour, and what is further off.

    For a ``size_of`` that costs much at every number that is asked on the way.
    """
    size, step = size_of(guess), 1
    fits = size <= budget
    inner = outer = (guess, size)
    while (outer[1] <= budget) is fits:
        inner, asked = outer, outer[0] + (step if fits else -step)
        if asked > most:
            outer = (most + 1, budget + 1)
        elif asked < 1:
            outer = (0, 0)
        else:
            outer = (asked, size_of(asked))
        step *= 2
    return _between(size_of, budget, inner, outer) if fits else _between(size_of, budget, outer, inner)


def _between(
    size_of: Callable[[int], int], budget: int, fitting: tuple[int, int], larger: tuple[int, int]
) -> int:
    """The largest that fits, from a number that does and one that does not, each with its size."""
    (low, low_size), (high, high_size) = fitting, larger
    while high - low > 1:
        for guess in (_crossing, _crossing, _middle):
            asked = min(max(guess(low, low_size, high, high_size, budget), low + 1), high - 1)
            size = size_of(asked)
            if size <= budget:
                low, low_size = asked, size
            else:
                high, high_size = asked, size
            if high - low <= 1:
                break
    return low


def _crossing(low: int, low_size: int, high: int, high_size: int, budget: int) -> int:
    return low + (budget - low_size) * (high - low) // max(high_size - low_size, 1)


def _middle(low: int, low_size: int, high: int, high_size: int, budget: int) -> int:
    return (low + high) // 2
