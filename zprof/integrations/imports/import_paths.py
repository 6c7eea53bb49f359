"""Import Kineto traces or CUDA memory snapshots, one per rank, as a run."""

import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from zprof.collectors.snapshot.reader import read_snapshot
from zprof.integrations.imports.file_ranks import RankedFile, rank_files, refuse_duplicate_ranks
from zprof.integrations.imports.options import ImportOptions, ImportProgress, NoImportProgress, Written
from zprof.integrations.imports.sources import SourceKind, Sources, find_sources
from zprof.integrations.imports.traces import write_traces
from zprof.model.errors import BadInput
from zprof.model.gaps import Gap, GapKind
from zprof.model.training import TrainingFacts
from zprof.run.manifest import RunManifest
from zprof.run.output_path import replace_run
from zprof.run.writer import RankWriter
from zprof.version import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The written run, the file of each rank, and notes.

    ``is_cacheable``: True if another import of the same files would give the same result.
    """

    run: Path
    files: tuple[RankedFile, ...]
    notes: tuple[str, ...]
    is_cacheable: bool


def import_paths(
    paths: Sequence[Path],
    run: Path,
    force: bool = False,
    *,
    options: ImportOptions | None = None,
    progress: ImportProgress | None = None,
) -> Imported:
    """Import the files and folders ``paths`` as the run ``run``, completely or not at all.

    Raises:
        BadInput: no file can be imported, the files do not fit together, or ``run`` exists without ``force``.
    """
    sources = find_sources(paths)
    with replace_run(run, force=force):
        try:
            run.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f".{run.name}.", dir=run.parent) as folder:
                temporary = Path(folder) / run.name
                written = _write_run(
                    temporary, sources, options or ImportOptions(), progress or NoImportProgress()
                )
                _move_into_place(temporary, run)
        except OSError as error:
            raise BadInput(
                f"{run}: cannot be written ({error.strerror})", hint="choose another run"
            ) from None
    return Imported(run=run, files=written.files, notes=written.notes, is_cacheable=written.is_cacheable)


def _write_run(run: Path, sources: Sources, options: ImportOptions, progress: ImportProgress) -> Written:
    if sources.kind is SourceKind.TRACE:
        return write_traces(run, sources.files, sources.notes, options, progress)
    return write_snapshots(run, sources.files, sources.notes, progress)


def _move_into_place(temporary: Path, run: Path) -> None:
    if run.is_dir():
        run.rmdir()  # replace_run leaves a folder only if it is empty
    shutil.move(temporary, run)


def write_snapshots(
    run: Path, paths: Sequence[Path], notes: Sequence[str], progress: ImportProgress
) -> Written:
    """Write the snapshots at ``paths`` as the run ``run``; return the file of each rank, and notes.

    Raises:
        BadInput: a file cannot be used, or two files are from the same rank.
        OSError: the run cannot be written.
    """
    ranking = rank_files(paths)
    refuse_duplicate_ranks(ranking.files)
    all_notes = (*notes, *ranking.notes)
    manifest = _make_manifest(ranking.files, all_notes)
    sizes = [file.path.stat().st_size for file in ranking.files]
    progress.start(len(sizes), sum(sizes))
    for position, file in enumerate(ranking.files):
        _write_rank(run, manifest, file)
        progress.report_bytes(sum(sizes[: position + 1]))
        progress.finish_rank()
    return Written(files=ranking.files, notes=all_notes)


def _make_manifest(files: Sequence[RankedFile], notes: Sequence[str]) -> RunManifest:
    return RunManifest(
        zprof_version=__version__,
        created_ns=time.time_ns(),
        world_size=max(file.rank for file in files) + 1,
        backend="unknown",
        device="cuda",
        training=TrainingFacts(),
        run_id=f"import-{time.time_ns()}",
        source="snapshot",
        gaps=tuple(_make_rank_gap(note) for note in notes),
    )


def _write_rank(run: Path, manifest: RunManifest, file: RankedFile) -> None:
    with read_snapshot(file.path) as snapshot:
        writer = RankWriter(run, file.rank, manifest)
        for name, table in snapshot.tables.items():
            writer.write_table(name, table)
        gaps = [replace(gap, rank=file.rank) for gap in snapshot.gaps]
    writer.finish(memory_steps=(), time_steps=(), gaps=gaps, status="complete")


def _make_rank_gap(note: str) -> Gap:
    return Gap(
        kind=GapKind.FILE,
        what="ranks of the snapshots",
        reason=note,
        remedy="put rank0, rank1, ... into the file names",
    )
