"""Twice the groups take a rule at most about twice as many calls."""

import sys
from pathlib import Path
from types import FrameType

import pytest

import zprof
from tests.support.link_runs import MS, gathers, link_run, on_hosts, reduces
from zprof.analysis.analysis import RunAnalysis
from zprof.rules.transfer.low_bus_bandwidth import low_bus_bandwidth

OURS = str(Path(zprof.__file__).parent)


def calls(analysis: RunAnalysis, baseline: RunAnalysis | None) -> int:
    """Return how many of zprof's own functions the rule calls."""
    count = 0

    def seen(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(OURS)

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        low_bus_bandwidth(analysis, baseline)
    finally:
        sys.setprofile(before)
    return count


def within_hosts(hosts: int) -> RunAnalysis:
    """A group of four ranks for each host; every second one has a slow link."""
    sent = []
    for host in range(hosts):
        group, each_ns = ",".join(str(4 * host + rank) for rank in range(4)), (1 + 3 * (host % 2)) * MS
        sent += [make(4, 32 << 20, each_ns, group=group) for make in (gathers, reduces)]
    return on_hosts(link_run(*sent), *(f"host{rank // 4}" for rank in range(4 * hosts)))


@pytest.mark.parametrize("compared", [pytest.param(False, marks=pytest.mark.slow), True])
def test_twice_the_groups_take_twice_the_calls(*, compared: bool) -> None:
    few, many = within_hosts(8), within_hosts(16)
    assert calls(many, many if compared else None) < 2.2 * calls(few, few if compared else None)
