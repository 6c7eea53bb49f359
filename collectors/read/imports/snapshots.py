"""Import CUDA memory snapshots, one file per rank: read them in parallel, and leave out those that fail."""

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from threading import Lock

from msgspec.structs import replace

from zprof.base.errors import BadInput, MissingData
from zprof.collectors.read.imports.file_ranks import RankedFile, rank_files, refuse_duplicate_ranks
from zprof.collectors.read.imports.options import ImportOptions, ImportProgress, Written
from zprof.collectors.read.imports.trace_worker import Refusal
from zprof.collectors.read.imports.traces import make_refusal_gaps, make_unusable_error
from zprof.collectors.read.snapshot.reader import SnapshotReaderKilled, read_snapshot
from zprof.model.gap_texts import make_gap
from zprof.model.training import TrainingFacts
from zprof.process.workers import count_usable_processors
from zprof.run.files import write_atomically
from zprof.run.manifest import MANIFEST_NAME, RunManifest, to_json
from zprof.run.writer import RankWriter
from zprof.version import __version__

#: Memory for reading a snapshot, in multiples of its size (measured: 7), and the share of the free memory
#: that all readers together may take.
_BYTES_PER_FILE_BYTE = 8
_USABLE_RATIO = 0.5
_NO_BLOCKS = Refusal(
    reason="the snapshot holds no memory blocks",
    hint="dump it while memory is in use, after torch.cuda.memory._record_memory_history()",
    is_permanent=True,
)


def write_snapshots(
    run: Path, paths: Sequence[Path], notes: Sequence[str], options: ImportOptions, progress: ImportProgress
) -> Written:
    """Write the snapshots at ``paths`` as the run ``run``; return the file of each rank, and notes.

    Files that cannot be read become gaps if another one can. Without ``options.workers``, as many
    are read at the same time as the processors and the memory allow.

    Raises:
        BadInput: no file can be used, or two files are from the same rank.
        MissingData: no file holds a memory block.
        OSError: the run cannot be written.
    """
    ranking = rank_files(paths)
    refuse_duplicate_ranks(ranking.files)
    all_notes = (*notes, *ranking.notes)
    manifest = _make_manifest(ranking.files, all_notes)
    refused = dict[Path, Refusal]()
    sizes = {file.path: file.path.stat().st_size for file in ranking.files}
    progress.start(len(sizes), sum(sizes.values()))
    read_bytes = 0
    workers = options.workers or _choose_workers(max(sizes.values()))
    for file, refusal in _write_ranks(run, manifest, ranking.files, workers):
        if refusal is not None:
            refused[file.path] = refusal
        read_bytes += sizes[file.path]
        progress.report_bytes(read_bytes)
        progress.finish_rank()
    if len(refused) == len(ranking.files):
        error = make_unusable_error(paths, refused)
        if all(refusal is _NO_BLOCKS for refusal in refused.values()):
            raise MissingData(error.message, hint=error.hint)
        raise error
    if refused:
        gaps = (*manifest.gaps, *make_refusal_gaps(refused))
        write_atomically(run / MANIFEST_NAME, to_json(replace(manifest, gaps=gaps)).encode())
    return Written(
        files=tuple(file for file in ranking.files if file.path not in refused),
        notes=(*all_notes, *(f"{path}: not imported: {refusal.reason}" for path, refusal in refused.items())),
        is_cacheable=all(refusal.is_permanent for refusal in refused.values()),
    )


def _write_ranks(
    run: Path, manifest: RunManifest, files: Sequence[RankedFile], workers: int
) -> Iterator[tuple[RankedFile, Refusal | None]]:
    """Read and write each file; yield it with the reason if it could not be read.

    Each file is read by a process of its own, so that threads are enough to keep all processors busy.
    """
    writing = Lock()  # the tables of one file at a time are in this process's memory
    with ThreadPoolExecutor(min(workers, len(files))) as pool:
        running = {pool.submit(_write_rank, run, manifest, file, writing): file for file in files}
        try:
            for future in as_completed(running):
                yield running[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _write_rank(run: Path, manifest: RunManifest, file: RankedFile, writing: Lock) -> Refusal | None:
    """Write one rank; return the reason if its file cannot be read.

    Raises:
        OSError: the tables cannot be written.
    """
    try:
        with read_snapshot(file.path) as snapshot, writing:
            if not len(snapshot.tables["block"]):
                return _NO_BLOCKS
            writer = RankWriter(run, file.rank, manifest)
            for name, table in snapshot.tables.items():
                writer.write_table(name, table)
            gaps = [replace(gap, rank=file.rank) for gap in snapshot.gaps]
            writer.finish(memory_steps=(), time_steps=(), gaps=gaps, status="complete")
    except BadInput as error:
        return Refusal(
            reason=error.message.removeprefix(f"{file.path}: "),
            hint=error.hint,
            is_permanent=not isinstance(error, SnapshotReaderKilled),
        )
    return None


def _choose_workers(largest_bytes: int) -> int:
    """Return how many files can be read at the same time with the free memory."""
    # The free physical memory, None if the system does not report it.
    try:
        free_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        free_bytes = None
    if free_bytes is None:
        return count_usable_processors()
    fitting = int(_USABLE_RATIO * free_bytes / (_BYTES_PER_FILE_BYTE * max(1, largest_bytes)))
    return max(1, min(count_usable_processors(), fitting))


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
        gaps=tuple(make_gap("snapshot_rank_guessed", note=note) for note in notes),
    )
