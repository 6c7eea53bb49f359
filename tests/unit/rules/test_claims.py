"""No nanosecond of the ledger is promised twice."""

from dataclasses import fields, replace

from tests.support.analyses import Scenario, analysis_of
from zprof.model.findings import Cause, Confidence, Finding, Severity
from zprof.model.time import RankTime, StepTime
from zprof.rules.claims import order_findings, split_savings, spoils_times, unclaimed
from zprof.rules.registry import all_rules
from zprof.rules.rule import make_finding


def claim(cause: Cause, low: int, high: int, severity: Severity = Severity.HIGH) -> Finding:
    return make_finding(
        cause,
        sentence="",
        evidence=[],
        saving_ns=(low, high),
        severity=severity,
        confidence=Confidence.HIGH,
        fix="",
        disprove="",
    )


def rank(**terms: int) -> RankTime:
    zero = {name: 0 for name in ("exposed_transfer_ns", "exposed_wait_ns", "idle_ns")}
    return replace(analysis_of(Scenario(steps=1)).time.per_rank[0], **(zero | terms))


def savings(*claims: Finding, ranks: list[RankTime]) -> dict[Cause, tuple[int, int]]:
    return {
        entry.cause: entry.saving_ns for entry in split_savings(order_findings(claims), all_rules(), ranks)
    }


def test_the_second_claim_on_a_term_gets_what_is_left() -> None:
    claims = (claim(Cause.LOW_BUS_BANDWIDTH, 40, 80), claim(Cause.NO_PREFETCH, 50, 90))
    assert savings(*claims, ranks=[rank(exposed_transfer_ns=100)]) == {
        Cause.NO_PREFETCH: (50, 90),
        Cause.LOW_BUS_BANDWIDTH: (10, 10),
    }


def test_a_claim_takes_its_second_term_where_the_first_is_used_up() -> None:
    claims = (claim(Cause.STRAGGLER_RANK, 10, 60), claim(Cause.NO_PREFETCH, 50, 90))
    ranks = [rank(exposed_transfer_ns=100, exposed_wait_ns=20)]
    assert savings(*claims, ranks=ranks)[Cause.STRAGGLER_RANK] == (10, 30)


def test_no_claim_is_larger_than_its_term_on_the_rank_that_has_most() -> None:
    ranks = [rank(exposed_wait_ns=0), rank(exposed_wait_ns=30)]
    assert savings(claim(Cause.STRAGGLER_RANK, 40, 60), ranks=ranks)[Cause.STRAGGLER_RANK] == (30, 30)


def step(rank: int, number: int, **terms: int) -> StepTime:
    names = [field.name for field in fields(StepTime) if field.name not in ("rank", "step")]
    return StepTime(rank=rank, step=number, **(dict.fromkeys(names, 0) | terms))


def test_where_ranks_wait_in_turn_a_term_is_that_of_each_steps_largest() -> None:
    waits_in_turn = [
        step(rank, number, exposed_wait_ns=30 * (rank == number)) for rank in (0, 1) for number in (0, 1)
    ]
    claims = split_savings(
        [claim(Cause.STRAGGLER_RANK, 10, 60)], all_rules(), [rank(exposed_wait_ns=15)], waits_in_turn
    )
    assert claims[0].saving_ns == (10, 30)


def test_while_others_wait_the_late_rank_stands_idle_and_that_is_one_loss() -> None:
    found = [claim(Cause.STRAGGLER_RANK, 10, 25)]
    ranks = [rank(exposed_wait_ns=30), rank(idle_ns=32)]
    left = unclaimed(found, all_rules(), ranks)
    assert (left["exposed_wait_ns"], left["idle_ns"]) == (5, 7)


def test_order_is_by_saving_and_what_spoils_comes_first() -> None:
    note = claim(Cause.MEASUREMENT_ARTIFACT, 0, 0, Severity.LOW)
    spoiling = claim(Cause.MEASUREMENT_ARTIFACT, 0, 0)
    big, small = claim(Cause.LOW_BUS_BANDWIDTH, 1, 9), claim(Cause.NO_PREFETCH, 2, 6)
    assert order_findings([note, small, big]) == [big, small, note]
    assert order_findings([small, big, spoiling]) == [spoiling, big, small]
    assert spoils_times(spoiling)
    assert not spoils_times(note)
    assert not spoils_times(replace(big, saving_ns=(0, 0)))


def test_memory_comes_after_time_and_before_notes_the_sure_ones_first() -> None:
    def freeing(cause: Cause, bytes_freed: int, confidence: Confidence) -> Finding:
        return replace(claim(cause, 0, 0), saving_bytes=(0, bytes_freed), confidence=confidence)

    note = claim(Cause.MEASUREMENT_ARTIFACT, 0, 0, Severity.LOW)
    small = freeing(Cause.BUFFERS_DOMINATE, 8, Confidence.HIGH)
    large = freeing(Cause.ACTIVATIONS_DOMINATE, 9, Confidence.MEDIUM)
    guess = freeing(Cause.WRONG_STAGE, 99, Confidence.LOW)
    time = claim(Cause.NO_PREFETCH, 0, 1)
    assert order_findings([note, guess, small, large, time]) == [time, large, small, guess, note]


