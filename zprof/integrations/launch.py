"""Starts the ranks of a job on this machine, one process each, as ``torchrun`` would.

Needs no torch: the parent only sets RANK, WORLD_SIZE and MASTER_* and watches.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, NoReturn

from zprof.model.errors import BadInput, ZprofError
from zprof.model.interrupts import interrupts_deferred, raise_lost_interrupt

_POLL_S = 0.05
#: When a rank has failed: for the others to notice and to write what they recorded.
_GRACE_S = 15.0
#: From SIGTERM to SIGKILL, for all ranks together.
_END_S = 5.0


#: Nobody but a person, a scheduler or the kernel sends these.
_FROM_OUTSIDE = frozenset((signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM, signal.SIGXCPU))


class RankFailed(ZprofError):
    """A rank of the job ended with an error, or was ended from outside: that is no fault of zprof."""

    exit_code = 70

    def __init__(self, message: str, *, hint: str = "", from_outside: bool = False) -> None:
        super().__init__(message, hint=hint)
        if from_outside:
            self.exit_code = BadInput.exit_code


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
        ranks: list[subprocess.Popen[bytes]] = []
        raise_lost_interrupt()
        try:
            # An interrupt within Popen() would leave a rank that nobody knows of.
            with interrupts_deferred():
                ranks.extend(
                    _start(arguments, rank, world_size, port, folder, logs[rank])
                    for rank in range(world_size)
                )
            on_start([process.pid for process in ranks])
            _wait(ranks, on_poll)
            failed = {rank: code for rank, process in enumerate(ranks) if (code := process.poll())}
        finally:
            with interrupts_deferred():
                _end(ranks)
        if failed:
            _raise_failure(failed, logs)


def _start(
    arguments: Sequence[str], rank: int, world_size: int, port: int, folder: str, log: IO[bytes]
) -> subprocess.Popen[bytes]:
    environment = os.environ | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        # A rank that is ended cannot clear up what it keeps for a moment.
        "TMPDIR": folder,
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
        raise_lost_interrupt()
        time.sleep(_POLL_S)


def _end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """End the ranks that still run; none is left, whatever it does with SIGTERM."""
    for process in ranks:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + _END_S
    for process in ranks:
        try:
            process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _raise_failure(failed: Mapping[int, int], logs: Sequence[IO[bytes]]) -> NoReturn:
    # A rank that was killed from outside is the origin; the others fail because it is gone.
    rank = next((rank for rank, code in failed.items() if code < 0), min(failed))
    code = failed[rank]
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    raise RankFailed(
        f"rank {rank} {how}: {_reason(logs[rank])}",
        hint="what the other ranks recorded is kept",
        from_outside=-code in _FROM_OUTSIDE,
    )


def _reason(log: IO[bytes]) -> str:
    """The error under the last traceback, whose message may go on for many lines; else the last line."""
    log.seek(0)
    lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    starts = [number for number, line in enumerate(lines) if line.startswith("Traceback (")]
    after = lines[starts[-1] + 1 :] if starts else []
    line = next((line for line in after if not line[0].isspace()), lines[-1] if lines else "it wrote nothing")
    return line.strip()[:300]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
