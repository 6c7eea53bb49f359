"""Gathers that a step repeats: each is named by one rule, from a threshold on, and priced by its exposure."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.support.analyses import MS
from tests.support.repeats import MEGABYTE, Move, analysis_with, gather, reduce
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.gaps import Gap
from zprof.rules.volume.accumulation_regathers import accumulation_regathers
from zprof.rules.volume.checkpoint_regathers import checkpoint_regathers
from zprof.rules.volume.last_unit_regathered import last_unit_regathered
from zprof.rules.volume.needless_reshard_after_forward import needless_reshard_after_forward

Rule = Callable[[RunAnalysis, RunAnalysis | None], Finding | Gap | None]
RULES: dict[Cause, Rule] = {
    Cause.ACCUMULATION_REGATHERS: accumulation_regathers,
    Cause.CHECKPOINT_REGATHERS: checkpoint_regathers,
    Cause.LAST_UNIT_REGATHERED: last_unit_regathered,
    Cause.NEEDLESS_RESHARD_AFTER_FORWARD: needless_reshard_after_forward,
}
UNITS = ("a", "b", "c")


def forward(micro_batch: int = 0, exposed_ms: float = 0.0) -> list[Move]:
    return [gather(unit, micro_batch, "forward", exposed_ms) for unit in UNITS]


def backward(
    micro_batch: int = 0, exposed_ms: float = 0.0, times: int = 1, last_ms: float = 0.0
) -> list[Move]:
    moves = []
    for unit in reversed(UNITS):
        exposed = last_ms if unit == "c" else exposed_ms
        between = 19.0 if unit == "c" else 40.0
        moves += [gather(unit, micro_batch, "backward", exposed, between) for _ in range(times)]
        moves.append(reduce(unit, micro_batch))
    return moves


def named(moves: Sequence[Move]) -> set[Cause]:
    analysis = analysis_with(moves)
    answers = {cause: rule(analysis, None) for cause, rule in RULES.items()}
    assert not [answer for answer in answers.values() if isinstance(answer, Gap)]
    return {cause for cause, answer in answers.items() if answer is not None}


def found(rule: Rule, analysis: RunAnalysis) -> Finding:
    answer = rule(analysis, None)
    assert isinstance(answer, Finding), answer
    return answer


def test_hidden_gathers_are_healthy() -> None:
    assert named([*forward(), *backward()]) == set()
    assert named([*forward(), *backward(), *forward(1), *backward(1)]) == set()
    assert named([*forward(), *backward(times=2)]) == set()


def test_each_gather_has_one_rule() -> None:
    assert named([*forward(), *backward(exposed_ms=3.0)]) == {Cause.NEEDLESS_RESHARD_AFTER_FORWARD}
    assert named([*forward(), *backward(last_ms=3.0)]) == {Cause.LAST_UNIT_REGATHERED}
    assert named([*forward(), *backward(), *forward(1, 3.0), *backward(1, 3.0, last_ms=3.0)]) == {
        Cause.ACCUMULATION_REGATHERS
    }
    several = [*forward(), *backward(exposed_ms=3.0, times=2, last_ms=3.0)]
    assert named(several) == set(RULES) - {Cause.ACCUMULATION_REGATHERS}


def test_the_first_gather_is_needed_however_long_it_takes() -> None:
    assert named([*forward(exposed_ms=4.0), *backward()]) == set()


def test_the_last_unit_with_more_compute_between_is_like_the_others() -> None:
    """20 ms of forward are three units: from 20 ms on there was something to hide under."""
    moves = [*forward(), gather("c", 0, "backward", 3.0, between_ms=20.0), *backward()[1:]]
    assert named(moves) == {Cause.NEEDLESS_RESHARD_AFTER_FORWARD}


@pytest.mark.parametrize(
    ("cause", "worth_ms", "moves"),
    [
        (Cause.ACCUMULATION_REGATHERS, 3.0, lambda ms: [*forward(), *backward(), *forward(1, ms / 3)]),
        (
            Cause.CHECKPOINT_REGATHERS,
            2.0,
            lambda ms: [*forward(), *backward(), gather("a", 0, "backward", ms)],
        ),
        (Cause.LAST_UNIT_REGATHERED, 2.0, lambda ms: [*forward(), *backward(last_ms=ms)]),
        (Cause.NEEDLESS_RESHARD_AFTER_FORWARD, 2.0, lambda ms: [*forward(), *backward(exposed_ms=ms / 2)]),
    ],
)
def test_threshold(cause: Cause, worth_ms: float, moves: Callable[[float], list[Move]]) -> None:
    assert named(moves(worth_ms)) == set()
    assert named(moves(worth_ms + 0.01)) == {cause}


def test_the_saving_is_around_the_exposed_time() -> None:
    finding = found(needless_reshard_after_forward, analysis_with([*forward(), *backward(exposed_ms=3.0)]))
    low, high = finding.saving_ns
    assert low == pytest.approx(0.7 * 6 * MS)
    beside = 2 * 20_000 + 2 * MEGABYTE / 500
    assert high == pytest.approx(1.3 * 6 * MS + beside)


def test_room_for_the_units() -> None:
    moves = [*forward(), *backward(exposed_ms=3.0)]
    unknown = found(needless_reshard_after_forward, analysis_with(moves))
    assert unknown.confidence is Confidence.LOW, "whether the fix is possible is not known"
    assert "not known" in unknown.sentence
    enough = found(needless_reshard_after_forward, analysis_with(moves, free_bytes=3 * MEGABYTE))
    assert enough.confidence is Confidence.HIGH
    assert "there is room" in enough.sentence
    too_little = analysis_with(moves, free_bytes=3 * MEGABYTE - 1)
    assert needless_reshard_after_forward(too_little, None) is None


def test_gathers_of_micro_batches_without_room_are_a_note() -> None:
    moves = [*forward(), *backward(), *forward(1, 3.0), *backward(1)]
    full = found(accumulation_regathers, analysis_with(moves, free_bytes=1))
    assert full.confidence is Confidence.LOW
    assert found(accumulation_regathers, analysis_with(moves)).confidence is Confidence.MEDIUM


def test_counts_are_evidence() -> None:
    finding = found(
        accumulation_regathers, analysis_with([*forward(), *backward(), *forward(1, 3.0), *backward(1)])
    )
    values = {row.what: row.value for row in finding.evidence}
    assert values["all_gathers a step"] == 2 * 3 * 2
    # the backward of the first micro-batch gathers again because its forward dropped the units: ZP413
    assert values["of them gathered again, a step"] == 6
    assert values["micro-batches a step"] == 2


def test_order_alone_and_few_steps_are_less_sure() -> None:
    moves = [*forward(), *backward(last_ms=3.0)]
    assert found(last_unit_regathered, analysis_with(moves)).confidence is Confidence.HIGH
    assert found(last_unit_regathered, analysis_with(moves, steps=3)).confidence is Confidence.HIGH
    assert found(last_unit_regathered, analysis_with(moves, steps=2)).confidence is Confidence.MEDIUM
    assert found(last_unit_regathered, analysis_with(moves, method="order")).confidence is Confidence.MEDIUM


def test_below_the_noise_nothing_is_accused() -> None:
    moves = [*forward(), *backward(last_ms=3.0)]
    noisy = analysis_with(moves, noise_floor_ns=3 * MS + 1)
    assert found(last_unit_regathered, noisy).confidence is Confidence.LOW
    assert (
        found(last_unit_regathered, analysis_with(moves, noise_floor_ns=3 * MS)).confidence is Confidence.HIGH
    )


def test_gathers_of_which_less_is_known_are_left_out() -> None:
    known = [*forward(), *backward(exposed_ms=3.0)]
    unplaced = Move(kind="all_gather", unit="a", micro_batch=None, phase="unknown", exposed_ms=9.0)
    nameless = Move(kind="all_gather", unit=None, micro_batch=0, phase="backward", exposed_ms=9.0)
    assert named([*known, unplaced, nameless]) == {Cause.NEEDLESS_RESHARD_AFTER_FORWARD}


def test_a_single_unit_is_not_the_last_of_several() -> None:
    moves = [gather("a", 0, "forward"), gather("a", 0, "backward", 3.0, between_ms=1.0)]
    assert named(moves) == {Cause.NEEDLESS_RESHARD_AFTER_FORWARD}


def test_a_step_that_lost_the_last_unit_ends_with_no_other() -> None:
    moves = [*forward(), gather("b", 0, "backward", 12.0, between_ms=19.0), *backward()]
    whole = analysis_with(moves)
    passes = whole.passes
    torn = replace(whole, passes=passes[~((passes["step"] == 2) & (passes["unit"] == "c"))])
    assert last_unit_regathered(torn, None) is None


@pytest.mark.parametrize("rule", RULES.values())
def test_not_tested(rule: Rule) -> None:
    nameless = [Move(kind="all_gather", unit=None, micro_batch=0, phase="forward", exposed_ms=9.0)]
    unplaced = [Move(kind="all_gather", unit="a", micro_batch=None, phase="unknown", exposed_ms=9.0)]
    for moves in (nameless, unplaced):
        answer = rule(analysis_with(moves), None)
        assert isinstance(answer, Gap)
        assert answer.remedy
    assert rule(analysis_with(forward()), None) is None
