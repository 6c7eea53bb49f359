"""Import Kineto traces, one file per rank: convert them in parallel, assign ranks, write the manifest."""

import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from pathlib import Path

from zprof.integrations.imports.executors import (
    SHARED_DISK,
    dask_executor,
    map_in_processes,
    map_on_executor,
    usable_processors,
)
from zprof.integrations.imports.file_ranks import (
    RankedFile,
    Ranking,
    is_rank,
    rank_files,
    refuse_duplicate_ranks,
)
from zprof.integrations.imports.options import ImportOptions, ImportWatch, Written
from zprof.integrations.imports.trace_worker import RankFacts, Refusal, TraceJob, import_trace
from zprof.model.errors import BadInput
from zprof.model.formatting import printable, shorten
from zprof.model.gaps import Gap, GapKind
from zprof.model.training import TrainingFacts
from zprof.run.manifest import MANIFEST_NAME, RankManifest, RunManifest, to_json
from zprof.run.writer import place_rank, write_atomically
from zprof.version import __version__

_MAX_TOLD = 20
#: A run's device is the first of these that any rank used.
_DEVICES = ("cuda", "hip", "mtia")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFile:
    """A file that was read, and the folder of its tables."""

    position: int
    path: Path
    folder: Path
    facts: RankFacts

    @property
    def world_size(self) -> int | None:
        """World size stated by the file, or None."""
        size = self.facts.world_size
        return size if size and is_rank(size - 1) else None


class ReadFiles:
    """Collects files as they are read.

    Files of two jobs, or two of one rank, are refused as soon as the second is read, so that the rest of a
    large folder need not be read.
    """

    def __init__(self) -> None:
        self._by_rank: dict[int, ReadFile] = {}
        self._sized: ReadFile | None = None
        self._all: list[ReadFile] = []

    def add(self, read: ReadFile) -> None:
        """Add a file.

        Raises:
            BadInput: it cannot belong to the same run as the files before.
        """
        rank = read.facts.rank
        if rank is not None and is_rank(rank):
            other = self._by_rank.setdefault(rank, read)
            if other is not read:
                pair = sorted([other, read], key=lambda one: one.position)
                refuse_duplicate_ranks([RankedFile(rank=rank, path=one.path) for one in pair])
        if read.world_size is not None:
            self._sized = self._sized or read
            _refuse_other_size(self._sized, read)
        self._all.append(read)

    def in_order(self) -> list[ReadFile]:
        """Return the files in the order in which they were given."""
        return sorted(self._all, key=lambda read: read.position)


def make_run_manifest(
    reads: Mapping[int, ReadFile], notes: Sequence[str], refused: Mapping[Path, Refusal]
) -> RunManifest:
    """Return the manifest of the run of these ranks; it holds none of the traces' own metadata."""
    facts = [read.facts for read in reads.values()]
    backends = Counter(fact.backend for fact in facts if fact.backend)
    world_size, odd = _world_size(reads)
    return RunManifest(
        zprof_version=__version__,
        created_ns=time.time_ns(),
        world_size=world_size,
        backend=backends.most_common(1)[0][0] if backends else "unknown",
        device=next((name for name in _DEVICES if any(fact.device == name for fact in facts)), "cpu"),
        training=TrainingFacts(),
        run_id=f"import-{time.time_ns()}",
        source="trace",
        gaps=(*map(_guess_gap, notes), *odd, *_refusal_gaps(refused)),
    )


def _refuse_other_size(one: ReadFile, other: ReadFile) -> None:
    if one.world_size != other.world_size:
        raise BadInput(
            f"{one.path} and {other.path}: of jobs of {one.world_size} and of {other.world_size} ranks",
            hint="import the files of one job at a time",
        )


