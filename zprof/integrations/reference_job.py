"""Launch the reference engine on this machine and record the run, from the parent process.

The parent does not need torch: it sets RANK, WORLD_SIZE and MASTER_* like ``torchrun`` and monitors the
ranks. They run ``zprof.integrations.reference_rank``, which reads the job as JSON.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from zprof.base.errors import BadInput, ZprofError
from zprof.process.interrupts import defer_interrupts, raise_lost_interrupt
from zprof.run.manifest import STEPS_NAME, rank_folder
from zprof.run.scratch_folder import open_scratch_folder, remove_leftovers

_RANK_PROGRAM = "zprof.integrations.reference_rank"
_POLL_S = 0.05
#: Time for the other ranks to notice a failed rank and to write their recordings.
_GRACE_S = 15.0
#: Time from SIGTERM to SIGKILL, for all ranks together.
_TERMINATION_S = 5.0
#: Signals that only a user, a scheduler or the kernel sends.
_EXTERNAL_SIGNALS = frozenset((signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM, signal.SIGXCPU))


class ReferenceJob(Struct, frozen=True, kw_only=True):
    """Training job and the steps to record.

    ``options`` are those of ``zprof.reference_engine.program.options``, by name; omitted ones have their
    defaults. ``run`` is None if nothing is recorded, ``outcome`` if the losses are not needed.
    """

    world_size: int
    options: Mapping[str, Any]
    run: Path | None = None
    skip_steps: int = 2
    memory_steps: int = 2
    time_steps: int = 8
    outcome: Path | None = None

    @property
    def recorded_steps(self) -> int:
        """Number of steps until the recording is complete."""
        return self.skip_steps + self.memory_steps + self.time_steps

    def to_json(self) -> str:
        """Return the job as JSON for its ranks."""
        return json.dumps(to_builtins(self, enc_hook=str))

    @classmethod
    def from_json(cls, text: str) -> "ReferenceJob":
        """Parse the JSON written by the parent."""
        values = json.loads(text)
        paths = {name: Path(values[name]) if values[name] else None for name in ("run", "outcome")}
        return cls(**values | paths)


class ReferenceJobResult(Struct, frozen=True, kw_only=True):
    """Result of a run as reported by a rank: its losses, or why the settings were rejected."""

    losses: tuple[float, ...] = ()
    refused: str = ""

    def write(self, path: Path) -> None:
        """Write the outcome for the parent."""
        path.write_text(json.dumps(to_builtins(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "ReferenceJobResult":
        """Read a rank's outcome; empty if there is none."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return cls()
        return cls(losses=tuple(values["losses"]), refused=values["refused"])


def train_reference(
    job: ReferenceJob,
    *,
    on_step: Callable[[int], None] = lambda steps: None,
    on_start: Callable[[Sequence[int]], None] = lambda process_ids: None,
) -> tuple[float, ...]:
    """Run the job and return the loss of every step.

    ``on_step`` is called with the number of steps that rank 0 has finished.

    Raises:
        BadInput: the ranks rejected the settings.
        RankFailed: a rank exited with an error.
    """

    def poll() -> None:
        if job.run is None:
            return
        try:
            steps = (rank_folder(job.run, 0) / STEPS_NAME).read_bytes().count(b"\n")
        except OSError:
            steps = 0
        on_step(steps)

    remove_leftovers()
    with open_scratch_folder("outcome") as folder:
        job = replace(job, outcome=folder / "outcome.json")
        assert job.outcome is not None
        arguments = ["-m", _RANK_PROGRAM, job.to_json()]
        try:
            launch(arguments, world_size=job.world_size, on_poll=poll, on_start=on_start)
        except RankFailed:
            if refused := ReferenceJobResult.read(job.outcome).refused:
                raise BadInput(refused, hint="see zprof train --help") from None
            raise
        poll()
        return ReferenceJobResult.read(job.outcome).losses


