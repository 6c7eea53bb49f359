"""Import Kineto traces, one file per rank: convert them in parallel, assign ranks, write the manifest."""

import os
import shutil
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from msgspec import Struct

from zprof.base.errors import BadInput
from zprof.base.formatting import printable, shorten
from zprof.collectors.read.imports.executors import (
    SHARED_DISK,
    dask_executor,
    map_in_processes,
    map_on_executor,
    run_alone,
)
from zprof.collectors.read.imports.file_ranks import (
    RankedFile,
    Ranking,
    is_rank,
    rank_files,
    refuse_duplicate_ranks,
)
from zprof.collectors.read.imports.options import ImportOptions, ImportProgress, Written
from zprof.collectors.read.imports.trace_worker import (
    RankFacts,
    Refusal,
    TraceJob,
    count_read_bytes,
    import_trace,
)
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.training import TrainingFacts
from zprof.process.memory_limit import read_memory_limit
from zprof.process.workers import can_fork, count_usable_processors
from zprof.run.files import write_atomically
from zprof.run.manifest import MANIFEST_NAME, RankManifest, RunManifest, place_rank, to_json
from zprof.version import __version__

_MAX_REFUSAL_GAPS = 20
_KILLED = Refusal(
    reason="the process reading it was killed, possibly because memory ran out",
    hint="use fewer --workers, or a machine with more memory",
    is_permanent=False,
)
#: Errors that dask raises for tasks whose workers died.
_DEAD_WORKER_ERRORS = frozenset({"KilledWorker", "CancelledError"})


class ReadFile(Struct, frozen=True, kw_only=True):
    """A file that was read, and the folder of its tables."""

    position: int
    path: Path
    folder: Path
    facts: RankFacts

    @property
    def world_size(self) -> int | None:
        """World size in the file, or None."""
        size = self.facts.world_size
        return size if size and is_rank(size - 1) else None


class ReadFiles:
    """Collects files as they are read.

    Files from different jobs, or two from the same rank, are refused as soon as the second one is read, which
    avoids reading the rest of a large folder.
    """

    def __init__(self) -> None:
        self._by_rank: dict[int, ReadFile] = {}
        self._with_world_size: ReadFile | None = None
        self._all: list[ReadFile] = []

    def add(self, read: ReadFile) -> None:
        """Add a file.

        Raises:
            BadInput: it cannot belong to the same run as the previous files.
        """
        rank = read.facts.rank
        if rank is not None and is_rank(rank):
            other = self._by_rank.setdefault(rank, read)
            if other is not read:
                pair = sorted([other, read], key=lambda file: file.position)
                refuse_duplicate_ranks([RankedFile(rank=rank, path=file.path) for file in pair])
        if read.world_size is not None:
            first = self._with_world_size = self._with_world_size or read
            if first.world_size != read.world_size:
                raise BadInput(
                    f"{first.path} and {read.path}: from jobs with {first.world_size} and {read.world_size} "
                    "ranks",
                    hint="import one job at a time",
                )
        self._all.append(read)

    def list_in_order(self) -> list[ReadFile]:
        """Return the files in their original order."""
        return sorted(self._all, key=lambda read: read.position)


def make_run_manifest(
    reads: Mapping[int, ReadFile], notes: Sequence[str], refused: Mapping[Path, Refusal]
) -> RunManifest:
    """Return the manifest of the run; it contains none of the traces' own metadata."""
    facts = [read.facts for read in reads.values()]
    backends = Counter(fact.backend for fact in facts if fact.backend)
    devices = Counter(fact.device for fact in facts if fact.device != "cpu")
    world_size, size_gaps = _find_world_size(reads)
    return RunManifest(
        zprof_version=__version__,
        created_ns=time.time_ns(),
        world_size=world_size,
        backend=backends.most_common(1)[0][0] if backends else "unknown",
        device=devices.most_common(1)[0][0] if devices else "cpu",
        training=TrainingFacts(),
        run_id=f"import-{time.time_ns()}",
        source="trace",
        gaps=(
            *(make_gap("trace_rank_guessed", note=note) for note in notes),
            *size_gaps,
            *make_refusal_gaps(refused),
        ),
    )


def _find_world_size(reads: Mapping[int, ReadFile]) -> tuple[int, list[Gap]]:
    """Return the world size, and gaps if it is uncertain."""
    stated = next((read.world_size for read in reads.values() if read.world_size), None)
    min_size = max(reads) + 1
    if stated is not None and stated >= min_size:
        return stated, []
    if stated is not None:
        return min_size, [make_gap("world_size_contradicted", stated=stated, last=min_size - 1)]
    if len(reads) == 1 and not any(read.facts.collectives for read in reads.values()):
        return min_size, []  # a single rank without collectives
    return min_size, [make_gap("world_size_unknown", assumed=min_size)]


