"""Programs that hang, or are slow, under ``zprof record --watch``: what is in the run afterwards."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.forked_ranks import free_port
from zprof.analysis.hang.find_hang import find_hang
from zprof.base.errors import BadInput
from zprof.model.hang import HangClass
from zprof.run.reader import Run, load

PROGRAM = Path(__file__).with_name("hanging.py")
ROOT = Path(__file__).parents[3]
WATCH_S = 2
TIME_LIMIT_S = 120.0
#: The program's, which cannot be imported here: torch would be.
FAULT_STEP = 5

#: Timed: a loaded machine makes any rank one without progress.
pytestmark = [pytest.mark.ranks, pytest.mark.timed]


def record(fault: str, folder: Path, *options: str, until_stuck: bool = False, code: int = 0) -> Run:
    """Run the program, with SIGTERM once rank 0 is stuck in the faulty step and had time to save others."""
    run = folder / "run.zprof"
    launch = ["-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}"]
    command = ["zprof", "record", "--watch", str(WATCH_S), *options, "-o", str(run), "--"]
    command += [sys.executable, *launch]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command, str(PROGRAM), "--fault", fault, "--pause", str(2 * WATCH_S)],
            cwd=folder,
            env=environment | {"TMPDIR": str(folder)},
            stdout=log,
            stderr=log,
        )
        try:
            if until_stuck:
                wait_until_stuck(run, process)
                process.send_signal(signal.SIGTERM)
            process.wait(TIME_LIMIT_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    print((folder / "log").read_text(errors="replace")[-3000:])  # for a test that fails
    if until_stuck:
        assert "no progress for" in (folder / "log").read_text(errors="replace")
    else:
        assert process.returncode == code
    return load(run)


def wait_until_stuck(run: Path, process: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + TIME_LIMIT_S
    while time.monotonic() < end and process.poll() is None:
        if all(find_last(run, rank) == "stuck" for rank in range(2)):
            time.sleep(0.5)
            return
        time.sleep(0.2)
    raise AssertionError("both ranks were not saved in time")


def find_last(run: Path, rank: int) -> str:
    """Return the last mark of a stall, once the step before the faulty one has ended."""
    try:
        recorded = load(run)
        kinds = [kind for kind in recorded.frame(rank, "mark")["kind"] if kind in ("stuck", "resumed")]
        is_faulty_step = (recorded.last_step(rank) or 0) >= FAULT_STEP - 1
    except BadInput:  # the run is being written
        return ""
    return kinds[-1] if kinds and is_faulty_step else ""


def find_fault_line(fault: str) -> int:
    lines = PROGRAM.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# fault: {fault}"))


def list_main_lines(run: Run, rank: int) -> list[int]:
    """Return the lines of the program in which the main thread of a rank was, innermost first."""
    threads, stacks = run.frame(rank, "flight_thread"), run.frame(rank, "flight_stack")
    number = threads[threads["is_main"]]["stack"].iloc[0]
    frames = stacks[(stacks["stack"] == number) & (stacks["file"] == str(PROGRAM))]
    return [int(line) for line in frames["line"]]


def test_a_rank_that_skips_an_all_reduce(tmp_path: Path) -> None:
    run = record("skipped_all_reduce", tmp_path, until_stuck=True)
    assert list_main_lines(run, 0)[0] == find_fault_line("skipped_all_reduce")
    waiting = run.frame(0, "flight").iloc[-1]
    assert (waiting["operation"], waiting["input_sizes"], waiting["is_retired"]) == (
        "all_reduce",
        "[[7]]",
        False,
    )
    groups = run.frame(0, "flight_group").set_index("description")
    assert set(groups["ranks"]) == {"0,1"}
    others = run.frame(1, "flight_group").set_index("description")
    assert groups.loc["tensor", "last_enqueued"] == others.loc["tensor", "last_enqueued"] + 1


def test_a_rank_that_holds_the_gil_is_saved_by_the_other(tmp_path: Path) -> None:
    run = record("gil_held", tmp_path, until_stuck=True)
    assert list_main_lines(run, 1)[0] == find_fault_line("gil_held")
    assert list_main_lines(run, 0)


def test_a_stuck_job_is_ended_and_says_why(tmp_path: Path) -> None:
    run = record("skipped_all_reduce", tmp_path, "--end-stuck", "4", code=1)
    assert (tmp_path / "log").read_text(errors="replace").count("no rank moved") == 1
    hang = find_hang(run)
    assert hang is not None
    assert (hang.kind, [each.rank for each in hang.culprits]) == (HangClass.NEVER_ENTERED, [1])
    location = hang.operations[0].location
    assert location is not None
    assert location.line == find_fault_line("skipped_all_reduce")


def test_a_slow_checkpoint_is_marked_as_ended(tmp_path: Path) -> None:
    run = record("checkpoint", tmp_path, until_stuck=False)
    assert list_main_lines(run, 0)[0] == find_fault_line("checkpoint")
    for rank in range(2):
        marks = run.frame(rank, "mark")
        kinds = [kind for kind in marks["kind"] if kind in ("stuck", "resumed")]
        assert kinds[-2:] == ["stuck", "resumed"]
        assert marks[marks["kind"] == "resumed"]["number"].iloc[-1] >= 1.5 * WATCH_S * 1e9
    assert not (run.path / ".watch").exists()


def test_a_slow_start_that_was_said_to_be_saved_is_in_the_run(tmp_path: Path) -> None:
    run = record("compilation", tmp_path)
    assert "no progress for" in (tmp_path / "log").read_text(errors="replace")
    for rank in range(2):
        kinds = [kind for kind in run.frame(rank, "mark")["kind"] if kind in ("stuck", "resumed")]
        assert kinds[:2] == ["stuck", "resumed"]
        assert run.has_table(rank, "flight_thread")
