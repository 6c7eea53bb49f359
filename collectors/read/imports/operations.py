"""Import an operation timeline of all ranks of a job as a run without tables of single ranks."""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from zprof.base.errors import BadInput
from zprof.collectors.read.formats import FileKind
from zprof.collectors.read.imports.file_ranks import RankedFile
from zprof.collectors.read.imports.options import ImportOptions, ImportProgress, Written
from zprof.collectors.read.imports.sources import detect_kind
from zprof.collectors.read.operations.reader import read_operations
from zprof.collectors.read.operations.stage_times import read_stage_times
from zprof.model.training import TrainingFacts
from zprof.run.files import write_atomically
from zprof.run.manifest import MANIFEST_NAME, OPERATION_TIMELINE, RunManifest, to_json
from zprof.run.table_reader import read_numbers
from zprof.run.writer import write_provisional
from zprof.version import __version__


def write_operations(
    run: Path, paths: Sequence[Path], notes: Sequence[str], options: ImportOptions, progress: ImportProgress
) -> Written:
    """Write the timeline as the run ``run``: one Parquet file, or one JSON file per stage; return the files.

    Raises:
        BadInput: there are several timelines, or a file cannot be used.
        OSError: the run cannot be written.
    """
    total_bytes = sum(path.stat().st_size for path in paths)
    progress.start(len(paths), total_bytes)
    run.mkdir()
    is_of_stages = {detect_kind(path) for path in paths} == {FileKind.STAGE_TIMES}
    if len(paths) > 1 and not is_of_stages:
        raise BadInput(f"{len(paths)} operation timelines, each of a whole job", hint=f"pass one: {paths[0]}")
    with nullcontext(read_stage_times(paths)) if is_of_stages else read_operations(paths[0]) as table:
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
    progress.report_bytes(total_bytes)
    for _ in paths:
        progress.finish_rank()
    files = tuple(RankedFile(rank=at, path=path) for at, path in enumerate(paths))
    return Written(files=files, notes=tuple(notes))
