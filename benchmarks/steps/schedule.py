"""In which order the contenders are visited."""

import random
from collections.abc import Sequence


def visits(contenders: Sequence[str], *, seed: int, round_: int) -> list[str]:
    """A random order and its reverse (A B C C B A), the same on all ranks, another one each round."""
    order = list(contenders)
    random.Random(seed * 1_000_003 + round_).shuffle(order)
    return order + order[::-1]
