"""Numbers on the command line, read and refused."""

import argparse

_MOST = 1_000_000


def count(text: str) -> int:
    """A whole number from 1 to a million."""
    value = count_or_none(text)
    if value == 0:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


def count_or_none(text: str) -> int:
    """A whole number from 0 to a million."""
    if not (text.isascii() and text.isdigit()) or int(text[:9]) > _MOST or len(text) > len(str(_MOST)):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a count: a whole number up to {_MOST:,}")
    return int(text)


def positive(text: str) -> float:
    """A number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def elements(text: str) -> int:
    """A number of elements, as ``7e9``."""
    value = positive(text)
    if not 1 <= value < 1e18:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of elements")
    return round(value)


def numbers(text: str) -> frozenset[int]:
    """``3-5,8`` as 3, 4, 5 and 8."""
    found: set[int] = set()
    for part in text.split(","):
        low, _, high = part.strip().partition("-")
        try:
            first, last = int(low), int(high or low)
        except ValueError:
            first, last = 0, -1
        if not (0 <= first <= last and last - first < _MOST) or len(found) > _MOST:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is no list of numbers such as 3, 3-5 or 3,7")
        found.update(range(first, last + 1))
    return frozenset(found)
