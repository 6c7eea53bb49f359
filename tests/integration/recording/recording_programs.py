"""Runs every program twice, as it is and recorded, two at a time: most of their time is importing torch."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.forked_ranks import free_port
from zprof.run.reader import Run, load

ROOT = Path(__file__).parents[3]
PROGRAMS = Path(__file__).with_name("programs")
TIME_LIMIT_S = 180
HERE, CHILD = "in this process", "in a child"


@dataclass(frozen=True)
class Case:
    """``how``: with ``-m zprof record`` as the process itself, or as the parent of a command."""

    how: str
    program: str
    arguments: Sequence[str] = ()
    ranks: int = 0
    options: Sequence[str] = ()


CASES = {
    "gan": Case(CHILD, "gan.py"),
    "exit3": Case(CHILD, "endings.py", ["exit3"]),
    "raise": Case(HERE, "endings.py", ["raise"]),
    "kill": Case(CHILD, "endings.py", ["kill"]),
    "one step": Case(HERE, "endings.py", ["1"]),
    "arguments": Case(CHILD, "arguments.py", ["--force", "-o", "x", "--", "-y"]),
    "arguments here": Case(HERE, "arguments.py", ["--force", "-o", "x", "--", "-y"]),
    "spawning": Case(HERE, "spawning.py"),
    "ddp": Case(HERE, "ddp.py", ranks=2, options=["--memory-mode", "light", "--time-steps", "2"]),
    "fsdp2": Case(CHILD, "fsdp2.py", ["9"], ranks=2, options=["--time-steps", "4"]),
    "itself": Case(CHILD, "itself.py", ["own.zprof"]),
}


@dataclass(frozen=True)
class Ended:
    """What a process left."""

    stdout: bytes
    stderr: bytes
    code: int
    run: Path = field(default_factory=Path)

    def loaded(self) -> Run:
        return load(self.run)

    def notes(self) -> list[str]:
        return [line for line in self.stderr.decode().splitlines() if line.startswith("zprof:")]


class Recorded:
    """The programs as they are, and recorded; each is run when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pool = ThreadPoolExecutor(max_workers=2)
        self._started: dict[str, tuple[Future[Ended], Future[Ended]]] = {}

    def plain(self, name: str) -> Ended:
        return self._both(name)[0].result()

    def recorded(self, name: str) -> Ended:
        return self._both(name)[1].result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _both(self, name: str) -> tuple[Future[Ended], Future[Ended]]:
        if name not in self._started:
            self._started[name] = self._start(name, recorded=False), self._start(name, recorded=True)
        return self._started[name]

    def _start(self, name: str, *, recorded: bool) -> Future[Ended]:
        folder = self._folder / f"{name.replace(' ', '_')}.{recorded}"
        return self._pool.submit(run_case, CASES[name], folder, recorded)


def run_case(case: Case, folder: Path, recorded: bool) -> Ended:
    """In a folder of its own, to which the program is copied: nothing of zprof lies beside it."""
    folder.mkdir()
    shutil.copy(PROGRAMS / case.program, folder)
    run = folder / "run.zprof"
    program = [case.program, *case.arguments]
    record = ["-m", "zprof", "record", "-o", run.name, *case.options, "--"]
    launch = [
        "-m",
        "torch.distributed.run",
        f"--nproc-per-node={case.ranks}",
        f"--master-port={free_port()}",
    ]
    python = [sys.executable]
    ranks = launch if case.ranks else []
    if not recorded:
        command = [*python, *ranks, *program]
    elif case.how == HERE:
        command = [*python, *ranks, *record, *program]
    else:
        command = [*python, *record, *python, *ranks, *program]
    return run_process(command, folder, run)


def run_process(command: Sequence[str], folder: Path, run: Path) -> Ended:
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "TMPDIR": str(folder),
    }
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        input=b"typed",
        capture_output=True,
        check=False,
        timeout=TIME_LIMIT_S,
    )
    return Ended(done.stdout, done.stderr, done.returncode, run)
