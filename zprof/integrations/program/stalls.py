"""Say that a rank was saved because it made no progress, and save those that could not save themselves."""

import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def format_stall(run: Path, seconds: float) -> str:
    """Return the line for the user while the program still runs."""
    return f"no progress for {seconds:.0f} s: saved to {run}; zprof diagnose {shlex.quote(str(run))}"


def finish_watch(run: Path) -> Iterator[str]:
    """Save the ranks that left no stall of their own, remove the files of the watch, and yield notes."""
    from zprof.collectors.watch.shared_files import remove_watch_folder
    from zprof.collectors.watch.silent_ranks import save_silent_ranks

    saved: list[int] = []
    with suppress(Exception):  # whatever happens here, the program has ended as it did
        saved = save_silent_ranks(run, has_job_ended=True)
    remove_watch_folder(run)
    if saved:
        ranks = ", ".join(map(str, saved))
        yield f"rank {ranks} could not save itself: its last progress was saved to {run}"
