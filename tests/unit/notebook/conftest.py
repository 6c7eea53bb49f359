"""Runs as a person has them: a recording on CPU ranks, and traces of GPU ranks from the simulator."""

import pytest

import zprof
from tests.support.pytest_suites import RUNS
from zprof.simulator.plan import Plan
from zprof.simulator.simulate import simulate


@pytest.fixture(scope="session")
def cpu_run() -> zprof.AnalysedRun:
    """Two recorded ranks with gloo."""
    return zprof.load(RUNS / "zero3")


@pytest.fixture(scope="session")
def gpu_run(tmp_path_factory: pytest.TempPathFactory) -> zprof.AnalysedRun:
    """A folder of traces of three ranks whose clocks differ; one computes slower."""
    folder = tmp_path_factory.mktemp("gpu")
    plan = Plan(
        seed=3,
        ranks=3,
        steps=2,
        units=3,
        unit_elements=1 << 20,
        prefetch=0,
        speed={2: 0.8},
        offsets_ns={1: 3_000_000_000},
        ranks_per_host=1,
    )
    simulate(plan, folder / "traces")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        return zprof.load(folder / "traces")


@pytest.fixture(params=["cpu_run", "gpu_run"])
def run(request: pytest.FixtureRequest) -> zprof.AnalysedRun:
    """Each of both."""
    found: zprof.AnalysedRun = request.getfixturevalue(request.param)
    return found
