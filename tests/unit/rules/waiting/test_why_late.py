"""Why a rank is late, and how long it is waited for, on the thresholds."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.analyses import MS, Scenario, analysis_of
from zprof.analysis.analysis import RunAnalysis
from zprof.model.time import LateReason
from zprof.rules.waiting.late_ranks import find_reason
from zprof.rules.waiting.straggler_rank import measure_waits

LATE = analysis_of(Scenario(delay_ms={1: 40}, noise_ms=0.0))


def called(reason: LateReason, share: float) -> RunAnalysis:
    """Rank 1 is late for this reason in so many of a hundred collectives, else for another one."""
    rows = LATE.collectives.iloc[:100].assign(wait_ns=MS, blamed_rank=1, origin_rank=1)
    reasons = np.where(np.arange(len(rows)) < 100 * share, reason.value, LateReason.HOST.value)
    return replace(LATE, collectives=rows.assign(late_reason=reasons))


@pytest.mark.parametrize(
    ("share", "calls"), [(0.45, False), (0.49, False), (0.5, True), (0.55, True), (0.6, True)]
)
@pytest.mark.parametrize("reason", [LateReason.DATA, LateReason.ALLOCATOR, LateReason.SYNC])
def test_half_of_the_waiting_says_which_call_it_is(reason: LateReason, share: float, *, calls: bool) -> None:
    found = find_reason(called(reason, share), (1,), compute_ns=0, copies_ns=0, idle_ns=1)
    assert found is (reason if calls else LateReason.HOST)


@pytest.mark.parametrize(
    ("compute", "copies", "idle", "reason"),
    [
        (5, 5, 5, LateReason.HOST),
        (6, 5, 5, LateReason.COMPUTE),
        (5, 6, 5, LateReason.MEMCPY),
        (6, 6, 5, LateReason.COMPUTE),
        (5, 6, 6, LateReason.HOST),
    ],
)
def test_what_it_has_most_of(compute: float, copies: float, idle: float, reason: LateReason) -> None:
    nothing = called(LateReason.SYNC, 0.0)
    assert find_reason(nothing, (1,), compute_ns=compute, copies_ns=copies, idle_ns=idle) is reason


def test_nobody_waits_and_nothing_is_said() -> None:
    quiet = called(LateReason.DATA, 1.0)
    quiet = replace(quiet, collectives=quiet.collectives.assign(wait_ns=0))
    assert find_reason(quiet, (1,), compute_ns=0, copies_ns=0, idle_ns=1) is LateReason.HOST


def test_groups_of_one_rank_wait_for_nobody() -> None:
    assert measure_waits(LATE, (1,)).bound_ns > 30 * MS
    alone = replace(LATE, collectives=LATE.collectives.assign(group_size=1))
    assert measure_waits(alone, (1,)).bound_ns == 0
