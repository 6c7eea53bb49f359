"""Progress of an import: a bar on a terminal, nothing elsewhere (logs of CI stay short)."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from zprof.cli.terminal import console
from zprof.integrations.imports.watch import ImportWatch, Unwatched

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

#: Shorter imports need no bar.
_SMALL_BYTES = 4 << 20


@contextmanager
def import_progress() -> Iterator[ImportWatch]:
    """Yields what an import tells of itself to."""
    if not console.are_terminals(sys.stderr):
        yield Unwatched()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    text = TextColumn("zprof: {task.description}", markup=False)
    columns = (text, BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield _Bar(bar)


class _Bar:
    """The bar of one import; it comes to be when there is something to wait for."""

    def __init__(self, progress: "Progress") -> None:
        self._progress = progress
        self._task: TaskID | None = None
        self._done = 0
        self._ranks = 0

    def begin(self, ranks: int, total_bytes: int) -> None:
        """Show it, where it would not be gone at once."""
        self._ranks = ranks
        if total_bytes > _SMALL_BYTES:
            self._task = self._progress.add_task(self._text(), total=total_bytes)

    def bytes_read(self, total_bytes: int) -> None:
        """Move it."""
        if self._task is not None:
            self._progress.update(self._task, completed=total_bytes)

    def rank_done(self) -> None:
        """Count."""
        self._done += 1
        if self._task is not None:
            self._progress.update(self._task, description=self._text())

    def _text(self) -> str:
        return f"importing, {self._done} of {self._ranks} ranks"