def test_what_explains_another_takes_its_time_first_though_it_saves_less() -> None:
    claims = (claim(Cause.SINGLE_UNIT, 30, 60), claim(Cause.NO_PREFETCH, 50, 90))
    assert savings(*claims, ranks=[rank(exposed_transfer_ns=100)]) == {
        Cause.SINGLE_UNIT: (30, 60),
        Cause.NO_PREFETCH: (40, 40),
    }


def test_an_explained_finding_of_which_nothing_is_left_was_only_a_signal() -> None:
    claims = (claim(Cause.SINGLE_UNIT, 30, 60), claim(Cause.NO_PREFETCH, 50, 90))
    assert set(savings(*claims, ranks=[rank(exposed_transfer_ns=60)])) == {Cause.SINGLE_UNIT}
    unexplained = (claim(Cause.LOW_BUS_BANDWIDTH, 50, 90), claim(Cause.FP32_REDUCE, 30, 60))
    left = savings(*unexplained, ranks=[rank(exposed_transfer_ns=90)])
    assert left[Cause.FP32_REDUCE] == (0, 0)


def test_the_surer_finding_claims_first_though_it_saves_less() -> None:
    likely = replace(claim(Cause.ACCUMULATION_SYNCS, 50, 90), confidence=Confidence.MEDIUM)
    guess = replace(claim(Cause.LAST_UNIT_REGATHERED, 60, 95), confidence=Confidence.LOW)
    sure = claim(Cause.UNHIDDEN_OPTIMIZER_GATHER, 30, 60)
    assert savings(guess, likely, sure, ranks=[rank(exposed_transfer_ns=100, compute_ns=0)]) == {
        Cause.UNHIDDEN_OPTIMIZER_GATHER: (30, 60),
        Cause.ACCUMULATION_SYNCS: (40, 40),
        Cause.LAST_UNIT_REGATHERED: (0, 0),
    }


def test_a_guess_explains_nothing() -> None:
    guess = replace(claim(Cause.SINGLE_UNIT, 30, 60), confidence=Confidence.LOW)
    ranks = [rank(exposed_transfer_ns=100)]
    assert savings(guess, claim(Cause.NO_PREFETCH, 50, 90), ranks=ranks) == {
        Cause.NO_PREFETCH: (50, 90),
        Cause.SINGLE_UNIT: (10, 10),
    }


def test_a_finding_stands_behind_a_surer_one_that_explains_it() -> None:
    likely = replace(claim(Cause.NO_PREFETCH, 50, 90), confidence=Confidence.MEDIUM)
    sure = claim(Cause.SINGLE_UNIT, 10, 20)
    ranks = [rank(exposed_transfer_ns=200)]
    assert [f.cause for f in split_savings([likely, sure], all_rules(), ranks)] == [
        Cause.SINGLE_UNIT,
        Cause.NO_PREFETCH,
    ]
    as_sure = claim(Cause.NO_PREFETCH, 50, 90)
    assert [f.cause for f in split_savings([as_sure, sure], all_rules(), ranks)] == [
        Cause.NO_PREFETCH,
        Cause.SINGLE_UNIT,
    ]


def test_a_guess_about_time_comes_after_what_is_sure() -> None:
    guess = replace(claim(Cause.NO_PREFETCH, 50, 90), confidence=Confidence.LOW)
    sure = claim(Cause.DATA_LOADER, 1, 2)
    assert order_findings([guess, sure]) == [sure, guess]


def test_medium_is_surer_than_low() -> None:
    """A single unit leaves nothing to prefetch: its finding stands before that, be it less sure than most."""
    guess = replace(claim(Cause.NO_PREFETCH, 50, 90), confidence=Confidence.LOW)
    surer = replace(claim(Cause.SINGLE_UNIT, 10, 20), confidence=Confidence.MEDIUM)
    kept = split_savings(order_findings([guess, surer]), all_rules(), [rank(exposed_transfer_ns=200)])
    assert [entry.cause for entry in kept] == [Cause.SINGLE_UNIT, Cause.NO_PREFETCH]


def test_what_promises_no_time_is_kept_beside_what_explains_it() -> None:
    """A range that ends at 0 is not one of which others left nothing."""
    claims = (claim(Cause.SINGLE_UNIT, 30, 60), claim(Cause.NO_PREFETCH, 0, 0))
    assert set(savings(*claims, ranks=[rank(exposed_transfer_ns=100)])) == {claim.cause for claim in claims}
