"""The difference of two runs: the cause that changed comes first, and each term that grew is claimed."""

import numpy as np
import pytest
from msgspec.structs import replace

from tests.support.analyses import Scenario
from tests.support.reports import slower
from tests.support.rule_runs import run_of
from zprof.analysis.columns import Columns
from zprof.causes import load_causes
from zprof.causes.blocking_sync import is_waiting_as_often
from zprof.diagnosis.change import attribute_change, find_unclaimed_change, is_cause_of_change
from zprof.diagnosis.diagnose import diagnose
from zprof.model.findings import Confidence, Evidence, Finding, SavingNote
from zprof.model.time import LEDGER_TERMS

MS = 1_000_000
CAUSES = load_causes()


def make(cause: str, low_ms: int, high_ms: int, confidence: Confidence = Confidence.HIGH) -> Finding:
    finding = slower().findings[0]
    return replace(finding, cause=cause, saving_ns=(low_ms * MS, high_ms * MS), confidence=confidence)


def test_what_was_as_bad_before_is_no_cause_of_the_difference() -> None:
    """The larger cause is in both runs; the smaller one is new."""
    old, new = make("checkpoint_regathers", 300, 330), make("accumulation_syncs", 380, 440)
    old_before = make("checkpoint_regathers", 295, 325)
    attributed = attribute_change(
        [replace(old, saving_ns=(500 * MS, 520 * MS)), new], [old], 430 * MS, CAUSES
    )
    assert [each.cause for each in attributed] == [new.cause, old.cause]
    (first, second) = attribute_change([old, new], [old_before], 430 * MS, CAUSES)
    assert (first.cause, first.change_ns) == (new.cause, (380 * MS, 440 * MS))
    assert second.change_ns == (-25 * MS, 35 * MS)
    assert (is_cause_of_change(first, 430 * MS), is_cause_of_change(second, 430 * MS)) == (True, False)


def test_a_stall_that_was_there_before_is_the_one_that_is_exposed() -> None:
    """A wait exposes a loader: which of the two is new is told by the loader's own time."""
    loader = make("data_loader", 20, 48)
    waits = replace(make("blocking_sync", 21, 49), saving_notes=(SavingNote.EXPOSES_A_STALL,))
    for lasting, first in (((), "data_loader"), ({"data_loader"}, "blocking_sync")):
        assert attribute_change([loader, waits], [], 34 * MS, CAUSES, lasting)[0].cause == first


def test_what_surely_costs_more_than_the_difference_was_there_before() -> None:
    """The baseline has it as well, though it was not found there: another cause adds the difference."""
    old, new = make("no_prefetch", 101, 146), make("copy_overhead", 40, 64)
    assert attribute_change([old, new], [], 52 * MS, CAUSES)[0].cause == new.cause
    assert attribute_change([old, new], [], 120 * MS, CAUSES)[0].cause == old.cause


@pytest.mark.parametrize(("counted", "first"), [(22, "straggler_rank"), (33, "blocking_sync")])
def test_a_cause_of_which_there_is_no_more_than_before_follows_what_makes_it_costly(
    counted: int, first: str
) -> None:
    waits, new = make("blocking_sync", 11, 18), make("straggler_rank", 8, 12)

    def of(count: int, finding: Finding) -> Finding:
        entry = Evidence(key="blocking_waits_per_step", what="", value=count, unit="count")
        return replace(finding, evidence=(entry,))

    before = of(22, make("blocking_sync", 2, 4))
    assert attribute_change([of(counted, waits), new], [before], 12 * MS, CAUSES)[0].cause == first


def test_the_order_stays_if_the_run_is_not_slower() -> None:
    findings = [make("no_prefetch", 50, 60), make("straggler_rank", 10, 12)]
    before = [make("no_prefetch", 50, 60)]
    assert [each.cause for each in attribute_change(findings, before, -5.0, CAUSES)] == [
        each.cause for each in findings
    ]


def test_each_term_that_grew_is_claimed_or_left() -> None:
    delta = dict.fromkeys(LEDGER_TERMS, 0.0) | {
        "compute_ns": 408.0 * MS,
        "exposed_transfer_ns": 420.0 * MS,
        "idle_ns": -20.0 * MS,
    }
    syncs = make("accumulation_syncs", 380, 440)
    guess = make("no_prefetch", 400, 400, Confidence.LOW)
    findings = attribute_change([syncs, guess], [], 808 * MS, CAUSES)
    left = find_unclaimed_change(delta, findings, CAUSES)
    assert left == {"compute_ns": 408 * MS, "exposed_transfer_ns": 10 * MS}


@pytest.mark.parametrize(
    ("now", "before", "is_as_often"),
    [(2, 2, True), (2, 3, True), (3, 2, False), (1, 0, False), (0, 2, False)],
)
def test_waits_are_as_many_as_before_or_more(now: int, before: int, *, is_as_often: bool) -> None:
    """Of so many waits per step and rank."""
    run = run_of()
    made = [
        replace(run, waits=Columns({"wait_ns": np.full(each * len(run.steps), MS)})) for each in (now, before)
    ]
    assert is_waiting_as_often(*made) is is_as_often


def test_a_link_that_was_as_slow_before_is_no_cause_of_the_difference() -> None:
    """What the user expects of the link holds for both runs."""
    run = run_of(Scenario(bytes_per_s=60e6))
    report = diagnose(run, run, expected_bus_bytes_per_s=6e9)
    changes = [each.change_ns for each in report.findings if each.cause == "low_bus_bandwidth"]
    assert [low <= 0 <= high for low, high in filter(None, changes)] == [True]
