"""The end of each rank is in the run: which was first, how and when, whatever the others did then."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.forked_ranks import free_port
from zprof.diagnosis.diagnose import diagnose
from zprof.model.endings import EndMoment, RankEnd
from zprof.model.report import Report
from zprof.run.reader import Run

pytestmark = pytest.mark.ranks
slow = pytest.mark.slow

ROOT = Path(__file__).parents[3]
PROGRAM = str(Path(__file__).with_name("programs") / "ending_ranks.py")
#: The ranks end after step 5, and steps are recorded from step 2 on.
SHORT, LONG = 2, 20
TIME_LIMIT_S = 180


class End(NamedTuple):
    """What the first rank to end did."""

    rank: int
    code: int | None = None
    signal: str = ""
    error: str = ""
    operation: str = ""


ENDS = {
    "exit": End(1, code=3),
    "os_exit": End(1, code=3),
    "kill": End(1, signal="SIGKILL"),
    "abort": End(1, signal="SIGABRT"),
    "error": End(1, code=1, error="ValueError"),
    "full": End(1, code=1, error="OSError"),
    "sizes": End(0, signal="SIGABRT", operation="all_reduce"),
    "skipped": End(0, signal="SIGABRT", operation="all_reduce"),
}
CASES = [
    pytest.param(launcher, way, steps, marks=() if (launcher, way, steps) in FAST else slow)
    for FAST in [{("spawn", "kill", LONG), ("torchrun", "sizes", SHORT)}]
    for launcher in ("torchrun", "spawn")
    for way in ENDS
    for steps in (SHORT, LONG)
]


def record(folder: Path, launcher: str, way: str, *options: str) -> Report:
    run, port = folder / "run.zprof", str(free_port())
    start = {
        "spawn": [sys.executable, PROGRAM, way, port],
        "torchrun": [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"),
            *(f"--master-port={port}", PROGRAM, way),
        ],
    }[launcher]
    recorder = [sys.executable, "-m", "zprof", "record", "-o", str(run), "--skip-steps", "2"]
    result = subprocess.run(
        [*recorder, "--memory-steps", "1", *options, "--", *start],
        capture_output=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        timeout=TIME_LIMIT_S,
        check=False,
    )
    assert result.returncode == (way != "healthy"), result.stderr.decode()[-2000:]
    return diagnose(Run(run))


def check_first(report: Report, expected: End) -> RankEnd:
    first = report.endings[0]
    assert first.is_first
    assert (first.rank, first.signal, first.operation) == (expected.rank, expected.signal, expected.operation)
    assert first.error.startswith(expected.error)
    assert bool(first.error) is bool(expected.error)
    if not first.has_left:  # gloo may abort while the interpreter shuts down
        assert first.exit_code == expected.code
    assert report.verdict.status == "risk"
    assert f"rank {first.rank} ended first" in report.verdict.sentence
    return first


@pytest.mark.parametrize(("launcher", "way", "steps"), CASES)
def test_the_first_end_is_the_verdict(launcher: str, way: str, steps: int, tmp_path: Path) -> None:
    report = record(tmp_path, launcher, way, "--time-steps", str(steps))
    first = check_first(report, ENDS[way])
    if steps == SHORT:
        assert first.moment is EndMoment.AFTER_STEPS
    else:
        assert (first.moment, first.step) == (EndMoment.IN_STEP, 6)
    if first.error:
        assert first.error in first.last_words[-1]
        assert first.location is not None
        assert Path(first.location.file).name == Path(PROGRAM).name
    assert (first.full_path is not None) is (way == "full")


@slow
@pytest.mark.parametrize("launcher", ["torchrun", "spawn"])
def test_a_watched_job_has_its_first_end(launcher: str, tmp_path: Path) -> None:
    report = record(tmp_path, launcher, "kill", "--time-steps", str(SHORT), "--watch", "30")
    check_first(report, ENDS["kill"])


@pytest.mark.parametrize("launcher", ["torchrun", pytest.param("spawn", marks=slow)])
def test_a_healthy_job_has_no_end_to_report(launcher: str, tmp_path: Path) -> None:
    report = record(tmp_path, launcher, "healthy", "--time-steps", "8")
    assert not report.endings
    assert "ended" not in report.verdict.sentence
