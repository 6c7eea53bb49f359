"""Programs that end badly: the run is readable, says what happened and is never "ok"."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from zprof.diagnosis.diagnose import diagnose
from zprof.model.gaps import GapKind
from zprof.model.tenants import Tenant
from zprof.run.reader import Run

PROGRAM = Path(__file__).with_name("programs") / "failing.py"
HUGE = 1 << 50
#: Two linear layers of 256 x 256 with biases in float32, AdamW's two moments and its step counters.
PARAMETERS = 2 * (256 * 256 + 256) * 4
STATES = 2 * PARAMETERS + 4 * 4
#: Steps 2 and 3 are the memory window, 4 to 7 the time window.
SCHEDULE = ("--skip-steps", "2", "--memory-steps", "2", "--time-steps", "4")
pytestmark = pytest.mark.ranks


def record(folder: Path, step: int, ending: str) -> tuple[int, Path]:
    run = folder / "run.zprof"
    command = [sys.executable, str(PROGRAM), str(step), ending]
    recorder = [sys.executable, "-m", "zprof", "record", "-o", str(run), *SCHEDULE, "--", *command]
    return subprocess.run(recorder, capture_output=True, timeout=300).returncode, run


slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("step", "states"),
    [pytest.param(0, 0, marks=slow), (3, STATES), pytest.param(5, STATES, marks=slow), (12, STATES)],
)
def test_failed_allocation_has_the_owners_of_that_moment(tmp_path: Path, step: int, states: int) -> None:
    code, run = record(tmp_path, step, "oom")
    assert code == 1
    report: Any = diagnose(Run(run))
    [failure] = report.memory.out_of_memory
    assert failure.requested_bytes == HUGE
    assert failure.phase == ("forward" if step else "")  # the phases before the first step are not known
    assert failure.step in (step, None)
    assert failure.tenants[Tenant.PARAMETERS] == PARAMETERS
    assert failure.tenants[Tenant.OPTIMIZER_STATE] == states
    assert failure.tenants.get(Tenant.GRADIENTS, 0) == 0
    # the inputs of both layers, of 64 rows; the ReLU saves what the second layer saves
    assert failure.tenants[Tenant.ACTIVATIONS] == 2 * 64 * 256 * 4
    assert report.verdict.status == "risk"


def test_an_error_in_the_time_window_leaves_its_first_steps(tmp_path: Path) -> None:
    code, path = record(tmp_path, 6, "error")
    assert code == 1
    run = Run(path)
    assert 4 in run.rank_manifests[0].time_steps
    assert len(run.table(0, "events"))
    assert [gap.step for gap in run.gaps() if gap.kind is GapKind.PROGRAM_FAILED] == [6]
    report: Any = diagnose(run)
    assert report.time.per_rank
    assert report.verdict.status in ("inconclusive", "risk"), "a program that failed is never fine"


def test_a_kill_in_the_time_window_leaves_the_windows_before(tmp_path: Path) -> None:
    """Four small steps are one chunk, which is written at its end."""
    code, path = record(tmp_path, 6, "kill")
    assert code == 137
    run = Run(path)
    assert run.rank_manifests[0].memory_steps == (2, 3)
    assert [gap.step for gap in run.gaps() if gap.kind is GapKind.RANK_CUT_SHORT] == [6]
    report: Any = diagnose(run)
    assert report.memory.per_rank
    assert report.verdict.status in ("inconclusive", "risk"), "a program that failed is never fine"
