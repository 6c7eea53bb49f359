"""Hosts of jobs of several dimensions: late only after reading the loss, or slower than their devices."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.simulations import simulate_traces
from zprof.analysis.analysis import RunAnalysis, analyse_time_only
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.diagnosis.diagnose import diagnose
from zprof.model.findings import Confidence
from zprof.run.reader import load
from zprof.simulator.job import Job
from zprof.simulator.mesh.layout import Degrees
from zprof.simulator.mesh.regular import make_mesh_job
from zprof.step import edits
from zprof.step.play import PlayedStep
from zprof.step.rank_times import await_device

SLOW_PYTHON_NS = 400_000


def make_job(python_ns: int) -> Job:
    """A step of a few milliseconds that ends with a read of the loss."""
    job = make_mesh_job(degrees=Degrees(data=2, tensor=2), steps=3, micro_batches=1, seed=5)
    host = replace(job.host, python_ns=python_ns, hook_ns=120_000, collective_ns=180_000)
    return replace(job, host=host)


def analyse(job: Job, folder: Path) -> RunAnalysis:
    simulate_traces(job, folder / "traces")
    import_paths([folder / "traces"], folder / "run")
    return analyse_time_only(load(folder / "run"))


@pytest.mark.parametrize(("python_ns", "is_slow"), [(8_000, False), (SLOW_PYTHON_NS, True)])
def test_a_host_that_is_late_only_after_its_waits_is_not_slow(
    python_ns: int, is_slow: bool, tmp_path: Path
) -> None:
    found = diagnose(analyse(make_job(python_ns), tmp_path)).findings
    sure = {each.cause for each in found if each.confidence is not Confidence.LOW}
    assert ("cpu_bound_launch" in sure) == is_slow


def test_no_change_of_the_host_saves_more_than_its_bound(tmp_path: Path) -> None:
    step = PlayedStep(analysis=analyse(make_job(SLOW_PYTHON_NS), tmp_path))
    assert step.graph is not None
    changed = [
        edits.unblock_calls(step.graph, await_device),
        *(edits.scale_host(step.graph, ratio, lambda rank: rank.blocks_on == -1) for ratio in (0.0, 0.3)),
    ]
    gains = [step.gain_ns(graph) for graph in changed]
    assert all(gain is not None and 0 <= gain <= step.max_host_gain_ns for gain in gains)
    assert max(gain or 0.0 for gain in gains) > 0.3 * step.step_ns
