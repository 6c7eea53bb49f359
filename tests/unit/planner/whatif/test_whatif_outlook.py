"""What an outlook says where something is missing, and that no analysis breaks it."""

import pytest
from msgspec.structs import replace

from tests.support.analyses import Scenario, analysis_of, without_rank
from tests.support.link_runs import MS, gathers, link_run, norm, reduces
from tests.support.memories import memory_of
from tests.support.whatif_pairs import named, predicted
from zprof.base.errors import BadInput
from zprof.model.plan import Change
from zprof.model.training import TrainingFacts
from zprof.planner.whatif import predict_changes
from zprof.step.prediction import predict_gain_ns

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
def test_an_analysis_gives_predictions_or_gaps(shape: str) -> None:
    changes = [Change(stage=2), Change(bandwidth_ratio=2.0), Change(even=True)]
    made = predict_changes(SHAPES[shape](), changes)
    assert len(made.predictions) == 3
    for prediction in made.predictions:
        missing = (not prediction.step) + (not prediction.memory)
        assert len(made.gaps) >= missing
    assert (made.calibration is None) == (not made.predictions[0].step)


def test_one_rank_has_nothing_to_predict_and_impossible_changes_are_refused() -> None:
    run = analysis_of(Scenario(steps=2, units=2))
    alone = replace(run, run=replace(run.run, world_size=1))
    made = predict_changes(alone)
    assert (made.predictions, made.calibration) == ((), None)
    assert made.gaps
    assert predict_gain_ns(alone, Change(stage=2)) is None
    with pytest.raises(BadInput):
        predict_changes(run, [Change(stage=7)])


def test_states_follow_the_formula_to_the_byte_without_a_model_of_the_step() -> None:
    facts = TrainingFacts(
        engine="reference", stage=3, parameters=4_000_000, shard_ranks=2, parameter_bytes=4, gradient_bytes=4,
        optimizer_state_bytes=8, communication_bytes=4, padding_elements=16, step_counters=6,
    )  # fmt: skip
    run = replace(SHAPES["a norm only"](), training=facts, memory=memory_of(3))
    changes = [Change(stage=2), Change(shard_ranks=4), Change(stage=0)]
    stage_2, wider, stage_0 = predict_changes(run, changes).predictions
    padded = 4_000_000 + 16
    whole, quarter = named(stage_2.memory, "parameters"), named(wider.memory, "optimizer_state")
    assert predicted(whole) - (whole.measured or 0) == 4 * padded - 4 * padded // 2
    assert (quarter.measured or 0) - predicted(quarter) == 8 * padded // 2 - 8 * padded // 4
    state = named(stage_0.memory, "optimizer_state")
    assert predicted(state) - (state.measured or 0) == 8 * padded - 8 * padded // 2
    kept = named(stage_2.memory, "activations")
    assert kept.predicted == kept.measured
