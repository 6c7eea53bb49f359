"""Simulated pipelines: which stage is slow or full, too few micro-batches, and a slow rank inside a stage."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.simulations import simulate_traces
from zprof.analysis.analysis import RunAnalysis, analyse_time_only
from zprof.analysis.mesh.stages import ExtraWork, measure_stages
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.diagnosis.diagnose import diagnose
from zprof.model.findings import Confidence, Finding
from zprof.run.reader import load
from zprof.simulator.job import Job
from zprof.simulator.mesh.layout import Degrees
from zprof.simulator.mesh.regular import make_mesh_job, plant_mesh
from zprof.simulator.mesh.truth import MeshTruth, measure_mesh_gain, write_mesh_job

PAIRS = Degrees(pipeline=2, data=2)
STAGES = Degrees(pipeline=4)


def analysed_mesh(job: Job, folder: Path) -> tuple[MeshTruth, RunAnalysis]:
    truth = write_mesh_job(job, folder / "traces")
    return truth, read_traces(folder)


def analyse_job(job: Job, folder: Path) -> RunAnalysis:
    simulate_traces(job, folder / "traces")
    return read_traces(folder)


def read_traces(folder: Path) -> RunAnalysis:
    import_paths([folder / "traces"], folder / "run")
    return analyse_time_only(load(folder / "run"))


def list_sure(analysis: RunAnalysis) -> list[Finding]:
    return [each for each in diagnose(analysis).findings if each.confidence is not Confidence.LOW]


def make_pipeline(degrees: Degrees, **settings: Any) -> Job:
    return make_mesh_job(degrees=degrees, steps=3, stage_layers=2, **settings)


@pytest.mark.parametrize(
    ("cause", "degrees", "settings"),
    [
        ("slow_stage", PAIRS, {}),
        ("slow_stage", STAGES, {"vendor": "amd"}),
        ("slow_stage", PAIRS, {"schedule": "interleaved"}),
        ("stage_imbalance", STAGES, {"framework": "torch"}),
        ("unbalanced_recompute", STAGES, {"framework": "deepspeed"}),
        ("micro_batches_too_few", PAIRS, {}),
        ("micro_batches_too_few", STAGES, {"schedule": "interleaved"}),
        ("straggler_rank", PAIRS, {}),
    ],
)
def test_the_planted_cause_is_first_and_its_saving_is_true(
    cause: str, degrees: Degrees, settings: dict[str, Any], tmp_path: Path
) -> None:
    truth, analysis = analysed_mesh(plant_mesh(make_pipeline(degrees, **settings), cause), tmp_path)
    first = list_sure(analysis)[0]
    assert first.cause == cause
    saving_ns = truth.saving_ns[cause]
    assert saving_ns is not None
    assert first.saving_ns[0] <= saving_ns <= first.saving_ns[1]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved", "zero_bubble"])
def test_a_healthy_pipeline_accuses_nobody(schedule: str, tmp_path: Path) -> None:
    assert not list_sure(analyse_job(make_pipeline(PAIRS, schedule=schedule), tmp_path))


def test_a_stage_has_its_ranks_its_pace_and_its_work(tmp_path: Path) -> None:
    job = plant_mesh(make_pipeline(PAIRS), "slow_stage")
    truth, analysis = analysed_mesh(job, tmp_path)
    stages = measure_stages(analysis)
    assert stages is not None
    slow = stages.find_slowest()
    assert slow.ranks == truth.culprits["slow_stage"]
    paces = [job.ranks[each.ranks[0]].gpu for each in stages.stages]
    assert slow.pace_ratio == pytest.approx(max(paces) / min(paces), rel=0.01)
    works = [each.work_ns for each in stages.stages]
    assert max(works) == pytest.approx(min(works), rel=0.01)


def test_one_of_two_replicas_makes_a_slow_stage_less_sure(tmp_path: Path) -> None:
    simulate_traces(plant_mesh(make_pipeline(PAIRS), "slow_stage"), tmp_path / "traces")
    for trace in (tmp_path / "traces").glob("rank[13].*"):
        trace.unlink()
    (slow,) = [each for each in diagnose(read_traces(tmp_path)).findings if each.cause == "slow_stage"]
    assert slow.confidence is Confidence.MEDIUM


@pytest.mark.parametrize(
    ("extra", "settings"),
    [
        (ExtraWork.LAYERS, {"layers": (1, 3)}),
        (ExtraWork.OWN_KERNELS, {"head_ns": 800_000}),
        (ExtraWork.FORWARD, {"recompute": (0.0, 1.0)}),
    ],
)
def test_what_the_last_stage_has_more_of(extra: ExtraWork, settings: dict[str, Any], tmp_path: Path) -> None:
    job = make_mesh_job(degrees=Degrees(pipeline=2), **{"stage_layers": 2, **settings})
    analysis = analyse_job(job, tmp_path)
    stages = measure_stages(analysis)
    assert stages is not None
    assert stages.find_fullest().stage == 1
    assert stages.find_fullest().extra is extra
    assert stages.find_slowest().pace_ratio == pytest.approx(1.0, abs=0.01)


def test_an_equal_split_wins_what_the_simulator_says(tmp_path: Path) -> None:
    job = make_mesh_job(degrees=Degrees(pipeline=2), layers=(2, 4))
    analysis = analyse_job(job, tmp_path)
    stages, gain = measure_stages(analysis), measure_mesh_gain(job, "stage_imbalance")
    assert stages is not None
    assert gain is not None
    assert stages.gain_of_equal_split_ns == pytest.approx(gain[0], rel=0.1)


def test_interleaved_stages_of_two_ranks_are_told_from_more_micro_batches(tmp_path: Path) -> None:
    job = make_pipeline(Degrees(pipeline=2), schedule="interleaved", micro_batches=6)
    analysis = analyse_job(job, tmp_path)
    assert analysis.time.mesh is not None
    assert analysis.time.mesh.bubble is not None
    assert (analysis.time.mesh.bubble.micro_batches, analysis.time.mesh.bubble.virtual) == (6, 2)


def test_stages_are_not_compared_if_a_rank_is_missing(tmp_path: Path) -> None:
    simulate_traces(make_pipeline(PAIRS), tmp_path / "traces")
    next((tmp_path / "traces").glob("rank*3*.json*")).unlink()
    assert measure_stages(read_traces(tmp_path)) is None
