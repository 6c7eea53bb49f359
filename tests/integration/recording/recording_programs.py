"""Runs each program as it is, and recorded, when it is first asked for."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support.forked_ranks import free_port

ROOT = Path(__file__).parents[3]
PROGRAMS = Path(__file__).with_name("programs")
TIME_LIMIT_S = 180
ARGUMENTS = ["--force", "-o", "x", "--", "-y"]


@dataclass(frozen=True)
class Case:
    """``here``: ``-m zprof record`` is the process itself, and otherwise the parent of a command."""

    program: str
    arguments: Sequence[str] = ()
    here: bool = False
    ranks: int = 0
    options: Sequence[str] = ()
    slow: bool = False


CASES = {
    "gan": Case("gan.py", slow=True),
    "arguments": Case("arguments.py", ARGUMENTS),
    "one step": Case("endings.py", ["1"], here=True, slow=True),
    "exit3": Case("endings.py", ["exit3"], slow=True),
    "raise": Case("endings.py", ["raise"], here=True, slow=True),
    "kill": Case("endings.py", ["kill"], slow=True),
    "spawning": Case("spawning.py", here=True, slow=True),
    "fsdp2": Case("fsdp2.py", ["9"], ranks=2, options=["--time-steps", "4"], slow=True),
}


@dataclass(frozen=True)
class Ended:
    """What a process left; ``run`` is where a recording of it would be."""

    stdout: bytes
    stderr: bytes
    code: int
    run: Path

    def notes(self) -> list[str]:
        return [line for line in self.stderr.decode().splitlines() if line.startswith("zprof:")]


class Recorded:
    """The programs as they are, and recorded."""

    def __init__(self, folder: Path) -> None:
        self.plain = cache(lambda name: _run(CASES[name], folder / f"{name}.plain".replace(" ", "_"), []))
        self.recorded = cache(
            lambda name: _run(
                CASES[name],
                folder / f"{name}.recorded".replace(" ", "_"),
                ["-m", "zprof", "record", "-o", "run.zprof", *CASES[name].options, "--"],
            )
        )


def _run(case: Case, folder: Path, record: Sequence[str]) -> Ended:
    """Run in a folder of its own, to which the program is copied: nothing of zprof lies beside it."""
    folder.mkdir()
    shutil.copy(PROGRAMS / case.program, folder)
    launch = [
        "-m",
        "torch.distributed.run",
        f"--nproc-per-node={case.ranks}",
        f"--master-port={free_port()}",
    ]
    ranks, program = launch if case.ranks else [], [case.program, *case.arguments]
    if not record:
        command = [*ranks, *program]
    elif case.here:
        command = [*ranks, *record, *program]
    else:
        command = [*record, sys.executable, *ranks, *program]
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "TMPDIR": str(folder),
    }
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        input=b"typed",
        capture_output=True,
        timeout=TIME_LIMIT_S,
    )
    return Ended(done.stdout, done.stderr, done.returncode, folder / "run.zprof")
