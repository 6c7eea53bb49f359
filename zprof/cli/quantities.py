"""Parse numbers and quantities of the command line: counts, rank lists, sizes, rates, times, factors.

A GB is 1e9 bytes and a GiB 2**30.  A quantity without a unit is rejected as ambiguous.
"""

import argparse
import re
from collections.abc import Mapping

_MAX_COUNT = 1_000_000


def parse_count(text: str) -> int:
    """Parse a whole number from 1 to a million."""
    value = parse_count_or_zero(text)
    if value == 0:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


def parse_count_or_zero(text: str) -> int:
    """Parse a whole number from 0 to a million."""
    if (
        not (text.isascii() and text.isdigit())
        or int(text[:9]) > _MAX_COUNT
        or len(text) > len(str(_MAX_COUNT))
    ):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a count: a whole number up to {_MAX_COUNT:,}")
    return int(text)


def parse_positive(text: str) -> float:
    """Parse a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def parse_elements(text: str) -> int:
    """Parse a number of elements, such as ``7e9``."""
    value = parse_positive(text)
    if not 1 <= value < 1e18:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of elements")
    return round(value)


def parse_number_ranges(text: str) -> frozenset[int]:
    """Parse a list of ranges: ``3-5,8`` is 3, 4, 5 and 8."""
    found: set[int] = set()
    for part in text.split(","):
        low, _, high = part.strip().partition("-")
        try:
            first, last = int(low), int(high or low)
        except ValueError:
            first, last = 0, -1
        if not (0 <= first <= last and last - first < _MAX_COUNT) or len(found) > _MAX_COUNT:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is no list of numbers such as 3, 3-5 or 3,7")
        found.update(range(first, last + 1))
    return frozenset(found)


_NUMBER = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?(?:[eE][+-]?[0-9]{1,2})?)\s?([A-Za-zµ/]*)")
_FACTOR = re.compile(r"x([0-9]{1,9}(?:\.[0-9]{1,9})?)")
_SIZES = {
    "B": 1.0,
    **{f"{prefix}B": 10.0**power for prefix, power in zip("KMGT", (3, 6, 9, 12), strict=True)},
    **{f"{prefix}iB": 2.0**power for prefix, power in zip("KMGT", (10, 20, 30, 40), strict=True)},
}
_RATES = {
    **{f"{unit}/s": size for unit, size in _SIZES.items()},
    **{f"{prefix}bit/s": 10.0**power / 8 for prefix, power in zip("KMGT", (3, 6, 9, 12), strict=True)},
}
_TIMES = {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
_COUNTS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_MAX_QUANTITY = 1e18
#: Relative distance to a whole number that counts as whole: 7.642B is not exact as a float.
_WHOLE_TOLERANCE = 1e-9


def parse_size(text: str) -> int:
    """Parse a size in bytes: ``32GB``, ``40GiB``."""
    return round(_parse_quantity(text, _SIZES, "a size such as 32GB or 40GiB"))


def parse_rate(text: str) -> float:
    """Parse a rate in bytes per second: ``100GB/s``, ``800Gbit/s``."""
    return _parse_quantity(text, _RATES, "a rate such as 100GB/s or 800Gbit/s")


def parse_duration(text: str) -> int:
    """Parse a time in nanoseconds: ``10us``."""
    return round(_parse_quantity(text, _TIMES, "a time such as 10us or 0.5ms"))


def parse_parameter_count(text: str) -> int:
    """Parse a number of elements: ``7.5e9``, ``7.5B``, ``1T``."""
    value = _parse_quantity(text, _COUNTS, "a number of elements such as 7.5e9, 350M or 1T")
    if abs(value - round(value)) > _WHOLE_TOLERANCE * value:
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r} is no whole number of elements: did you mean B or M?"
        )
    return round(value)


def parse_factor(text: str) -> float:
    """Parse a factor: ``x2`` or ``x0.5``."""
    found = _FACTOR.fullmatch(text.strip())
    value = float(found[1]) if found else 0.0
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a factor such as x2 or x0.5")
    return value


def _parse_quantity(text: str, units: Mapping[str, float], what: str) -> float:
    found = _NUMBER.fullmatch(text.strip())
    if found is None or found[2] not in units:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not {what}")
    value = float(found[1]) * units[found[2]]
    if not 1 <= value < _MAX_QUANTITY:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is out of range, {what} is asked for")
    return value
