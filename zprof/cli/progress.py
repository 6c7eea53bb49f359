"""Show progress bars on stderr for training runs and imports.

Without a terminal, at most one line is printed to keep CI logs short.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from zprof.cli import console
from zprof.collectors.read.imports.options import ImportProgress

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


@contextmanager
def steps_progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of finished steps."""
    if not console.are_terminals(sys.stderr):
        console.print_note(f"{title}: {total} steps")
        yield lambda steps: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TextColumn("steps"), TimeElapsedColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        yield lambda steps: bar.update(task, completed=min(steps, total))


#: Imports below this size finish before a bar would be useful.
_MIN_BAR_BYTES = 4 << 20
_MIN_REFRESH_S = 0.1


@contextmanager
def import_progress() -> Iterator[ImportProgress]:
    """Yield the object to which an import reports its progress."""
    if not console.are_terminals(sys.stderr):
        yield ImportProgress()
        return
    bar = _ImportBar()
    try:
        yield bar
    finally:
        bar.close()


class _ImportBar(ImportProgress):
    """Progress bar of one import (bytes read and stage), shown only if the import is large enough.

    The bar is drawn only when progress is reported, without a separate thread: the processes that read the
    files are forked from a process with one thread.
    """

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._refreshed_s = 0.0
        self._finished = self._ranks = self._total_bytes = 0

    def start(self, ranks: int, total_bytes: int) -> None:
        """Set the number of bytes to read."""
        self._ranks, self._total_bytes = ranks, total_bytes

    def report_bytes(self, total_bytes: int) -> None:
        """Advance the bar. Once all bytes have been read, the tables are still to be written."""
        now_s = time.monotonic()
        is_too_soon = now_s - self._refreshed_s < _MIN_REFRESH_S and total_bytes < self._total_bytes
        if self._total_bytes <= _MIN_BAR_BYTES or is_too_soon:
            return
        self._refreshed_s = now_s
        if self._progress is None:
            self._show(self._describe_stage(total_bytes))
        if self._progress is not None and self._task is not None:
            stage = self._describe_stage(total_bytes)
            self._progress.update(self._task, completed=total_bytes, description=stage, refresh=True)

    def finish_rank(self) -> None:
        """Count a finished rank."""
        self._finished += 1

    def close(self) -> None:
        """Remove the bar."""
        if self._progress is not None:
            self._progress.stop()

    def _show(self, stage: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        text = TextColumn("zprof: {task.description}", markup=False)
        columns = (text, BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
        self._task = self._progress.add_task(stage, total=self._total_bytes)
        self._progress.start()

    def _describe_stage(self, read_bytes: int) -> str:
        stage = "reading" if read_bytes < self._total_bytes else "writing"
        return stage if self._ranks == 1 else f"{stage}, {self._finished} of {self._ranks} ranks imported"
