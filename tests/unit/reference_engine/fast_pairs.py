"""All combinations of some choices; those that are needed for every two to meet are fast, the others slow."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import pytest

from tests.support.pairwise import covering_rows


def pairs_fast(factors: Mapping[str, Sequence[Any]]) -> Iterable[tuple[tuple[Any, ...], Sequence[Any]]]:
    """Every combination, and its marks."""
    numbers = {name: [str(at) for at in range(len(choices))] for name, choices in factors.items()}
    fast = {tuple(int(row[name]) for name in factors) for row in covering_rows(numbers, lambda _: True)}
    for at in product(*(range(len(choices)) for choices in factors.values())):
        chosen = tuple(choices[index] for index, choices in zip(at, factors.values(), strict=True))
        yield chosen, () if at in fast else (pytest.mark.slow,)
