"""What an outlook says where something is missing, and that no analysis breaks it."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.analyses import Scenario, analysis_of, without_rank
from tests.support.link_runs import MS, gathers, link_run, norm, reduces
from tests.support.memories import memory_of
from tests.support.whatif_pairs import named, predicted
from zprof.analysis.analysis import RunAnalysis
from zprof.model.errors import BadInput
from zprof.model.training import TrainingFacts
from zprof.model.whatif import Change
from zprof.planner.whatif.calibration import split_shared_work
from zprof.planner.whatif.outlook import predict_changes, predict_saving_ns
from zprof.planner.whatif.passes import UnitSize, list_passes

FACTS = TrainingFacts(
    engine="reference", stage=3, parameters=4_000_000, shard_ranks=2, parameter_bytes=4, gradient_bytes=4,
    optimizer_state_bytes=8, communication_bytes=4, padding_elements=16, step_counters=6,
)  # fmt: skip
SHAPES = {
    "made by hand": lambda: analysis_of(Scenario(steps=3, units=3)),
    "a rank is missing": lambda: without_rank(analysis_of(Scenario(steps=3, units=3)), 1),
    "one step": lambda: analysis_of(Scenario(steps=1, units=2)),
    "gathers only": lambda: link_run(gathers(6, 1 << 20, 2 * MS, units=("a", "b", "c"))),
    "no units": lambda: link_run(gathers(6, 1 << 20, 2 * MS), reduces(3, 1 << 20, 2 * MS), norm(20_000)),
    "a device": lambda: link_run(reduces(3, 1 << 20, 2 * MS), device="cuda"),
    "a norm only": lambda: link_run(norm(20_000)),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_an_analysis_gives_predictions_or_says_why_not(shape: str) -> None:
    run: RunAnalysis = SHAPES[shape]()
    made = predict_changes(run, [Change(stage=2), Change(bandwidth_ratio=2.0), Change(even=True)])
    assert len(made.predictions) == 3
    said = {gap.what for gap in made.gaps}
    for prediction in made.predictions:
        assert prediction.step or "step of a changed run" in said
        assert prediction.memory or "peak of a changed run" in said
    assert (made.calibration is None) == (not made.predictions[0].step)


def test_one_rank_has_nothing_to_predict() -> None:
    run = analysis_of(Scenario(steps=2, units=2))
    alone = replace(run, run=replace(run.run, world_size=1))
    made = predict_changes(alone)
    assert made.predictions == ()
    assert made.calibration is None
    assert any("one rank" in gap.reason for gap in made.gaps)
    assert predict_saving_ns(alone, Change(stage=2)) is None


def test_a_change_that_cannot_be_is_refused() -> None:
    with pytest.raises(BadInput):
        predict_changes(analysis_of(Scenario(steps=2, units=2)), [Change(stage=7)])


def test_states_follow_the_law_to_the_byte() -> None:
    """Without a model of the step parameters and optimizer state are predicted all the same."""
    run = replace(SHAPES["a norm only"](), training=FACTS, memory=memory_of(3))
    rows = predict_changes(run, [Change(stage=2), Change(shard_ranks=4)]).predictions
    padded = 4_000_000 + 16
    whole = named(rows[0].memory, "parameters")
    assert predicted(whole) - (whole.measured or 0) == 4 * padded - 4 * padded // 2
    quarter = named(rows[1].memory, "optimizer_state")
    assert (quarter.measured or 0) - predicted(quarter) == 8 * padded // 2 - 8 * padded // 4
    assert named(rows[0].memory, "activations").predicted == named(rows[0].memory, "activations").measured


def test_passes_that_share_a_stretch_are_told_apart_by_what_is_known_of_their_like() -> None:
    units = tuple(UnitSize(name=str(n), gather_bytes=8, reduce_bytes=8) for n in range(2))
    passes = list_passes(units, (1, 0), 1, True)
    alone = np.array([[[4.0]], [[np.nan]], [[np.nan]], [[10.0]]])
    filled, known = split_shared_work(alone, {(0, 0, 1, 3): 28.0}, passes, units)
    assert known == 2
    assert filled[:, 0, 0].tolist() == [4.0, 8.0, 20.0, 10.0]


def test_passes_of_which_nothing_is_known_share_by_bytes_and_a_backward_counts_twice() -> None:
    units = (
        UnitSize(name="a", gather_bytes=8, reduce_bytes=8),
        UnitSize(name="b", gather_bytes=24, reduce_bytes=24),
    )
    passes = list_passes(units, (1, 0), 1, True)
    filled, known = split_shared_work(np.full((4, 1, 1), np.nan), {(0, 0, 0, 4): 96.0}, passes, units)
    assert known == 0
    assert filled[:, 0, 0].tolist() == [8.0, 24.0, 48.0, 16.0]
