"""Start the ranks of a job on this machine, like a launcher, and end them all.

The parent needs no torch: it sets the variables of a launcher. A failed rank ends the job, but the others get
time to notice, to report their own errors and to write their recordings.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from zprof.process.child import Child, end_children
from zprof.process.interrupts import defer_interrupts, raise_lost_interrupt

_POLL_S = 0.02


class Ranks:
    """All ranks of a job, as a context manager: no rank is left at the end of the block.

    Args:
        arguments: Each rank is ``python ARGUMENTS``.
        world_size: Number of ranks.
        folder: Folder for the output of each rank.
        environment: Variables in addition to those of a launcher.
        stdin: Standard input of each rank; a pipe tells the rank that this process has ended.
        lead_sessions: Whether each rank leads a session, whose processes end with it.
        failure_grace_s: Time for the other ranks after one has failed.
        end_grace_s: Time from SIGTERM to SIGKILL at the end; 0 for no SIGTERM.

    Raises:
        OSError: A rank cannot be started.
        KeyboardInterrupt: One was received, possibly while the ranks start or end; no rank is left.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        world_size: int,
        folder: Path,
        *,
        environment: Mapping[str, str],
        stdin: int,
        lead_sessions: bool,
        failure_grace_s: float,
        end_grace_s: float,
    ) -> None:
        self._folder, self._failure_grace_s, self._end_grace_s = folder, failure_grace_s, end_grace_s
        self.children: list[Child] = []
        raise_lost_interrupt()
        try:
            with defer_interrupts():  # an interrupt within Popen() would leave an untracked rank
                for rank in range(world_size):
                    with self._output_path(rank).open("wb") as output:
                        child = Child(
                            [sys.executable, *arguments],
                            environment={**os.environ, **environment, **_make_variables(rank, world_size)},
                            stdin=stdin,
                            stdout=output,
                            stderr=output,
                            leads_session=lead_sessions,
                        )
                    self.children.append(child)
        except BaseException:
            self.end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End the ranks that are still running."""
        with defer_interrupts():
            end_children(self.children, self._end_grace_s)

    def wait(
        self, *, timeout_s: float | None = None, on_poll: Callable[[], None] = lambda: None
    ) -> dict[int, int]:
        """Wait for all ranks, the grace period after a failure, or ``timeout_s``; call ``on_poll`` meanwhile.

        Returns:
            Exit codes by rank, in the order of the exits; ranks that still run are omitted.
        """
        codes: dict[int, int] = {}
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            for rank, child in enumerate(self.children):
                if rank not in codes and (code := child.poll()) is not None:
                    if code and not any(codes.values()):
                        grace_end_s = time.monotonic() + self._failure_grace_s
                        deadline_s = grace_end_s if deadline_s is None else min(deadline_s, grace_end_s)
                    codes[rank] = code
            if len(codes) == len(self.children) or (deadline_s is not None and time.monotonic() > deadline_s):
                return codes
            on_poll()
            raise_lost_interrupt()
            time.sleep(_POLL_S)

    def read_output(self, rank: int) -> list[str]:
        """Return the lines that a rank printed."""
        return self._output_path(rank).read_text(errors="backslashreplace").splitlines()

    def find_error_line(self, rank: int) -> str:
        """Return the first line of the error after the rank's last traceback, or else its last line."""
        lines = [line for line in self.read_output(rank) if line.strip()]
        starts = [number for number, line in enumerate(lines) if line.startswith("Traceback (")]
        error_lines = lines[starts[-1] + 1 :] if starts else []
        fallback = lines[-1] if lines else "it printed nothing"
        return next((line for line in error_lines if not line[0].isspace()), fallback).strip()

    def _output_path(self, rank: int) -> Path:
        return self._folder / f"output{rank}.txt"


def _make_variables(rank: int, world_size: int) -> dict[str, str]:
    """Return a launcher's variables. Ranks on one machine would compete for its cores: one thread each."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
    }
