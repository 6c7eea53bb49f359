"""accumulation_syncs counts the micro-batches that reduce gradients, and prices all but the last."""

from dataclasses import replace

import pytest

from tests.support.analyses import MS
from tests.support.repeats import Move, analysis_with, reduce
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.gaps import Gap
from zprof.rules.volume.accumulation_syncs import accumulation_syncs

UNITS = ("a", "b", "c")


def reductions(*exposed_ms: float) -> list[Move]:
    """Reductions of all units in each micro-batch, whose exposed time is given."""
    return [reduce(unit, number, ms / 3) for number, ms in enumerate(exposed_ms) for unit in UNITS]


def found(analysis: RunAnalysis) -> Finding:
    answer = accumulation_syncs(analysis, None)
    assert isinstance(answer, Finding), answer
    return answer


def test_each_micro_batch_that_reduces_but_the_last_is_too_many() -> None:
    finding = found(analysis_with(reductions(4.0, 4.0, 4.0)))
    assert finding.cause is Cause.ACCUMULATION_SYNCS
    assert finding.confidence is Confidence.HIGH
    values = {row.what: row.value for row in finding.evidence}
    assert values["micro-batches that reduce, a step"] == 3
    assert values["reductions before the last micro-batch, a step"] == 6
    assert finding.saving_ns[0] == pytest.approx(0.7 * 8 * MS, abs=2)


def test_threshold() -> None:
    assert accumulation_syncs(analysis_with(reductions(3.0, 9.0)), None) is None
    assert found(analysis_with(reductions(3.01, 9.0)))


def test_hidden_reductions_beyond_the_formula_are_a_note_with_their_volume() -> None:
    """Four micro-batches that reduce at stage 1: the links carry four times the bytes, all of it hidden."""
    hidden = analysis_with(reductions(0.0, 0.0, 0.0, 0.0))
    assert hidden.volume is not None
    assert accumulation_syncs(hidden, None) is None, "the formula of stages 2 and 3 has them"
    note = found(replace(hidden, volume=replace(hidden.volume, seen_bytes=48_000_000, ratio=4.0)))
    assert (note.confidence, note.saving_ns) == (Confidence.LOW, (0, 0))
    assert {48_000_000, hidden.volume.expected_bytes} <= {row.value for row in note.evidence}
    assert found(replace(hidden, volume=None)).confidence is Confidence.LOW


def test_one_reduction_a_step_is_what_it_takes() -> None:
    assert accumulation_syncs(analysis_with(reductions(30.0)), None) is None


def test_what_is_much_smaller_is_no_reduction_of_all_gradients() -> None:
    """One unit of three in the first micro-batch is less than half of the gradients; two are more."""
    assert accumulation_syncs(analysis_with([reduce("a", 0, 9.0), *reductions(0.0, 0.0)[3:]]), None) is None
    two = [reduce("a", 0, 9.0), reduce("b", 0, 9.0), *reductions(0.0, 0.0)[3:]]
    assert found(analysis_with(two))


def test_half_of_the_gradients_is_enough() -> None:
    moves = [reduce("a", 0, 9.0), reduce("a", 1), reduce("b", 1)]
    assert found(analysis_with(moves))


def test_four_of_nine_are_not_half_of_the_gradients() -> None:
    units = "abcdefghi"
    moves = [*(reduce(unit, 0, 9.0) for unit in units[:4]), *(reduce(unit, 1) for unit in units)]
    assert accumulation_syncs(analysis_with(moves), None) is None


def test_not_tested_without_micro_batches() -> None:
    unplaced = [Move(kind="all_reduce", unit=None, micro_batch=None, phase="unknown", exposed_ms=9.0)]
    assert isinstance(accumulation_syncs(analysis_with(unplaced), None), Gap)


def test_not_tested_without_collectives() -> None:
    analysis = analysis_with(reductions(4.0, 4.0))
    bare = RunAnalysis(
        run=analysis.run,
        training=analysis.training,
        time=analysis.time,
        memory=analysis.memory,
        volume=None,
        steps=analysis.steps,
        collectives=analysis.collectives.iloc[:0],
        gaps=(),
    )
    assert isinstance(accumulation_syncs(bare, None), Gap)
