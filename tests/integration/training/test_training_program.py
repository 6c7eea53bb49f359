"""The training program on real ranks, as torchrun starts it and as ``zprof train`` does."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.ranks

ROOT = Path(__file__).parents[3]
TINY = "--layers 2 --hidden 16 --heads 2 --vocabulary 32 --context 8 --batch 8 --steps 4"
PROGRAM = ["-m", "zprof.reference_engine.train"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False, cwd=ROOT, env=ENVIRONMENT
    )


def torchrun(line: str, ranks: int = 2) -> subprocess.CompletedProcess[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return run(*launcher, *PROGRAM, *TINY.split(), *line.split())


def losses(done: subprocess.CompletedProcess[str]) -> tuple[float, float]:
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("loss ")]
    return float(line.split()[1]), float(line.split()[3])


@pytest.fixture(scope="module")
def alone() -> tuple[float, float]:
    return losses(run(*PROGRAM, *TINY.split(), "--clip", "1.0"))


def test_losses_do_not_depend_on_ranks_stage_and_accumulation(alone: tuple[float, float]) -> None:
    """Also that torchrun leaves every option to the program, which takes long names only."""
    done = torchrun("--stage 3 --accumulate 2 --clip 1.0")
    assert losses(done) == pytest.approx(alone, abs=2e-5)
    assert "step 4/4" in done.stderr


@pytest.mark.slow
def test_nor_on_tensor_parallelism_and_partitioned_checkpoints(alone: tuple[float, float]) -> None:
    done = torchrun("--stage 1 --mp 2 --pa-cpu --clip 1.0 --accumulate 2 --defragment")
    assert losses(done) == pytest.approx(alone, abs=2e-5)


def test_settings_that_the_ranks_refuse_are_one_line_and_code_2(tmp_path: Path) -> None:
    command = ["-m", "zprof", "train", "-o", str(tmp_path / "x.zprof"), *TINY.split()]
    done = run(*command, "--resume", str(tmp_path / "nothing"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith("zprof: checkpoint ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("to_all", [True, False], ids=["from a terminal", "to the parent alone"])
@pytest.mark.parametrize("moment", ["first rank starts", "steady"])
def test_ctrl_c_ends_all_ranks_with_one_line(tmp_path: Path, moment: str, to_all: bool) -> None:
    command = ["-m", "zprof", "train", "-o", str(tmp_path / "x.zprof"), *TINY.split(), "--steps", "100000"]
    process = subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=ENVIRONMENT,
        start_new_session=True,
        # The children of a shell's background job ignore it, and so would all ranks.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        if moment == "steady":
            wait_for(lambda: has_text(tmp_path / "x.zprof/rank00000/steps.jsonl"), process)
        else:
            wait_for(lambda: len(group_of(process.pid)) >= 2, process)
        ranks = group_of(process.pid)
        (os.killpg if to_all else os.kill)(process.pid, signal.SIGINT)
        out, error = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert len(ranks) == 3 or moment != "steady"
    assert process.returncode == 130
    assert out == ""
    assert error.splitlines()[-1] == "zprof: interrupted"
    assert "Traceback" not in error
    assert not [pid for pid in ranks if is_there(pid)]
    assert not group_of(process.pid)


def wait_for(reached: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not reached():
        assert process.poll() is None, process.stderr
        assert time.monotonic() < deadline
        time.sleep(0.02)


def has_text(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def group_of(leader: int) -> list[int]:
    """The processes of a group: the launcher and its ranks."""
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                group = int((entry / "stat").read_text().rpartition(")")[2].split()[2])
            except OSError:
                continue
            if group == leader:
                members.append(int(entry.name))
    return members


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