def make_refusal_gaps(refused: Mapping[Path, Refusal]) -> list[Gap]:
    """Return a gap for each refused file, up to a limit."""
    gaps = [
        make_gap(
            "file_refused" if refusal.hint else "file_refused_without_hint",
            file=shorten(printable(path.name), 100),
            reason=refusal.reason,
            hint=refusal.hint,
        )
        for path, refusal in list(refused.items())[:_MAX_REFUSAL_GAPS]
    ]
    if len(refused) > _MAX_REFUSAL_GAPS:
        gaps.append(make_gap("files_refused", files=len(refused) - _MAX_REFUSAL_GAPS))
    return gaps


#: Reading files up to this total size takes less time than starting a process pool.
_SMALL_BYTES = 2 << 20
_Outcome = RankFacts | Refusal | BaseException


def write_traces(
    run: Path, paths: Sequence[Path], notes: Sequence[str], options: ImportOptions, progress: ImportProgress
) -> Written:
    """Write the traces at ``paths`` as the run ``run``; return the file of each rank, and notes.

    Raises:
        BadInput: none of the files can be imported, or they are from different jobs.
        OSError: the run cannot be written.
    """
    if read_memory_limit() is not None:  # What does not fit is found here, not in each process.
        import_module("zprof.collectors.read.imports.trace_tables")
    run.mkdir()
    jobs = [_make_job(position, path, run) for position, path in enumerate(paths)]
    reads, refused = ReadFiles(), dict[Path, Refusal]()
    reporter = _Reporter(jobs, options, progress)
    for job, outcome in _convert_all(jobs, options, reporter):
        reporter.finish(job)
        path, folder = paths[job.position], Path(job.folder)
        facts = _check_outcome(path, outcome, options)
        if isinstance(facts, Refusal):
            refused[path] = facts
        else:
            # Check a worker's result on this machine: same version, tables on a shared disk.
            if facts.version != __version__:
                versions = f"the workers have zprof {facts.version}, this machine has {__version__}"
                raise BadInput(f"{options.executor}: {versions}", hint="install the same version everywhere")
            if not folder.is_dir():
                raise BadInput(
                    f"{path}: its tables were not written to a disk shared with this machine",
                    hint=SHARED_DISK,
                )
            reads.add(ReadFile(position=job.position, path=path, folder=folder, facts=facts))
    if not reads.list_in_order():
        raise make_unusable_error(paths, refused)
    ranking = _rank_reads(paths, reads.list_in_order())
    rank_notes = (*notes, *ranking.notes)
    _place_ranks(run, ranking, reads.list_in_order(), rank_notes, refused)
    refusal_notes = [f"{path}: not imported: {refusal.reason}" for path, refusal in refused.items()]
    is_cacheable = all(refusal.is_permanent for refusal in refused.values())
    return Written(files=ranking.files, notes=(*rank_notes, *refusal_notes), is_cacheable=is_cacheable)


def _make_job(position: int, path: Path, run: Path) -> TraceJob:
    folder = run.absolute() / f"file{position:05d}"
    try:
        size = path.stat().st_size
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})", hint="pass a trace file") from None
    return TraceJob(position=position, path=os.fspath(path.absolute()), folder=os.fspath(folder), bytes=size)


class _Reporter:
    """Report the progress of all files, and call ``while_reading`` once, when other processes read."""

    def __init__(self, jobs: Sequence[TraceJob], options: ImportOptions, progress: ImportProgress) -> None:
        self._progress = progress
        self._while_reading = options.while_reading
        self._finished_bytes = 0
        progress.start(len(jobs), sum(job.bytes for job in jobs))

    def on_running(self, jobs: Collection[TraceJob]) -> None:
        """Report the bytes that other processes have read."""
        while_reading, self._while_reading = self._while_reading, None
        if while_reading is not None:
            while_reading()
        self._progress.report_bytes(self._finished_bytes + sum(map(count_read_bytes, jobs)))

    def on_bytes(self, size: int) -> None:
        """Report the bytes of the current file that this process has read."""
        self._progress.report_bytes(self._finished_bytes + size)

    def finish(self, job: TraceJob) -> None:
        """Count a finished file."""
        self._finished_bytes += job.bytes
        self._progress.report_bytes(self._finished_bytes)
        self._progress.finish_rank()


