"""Find the run behind a path: the path itself, or the import of a raw file or folder."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from zprof.base.errors import BadInput, MissingData
from zprof.collectors.read.imports.options import ImportProgress
from zprof.run.log_evidence import EVIDENCE_NAME
from zprof.run.manifest import MANIFEST_NAME, RANK_NAME
from zprof.run.reader import Run


def find_run_folder(
    path: Path,
    print_note: Callable[[str], None],
    show_progress: Callable[[], AbstractContextManager[ImportProgress]],
    while_reading: Callable[[], None] | None = None,
) -> Path:
    """Return ``path`` if it is a run or does not exist, else the run imported into the user's cache.

    Args:
        path: A run, a file of a format that is read, or a folder of such files.
        print_note: Called with messages about the progress and location of an import.
        show_progress: Called before an import; its context ends with the import.
        while_reading: Called while other processes read the files; not called if this process reads them.

    Raises:
        BadInput: the path cannot be read or imported.
    """
    try:
        needs_no_import = (path / MANIFEST_NAME).exists() or not path.exists()
    except OSError as error:  # e.g. the name is too long, or the folder is not accessible
        raise BadInput(f"{path}: cannot be read ({error.strerror})", hint="choose another run") from None
    if needs_no_import:
        return path
    from zprof.collectors.read.imports.cache import import_cached, needs_import

    if not needs_import(path) and any(path.glob(f"rank*/{RANK_NAME}")):
        return path  # a run whose manifest is missing; the reader reports that
    with show_progress() as progress:
        return import_cached([path], print_note, progress, while_reading)


def refuse_empty(run: Run, path: Path) -> None:
    """Raise if no rank of the run at ``path`` can be loaded.

    Raises:
        MissingData: no rank finished its recording.
    """
    has_job_table = run.manifest.operations is not None or run.manifest.inspector is not None
    if not run.ranks and not has_job_table and not (run.path / EVIDENCE_NAME).exists():
        reasons = "; ".join(
            gap.reason if gap.rank is None else f"rank {gap.rank}: {gap.reason}" for gap in run.gaps()[:4]
        )
        raise MissingData(f"{path}: no rank finished its recording ({reasons})", hint="record the run again")
