"""Progress of a training run on stderr: a bar on a terminal, one line at each end elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from zprof.cli.terminal import console


@contextmanager
def steps_progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yields what is to be called with the number of finished steps."""
    if not console.are_terminals(sys.stderr):
        console.note(f"{title}: {total} steps")
        yield lambda steps: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TextColumn("steps"), TimeElapsedColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        yield lambda steps: bar.update(task, completed=min(steps, total))
