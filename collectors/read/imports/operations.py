"""Import an operation timeline, one file for all ranks of a job, as a run without tables of single ranks."""

import time
from collections.abc import Sequence
from pathlib import Path

from zprof.base.errors import BadInput
from zprof.collectors.read.imports.file_ranks import RankedFile
from zprof.collectors.read.imports.options import ImportOptions, ImportProgress, Written
from zprof.collectors.read.operations.reader import read_operations
from zprof.model.training import TrainingFacts
from zprof.run.files import write_atomically
from zprof.run.manifest import MANIFEST_NAME, OPERATION_TIMELINE, RunManifest, to_json
from zprof.run.table_reader import read_numbers
from zprof.run.writer import write_provisional
from zprof.version import __version__


def write_operations(
    run: Path, paths: Sequence[Path], notes: Sequence[str], options: ImportOptions, progress: ImportProgress
) -> Written:
    """Write the timeline at ``paths`` as the run ``run``; return its file, and notes.

    Raises:
        BadInput: there are several files, or the file cannot be used.
        OSError: the run cannot be written.
    """
    path = paths[0]
    if len(paths) > 1:
        raise BadInput(f"{len(paths)} operation timelines, each of a whole job", hint=f"pass one: {path}")
    progress.start(1, path.stat().st_size)
    run.mkdir()
    with read_operations(path) as table:
        file = write_provisional(run, "operations", table)
        ranks = len({*read_numbers(table.column("rank")).tolist()})
    manifest = RunManifest(
        zprof_version=__version__,
        created_ns=time.time_ns(),
        world_size=ranks,
        backend="unknown",
        device="unknown",
        training=TrainingFacts(),
        run_id=f"import-{time.time_ns()}",
        source=OPERATION_TIMELINE,
        operations=file,
    )
    write_atomically(run / MANIFEST_NAME, to_json(manifest).encode())
    progress.report_bytes(path.stat().st_size)
    progress.finish_rank()
    return Written(files=(RankedFile(rank=0, path=path),), notes=tuple(notes))
