"""Quantities with units: read exactly, or refused with what would have been right."""

import argparse
from collections.abc import Callable
from typing import Any

import pytest

from zprof.cli.options.planning_units import duration, factor, parameters, rate, size

Read = Callable[[str], Any]


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (size, "32GB", 32 * 10**9),
        (size, "40GiB", 40 * 2**30),
        (size, "0.5 TB", 5 * 10**11),
        (size, "1e3MB", 10**9),
        (size, "512B", 512),
        (rate, "100GB/s", 100e9),
        (rate, "800Gbit/s", 100e9),
        (rate, "12.5GB/s", 12.5e9),
        (rate, "1GiB/s", 2.0**30),
        (duration, "10us", 10_000),
        (duration, "10µs", 10_000),
        (duration, "0.5ms", 500_000),
        (duration, "2ns", 2),
        (parameters, "7.5e9", 7_500_000_000),
        (parameters, "7.5B", 7_500_000_000),
        (parameters, "1T", 10**12),
        (parameters, "350M", 350_000_000),
        (parameters, "12", 12),
        (factor, "x2", 2.0),
        (factor, "x0.5", 0.5),
    ],
)
def test_a_quantity(read: Read, text: str, value: float) -> None:
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "text"),
    [
        *(
            (size, text)
            for text in ("32", "32gb", "GB", "-1GB", "0GB", "1e99GB", "32GB/s", "nan", "infGB", "")
        ),
        *((rate, text) for text in ("100", "100GB", "100Gb/s", "0GB/s", "1GB/s/s", "x2")),
        *((duration, text) for text in ("10", "10u", "0us", "10 seconds", "1e20s")),
        *((parameters, text) for text in ("seven", "7.5b", "0", "-1", "1e18", "1e9x", "٣")),
        *((factor, text) for text in ("2", "x0", "x", "x-1", "2x", "x1e9", "xnan", "50%")),
    ],
)
def test_what_is_no_quantity_is_refused_with_an_example(read: Read, text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="such as"):
        read(text)


def test_a_long_text_is_not_said_back_whole() -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        size("9" * 10_000)
    assert len(str(refused.value)) < 120
