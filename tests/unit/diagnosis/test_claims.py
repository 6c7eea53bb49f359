"""Savings are split so that none is promised twice, findings are ordered, and the rest stays unexplained."""

import pytest
from msgspec.structs import fields, replace

from tests.support.analyses import Scenario
from tests.support.rule_runs import claim, run_of
from zprof.causes import load_causes
from zprof.diagnosis.claims import (
    ExposedGroup,
    find_unexplained_loss,
    order_findings,
    split_savings,
)
from zprof.model.findings import Confidence, Evidence, Finding, Severity
from zprof.model.time import CollectiveTime, RankTime, StepTime

BANDWIDTH, PREFETCH, ONE_UNIT = "low_bus_bandwidth", "no_prefetch", "single_unit"
STRAGGLER, SYNCS = "straggler_rank", "accumulation_syncs"
REDUCE, LOW, MEDIUM = "fp32_reduce", Confidence.LOW, Confidence.MEDIUM
GATHER, REGATHER = "unhidden_optimizer_gather", "last_unit_regathered"
TERMS = (
    "compute_ns", "exposed_transfer_ns", "exposed_wait_ns", "exposed_memcpy_ns", "idle_ns", "unexplained_ns",
)  # fmt: skip


def rank(number: int = 0, **terms: int) -> RankTime:
    base = run_of(Scenario(steps=1)).time.per_rank[0]
    return replace(base, rank=number, **(dict.fromkeys(TERMS, 0) | terms))


@pytest.mark.parametrize(
    ("claims", "transfer_ns", "kept"),
    [
        # the smaller saving gets what is left; with no time left, an unexplained finding stays
        ([claim(BANDWIDTH, 40, 80), claim(PREFETCH, 50, 90)], 100, {PREFETCH: (50, 90), BANDWIDTH: (10, 10)}),
        ([claim(BANDWIDTH, 50, 90), claim(REDUCE, 30, 60)], 90, {BANDWIDTH: (50, 90), REDUCE: (0, 0)}),
        # the explaining finding claims first; without time an explained one is dropped, if it promised any
        ([claim(ONE_UNIT, 30, 60), claim(PREFETCH, 50, 90)], 100, {ONE_UNIT: (30, 60), PREFETCH: (40, 40)}),
        ([claim(ONE_UNIT, 30, 60), claim(PREFETCH, 50, 90)], 60, {ONE_UNIT: (30, 60)}),
        ([claim(ONE_UNIT, 30, 60), claim(PREFETCH, 0, 0)], 100, {ONE_UNIT: (30, 60), PREFETCH: (0, 0)}),
        # higher confidence claims first, and a guess explains nothing
        (
            [claim(REGATHER, 60, 95, LOW), claim(SYNCS, 50, 90, MEDIUM), claim(GATHER, 30, 60)],
            100,
            {GATHER: (30, 60), SYNCS: (40, 40), REGATHER: (0, 0)},
        ),
        (
            [claim(ONE_UNIT, 30, 60, LOW), claim(PREFETCH, 50, 90)],
            100,
            {PREFETCH: (50, 90), ONE_UNIT: (10, 10)},
        ),
        # a finding stands behind a surer one that explains it
        (
            [claim(PREFETCH, 50, 90, MEDIUM), claim(ONE_UNIT, 1, 2)],
            200,
            {ONE_UNIT: (1, 2), PREFETCH: (50, 90)},
        ),
        ([claim(PREFETCH, 50, 90), claim(ONE_UNIT, 1, 2)], 200, {PREFETCH: (50, 90), ONE_UNIT: (1, 2)}),
        (
            [claim(PREFETCH, 5, 9, LOW), claim(ONE_UNIT, 1, 2, MEDIUM)],
            20,
            {ONE_UNIT: (1, 2), PREFETCH: (5, 9)},
        ),
    ],
)
def test_savings_are_split(claims: list[Finding], transfer_ns: int, kept: dict[str, tuple[int, int]]) -> None:
    split = split_savings(claims, load_causes(), [rank(exposed_transfer_ns=transfer_ns)])
    assert [(finding.cause, finding.saving_ns) for finding in split] == list(kept.items())


def test_a_second_term_is_used_when_the_first_is_used_up() -> None:
    ranks = [rank(exposed_transfer_ns=100, exposed_wait_ns=20)]
    split = split_savings([claim(STRAGGLER, 10, 60), claim(PREFETCH, 50, 90)], load_causes(), ranks)
    assert [finding.saving_ns for finding in split] == [(50, 90), (10, 30)]


def test_a_saving_is_at_most_its_term_on_the_largest_rank() -> None:
    ranks = [rank(), rank(1, exposed_wait_ns=30)]
    (split,) = split_savings([claim(STRAGGLER, 40, 60)], load_causes(), ranks)
    assert split.saving_ns == (30, 30)