class RankFailed(ZprofError):
    """A rank exited with an error or was killed externally; the latter is not a bug of zprof."""

    exit_code = 70

    def __init__(self, message: str, *, hint: str = "", is_external: bool = False) -> None:
        super().__init__(message, hint=hint)
        if is_external:
            self.exit_code = BadInput.exit_code


def launch(
    arguments: Sequence[str],
    *,
    world_size: int,
    on_poll: Callable[[], None] = lambda: None,
    on_start: Callable[[Sequence[int]], None] = lambda process_ids: None,
) -> None:
    """Run ``python ARGUMENTS`` on every rank and wait for all ranks.

    ``on_poll`` is called while waiting. If a rank fails, the others get time to notice and to write their
    recordings; then they are terminated.

    Raises:
        RankFailed: a rank exited with an error; the message contains its error line.
    """
    with open_scratch_folder("ranks") as folder:
        logs = [(folder / f"rank{rank}.log").open("w+b") for rank in range(world_size)]
        port = _find_free_port()
        ranks: list[subprocess.Popen[bytes]] = []
        raise_lost_interrupt()
        try:
            # An interrupt within Popen() would leave an untracked rank.
            with defer_interrupts():
                ranks.extend(
                    _start_rank(arguments, rank, world_size, port, folder, logs[rank])
                    for rank in range(world_size)
                )
            on_start([process.pid for process in ranks])
            _wait_for_ranks(ranks, on_poll)
            failed = {rank: code for rank, process in enumerate(ranks) if (code := process.poll())}
        finally:
            with defer_interrupts():
                _end_ranks(ranks)
        if failed:
            _raise_failure(failed, logs)


def _start_rank(
    arguments: Sequence[str], rank: int, world_size: int, port: int, folder: Path, log: IO[bytes]
) -> subprocess.Popen[bytes]:
    environment = os.environ | {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        # A terminated rank cannot clean up its temporary files.
        "TMPDIR": str(folder),
        # One thread per rank, like torchrun: ranks on one machine would compete for its cores.
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
    }
    return subprocess.Popen(
        [sys.executable, *arguments], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
    )


def _wait_for_ranks(ranks: Sequence[subprocess.Popen[bytes]], on_poll: Callable[[], None]) -> None:
    deadline: float | None = None
    while any(process.poll() is None for process in ranks):
        if deadline is None and any(process.poll() not in (None, 0) for process in ranks):
            deadline = time.monotonic() + _GRACE_S
        if deadline is not None and time.monotonic() > deadline:
            return
        on_poll()
        raise_lost_interrupt()
        time.sleep(_POLL_S)


def _end_ranks(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """Terminate the ranks that are still running; kill those that ignore SIGTERM."""
    for process in ranks:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + _TERMINATION_S
    for process in ranks:
        try:
            process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _raise_failure(failed: Mapping[int, int], logs: Sequence[IO[bytes]]) -> NoReturn:
    """Raise with the first line of the error after the rank's last traceback, else with its last line."""
    # A rank killed by a signal is the cause; the others fail because they lost it.
    rank = next((rank for rank, code in failed.items() if code < 0), min(failed))
    code = failed[rank]
    reason = f"was killed by signal {-code}" if code < 0 else f"failed with exit code {code}"
    logs[rank].seek(0)
    lines = [line for line in logs[rank].read().decode(errors="replace").splitlines() if line.strip()]
    starts = [number for number, line in enumerate(lines) if line.startswith("Traceback (")]
    error_lines = lines[starts[-1] + 1 :] if starts else []
    line = next(
        (line for line in error_lines if not line[0].isspace()), lines[-1] if lines else "it printed nothing"
    )
    raise RankFailed(
        f"rank {rank} {reason}: {line.strip()[:300]}",
        hint="the recordings of the other ranks are kept",
        is_external=-code in _EXTERNAL_SIGNALS,
    )


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
