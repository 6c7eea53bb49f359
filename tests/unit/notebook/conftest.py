"""Runs as a person has them: a recording on CPU ranks, and traces of GPU ranks from the simulator."""

import pytest

import zprof
from tests.support.pytest_suites import RUNS
from tests.support.simulations import make_three_hosts
from zprof.simulator.ground_truth import write_job


@pytest.fixture(scope="session")
def cpu_run() -> zprof.AnalysedRun:
    """Two recorded ranks with gloo."""
    return zprof.load(RUNS / "zero3")


@pytest.fixture(scope="session")
def gpu_run(tmp_path_factory: pytest.TempPathFactory) -> zprof.AnalysedRun:
    """A folder of traces of three ranks whose clocks differ; one computes slower."""
    folder = tmp_path_factory.mktemp("gpu")
    write_job(make_three_hosts(), folder / "traces")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        return zprof.load(folder / "traces")


@pytest.fixture(params=["cpu_run", "gpu_run"])
def run(request: pytest.FixtureRequest) -> zprof.AnalysedRun:
    """Each of both."""
    return request.getfixturevalue(request.param)
