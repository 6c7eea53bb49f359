"""first_gather_exposed, on simulated jobs of which the simulator also runs the fixed ones."""

from pathlib import Path

import pytest

from zprof.analysis.analysis import analyse_time_only
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.diagnosis.diagnose import diagnose_time
from zprof.model.findings import Confidence, Finding
from zprof.run.reader import load
from zprof.simulator.faults import remove
from zprof.simulator.ground_truth import draw_job, write_job
from zprof.simulator.job import Job

NAME = "first_gather_exposed"


def found(job: Job, folder: Path) -> list[Finding]:
    """Return the findings of the cause in the traces of a job."""
    write_job(job, folder / "job")
    import_paths(sorted((folder / "job").glob("rank*")), folder / "run.zprof")
    report = diagnose_time(analyse_time_only(load(folder / "run.zprof")))
    return [each for each in report.findings if each.cause == NAME]


@pytest.mark.parametrize("seed", [900_002, pytest.param(900_004, marks=pytest.mark.slow)])
def test_its_saving_is_what_the_fix_wins_and_the_fixed_job_has_none(seed: int, tmp_path: Path) -> None:
    job = draw_job(seed, NAME)
    truth = write_job(job, tmp_path / "truth").saving_ns[NAME] or 0
    (finding,) = found(job, tmp_path / "planted")
    assert finding.confidence is not Confidence.LOW
    assert finding.saving_ns[0] <= truth <= finding.saving_ns[1]
    fixed = remove(job, NAME)
    assert fixed is not None
    assert not found(fixed, tmp_path / "fixed")