def _world_size(reads: Mapping[int, ReadFile]) -> tuple[int, list[Gap]]:
    """Return the world size, and gaps if it is uncertain."""
    stated = next((read.world_size for read in reads.values() if read.world_size), None)
    highest = max(reads) + 1
    if stated is not None and stated >= highest:
        return stated, []
    if stated is not None:
        reason = f"the traces state {stated} ranks, but one of them is of rank {highest - 1}"
    elif len(reads) == 1 and not any(read.facts.collectives for read in reads.values()):
        return highest, []  # a single rank without collectives: nothing suggests more ranks
    else:
        reason = f"no trace states how many ranks the job had: counted as {highest}, by the highest rank"
    remedy = "export traces after init_process_group and before destroy_process_group: they then state it"
    return highest, [Gap(kind=GapKind.FILE, what="world size", reason=reason, remedy=remedy)]


def _guess_gap(note: str) -> Gap:
    return Gap(
        kind=GapKind.FILE,
        what="ranks of the files",
        reason=note,
        remedy="put rank0, rank1, ... into the names",
    )


def _refusal_gaps(refused: Mapping[Path, Refusal]) -> list[Gap]:
    """Return a gap for each refused file, up to a readable number."""
    told = [
        Gap(
            kind=GapKind.FILE,
            what="file not imported",
            reason=f"{shorten(printable(path.name), 100)}: {refusal.reason}",
            remedy=refusal.hint or "copy the file again",
        )
        for path, refusal in list(refused.items())[:_MAX_TOLD]
    ]
    if len(refused) > _MAX_TOLD:
        reason = f"{len(refused) - _MAX_TOLD} more files cannot be used"
        told.append(
            Gap(kind=GapKind.FILE, what="file not imported", reason=reason, remedy="copy the files again")
        )
    return told


_KILLED = Refusal(
    reason="the process that reads it was killed, perhaps because memory ran out",
    hint="use fewer --workers, or a machine with more memory",
    lasting=False,
)
#: Errors that dask raises for tasks whose workers died.
_DEAD_WORKER_ERRORS = frozenset({"KilledWorker", "CancelledError"})
#: Reading up to this size takes less time than the start of a process pool.
_SMALL_BYTES = 2 << 20
_Outcome = RankFacts | Refusal | BaseException


def write_traces(
    run: Path, paths: Sequence[Path], notes: Sequence[str], options: ImportOptions, watch: ImportWatch
) -> Written:
    """Write the traces at ``paths`` as the run ``run``; return the file of each rank, and notes.

    Raises:
        BadInput: none of the files can be used, or they are not of one job.
        OSError: the run cannot be written.
    """
    run.mkdir()
    jobs = [_make_job(position, path, run) for position, path in enumerate(paths)]
    reads, refused = ReadFiles(), dict[Path, Refusal]()
    for job, outcome in _report_progress(_convert_all(jobs, options, watch), jobs, watch):
        path, folder = paths[job.position], Path(job.folder)
        facts = _facts(path, outcome, options)
        if isinstance(facts, Refusal):
            refused[path] = facts
        else:
            _check_written(path, folder, facts, options)
            reads.add(ReadFile(position=job.position, path=path, folder=folder, facts=facts))
    if not reads.in_order():
        raise _nothing_usable(paths, refused)
    ranking = _rank_reads(paths, reads.in_order())
    found = (*notes, *ranking.notes)
    _place_ranks(run, ranking, reads.in_order(), found, refused)
    told = [f"{path}: left out: {refusal.reason}" for path, refusal in refused.items()]
    lasting = all(refusal.lasting for refusal in refused.values())
    return Written(files=ranking.files, notes=(*found, *told), lasting=lasting)


def _make_job(position: int, path: Path, run: Path) -> TraceJob:
    folder = run.absolute() / f"file{position:05d}"
    try:
        size = path.stat().st_size
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})", hint="give a trace file") from None
    return TraceJob(position=position, path=os.fspath(path.absolute()), folder=os.fspath(folder), bytes=size)


def _convert_all(
    jobs: Sequence[TraceJob], options: ImportOptions, watch: ImportWatch
) -> Iterator[tuple[TraceJob, _Outcome]]:
    """Convert all files, the largest first, so that the others need not wait for it at the end."""
    largest_first = sorted(jobs, key=lambda job: -job.bytes)
    if options.executor:
        with dask_executor(options.executor) as (executor, check_alive):
            yield from map_on_executor(executor, import_trace, largest_first, check_alive)
    elif len(jobs) == 1:
        yield jobs[0], import_trace(jobs[0], watch.bytes_read)
    elif not options.workers and sum(job.bytes for job in jobs) <= _SMALL_BYTES:
        yield from ((job, _try_import(job)) for job in jobs)
    else:
        yield from map_in_processes(import_trace, largest_first, options.workers or usable_processors())


