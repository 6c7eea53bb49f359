"""Import the files of NCCL's Inspector as a run without tables of single ranks."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from zprof.collectors.read.imports.file_ranks import RankedFile
from zprof.collectors.read.imports.options import ImportOptions, ImportProgress, Written
from zprof.collectors.read.inspector.reader import read_inspector
from zprof.model.training import TrainingFacts
from zprof.run.files import write_atomically
from zprof.run.manifest import MANIFEST_NAME, NCCL_INSPECTOR, RunManifest, to_json
from zprof.run.table_reader import read_numbers
from zprof.run.writer import write_provisional
from zprof.version import __version__


def write_inspector(
    run: Path, paths: Sequence[Path], notes: Sequence[str], options: ImportOptions, progress: ImportProgress
) -> Written:
    """Write the operations of all files as the run ``run``; return the files.

    Raises:
        BadInput: No file can be used.
        OSError: The run cannot be written.
    """
    progress.start(len(paths), sum(path.stat().st_size for path in paths))
    run.mkdir()
    table, gaps = read_inspector(paths, progress.report_bytes, progress.finish_rank)
    hosts = read_numbers(table.column("host").chunk(0).indices).astype(np.int64)
    processes = np.unique(hosts << 41 | read_numbers(table.column("process")))
    manifest = RunManifest(
        zprof_version=__version__,
        created_ns=time.time_ns(),
        world_size=max(len(processes), int(read_numbers(table.column("ranks")).max())),
        backend="nccl",
        device="unknown",
        training=TrainingFacts(),
        run_id=f"import-{time.time_ns()}",
        source=NCCL_INSPECTOR,
        gaps=gaps,
        inspector=write_provisional(run, "inspector", table),
    )
    write_atomically(run / MANIFEST_NAME, to_json(manifest).encode())
    files = tuple(RankedFile(rank=at, path=path) for at, path in enumerate(paths))
    return Written(files=files, notes=tuple(notes))
