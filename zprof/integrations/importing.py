"""Other programs' files as a run: CUDA memory snapshots, one a rank."""

import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from zprof.collectors.snapshot.kinds import FileKind, kind_of
from zprof.collectors.snapshot.parent import read_snapshot, refuse_other
from zprof.integrations.snapshot_ranks import RankedFile, ranked
from zprof.model.errors import BadInput
from zprof.model.gaps import Gap
from zprof.model.training import TrainingFacts
from zprof.run.manifest import RunManifest
from zprof.run.target import cleared_target
from zprof.run.writer import RankWriter
from zprof.version import __version__

SNAPSHOTS = frozenset({FileKind.SNAPSHOT, FileKind.GZIP_SNAPSHOT})
_MOST_FILES = 4096
_GIVE = "give CUDA memory snapshots (torch.cuda.memory._dump_snapshot), or a folder of them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The run that was written, from which file each rank is, and what is worth saying about it."""

    run: Path
    files: tuple[RankedFile, ...]
    notes: tuple[str, ...]


def import_paths(paths: Sequence[Path], run: Path, force: bool = False) -> Imported:
    """Write the snapshots at ``paths`` (files, or folders of them) as the run ``run``, whole or not at all.

    Raises:
        BadInput: a file is no snapshot or cannot be used; or ``run`` is there and ``force`` is not given.
    """
    files, notes = ranked(snapshot_files(paths))
    with cleared_target(run, force=force):
        try:
            run.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f".{run.name}.", dir=run.parent) as folder:
                _write(Path(folder) / run.name, files, notes)
                _put(Path(folder) / run.name, run)
        except OSError as error:
            raise BadInput(f"{run}: cannot be written ({error.strerror})", hint="name another") from None
    return Imported(run=run, files=files, notes=notes)


def snapshot_files(paths: Sequence[Path]) -> tuple[Path, ...]:
    """The snapshots among ``paths`` and in the folders among them, in the order of their names there.

    Raises:
        BadInput: a path is something else, or there is nothing to read.
    """
    found: list[Path] = []
    for path in paths:
        found += _in_folder(path) if path.is_dir() else [_snapshot(path)]
        if len(found) > _MOST_FILES:
            raise BadInput(f"{path}: more than {_MOST_FILES} files", hint="give fewer of them")
    return tuple(found)


def kind_at(path: Path) -> FileKind:
    """What kind of file it is.

    Raises:
        BadInput: there is no file, or it cannot be read.
    """
    if not path.is_file():
        raise BadInput(f"{path}: no such file", hint=_GIVE)
    try:
        with path.open("rb") as file:
            return kind_of(file)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})", hint=_GIVE) from None


def _snapshot(path: Path) -> Path:
    try:
        refuse_other(kind_at(path))
    except BadInput as error:
        message = error.message if error.message.startswith(str(path)) else f"{path}: {error.message}"
        raise BadInput(message, hint=error.hint) from None
    return path


def _in_folder(folder: Path) -> list[Path]:
    """The snapshots in a folder; other files beside them are left alone."""
    try:
        names = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise BadInput(f"{folder}: cannot be read ({error.strerror})", hint=_GIVE) from None
    kinds = {path: kind_at(path) for path in names[:_MOST_FILES] if path.is_file()}
    found = [path for path, kind in kinds.items() if kind in SNAPSHOTS]
    if found:
        return found
    traces = [path for path, kind in kinds.items() if kind is FileKind.TRACE]
    if traces:
        _snapshot(traces[0])
    raise BadInput(f"{folder}: no CUDA memory snapshot in this folder", hint=_GIVE)


def _write(run: Path, files: Sequence[RankedFile], notes: Sequence[str]) -> None:
    manifest = RunManifest(
        zprof_version=__version__,
        created_ns=time.time_ns(),
        world_size=max(file.rank for file in files) + 1,
        backend="unknown",
        device="cuda",
        training=TrainingFacts(),
        run_id=f"import-{time.time_ns()}",
        source="snapshot",
    )
    for position, file in enumerate(files):
        said = [_noted(note) for note in notes] if position == 0 else []
        _write_rank(run, manifest, file, said)


def _write_rank(run: Path, manifest: RunManifest, file: RankedFile, notes: Sequence[Gap]) -> None:
    with read_snapshot(file.path) as snapshot:
        writer = RankWriter(run, file.rank, manifest)
        for name, table in snapshot.tables.items():
            writer.write_table(name, {column: table[column] for column in table.column_names})
        gaps = [replace(gap, rank=file.rank) for gap in snapshot.gaps]
    writer.finish(memory_steps=(), time_steps=(), gaps=[*notes, *gaps], status="complete")


def _noted(note: str) -> Gap:
    return Gap(what="ranks of the snapshots", reason=note, remedy="put rank0, rank1, ... into the names")


def _put(made: Path, run: Path) -> None:
    if run.is_dir():
        run.rmdir()  # cleared_target left it only where it is empty
    shutil.move(made, run)