def test_when_ranks_wait_in_turn_a_term_is_the_mean_of_each_steps_largest() -> None:
    names = [field.name for field in fields(StepTime) if field.name not in ("rank", "step")]
    waits = [(of, number, 30 * (of == number)) for of in (0, 1) for number in (0, 1, 2)]
    steps = [
        StepTime(rank=of, step=number, **(dict.fromkeys(names, 0) | {"exposed_wait_ns": ns}))
        for of, number, ns in waits
    ]
    (split,) = split_savings([claim(STRAGGLER, 10, 60)], load_causes(), [rank(exposed_wait_ns=10)], steps)
    assert split.saving_ns == (10, 20)


def test_a_replayed_saving_is_not_cut() -> None:
    claims = [claim(BANDWIDTH, 40, 80), claim(PREFETCH, 50, 90)]
    split = split_savings(claims, load_causes(), [rank(exposed_transfer_ns=100)], (), {BANDWIDTH})
    assert {finding.cause: finding.saving_ns for finding in split}[BANDWIDTH] == (40, 80)


def test_order_is_spoiled_times_then_time_then_bytes_then_notes() -> None:
    spoiling = claim("measurement_artifact")
    note = claim("measurement_artifact", severity=Severity.LOW)
    big, small = claim(BANDWIDTH, 1, 9), claim(PREFETCH, 2, 6)
    guess = claim("data_loader", 50, 90, LOW)
    large = claim("activations_dominate", confidence=MEDIUM, frees=9)
    less, perhaps = (
        claim("buffers_dominate", frees=8),
        claim("wrong_stage", confidence=LOW, frees=99),
    )
    right = [spoiling, big, small, guess, large, less, perhaps, note]
    assert order_findings(reversed(right), load_causes()) == right
    assert [finding for finding in right if finding.invalidates_times] == [spoiling]


def test_waiting_of_some_ranks_and_idling_of_the_late_one_is_one_loss() -> None:
    late = [claim(STRAGGLER, 10, 25)]
    ranks = [rank(exposed_wait_ns=30), rank(1, idle_ns=32)]
    rest = find_unexplained_loss(late, load_causes(), ranks)
    assert (rest.rank, rest.total_ns, rest.terms["idle_ns"]) == (1, 7, 7)
    both = find_unexplained_loss(late, load_causes(), [rank(exposed_wait_ns=30, idle_ns=32)])
    assert (both.terms["exposed_wait_ns"], both.terms["idle_ns"]) == (5, 32)  # on one rank it counts once


def test_unexplained_terms_of_different_ranks_are_not_added() -> None:
    rest = find_unexplained_loss((), load_causes(), [rank(exposed_wait_ns=30), rank(1, idle_ns=32)])
    assert (rest.rank, rest.total_ns, rest.terms["exposed_wait_ns"]) == (1, 32, 0)


def test_a_rank_loses_what_a_finding_states_of_it() -> None:
    """The late rank idles longer than the mean rank gains."""
    stated = Evidence(key="own_time_excess", what="", value=31, unit="ns", rank=1)
    late = [replace(claim(STRAGGLER, 10, 25), evidence=(stated,))]
    rest = find_unexplained_loss(late, load_causes(), [rank(exposed_wait_ns=30), rank(1, idle_ns=32)])
    assert (rest.rank, rest.total_ns) == (0, 5)


@pytest.mark.parametrize(("idle_ns", "recurring"), [((60, 0, 0), 0), ((60, 30, 30), 30), ((30, 30, 60), 40)])
def test_what_only_the_first_step_loses_does_not_recur(idle_ns: tuple[int, ...], recurring: int) -> None:
    zero = {field.name: 0 for field in fields(StepTime)}
    steps = [StepTime(**(zero | {"step": step, "idle_ns": ns})) for step, ns in enumerate(idle_ns)]
    rest = find_unexplained_loss((), load_causes(), [rank(idle_ns=sum(idle_ns) // 3)], (), steps)
    assert rest.total_ns == sum(idle_ns) // 3
    assert sum(rest.recurring.values()) == recurring


def exposed(kind: str, group: str, ns: int) -> CollectiveTime:
    return CollectiveTime(
        kind=kind, group=group, dtype="bfloat16", count=1.0, bytes=1, total_ns=ns, exposed_ns=ns, wait_ns=0,
        transfer_ns=ns, launch_delay_ns=None, algbw_bytes_per_s=None, busbw_bytes_per_s=None, method="x",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("claims", "left"), [([], {"replica": 82, "shard": 30}), ([claim(PREFETCH, 20, 30)], {"replica": 52})]
)
def test_groups_keep_what_no_finding_can_have_claimed(claims: list[Finding], left: dict[str, int]) -> None:
    kinds = {"replica": "all_reduce", "shard": "all_gather"}
    seen = [
        exposed(kinds[group], group, ns) for group, ns in (("replica", 50), ("shard", 30), ("replica", 32))
    ]
    assert find_unexplained_loss(claims, load_causes(), [rank()], seen).groups == tuple(
        ExposedGroup(kind=kinds[group], group=group, ns=ns) for group, ns in left.items()
    )
