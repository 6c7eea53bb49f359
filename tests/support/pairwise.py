"""Pairwise-covering tables: few combinations, in which every two choices meet at least once.

Most faults of a system of switches come from one switch or from two that meet (Kuhn, Wallace, Gallo,
"Software fault interactions and implications for software testing", 2004).
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

Row = dict[str, str]
Pair = tuple[tuple[str, str], tuple[str, str]]


def covering_rows(
    factors: Mapping[str, Sequence[str]], possible: Callable[[Mapping[str, str]], bool]
) -> list[Row]:
    """Rows of one choice for each factor, such that every possible pair of choices is in a row.

    ``possible`` judges also rows that lack factors.  Greedy and without chance: the same table each time.
    """
    missing = possible_pairs(factors, possible)
    rows: list[Row] = []
    while missing:
        row = _completed(dict(next(iter(missing))), factors, missing, possible)
        rows.append(row)
        missing = {pair: None for pair in missing if not _contains(row, pair)}
    return rows


def possible_pairs(
    factors: Mapping[str, Sequence[str]], possible: Callable[[Mapping[str, str]], bool]
) -> dict[Pair, None]:
    """Every two choices of different factors that may meet, in a fixed order."""
    pairs = (
        ((one, a), (other, b))
        for one, other in combinations(factors, 2)
        for a in factors[one]
        for b in factors[other]
    )
    return {pair: None for pair in pairs if possible(dict(pair))}


def _completed(
    row: Row,
    factors: Mapping[str, Sequence[str]],
    missing: Mapping[Pair, None],
    possible: Callable[[Mapping[str, str]], bool],
) -> Row:
    for name in sorted(set(factors) - set(row), key=list(factors).index):
        choices = [choice for choice in factors[name] if possible(row | {name: choice})]
        row[name] = max(choices, key=lambda choice, name=name: _gain(row | {name: choice}, missing))
    return row


def _gain(row: Row, missing: Mapping[Pair, None]) -> int:
    return sum(_contains(row, pair) for pair in missing)


def _contains(row: Row, pair: Pair) -> bool:
    return all(row.get(name) == choice for name, choice in pair)
