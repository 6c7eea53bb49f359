"""Say that a rank was saved because it made no progress, and save those that could not save themselves."""

import shlex
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def format_stall(run: Path, seconds: float) -> str:
    """Return the line for the user while the program still runs."""
    return f"no progress for {seconds:.0f} s: saved to {run}; zprof diagnose {shlex.quote(str(run))}"


class StuckJob:
    """Says when a job is to be ended: no rank has moved for ``end_s`` since all of them were saved."""

    def __init__(self, run: Path, end_s: float) -> None:
        self._run, self._end_s = run, end_s
        self._progress: tuple[tuple[int, int], ...] = ()
        self._since_s = 0.0

    def is_over(self) -> bool:
        """Return True if the job is to be ended now; called about once a second."""
        from zprof.collectors.watch.silent_ranks import list_stuck_states

        try:
            states = list_stuck_states(self._run)
        except Exception:  # whatever is wrong with the files, a job that may be healthy goes on
            states = []
        progress = tuple((state.rank, state.progress_ns) for state in states)
        if not progress or progress != self._progress:
            self._progress, self._since_s = progress, time.monotonic()
            return False
        return time.monotonic() - self._since_s >= self._end_s


def finish_watch(run: Path, code: int) -> Iterator[str]:
    """Save the ranks that left no stall of their own, remove the files of the watch, and yield notes.

    ``code``: the exit code of the program; with 0, a rank that ended where it had been saved was not stuck.
    """
    from zprof.collectors.watch.shared_files import remove_watch_folder
    from zprof.collectors.watch.silent_ranks import mark_ended_stalls, save_silent_ranks

    saved: list[int] = []
    with suppress(Exception):  # whatever happens here, the program has ended as it did
        if code == 0:
            mark_ended_stalls(run)
        else:
            saved = save_silent_ranks(run, has_job_ended=True)
    remove_watch_folder(run)
    if saved:
        ranks = ", ".join(map(str, saved))
        yield f"rank {ranks} could not save itself: its last progress was saved to {run}"
