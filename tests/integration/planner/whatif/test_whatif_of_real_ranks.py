"""What-if on real gloo ranks with a modelled link: predicted from one run, recorded changed."""

import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

from benchmarks.planner import PAIRS, one_round
from zprof.analysis.analysis import RunAnalysis, analyse
from zprof.model.whatif import Change
from zprof.planner.whatif.outlook import predict_changes
from zprof.run.reader import load

pytestmark = [pytest.mark.ranks, pytest.mark.timed]
#: Two ranks; what the blocks take is long beside what the machine adds.
JOB = (
    "--ranks 2 --layers 3 --hidden 64 --vocabulary 64 --context 16 --batch 4 --steps 9 --skip-steps 1 "
    "--memory-steps 2 --time-steps 5 --link-gbps 0.04 --link-latency-us 50 "
    "--compute-forward-ms 20 --compute-backward-ms 40"
)
#: One pair of short runs on a machine that others use too.
_WITHIN = 0.15
_ROUNDS, _GOAL = 5, 0.10


def record(folder: Path, *options: str) -> RunAnalysis:
    run = folder / "run.zprof"
    command = [sys.executable, "-m", "zprof", "train", "-o", str(run), *JOB.split(), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    return analyse(load(run))


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> RunAnalysis:
    return record(tmp_path_factory.mktemp("3"), "--stage", "3", "--prefetch", "0")


@pytest.fixture(scope="module")
def replicated(tmp_path_factory: pytest.TempPathFactory) -> RunAnalysis:
    return record(tmp_path_factory.mktemp("2"), "--stage", "2")


def test_stage_2_is_predicted_from_stage_3(sharded: RunAnalysis, replicated: RunAnalysis) -> None:
    made = predict_changes(sharded, [Change(stage=2)])
    wall, peak = made.predictions[0].step[0], made.predictions[0].memory[0]
    assert wall.predicted is not None
    assert wall.predicted == pytest.approx(replicated.steps["wall_ns"].mean(), rel=_WITHIN)
    assert peak.predicted == pytest.approx(
        max(rank.peak_bytes for rank in replicated.memory.per_rank), rel=_WITHIN
    )
    states = {row.name: row.predicted for row in made.predictions[0].memory}
    recorded = replicated.memory.per_rank[0].tenants
    for tenant in ("parameters", "optimizer_state"):
        assert states[tenant] == {str(name): size for name, size in recorded.items()}[tenant]


def test_the_model_plays_the_run_that_it_was_fitted_to(sharded: RunAnalysis) -> None:
    made = predict_changes(sharded, [Change(prefetch=1), Change(bandwidth_ratio=2.0)])
    assert made.calibration is not None
    assert (made.calibration.units, made.calibration.prefetch) == (4, 0)
    for prediction in made.predictions:
        assert abs(prediction.step[0].error_ratio or 1.0) <= _WITHIN
        assert prediction.saving_ns is not None
        assert prediction.saving_ns[1] > 0


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_each_change_is_predicted_within_ten_percent(ranks: int, tmp_path: Path) -> None:
    pairs = [pair for number in range(_ROUNDS) for pair in one_round(tmp_path, ranks, number, steps=8)]
    errors = {
        change: median(p.step_error for p in pairs if p.change == change)
        for change in dict.fromkeys(pair.change for pair in pairs)
    }
    assert len(errors) == len(PAIRS)
    assert all(abs(error) <= _GOAL for error in errors.values()), errors
