"""Real ranks for tests, each a process that is forked off a server.

The server has imported torch already, which takes most of the time of a rank that trains little.
"""

import multiprocessing
import multiprocessing.forkserver
import os
import runpy
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

_SHARED = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
#: An optimizer imports the compiler, a recorder what it writes its tables with.
_IMPORTED = ["torch._dynamo", "zprof.reference_engine.train", "pandas"]


@dataclass(frozen=True)
class Ended:
    """How a rank ended: its exit code (below 0: the signal), and the lines that it wrote."""

    code: int | None
    lines: tuple[str, ...]


def run_forked(
    arguments: Sequence[str], world_size: int, folder: Path, *, timeout_s: float = 120
) -> list[Ended]:
    """Run ``python ARGUMENTS`` on every rank: a program's path or ``-m`` and a module, and what it is given.

    Ranks that take longer than ``timeout_s`` are ended, and fail the test.
    """
    context, port = _server(), free_port()
    ranks = []
    for rank in range(world_size):
        place = {"RANK": rank, "WORLD_SIZE": world_size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        local = {"LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world_size}
        environment = _SHARED | {name: str(value) for name, value in (place | local).items()}
        ranks.append(
            context.Process(target=_be_rank, args=([*arguments], _log_of(folder, rank), environment))
        )
    try:
        for process in ranks:
            process.start()
        deadline = time.monotonic() + timeout_s
        for process in ranks:
            process.join(max(0.0, deadline - time.monotonic()))
        late = [rank for rank, process in enumerate(ranks) if process.is_alive()]
        assert not late, f"ranks {late} took longer than {timeout_s} s"
    finally:
        for process in ranks:
            if process.is_alive():
                process.kill()
                process.join()
    return [_ended(process.exitcode, _log_of(folder, rank)) for rank, process in enumerate(ranks)]


def _server() -> multiprocessing.context.ForkServerContext:
    """The one of this process; its threads are counted when it imports torch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    with mock.patch.dict(os.environ, _SHARED):
        multiprocessing.forkserver.ensure_running()
    return context


def _be_rank(arguments: list[str], log: Path, environment: Mapping[str, str]) -> None:
    """Become the program of a rank: what it writes goes to a file."""
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.update(environment)
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).parent))
        runpy.run_path(arguments[0], run_name="__main__")


def _log_of(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.log"


def _ended(code: int | None, log: Path) -> Ended:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return Ended(code=code, lines=tuple(line for line in lines if line.strip()))


def free_port() -> int:
    """One that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