def _try_import(job: TraceJob) -> _Outcome:
    """Convert one of several files; return an error, so that the others can still be used."""
    try:
        return import_trace(job)
    except Exception as error:
        return error


def _report_progress(
    outcomes: Iterator[tuple[TraceJob, _Outcome]], jobs: Sequence[TraceJob], watch: ImportWatch
) -> Iterator[tuple[TraceJob, _Outcome]]:
    watch.begin(len(jobs), sum(job.bytes for job in jobs))
    done_bytes = 0
    for job, outcome in outcomes:
        done_bytes += job.bytes
        watch.bytes_read(done_bytes)
        watch.rank_done()
        yield job, outcome


def _facts(path: Path, outcome: _Outcome, options: ImportOptions) -> RankFacts | Refusal:
    """Return the facts of a file, or a refusal if its reader failed.

    Raises:
        BadInput: a worker of the cluster cannot write to the run's folder.
        OSError: the tables cannot be written.
    """
    if isinstance(outcome, BrokenExecutor) or type(outcome).__name__ in _DEAD_WORKER_ERRORS:
        return _KILLED
    if isinstance(outcome, OSError) and options.executor:
        raise BadInput(f"{path}: a worker cannot write its tables ({outcome.strerror})", hint=SHARED_DISK)
    if isinstance(outcome, OSError):
        raise outcome
    if isinstance(outcome, BaseException):
        return Refusal(reason=f"its reader failed ({type(outcome).__name__}: {str(outcome)[:120]})")
    return outcome


def _check_written(path: Path, folder: Path, facts: RankFacts, options: ImportOptions) -> None:
    """Check a worker's result on this machine: same version, tables on a shared disk."""
    if facts.version != __version__:
        message = f"{options.executor}: its workers have zprof {facts.version}, this is {__version__}"
        raise BadInput(message, hint="install one version everywhere")
    if not folder.is_dir():
        raise BadInput(f"{path}: its tables were written on another disk than this one", hint=SHARED_DISK)


def _nothing_usable(paths: Sequence[Path], refused: Mapping[Path, Refusal]) -> BadInput:
    path = next(path for path in paths if path in refused)
    message = f"{path}: {refused[path].reason}"
    count = f"none of {len(paths)} files can be used; " if len(paths) > 1 else ""
    return BadInput(count + message, hint=refused[path].hint)


def _rank_reads(paths: Sequence[Path], reads: Sequence[ReadFile]) -> Ranking:
    """Assign ranks to the files that were read.

    If the order of the files decides, files that could not be read count too.
    """
    silent = any(read.facts.rank is None for read in reads)
    by_position = {read.position: read.facts.rank for read in reads}
    chosen = [position for position in range(len(paths)) if silent or position in by_position]
    ranking = rank_files([paths[position] for position in chosen], [by_position.get(p) for p in chosen])
    good = {read.path for read in reads}
    files = tuple(file for file in ranking.files if file.path in good)
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
    by_rank = {file.rank: by_path[file.path] for file in ranking.files}
    manifest = make_run_manifest(by_rank, notes, refused)
    write_atomically(run / MANIFEST_NAME, to_json(manifest).encode())
    for rank, read in by_rank.items():
        place_rank(run, read.folder, _rank_manifest(rank, read.facts, manifest.run_id))
    for half in run.glob("file[0-9]*"):
        shutil.rmtree(half, ignore_errors=True)


def _rank_manifest(rank: int, facts: RankFacts, run_id: str) -> RankManifest:
    return RankManifest(
        rank=rank,
        status="complete",
        host=facts.host,
        run_id=run_id,
        time_steps=facts.steps,
        files=facts.files,
        gaps=facts.gaps,
    )
