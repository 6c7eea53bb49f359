"""A path that the user gave, as a run: a recording, or traces or snapshots that are imported on the way."""

from pathlib import Path
from typing import TYPE_CHECKING

from zprof.cli.terminal import console
from zprof.model.errors import BadInput, MissingData
from zprof.model.printable import printable

if TYPE_CHECKING:
    from zprof.run.reader import Run


def open_run(path: Path) -> "Run":
    """The run at ``path``, with at least one rank that can be read.

    A Kineto trace or a CUDA memory snapshot, or a folder of them, is imported into the user's cache folder.

    Raises:
        BadInput: there is no run and nothing to make one of, or it is damaged.
        MissingData: no rank finished its recording.
    """
    from zprof.run.reader import load

    run = load(_imported(path))
    if not run.ranks:
        reasons = "; ".join(f"rank {gap.rank}: {gap.reason}" for gap in run.gaps()[:4])
        raise MissingData(f"{path}: no rank finished its recording ({reasons})", hint="record the run again")
    return run


def _imported(path: Path) -> Path:
    """``path`` where it is a run, or where there is nothing; else the run that is made of it."""
    from zprof.run.manifest import MANIFEST_NAME

    try:
        is_run_or_nothing = (path / MANIFEST_NAME).exists() or not path.exists()
    except OSError as error:  # A name that is too long, a folder that others must not look into.
        raise BadInput(f"{path}: cannot be read ({error.strerror})", hint="name another run") from None
    if is_run_or_nothing:
        return path
    from zprof.integrations.import_cache import cached_import, is_raw

    if not is_raw(path):
        return path
    from zprof.cli.terminal.import_progress import import_progress

    with import_progress() as watch:
        return cached_import(path, lambda text: console.note(f"zprof: {printable(text)}"), watch)
