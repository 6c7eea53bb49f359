"""Whole programs that know nothing of zprof, recorded on two gloo ranks: who is accused of what."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.forked_ranks import free_port
from zprof.diagnosis.diagnose import diagnose
from zprof.model.findings import Confidence
from zprof.model.gaps import GapKind
from zprof.model.report import Report
from zprof.run.reader import load

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
TIME_LIMIT_S = 240
#: Programs without a planted cause, and the package that each one needs.
HEALTHY = {
    "ddp": "",
    "fsdp1": "",
    "fsdp2": "",
    "sleeping": "",
    "deepspeed_zero": "deepspeed",
    "hf_trainer": "transformers",
}
#: One for each kind of collective in every run of the tests.
FAST = ("sleeping",)


#: Programs of whose lines one costs time: the cause that names it, and what stands there.
NAMED_LINES = {
    FOLDER / "reads_loss.py": ("blocking_sync", "loss.item()"),
    ROOT / "docs/pictures/train.py": ("data_loader", "time.sleep"),
}


def record_program(program: Path, folder: Path) -> Report:
    run = folder / "run.zprof"
    launch = ["-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}"]
    command = ["-m", "zprof", "record", "-o", str(run), "--", sys.executable, *launch]
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "TMPDIR": str(folder),
        "STEPS": "16",
    }
    done = subprocess.run(
        [sys.executable, *command, str(program)],
        cwd=folder,
        env=environment,
        capture_output=True,
        timeout=TIME_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return diagnose(load(run))


#: What each step of ``sleeping.py`` sleeps.
SLEPT_NS = 60_000_000


@pytest.mark.ranks
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in HEALTHY]
)
def test_a_healthy_program_is_accused_of_nothing(name: str, tmp_path: Path) -> None:
    if HEALTHY[name]:
        pytest.importorskip(HEALTHY[name], reason=f"{HEALTHY[name]} is not installed")
    report = record_program(FOLDER / f"{name}.py", tmp_path)
    # On a busy machine the recording may be disturbed, which is said, and is nothing that the program does.
    accused = {each.cause for each in report.findings if each.confidence is not Confidence.LOW}
    assert accused <= {"measurement_artifact"}
    # What nobody can tell is a gap, and no reason to call it OK, from a tenth of the step on: the same sleep
    # is less of a step on a busy machine.
    step_ns = max(rank.wall_ns for rank in report.time.per_rank)
    if name == "sleeping" and 0.12 * step_ns < SLEPT_NS:
        assert "cpu_bound_launch" in {cause for gap in report.gaps for cause in gap.causes}
        assert report.verdict.status == "inconclusive"


@pytest.mark.ranks
@pytest.mark.timed
def test_python_between_operators_is_found(tmp_path: Path) -> None:
    report = record_program(FOLDER / "busy_python.py", tmp_path)
    is_found = "cpu_bound_launch" in {finding.cause for finding in report.findings}
    # If others use the processors, the recording may not prove which time was Python, and says why.
    busy = [gap.causes for gap in report.gaps if gap.kind is GapKind.BUSY_PROCESSORS]
    assert is_found or busy == [("cpu_bound_launch",)]


@pytest.mark.ranks
@pytest.mark.timed
@pytest.mark.parametrize("program", NAMED_LINES, ids=lambda path: path.stem)
def test_the_line_that_costs_time_is_named(program: Path, tmp_path: Path) -> None:
    cause, source = NAMED_LINES[program]
    locations = [each.location for each in record_program(program, tmp_path).findings if each.cause is cause]
    assert locations
    assert locations[0] is not None
    assert locations[0].file == str(program)  # not below the working folder
    assert source in program.read_text().splitlines()[locations[0].line - 1]
