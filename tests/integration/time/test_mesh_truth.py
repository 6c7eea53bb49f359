"""Drawn jobs of several dimensions: zprof matches every collective and message, with the true times."""

from pathlib import Path

import pytest

from zprof.analysis.time.analyse import analyse_time
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.model.gaps import GapKind
from zprof.model.time import WindowPolicy
from zprof.run.reader import load
from zprof.simulator.mesh.draw import draw_mesh_job
from zprof.simulator.mesh.faults import MESH_CAUSES
from zprof.simulator.mesh.truth import write_mesh_job

SEEDS = [
    pytest.param(200, id="200"),
    *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(201, 209)),
]


@pytest.mark.parametrize("cause", ["none", *MESH_CAUSES])
@pytest.mark.parametrize("seed", SEEDS)
def test_waits_and_transfers_are_the_true_ones(seed: int, cause: str, tmp_path: Path) -> None:
    job = draw_mesh_job(seed, None if cause == "none" else cause)
    truth = write_mesh_job(job, tmp_path / "traces")
    import_paths([tmp_path / "traces"], tmp_path / "run.zprof")
    found = analyse_time(load(tmp_path / "run.zprof"), WindowPolicy.STEP)
    assert {gap.kind for gap in found.gaps} <= {GapKind.VOLUME}
    rows = found.collectives.to_frame()
    assert rows["matched"].all()
    assert len(rows) == len(truth.collectives)
    for name, relative in (("wait_ns", 0.03), ("transfer_ns", 0.03)):
        true = sum(getattr(entry, name) for entry in truth.collectives)
        # the clocks of hosts are 5 ms apart, and found to a few microseconds
        assert rows[name].sum() == pytest.approx(true, rel=relative, abs=3_000 * len(rows))
