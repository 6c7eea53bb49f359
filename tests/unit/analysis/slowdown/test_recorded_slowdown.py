"""The slowdown of recorded pipelines, against jobs of the simulator whose stages all have the mean pace."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.chrome_trace import check_chrome_trace, read_chrome_trace
from tests.support.simulations import simulate_traces
from zprof.analysis.analysis import RunAnalysis, analyse
from zprof.cli import main
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.model.slowdown import SlowdownCause
from zprof.run.reader import load
from zprof.simulator.ground_truth import step_time_ns
from zprof.simulator.job import Job
from zprof.simulator.mesh.faults import find_culprits, plant_mesh_cause
from zprof.simulator.mesh.layout import Degrees
from zprof.simulator.mesh.regular import make_mesh_job
from zprof.simulator.run import run_job

SHAPES: dict[str, dict[str, Any]] = {
    "1f1b": {"degrees": Degrees(pipeline=4, data=2)},
    "gpipe": {"degrees": Degrees(pipeline=4), "schedule": "gpipe"},
    "interleaved": {"degrees": Degrees(pipeline=4), "schedule": "interleaved", "framework": "torch"},
    "tensor": {"degrees": Degrees(pipeline=4, data=2, tensor=2)},
}


def read_traces(folder: Path) -> RunAnalysis:
    import_paths([folder / "traces"], folder / "run.zprof")
    return analyse(load(folder / "run.zprof"))


def record(job: Job, folder: Path) -> RunAnalysis:
    simulate_traces(job, folder / "traces")
    return read_traces(folder)


@pytest.mark.parametrize(
    ("shape", "cause"),
    [*((shape, "slow_stage") for shape in SHAPES), ("1f1b", "straggler_rank"), ("tensor", "straggler_rank")],
)
def test_slowdown_is_that_against_ranks_of_the_mean_pace(shape: str, cause: str, tmp_path: Path) -> None:
    job = plant_mesh_cause(make_mesh_job(**SHAPES[shape]), cause, np.random.default_rng(8), 1.0)
    mean = float(np.mean([rank.gpu for rank in job.ranks]))
    ideal = replace(job, ranks=tuple(replace(rank, gpu=mean) for rank in job.ranks))
    recorded = simulate_traces(job, tmp_path / "traces")
    true = step_time_ns(recorded) / step_time_ns(run_job(ideal, record=False))
    slowdown = read_traces(tmp_path).time.slowdown
    assert slowdown is not None
    assert slowdown.s == pytest.approx(true, rel=0.02)
    assert slowdown.replayed_step_ns == pytest.approx(slowdown.recorded_step_ns, rel=0.02)
    assert next(iter(slowdown.by_operation)) == "backward-compute"
    worst = max(slowdown.by_worker.values())
    culprits = set(find_culprits(job, cause))
    slowest = {rank for rank, value in slowdown.by_worker.items() if value >= worst - 0.01}
    assert slowest <= {rank - rank % job.parallel.degrees.tensor for rank in culprits}  # type: ignore[union-attr]


@pytest.mark.parametrize("shape", SHAPES)
def test_equal_stages_are_ideal(shape: str, tmp_path: Path) -> None:
    slowdown = record(make_mesh_job(**SHAPES[shape]), tmp_path).time.slowdown
    assert slowdown is not None
    assert slowdown.s == pytest.approx(1, abs=0.01)
    assert slowdown.cause is SlowdownCause.NONE


def test_split_backward_passes_are_a_gap(tmp_path: Path) -> None:
    analysis = record(make_mesh_job(degrees=Degrees(pipeline=4), schedule="zero_bubble"), tmp_path)
    assert analysis.time.slowdown is None
    assert [gap.what for gap in analysis.gaps if "split backward" in gap.reason] == ["slowdown"]


def test_export_draws_the_ideal_step_beside_recorded_passes(tmp_path: Path) -> None:
    record(make_mesh_job(**SHAPES["1f1b"]), tmp_path)
    target = tmp_path / "out.json"
    assert main(["export", str(tmp_path / "run.zprof"), "--perfetto", "--ideal", "-o", str(target)]) == 0
    trace = read_chrome_trace(target)
    check_chrome_trace(trace)
    process = next(iter(trace.processes))
    recorded, ideal = (trace.row(process, title) for title in ("compute", "ideal: compute"))
    assert [each.name for each in recorded] == [each.name for each in ideal]
    assert recorded


def test_export_of_a_run_without_a_pipeline_is_one_line(tmp_path: Path, capsys: Any) -> None:
    record(make_mesh_job(degrees=Degrees(data=2)), tmp_path)
    assert (
        main(["export", str(tmp_path / "run.zprof"), "--perfetto", "--ideal", "-o", str(tmp_path / "o.json")])
        == 3
    )
    assert "without --ideal" in capsys.readouterr().err
