"""accumulation_syncs counts the micro-batches that reduce gradients, and prices all but the last."""

from collections.abc import Callable
from dataclasses import replace

import pandas as pd
import pytest

from tests.support.analyses import MS
from tests.support.repeats import Move, analysis_with, reduce
from tests.support.rule_runs import GAP, Answer, found, judged, values, without_collectives
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Confidence
from zprof.rules.volume.accumulation_syncs import accumulation_syncs

HIGH, LOW = Confidence.HIGH, Confidence.LOW


def reductions(*exposed_ms: float) -> list[Move]:
    """Reductions of three units in each micro-batch, with this exposed time."""
    return [reduce(unit, number, ms / 3) for number, ms in enumerate(exposed_ms) for unit in "abc"]


def partly(first: str, whole: str) -> RunAnalysis:
    """The first micro-batch reduces these units only."""
    return analysis_with([*(reduce(unit, 0, 9.0) for unit in first), *(reduce(unit, 1) for unit in whole)])


def hidden(ratio: float | None) -> RunAnalysis:
    """Four micro-batches that reduce, all hidden; the links carry this many times the formula's bytes."""
    made = analysis_with(reductions(0.0, 0.0, 0.0, 0.0))
    assert made.volume is not None
    seen = None if ratio is None else replace(made.volume, seen_bytes=round(12_000_000 * ratio), ratio=ratio)
    return replace(made, volume=seen)


UNPLACED = Move(kind="all_reduce", unit=None, micro_batch=None, phase="unknown", exposed_ms=9.0)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: analysis_with(reductions(4.0, 4.0, 4.0)), HIGH),
        (lambda: analysis_with(reductions(3.0, 9.0)), None),  # 3 % of the step
        (lambda: analysis_with(reductions(3.01, 9.0)), HIGH),
        (lambda: analysis_with(reductions(30.0)), None),  # one reduction is needed
        (lambda: hidden(1.0), None),  # the formula of stages 2 and 3 has them
        (lambda: hidden(4.0), LOW),
        (lambda: hidden(None), LOW),
        (lambda: partly("a", "ab"), HIGH),  # half of the gradients
        (lambda: partly("abcd", "abcdefghi"), None),
        (lambda: analysis_with([UNPLACED]), GAP),
        (
            lambda: without_collectives(replace(analysis_with(reductions(4.0, 4.0)), passes=pd.DataFrame())),
            GAP,
        ),
    ],
)
def test_thresholds(run: Callable[[], RunAnalysis], expected: Answer) -> None:
    assert judged(accumulation_syncs, run()) == expected


def test_all_but_the_last_are_counted_and_priced() -> None:
    finding = found(accumulation_syncs, analysis_with(reductions(4.0, 4.0, 4.0)))
    assert {3, 6} <= set(values(finding, "count"))
    assert finding.saving_ns[0] == pytest.approx(0.7 * 8 * MS, abs=2)


def test_hidden_reductions_save_no_time_and_state_their_volume() -> None:
    run = hidden(4.0)
    finding = found(accumulation_syncs, run)
    assert finding.saving_ns == (0, 0)
    assert run.volume is not None
    assert {48_000_000, run.volume.expected_bytes} <= set(values(finding, "bytes"))
