"""Find copies of one set of sizes in another: pure arithmetic on how often each size occurs.

A parameter, its gradient, its master and each moment have one shape, so their sizes are equal, or in the
ratio of their element sizes: a bf16 weight has moments of twice its size in fp32, an fp32 weight moments of a
quarter in 8 bit.
"""

from collections.abc import Mapping
from itertools import product

from msgspec import Struct

#: Ratios of a copy's size to the original's as (numerator, denominator), and the most copies of each.
SCALES: tuple[tuple[int, int], ...] = ((1, 1), (2, 1), (1, 2), (1, 4))
_MAX_COPIES = (2, 3, 2, 2)
#: Bytes that a copy lacks count this many times as much as bytes that it explains.
_MISSING_WEIGHT = 2
#: Share of the bytes that must occur in whole copies.
_WHOLE_RATIO = 0.98
#: Fewer sizes are not a set.
MIN_SIZES = 3
#: No model has more sizes.
MAX_SIZES = 2048
_MASTER_COPIES = (3, 2)
_MAX_EQUAL_COPIES = 4

SizeCounts = Mapping[int, int]
#: Smaller single blocks are inputs, flags and tables rather than weights.
MIN_SINGLE_BYTES = 1 << 20
_MAX_VECTOR_BYTES = 1 << 16
#: Sizes of at least one in so many of the largest are matrices.
_SMALL_RATIO = 16
_MIN_VECTORS = 4


class CopyFit(Struct, frozen=True, kw_only=True):
    """How many copies of a set, by scale, explain what is held; ``counts`` says of which sizes how many.

    ``matched_ratio``: share of the copies' bytes that is held.
    """

    copies: tuple[int, ...]
    counts: SizeCounts
    matched_ratio: float


def fit_copies(held: SizeCounts, base: SizeCounts) -> CopyFit:
    """Return the copies of ``base`` that explain ``held`` best; all zero if none do."""
    best, best_score = CopyFit(copies=(0,) * len(SCALES), counts={}, matched_ratio=0.0), 0
    for copies in product(*(range(most + 1) for most in _MAX_COPIES)):
        expected = _scale_set(base, copies)
        if not expected:
            continue
        matched = sum(size * min(count, held.get(size, 0)) for size, count in expected.items())
        total = sum(size * count for size, count in expected.items())
        score = matched - _MISSING_WEIGHT * (total - matched)
        if score > best_score:
            counts = {size: min(count, held.get(size, 0)) for size, count in expected.items()}
            best, best_score = (
                CopyFit(copies=copies, counts=counts, matched_ratio=matched / total),
                score,
            )
    return best


def _scale_set(base: SizeCounts, copies: tuple[int, ...]) -> dict[int, int]:
    scaled: dict[int, int] = {}
    for (numerator, denominator), number in zip(SCALES, copies, strict=True):
        for size, count in base.items() if number else ():
            if size % denominator == 0:
                key = size * numerator // denominator
                scaled[key] = scaled.get(key, 0) + number * count
    return scaled


class RepeatedSet(Struct, frozen=True, kw_only=True):
    """A set that occurs several times within what is held: ``base`` once, as the smallest element type.

    ``copies`` is the number of further copies, ``doubled``: they have twice the size.
    """

    base: SizeCounts
    copies: int
    doubled: bool


def find_repeated_set(held: SizeCounts) -> RepeatedSet:
    """Return the smallest set of which ``held`` consists in copies; ``held`` itself if it is one set.

    Nothing but the sizes is used: a model that consists of equal thirds looks like three copies.
    """
    whole = RepeatedSet(base=dict(held), copies=0, doubled=False)
    if len(held) < MIN_SIZES:
        return whole
    for copies in _MASTER_COPIES:
        # The set that occurs once, and ``copies`` times in twice its size; None if there is none.
        rest = dict(held)
        base: dict[int, int] = {}
        unexplained = 0
        for size in sorted(held):
            count = rest[size]
            wanted = copies * count
            if count <= 0:
                continue
            if rest.get(2 * size, 0) >= wanted:
                base[size] = count
                rest[2 * size] -= wanted
            else:
                unexplained += size * count
        total = sum(size * count for size, count in held.items())
        if len(base) >= MIN_SIZES and unexplained <= (1 - _WHOLE_RATIO) * total:
            return RepeatedSet(base=base, copies=copies, doubled=True)
    for number in range(_MAX_EQUAL_COPIES, 1, -1):
        # what occurs less often is no part of the set: an input, the logits, a workspace
        base = {size: count // number for size, count in held.items() if count >= number}
        is_whole = all(held[size] % number == 0 for size in base)
        if is_whole and len(base) >= max(MIN_SIZES, len(held) / 2):
            return RepeatedSet(base=base, copies=number - 1, doubled=False)
    return whole


def select_model_sizes(held: SizeCounts) -> dict[int, int]:
    """Return the sizes that look like a model's: repeated or large, and multiples of its vectors' size.

    A model has a vector per layer (a norm, a bias), and its size divides those of the matrices; a table of
    positions or a batch has another size.
    """
    chosen = {size: count for size, count in held.items() if count > 1 or size >= MIN_SINGLE_BYTES}
    if len(chosen) > MAX_SIZES:
        return {}
    large = [size for size in chosen if size * _SMALL_RATIO >= max(chosen)]
    vectors = {
        size: count
        for size, count in chosen.items()
        if size < _MAX_VECTOR_BYTES
        and count >= _MIN_VECTORS
        and size not in large
        and all(matrix % size == 0 for matrix in large)
    }
    if not vectors:
        return chosen
    vector = max(vectors, key=lambda size: (vectors[size], size))
    return {size: count for size, count in chosen.items() if size % vector == 0}
