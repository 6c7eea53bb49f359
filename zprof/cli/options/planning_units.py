"""Quantities with units on the command line, read strictly: a size, a rate, a time, a count, a factor.

A GB is 1e9 bytes and a GiB 2**30.  A number without a unit is refused: nobody can tell what it meant.
"""

import argparse
import re
from collections.abc import Mapping

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
_MOST = 1e18
#: What is nearer to a whole number is one: 7.642B is not exact as a float.
_WHOLE_RATIO = 1e-9


def size(text: str) -> int:
    """Bytes: ``32GB``, ``40GiB``."""
    return round(_read(text, _SIZES, "a size such as 32GB or 40GiB"))


def rate(text: str) -> float:
    """Bytes a second: ``100GB/s``, ``800Gbit/s``."""
    return _read(text, _RATES, "a rate such as 100GB/s or 800Gbit/s")


def duration(text: str) -> int:
    """Nanoseconds: ``10us``."""
    return round(_read(text, _TIMES, "a time such as 10us or 0.5ms"))


def parameters(text: str) -> int:
    """Elements: ``7.5e9``, ``7.5B``, ``1T``."""
    value = _read(text, _COUNTS, "a number of elements such as 7.5e9, 350M or 1T")
    if abs(value - round(value)) > _WHOLE_RATIO * value:
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r} is no whole number of elements: did you mean B or M?"
        )
    return round(value)


def factor(text: str) -> float:
    """``x2`` or ``x0.5``: times what it was."""
    found = _FACTOR.fullmatch(text.strip())
    value = float(found[1]) if found else 0.0
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a factor such as x2 or x0.5")
    return value


def _read(text: str, units: Mapping[str, float], what: str) -> float:
    found = _NUMBER.fullmatch(text.strip())
    if found is None or found[2] not in units:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not {what}")
    value = float(found[1]) * units[found[2]]
    if not 1 <= value < _MOST:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is out of range, {what} is asked for")
    return value
