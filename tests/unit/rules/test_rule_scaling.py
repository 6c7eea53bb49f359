"""Twice the ranks, groups or collectives take rules at most about twice as many calls."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

import zprof
from tests.support.link_runs import MS, gathers, link_run, reduces
from tests.support.rule_runs import run_of
from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.intervals import Int64s, intervals
from zprof.analysis.time.passes.phases import PhaseEvidence, locate_instants
from zprof.rules.registry import all_rules
from zprof.rules.transfer.low_bus_bandwidth import low_bus_bandwidth

MIB = 1 << 20
OURS = str(Path(zprof.__file__).parent)
#: Twice the size is twice the work; what does not grow with it makes the ratio smaller.
LINEAR = 2.2


def calls(ask: Callable[[], object]) -> int:
    """Return how many of zprof's own functions are called."""
    count = 0

    def seen(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(OURS)

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        ask()
    finally:
        sys.setprofile(before)
    return count


def on_hosts_of_four(analysis: RunAnalysis, ranks: int) -> RunAnalysis:
    return replace(analysis, hosts={rank: f"host{rank // 4}" for rank in range(ranks)})


def over_hosts(ranks: int) -> RunAnalysis:
    """All ranks in one group, over all hosts, on a slow link."""
    analysis = run_of(ranks=ranks, steps=3, units=3, prefetch=False, bytes_per_s=60e6)
    rows = analysis.collectives.assign(group=",".join(map(str, range(ranks))))
    return on_hosts_of_four(replace(analysis, collectives=rows), ranks)


def within_hosts(ranks: int) -> RunAnalysis:
    """A group a host; every second of them has a slow link."""
    sent = []
    for first in range(0, ranks, 4):
        group, each_ns = ",".join(map(str, range(first, first + 4))), (1 + 3 * (first // 4 % 2)) * MS
        sent += [
            gathers(4, 32 * MIB, each_ns, group=group),
            reduces(2, 32 * MIB, each_ns, group=group),
        ]
    return on_hosts_of_four(link_run(*sent), ranks)


@pytest.mark.slow
def test_one_group_of_twice_the_ranks() -> None:
    def ask(ranks: int) -> int:
        analysis = over_hosts(ranks)
        return calls(lambda: [rule.check(analysis, None) for rule in all_rules()])

    assert ask(16) < LINEAR * ask(8)


@pytest.mark.parametrize("compared", [pytest.param(False, marks=pytest.mark.slow), True])
def test_twice_the_groups(*, compared: bool) -> None:
    def ask(ranks: int) -> int:
        analysis = within_hosts(ranks)
        return calls(lambda: low_bus_bandwidth(analysis, analysis if compared else None))

    assert ask(64) < LINEAR * ask(32)


def test_passes_are_found_for_all_collectives_of_a_rank_at_once() -> None:
    spans = intervals(np.arange(0, 10_000, 100), np.arange(50, 10_050, 100))
    evidence = PhaseEvidence(forward=spans[:50], autograd=spans[50:], operators=spans[:50])

    def ask(count: int) -> int:
        times: Int64s = np.linspace(0, 9_999, count).astype(np.int64)
        return calls(lambda: locate_instants(evidence, times, intervals(times * 0, times * 0 + 10_000)))

    assert ask(1_000) < 1.1 * ask(100)
