"""The planner against jobs that ran (``benchmarks/data``): rows from which no constant comes.

The limits are those that the planner promises, not its errors of today.
"""

from statistics import median

import pytest

from benchmarks.planner_published import Outcome, list_outcomes, rank_correlation
from zprof.model.plan import Bound, Fit


@pytest.fixture(scope="module")
def reported() -> list[Outcome]:
    return list_outcomes("reported")[0]


def _size(errors: list[float | None]) -> float:
    return median(abs(error) for error in errors if error is not None)


def test_hardly_any_job_that_ran_is_called_too_large(reported: list[Outcome]) -> None:
    refused = [each.job for each in reported if each.fit is Fit.TOO_LARGE]
    assert len(refused) <= 0.02 * len(reported), refused


@pytest.mark.parametrize(
    ("source", "limit"), [("llm-foundry", 0.12), ("torchtitan", 0.20), ("Megatron-Bridge", 0.20)]
)
def test_throughput(reported: list[Outcome], source: str, limit: float) -> None:
    assert _size([each.speed_error for each in reported if each.source == source]) <= limit


def test_memory() -> None:
    """No constant of the memory comes from these rows, so that all of them count."""
    rows = [each for each in list_outcomes("all")[0] if each.memory_error is not None]
    assert len(rows) >= 15
    assert _size([each.memory_error for each in rows]) <= 0.10
    small = [abs(each.memory_error or 0) for each in rows if each.source == "MiniTrainBench"]
    assert max(small) <= 0.15


@pytest.mark.parametrize("device", ["a100", "a100-40gb", "h100"])
def test_jobs_of_a_machine_are_in_the_right_order(reported: list[Outcome], device: str) -> None:
    rows = [each for each in reported if (each.source, each.device) == ("llm-foundry", device)]
    assert (rank_correlation(rows) or 0) >= 0.9


def test_schemes_of_a_machine_are_in_the_right_order_and_launch_bound(reported: list[Outcome]) -> None:
    rows = [each for each in reported if each.source == "MiniTrainBench"]
    assert (rank_correlation(rows) or 0) >= 0.9
    assert {each.bound for each in rows} == {Bound.LAUNCH.value}
