"""Other programs' files as a run: Kineto traces or CUDA memory snapshots, one a rank."""

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zprof.integrations.imports.names import RankedFile
from zprof.integrations.imports.options import ImportOptions, Written
from zprof.integrations.imports.snapshots import write_snapshots
from zprof.integrations.imports.sources import SourceKind, Sources, sources_at
from zprof.integrations.imports.traces import write_traces
from zprof.integrations.imports.watch import ImportWatch, Unwatched
from zprof.model.errors import BadInput
from zprof.run.target import cleared_target


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The run that was written, from which file each rank is, and what is worth saying about it.

    ``lasting``: importing the same files again would end the same.
    """

    run: Path
    files: tuple[RankedFile, ...]
    notes: tuple[str, ...]
    lasting: bool


def import_paths(
    paths: Sequence[Path],
    run: Path,
    force: bool = False,
    *,
    options: ImportOptions | None = None,
    watch: ImportWatch | None = None,
) -> Imported:
    """Write the files at ``paths`` (or in folders there) as the run ``run``, whole or not at all.

    Raises:
        BadInput: nothing there can be used, or not together; or ``run`` is there and ``force`` is not given.
    """
    sources = sources_at(paths)
    with cleared_target(run, force=force):
        try:
            run.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f".{run.name}.", dir=run.parent) as folder:
                made = Path(folder) / run.name
                written = _write(made, sources, options or ImportOptions(), watch or Unwatched())
                _put(made, run)
        except OSError as error:
            raise BadInput(f"{run}: cannot be written ({error.strerror})", hint="name another") from None
    return Imported(run=run, files=written.files, notes=written.notes, lasting=written.lasting)


def _write(run: Path, sources: Sources, options: ImportOptions, watch: ImportWatch) -> Written:
    if sources.kind is SourceKind.TRACE:
        return write_traces(run, sources.files, sources.notes, options, watch)
    return write_snapshots(run, sources.files, sources.notes, watch)


def _put(made: Path, run: Path) -> None:
    if run.is_dir():
        run.rmdir()  # cleared_target left it only where it is empty
    shutil.move(made, run)