def _convert_all(
    jobs: Sequence[TraceJob], options: ImportOptions, reporter: _Reporter
) -> Iterator[tuple[TraceJob, _Outcome]]:
    """Convert all files, the largest first, so that no large file is left for the end.

    An error in one of several files becomes its outcome, so the others can still be used.
    """
    largest_first = sorted(jobs, key=lambda job: -job.bytes)
    workers = options.workers or count_usable_processors()
    is_small = not options.workers and sum(job.bytes for job in jobs) <= _SMALL_BYTES
    if options.executor:
        with dask_executor(options.executor) as (executor, check_alive):
            yield from map_on_executor(executor, import_trace, largest_first, check_alive)
    elif len(jobs) == 1:
        is_beside = not is_small and workers > 1 and options.while_reading is not None
        yield jobs[0], _import_one(jobs[0], reporter, is_beside=is_beside)
    elif is_small:
        for job in jobs:
            outcome: _Outcome
            try:
                outcome = import_trace(job, reporter.on_bytes)
            except Exception as error:
                outcome = error
            yield job, outcome
    else:
        yield from map_in_processes(import_trace, largest_first, workers, reporter.on_running)


def _import_one(job: TraceJob, reporter: _Reporter, *, is_beside: bool) -> RankFacts | Refusal:
    """Convert the only file; with ``is_beside`` in another process, if one can be forked.

    If that process dies or cannot be started, this process reads the file.
    """
    if is_beside and can_fork():
        with suppress(OSError):
            outcome = run_alone(import_trace, job, reporter.on_running)
            if not isinstance(outcome, BaseException):
                return outcome
    return import_trace(job, reporter.on_bytes)


def _check_outcome(path: Path, outcome: _Outcome, options: ImportOptions) -> RankFacts | Refusal:
    """Return the facts of a file, or a refusal if reading it failed.

    Raises:
        BadInput: a cluster worker cannot write to the run's folder.
        OSError: the tables cannot be written.
    """
    if isinstance(outcome, BrokenExecutor) or type(outcome).__name__ in _DEAD_WORKER_ERRORS:
        return _KILLED
    if isinstance(outcome, OSError) and options.executor:
        raise BadInput(f"{path}: a worker cannot write the tables ({outcome.strerror})", hint=SHARED_DISK)
    if isinstance(outcome, OSError):
        raise outcome
    if isinstance(outcome, BaseException):
        return Refusal(reason=f"reading it failed ({type(outcome).__name__}: {str(outcome)[:120]})")
    return outcome


def make_unusable_error(paths: Sequence[Path], refused: Mapping[Path, Refusal]) -> BadInput:
    """Return the error for a set of files, none of which can be imported."""
    path = next(path for path in paths if path in refused)
    message = f"{path}: {refused[path].reason}"
    count = f"none of {len(paths)} files can be imported; " if len(paths) > 1 else ""
    return BadInput(count + message, hint=refused[path].hint)


def _rank_reads(paths: Sequence[Path], reads: Sequence[ReadFile]) -> Ranking:
    """Assign ranks to the files that were read.

    If ranks come from the file order, unreadable files are counted as well.
    """
    uses_order = any(read.facts.rank is None for read in reads)
    by_position = {read.position: read.facts.rank for read in reads}
    chosen = [position for position in range(len(paths)) if uses_order or position in by_position]
    ranking = rank_files([paths[position] for position in chosen], [by_position.get(p) for p in chosen])
    read_paths = {read.path for read in reads}
    files = tuple(file for file in ranking.files if file.path in read_paths)
    refuse_duplicate_ranks(files)
    return Ranking(files=files, notes=ranking.notes)


def _place_ranks(
    run: Path,
    ranking: Ranking,
    reads: Sequence[ReadFile],
    notes: Sequence[str],
    refused: Mapping[Path, Refusal],
) -> None:
    by_path = {read.path: read for read in reads}
    place_ranks(run, {file.rank: by_path[file.path] for file in ranking.files}, notes, refused)


def place_ranks(
    run: Path, by_rank: Mapping[int, ReadFile], notes: Sequence[str], refused: Mapping[Path, Refusal]
) -> None:
    """Write the manifest of a run, and move the tables of each rank to their place."""
    manifest = make_run_manifest(by_rank, notes, refused)
    write_atomically(run / MANIFEST_NAME, to_json(manifest).encode())
    for rank, read in by_rank.items():
        place_rank(
            run,
            read.folder,
            RankManifest(
                rank=rank,
                status="complete",
                host=read.facts.host,
                run_id=manifest.run_id,
                time_steps=read.facts.steps,
                files=read.facts.files,
                gaps=read.facts.gaps,
            ),
        )
    for leftover in run.glob("file[0-9]*"):
        shutil.rmtree(leftover, ignore_errors=True)
