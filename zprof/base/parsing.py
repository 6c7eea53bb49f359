"""Parse numbers and quantities that a user gives: counts, rank lists, sizes, rates, times, factors.

A GB is 1e9 bytes and a GiB 2**30. A string without a unit is rejected as ambiguous; a number, which only
Python callers can pass, is in bytes, bytes per second or nanoseconds. Each function raises BadInput for
anything else; the caller adds the name of the option or argument.
"""

import re
from collections.abc import Collection, Mapping
from numbers import Real

from zprof.base.errors import BadInput

_MAX_COUNT = 1_000_000
#: Names of the dimensions of a mesh, as in torchtitan and Megatron-Core.
MESH_NAMES = ("pp", "dp", "dp_replicate", "dp_shard", "cp", "tp", "ep")


def parse_count(given: int | str) -> int:
    """Parse an integer from 1 to a million."""
    value = parse_count_or_zero(given)
    if value == 0:
        raise BadInput("must be 1 or more")
    return value


def parse_count_or_zero(given: int | str) -> int:
    """Parse an integer from 0 to a million."""
    text = str(given)
    if (
        not (text.isascii() and text.isdigit())
        or int(text[:9]) > _MAX_COUNT
        or len(text) > len(str(_MAX_COUNT))
    ):
        raise BadInput(f"{text[:40]!r} is not an integer from 0 to {_MAX_COUNT:,}")
    return int(text)


def parse_positive(text: str) -> float:
    """Parse a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise BadInput(f"{text!r} is not a number above 0")
    return value


def parse_elements(text: str) -> int:
    """Parse a number of elements without a suffix, such as ``7e9``."""
    value = parse_positive(text)
    if not 1 <= value < 1e18:
        raise BadInput(f"{text!r} is not a number of elements")
    return round(value)


def parse_sizes(text: str, names: Collection[str]) -> dict[str, int]:
    """Parse named sizes in order, as ``pp=4,dp=2``."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = part.strip().partition("=")
        if name not in names or name in sizes:
            raise BadInput(f"{part[:40]!r}: expected {', '.join(names)}, each once, as {next(iter(names))}=4")
        sizes[name] = parse_count(size)
    return sizes


def parse_mesh(text: str) -> tuple[tuple[str, int], ...]:
    """Parse the sizes of a mesh, outermost dimension first, as ``pp=4,dp=2,tp=8``."""
    return tuple(parse_sizes(text, MESH_NAMES).items())


def parse_number_ranges(text: str) -> frozenset[int]:
    """Parse a list of ranges: ``3-5,8`` is 3, 4, 5 and 8."""
    numbers: set[int] = set()
    for part in text.split(","):
        low, _, high = part.strip().partition("-")
        try:
            first, last = int(low), int(high or low)
        except ValueError:
            first, last = 0, -1
        if not (0 <= first <= last and last - first < _MAX_COUNT) or len(numbers) > _MAX_COUNT:
            raise BadInput(f"{text[:40]!r} is not a list of numbers such as 3, 3-5 or 3,7")
        numbers.update(range(first, last + 1))
    return frozenset(numbers)


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
#: Relative tolerance for integers: 7.642e9 computed as 7.642 * 1e9 is not exact.
_INTEGER_TOLERANCE = 1e-9


def parse_size(given: float | str) -> int:
    """Parse a size in bytes: ``32GB``, ``40GiB``."""
    return round(_parse_quantity(given, _SIZES, "a size such as 32GB or 40GiB"))


def parse_rate(given: float | str) -> float:
    """Parse a rate in bytes per second: ``100GB/s``, ``800Gbit/s``."""
    return _parse_quantity(given, _RATES, "a rate such as 100GB/s or 800Gbit/s")


def parse_duration(given: float | str) -> int:
    """Parse a time in nanoseconds: ``10us``."""
    return round(_parse_quantity(given, _TIMES, "a time such as 10us or 0.5ms"))


def parse_parameter_count(given: float | str) -> int:
    """Parse a number of parameters: ``7.5e9``, ``7.5B``, ``1T``."""
    value = _parse_quantity(given, _COUNTS, "a number of parameters such as 7.5e9, 350M or 1T")
    if abs(value - round(value)) > _INTEGER_TOLERANCE * value:
        raise BadInput(f"{str(given)[:40]!r} is not an integer such as 350M: did you mean B or M?")
    return round(value)


def parse_factor(text: str) -> float:
    """Parse a factor: ``x2`` or ``x0.5``."""
    match = _FACTOR.fullmatch(text.strip())
    value = float(match[1]) if match else 0.0
    if value <= 0:
        raise BadInput(f"{text[:40]!r} is not a factor such as x2 or x0.5")
    return value


def _parse_quantity(given: float | str, units: Mapping[str, float], expected: str) -> float:
    quoted = repr(str(given)[:40])
    if isinstance(given, str):
        match = _NUMBER.fullmatch(given.strip())
        if match is None or match[2] not in units:
            raise BadInput(f"{quoted} is not {expected}")
        value = float(match[1]) * units[match[2]]
    elif isinstance(given, Real) and not isinstance(given, bool):
        value = given
    else:
        raise BadInput(f"{quoted} is not {expected}")
    if not 1 <= value < _MAX_QUANTITY:
        raise BadInput(f"{quoted} is out of range; expected {expected}")
    return float(value)
