"""The confusion matrix counts what is there, what came first, and what its range holds."""

from typing import Any

from benchmarks.diagnosis_own import Outcome, format_healthy_table, format_matrix, tabulate_outcomes


def an_outcome(**changed: Any) -> Outcome:
    usual: dict[str, Any] = {
        "cause": "no_prefetch",
        "vendor": "nvidia",
        "seed": 0,
        "strength": 1.0,
        "first": "no_prefetch",
        "others": (),
        "wall_ns": 100.0,
        "true_ns": 10.0,
        "saving_ns": (5, 10),
    }
    return Outcome(**(usual | changed))


def test_a_range_holds_its_ends_and_nothing_beyond() -> None:
    assert an_outcome(true_ns=5.0).is_priced
    assert an_outcome(true_ns=10.0).is_priced
    assert not an_outcome(true_ns=4.9).is_priced
    assert not an_outcome(true_ns=10.1).is_priced
    assert not an_outcome(saving_ns=None).is_priced
    assert an_outcome(true_ns=None, saving_ns=None).is_priced


def test_a_cause_below_a_fiftieth_of_the_step_is_not_there() -> None:
    assert an_outcome(true_ns=2.0).is_there
    assert not an_outcome(true_ns=1.9).is_there
    assert an_outcome(true_ns=None).is_there


def test_what_is_there_and_not_first_or_not_within_its_range_is_missed() -> None:
    assert not an_outcome().is_missed
    assert an_outcome(true_ns=20.0).is_missed
    assert an_outcome(first="straggler_rank").is_missed
    assert not an_outcome(first=None, true_ns=1.0, saving_ns=None).is_missed


def test_rows_count_each_job_once() -> None:
    outcomes = [
        an_outcome(),
        an_outcome(true_ns=20.0),
        an_outcome(first="straggler_rank", saving_ns=None),
        an_outcome(first=None, saving_ns=None),
        an_outcome(first="straggler_rank", true_ns=1.0, saving_ns=None),
        an_outcome(first=None, true_ns=1.0, saving_ns=None),
        an_outcome(vendor="gloo", true_ns=0.0, first=None, saving_ns=None),
    ]
    nvidia, gloo = tabulate_outcomes(outcomes)
    assert (nvidia["jobs"], nvidia["there"], nvidia["first"], nvidia["priced"]) == (6, 4, 2, 1)
    assert nvidia["taken_for"] == {"straggler_rank": 1, "nothing": 1}
    assert nvidia["accused_without_cost"] == {"straggler_rank": 1}
    assert (gloo["jobs"], gloo["there"]) == (1, 0)
    (line,) = [line for line in format_matrix([nvidia, gloo]).splitlines() if "no_prefetch" in line]
    assert line == "| no_prefetch | 2 of 4, 1 | costs nothing there | straggler_rank 1, nothing 1 |"


def test_a_healthy_job_that_accuses_somebody_is_shown() -> None:
    healthy = [
        an_outcome(cause="none", true_ns=None, saving_ns=None, first=first)
        for first in (None, None, "blocking_sync")
    ]
    assert "| none, nvidia | 3 | blocking_sync 1 |" in format_healthy_table(tabulate_outcomes(healthy))
    assert "| none, nvidia | 2 | 0 |" in format_healthy_table(tabulate_outcomes(healthy[:2]))
