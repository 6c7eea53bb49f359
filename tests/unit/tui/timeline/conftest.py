"""A simulated device job whose ranks have clocks of their own, measured once."""

from pathlib import Path

import pytest

from tests.support.simulations import simulated
from zprof.run.reader import load as open_run
from zprof.simulator.plan import Plan
from zprof.tui.session import LoadedRun, RunRequest, load

#: How far the clock of the second rank is ahead.
OFFSET_NS = 3_000_000_000


@pytest.fixture(scope="session")
def device_job(tmp_path_factory: pytest.TempPathFactory) -> LoadedRun:
    """Three ranks on hosts of their own, one of which computes slower."""
    folder: Path = tmp_path_factory.mktemp("device_job")
    plan = Plan(
        seed=3,
        ranks=3,
        steps=2,
        units=3,
        unit_elements=1 << 20,
        prefetch=0,
        speed={2: 0.8},
        offsets_ns={1: OFFSET_NS},
        drift_ppb={1: 2_000},
        ranks_per_host=1,
    )
    run = simulated(plan, folder).run
    return load(RunRequest(path=run.path, opener=open_run), lambda doing: None)
