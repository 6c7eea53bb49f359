"""Quantities with units: read exactly, or refused with what would have been right."""

import argparse
from collections.abc import Callable
from typing import Any

import pytest

from zprof.cli.quantities import parse_duration, parse_factor, parse_parameter_count, parse_rate, parse_size

Read = Callable[[str], Any]


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (parse_size, "32GB", 32 * 10**9),
        (parse_size, "40GiB", 40 * 2**30),
        (parse_size, "0.5 TB", 5 * 10**11),
        (parse_size, "1e3MB", 10**9),
        (parse_size, "512B", 512),
        (parse_rate, "100GB/s", 100e9),
        (parse_rate, "800Gbit/s", 100e9),
        (parse_rate, "12.5GB/s", 12.5e9),
        (parse_rate, "1GiB/s", 2.0**30),
        (parse_duration, "10us", 10_000),
        (parse_duration, "10µs", 10_000),
        (parse_duration, "0.5ms", 500_000),
        (parse_duration, "2ns", 2),
        (parse_parameter_count, "7.5e9", 7_500_000_000),
        (parse_parameter_count, "7.5B", 7_500_000_000),
        (parse_parameter_count, "1T", 10**12),
        (parse_parameter_count, "350M", 350_000_000),
        (parse_parameter_count, "12", 12),
        (parse_factor, "x2", 2.0),
        (parse_factor, "x0.5", 0.5),
    ],
)
def test_a_quantity(read: Read, text: str, value: float) -> None:
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "text"),
    [
        *(
            (parse_size, text)
            for text in ("32", "32gb", "GB", "-1GB", "0GB", "1e99GB", "32GB/s", "nan", "infGB", "")
        ),
        *((parse_rate, text) for text in ("100", "100GB", "100Gb/s", "0GB/s", "1GB/s/s", "x2")),
        *((parse_duration, text) for text in ("10", "10u", "0us", "10 seconds", "1e20s")),
        *((parse_parameter_count, text) for text in ("seven", "7.5b", "0", "-1", "1e18", "1e9x", "٣")),
        *((parse_factor, text) for text in ("2", "x0", "x", "x-1", "2x", "x1e9", "xnan", "50%")),
    ],
)
def test_what_is_no_quantity_is_refused_with_an_example(read: Read, text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="such as"):
        read(text)


def test_a_long_text_is_not_said_back_whole() -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        parse_size("9" * 10_000)
    assert len(str(refused.value)) < 120
