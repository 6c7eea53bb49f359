"""Parametrizations of which one half is fast, and the other slow."""

from collections.abc import Iterator

import pytest
from _pytest.mark import ParameterSet

from zprof.simulator.causes import Cause
from zprof.simulator.plan import Vendor


def on_one_vendor(*causes: Cause) -> Iterator[ParameterSet]:
    """Each cause on gloo's CPUs and on NVIDIA's GPUs: by turns the one is fast, and the other slow."""
    vendors = [Vendor.GLOO, Vendor.NVIDIA]
    for turn, cause in enumerate(causes):
        fast = vendors[turn % 2]
        for vendor in vendors:
            yield pytest.param(cause, vendor, marks=[] if vendor is fast else pytest.mark.slow)
