"""Import Kineto traces, CUDA memory snapshots or flight-recorder dumps, one per rank, as a run."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from zprof.base.errors import BadInput
from zprof.collectors.read.formats import FORMATS
from zprof.collectors.read.imports.file_ranks import RankedFile
from zprof.collectors.read.imports.options import ImportOptions, ImportProgress, Written
from zprof.collectors.read.imports.sources import find_sources
from zprof.model.stated_mesh import StatedMesh, check_mesh
from zprof.run.files import write_atomically
from zprof.run.manifest import MANIFEST_NAME, read_run_manifest, to_json
from zprof.run.output_path import replace_run


class Imported(Struct, frozen=True, kw_only=True):
    """Result of an import: the run, the file of each rank, and notes.

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
            with _open_temporary_folder(run) as folder:
                temporary = folder / run.name
                # All formats of one source share a reader.
                reader = next(each.reader for each in FORMATS.values() if each.source is sources.kind)
                module, _, function = reader.partition(":")
                write_run: Callable[..., Written] = getattr(import_module(module), function)
                written = write_run(
                    temporary,
                    sources.files,
                    sources.notes,
                    options or ImportOptions(),
                    progress or ImportProgress(),
                )
                if options is not None and options.mesh:
                    _state_mesh(temporary, options.mesh)
                if run.is_dir():
                    run.rmdir()  # replace_run leaves a folder only if it is empty
                shutil.move(temporary, run)
        except OSError as error:
            raise BadInput(
                f"{run}: cannot be written ({error.strerror})", hint="choose another run"
            ) from None
    return Imported(run=run, files=written.files, notes=written.notes, is_cacheable=written.is_cacheable)


def _state_mesh(run: Path, mesh: StatedMesh) -> None:
    """Write the mesh that the user states into the manifest of an imported run."""
    manifest = read_run_manifest(run)
    check_mesh(mesh, manifest.world_size)
    described = replace(manifest, training=replace(manifest.training, mesh=mesh))
    write_atomically(run / MANIFEST_NAME, to_json(described).encode())


@contextmanager
def _open_temporary_folder(run: Path) -> Iterator[Path]:
    """Yield a private folder beside ``run``, after removing one left by a killed import."""
    folder = run.with_name(f".{run.name}.importing")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
