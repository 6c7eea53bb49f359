"""Show progress bars on stderr for training runs and imports.

Without a terminal, print at most one line to keep CI logs short.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from zprof.cli import console
from zprof.integrations.imports.options import ImportProgress, NoImportProgress

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


@contextmanager
def import_progress() -> Iterator[ImportProgress]:
    """Yield the object to which an import reports its progress."""
    if not console.are_terminals(sys.stderr):
        yield NoImportProgress()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    text = TextColumn("zprof: {task.description}", markup=False)
    columns = (text, BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield _ImportBar(bar)


class _ImportBar:
    """Progress bar of one import, shown only if the import is large enough."""

    def __init__(self, progress: "Progress") -> None:
        self._progress = progress
        self._task: TaskID | None = None
        self._finished = 0
        self._ranks = 0

    def start(self, ranks: int, total_bytes: int) -> None:
        """Show the bar, unless the import is too small for one."""
        self._ranks = ranks
        if total_bytes > _MIN_BAR_BYTES:
            self._task = self._progress.add_task(self._describe_progress(), total=total_bytes)

    def report_bytes(self, total_bytes: int) -> None:
        """Advance the bar."""
        if self._task is not None:
            self._progress.update(self._task, completed=total_bytes)

    def finish_rank(self) -> None:
        """Count a finished rank."""
        self._finished += 1
        if self._task is not None:
            self._progress.update(self._task, description=self._describe_progress())

    def _describe_progress(self) -> str:
        return f"importing, {self._finished} of {self._ranks} ranks"
