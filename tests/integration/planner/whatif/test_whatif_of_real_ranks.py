"""What-if on real gloo ranks with a modelled link: predicted from one run, recorded changed."""

from pathlib import Path
from statistics import median

import pytest

from benchmarks.planner import PAIRS, one_round
from tests.support.reference_runs import record_reference
from zprof.analysis.analysis import RunAnalysis, analyse
from zprof.model.plan import Change
from zprof.planner.whatif import predict_changes

pytestmark = [pytest.mark.ranks, pytest.mark.timed]
#: Two ranks; what the blocks take is long beside what the machine adds.
JOB = (
    "--layers 3 --hidden 64 --vocabulary 64 --context 16 --batch 4 --steps 9 --link-gbps 0.04 "
    "--link-latency-us 50 --compute-forward-ms 20 --compute-backward-ms 40"
)
#: One pair of short runs on a machine that others use too.
WITHIN = 0.15


def record(folder: Path, options: str) -> RunAnalysis:
    return analyse(
        record_reference(folder, f"{JOB} {options}", 2, skip_steps=1, memory_steps=2, time_steps=5)
    )


@pytest.mark.slow
def test_stage_2_is_predicted_from_stage_3(tmp_path_factory: pytest.TempPathFactory) -> None:
    sharded = record(tmp_path_factory.mktemp("3"), "--stage 3 --prefetch 0")
    replicated = record(tmp_path_factory.mktemp("2"), "--stage 2")
    made = predict_changes(sharded, [Change(stage=2), Change(prefetch=1), Change(bandwidth_ratio=2.0)])
    assert made.calibration is not None
    assert (made.calibration.units, made.calibration.prefetch) == (4, 0)
    for prediction in made.predictions[1:]:
        assert abs(prediction.step[0].error_ratio or 1.0) <= WITHIN
        assert prediction.saving_ns is not None
        assert prediction.saving_ns[1] > 0
    wall, peak = made.predictions[0].step[0], made.predictions[0].memory[0]
    assert wall.predicted == pytest.approx(replicated.steps["wall_ns"].mean(), rel=WITHIN)
    recorded_peak = max(rank.peak_bytes for rank in replicated.memory.per_rank)
    assert peak.predicted == pytest.approx(recorded_peak, rel=WITHIN)
    predicted = {row.name: row.predicted for row in made.predictions[0].memory}
    recorded = {str(name): size for name, size in replicated.memory.per_rank[0].tenants.items()}
    for tenant in ("parameters", "optimizer_state"):
        assert predicted[tenant] == recorded[tenant]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_each_change_is_predicted_within_ten_percent(ranks: int, tmp_path: Path) -> None:
    pairs = [pair for number in range(5) for pair in one_round(tmp_path, ranks, number, steps=8)]
    changes = dict.fromkeys(pair.change for pair in pairs)
    assert len(changes) == len(PAIRS)
    for change in changes:
        assert abs(median(pair.step_error for pair in pairs if pair.change == change)) <= 0.10, change
