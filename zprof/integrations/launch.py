"""Starts the ranks of a job on this machine, one process each, as ``torchrun`` would.

Needs no torch: the parent only sets RANK, WORLD_SIZE and MASTER_* and watches.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from zprof.model.errors import ZprofError

_POLL_S = 0.05
_GRACE_S = 15.0


class RankFailed(ZprofError):
    """A rank of the job ended with an error."""

    exit_code = 70


def launch(
    arguments: Sequence[str],
    *,
    world_size: int,
    on_poll: Callable[[], None] = lambda: None,
    on_start: Callable[[Sequence[int]], None] = lambda process_ids: None,
) -> None:
    """Run ``python ARGUMENTS`` on every rank and wait for all of them.

    ``on_poll`` is called while waiting.  When a rank fails, the others get time to notice by
    themselves and to write what they recorded, then are ended.

    Raises:
        RankFailed: a rank ended with an error; the message has the last line that it wrote.
    """
    with tempfile.TemporaryDirectory(prefix="zprof-ranks-") as folder:
        logs = [(Path(folder) / f"rank{rank}.log").open("w+b") for rank in range(world_size)]
        port = _free_port()
        ranks = [_start(arguments, rank, world_size, port, logs[rank]) for rank in range(world_size)]
        try:
            on_start([process.pid for process in ranks])
            _wait(ranks, on_poll)
        finally:
            _end(ranks)
        _raise_for_failure(ranks, logs)


def _start(
    arguments: Sequence[str], rank: int, world_size: int, port: int, log: IO[bytes]
) -> subprocess.Popen[bytes]:
    environment = os.environ | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        # One thread a rank, as torchrun does: ranks on one machine would fight for its cores.
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
    }
    return subprocess.Popen(
        [sys.executable, *arguments], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
    )


def _wait(ranks: Sequence[subprocess.Popen[bytes]], on_poll: Callable[[], None]) -> None:
    deadline: float | None = None
    while any(process.poll() is None for process in ranks):
        if deadline is None and any(process.poll() not in (None, 0) for process in ranks):
            deadline = time.monotonic() + _GRACE_S
        if deadline is not None and time.monotonic() > deadline:
            return
        on_poll()
        time.sleep(_POLL_S)


def _end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in ranks:
        if process.poll() is None:
            process.terminate()
    for process in ranks:
        try:
            process.wait(timeout=_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _raise_for_failure(ranks: Sequence[subprocess.Popen[bytes]], logs: Sequence[IO[bytes]]) -> None:
    failed = [rank for rank, process in enumerate(ranks) if process.returncode != 0]
    if not failed:
        return
    # A rank that was killed from outside is the origin; the others fail because it is gone.
    rank = next((r for r in failed if ranks[r].returncode < 0), failed[0])
    code = ranks[rank].returncode
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    raise RankFailed(
        f"rank {rank} {how}: {_last_line(logs[rank])}", hint="what the other ranks recorded is kept"
    )


def _last_line(log: IO[bytes]) -> str:
    log.seek(0)
    lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else "it wrote nothing"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
