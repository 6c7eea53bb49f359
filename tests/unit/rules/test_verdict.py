"""The verdict follows the interval, not the mean alone."""

import pytest

from tests.support.analyses import MS, Scenario, analysis_of
from zprof.model.report import Comparison, StepTimeChange
from zprof.model.report import VerdictStatus as Status
from zprof.rules.verdict import judge

RUN = analysis_of(Scenario(steps=1))


@pytest.mark.parametrize(
    ("change_ms", "interval_ms", "status"),
    [
        (30, (10, 50), Status.SLOWER),
        (30, (-2, 60), Status.INCONCLUSIVE),
        (1.9, (1, 4), Status.OK),
        (2, (1, 4), Status.SLOWER),
        (0, (-4, 4), Status.OK),
        (0, (-6, 6), Status.INCONCLUSIVE),
        (-30, (-50, -10), Status.OK),
    ],
)
def test_status(change_ms: float, interval_ms: tuple[float, float], status: Status) -> None:
    """Baseline 100 ms a step."""
    low, high = interval_ms
    comparison = Comparison(
        baseline="a",
        ledger_delta={"compute_ns": int(change_ms * MS), "idle_ns": 0},
        memory_delta={},
        step_time=StepTimeChange(
            a_ns=100 * MS, b_ns=int((100 + change_ms) * MS), ci95=(int(low * MS), int(high * MS))
        ),
    )
    verdict = judge(RUN.run, RUN.time, comparison, findings=(), gaps=())
    assert verdict.status is status
    assert verdict.sentence.startswith(f"{status.value.upper()} ")
    assert f"[{low:+.1f}, {high:+.1f}]" in verdict.sentence
