"""Savings are as wide as the noise of the steps; what rules share is computed once."""

from functools import cache

import pytest
from msgspec.structs import replace

from tests.support.analyses import MS
from tests.support.rule_runs import claim
from tests.support.whatif_pairs import analysed
from zprof.analysis.analysis import RunAnalysis
from zprof.diagnosis.find_causes import widen_by_noise
from zprof.model.plan import Change
from zprof.simulator.regular import make_job

JOB = make_job(ranks=3, steps=4, units=5, prefetch="off", vendor="gloo", bus=12.0)
AHEAD = Change(prefetch=1)


@cache
def run() -> RunAnalysis:
    return analysed(JOB)


@pytest.mark.parametrize(
    ("saving_ms", "noise_ms", "widened_ms"),
    [
        ((40, 80), 6, (34, 86)),
        ((4, 8), 100, (3, 10)),  # a quarter at most
        ((0, 0), 100, (0, 0)),
        ((40, 80), None, (40, 80)),
    ],
)
def test_savings_are_widened_by_noise(
    saving_ms: tuple[int, int], noise_ms: int | None, widened_ms: tuple[int, int]
) -> None:
    low, high = saving_ms
    widened = widen_by_noise(claim("no_prefetch", low * MS, high * MS), noise_ms and noise_ms * MS).saving_ns
    assert widened == tuple(ms * MS for ms in widened_ms)


def test_a_value_that_rules_share_is_computed_once_for_each_analysis() -> None:
    computed: list[RunAnalysis] = []

    def count_ranks(analysis: RunAnalysis) -> int:
        computed.append(analysis)
        return analysis.run.world_size

    first = replace(run())
    assert [first.compute_once(count_ranks) for _ in range(2)] == [3, 3]
    changed = replace(first, run=replace(first.run, world_size=2))
    assert changed.compute_once(count_ranks) == 2
    assert [each is first for each in computed] == [True, False]
