"""``zprof train`` and the training program on real ranks: what they refuse, how they end, equal losses."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from zprof.cli import main
from zprof.reference_engine import train as training

ROOT = Path(__file__).parents[3]
TINY = "--layers 2 --hidden 16 --heads 2 --vocabulary 32 --context 8 --batch 8 --steps 4"
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def train(folder: Path, options: str, run: str = "x.zprof") -> int:
    return main(["train", "-o", str(folder / run), *TINY.split(), *options.split()])


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ("--batch 3", "batch"),
        ("--steps 0", "steps"),
        ("--stage 7", "--stage"),
        ("--ranks 0", "ranks"),
        ("--straggler-rank 5 --straggler-ms 40", "straggler_rank"),
        ("--link-latency-us 5", "--link-gbps"),
        ("--colour blue", "--colour"),
    ],
)
def test_bad_options_are_one_line_before_a_rank_starts(tmp_path, capsys, options: str, word: str) -> None:
    assert train(tmp_path, options) == 2
    said = capsys.readouterr().err
    assert word in said
    assert said.count("\n") == 1
    assert not (tmp_path / "x.zprof").exists()


def test_a_folder_that_is_no_run_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("")
    assert train(tmp_path, "--force", "mine") == 2
    (tmp_path / "mine/manifest.json").write_text("{}")
    assert train(tmp_path, "--force", "mine") == 2
    assert (tmp_path / "mine/file").exists()


@pytest.mark.slow
@pytest.mark.ranks
def test_what_the_ranks_refuse_is_one_line_and_code_2(tmp_path: Path, capsys) -> None:
    assert train(tmp_path, f"--resume {tmp_path}/nothing") == 2
    said = capsys.readouterr().err
    assert "nothing" in said.splitlines()[-1]
    assert "Traceback" not in said


@pytest.mark.slow
@pytest.mark.ranks
def test_a_run_that_cannot_be_written_is_no_success(tmp_path: Path, capsys) -> None:
    (tmp_path / "file").write_text("")
    assert train(tmp_path, "", "file/x.zprof") == 3
    assert "0 of 2 ranks" in capsys.readouterr().err


def losses(out: str) -> tuple[float, float]:
    (line,) = [line for line in out.splitlines() if line.startswith("loss ")]
    return float(line.split()[1]), float(line.split()[3])


@pytest.mark.ranks
@pytest.mark.parametrize(
    "options",
    [
        "--stage 3 --accumulate 2",
        pytest.param("--stage 1 --mp 2 --pa-cpu --accumulate 2 --defragment", marks=pytest.mark.slow),
    ],
)
def test_losses_do_not_depend_on_ranks_stage_and_accumulation(options: str, capsys) -> None:
    """Also that torchrun leaves every option to the program, which takes long names only."""
    alone = [*TINY.split(), "--clip", "1.0"]
    assert training.main(alone) == 0
    expected = losses(capsys.readouterr().out)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *torchrun, "-m", "zprof.reference_engine.train", *alone, *options.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert "step 4/4" in done.stderr
    assert losses(done.stdout) == pytest.approx(expected, abs=2e-5)


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("moment", "to_all"),
    [
        ("steady", True),
        pytest.param("steady", False, marks=pytest.mark.slow),
        pytest.param("first rank starts", True, marks=pytest.mark.slow),
        pytest.param("first rank starts", False, marks=pytest.mark.slow),
    ],
)
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
    assert "interrupted" in error.splitlines()[-1]
    assert "Traceback" not in error
    assert not [pid for pid in ranks if is_there(pid)]
    assert not group_of(process.pid)


def wait_for(reached: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300  # a busy machine needs longer than a minute to start two ranks
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
