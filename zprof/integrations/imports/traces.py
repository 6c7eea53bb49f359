"""Kineto traces, one file a rank, as a run."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from pathlib import Path

from zprof.integrations.imports.cluster import SHARED_DISK, dask_executor
from zprof.integrations.imports.executors import map_here, map_there, usable_processors
from zprof.integrations.imports.names import Ranking, ranked, refuse_twice
from zprof.integrations.imports.options import ImportOptions, Written
from zprof.integrations.imports.watch import ImportWatch
from zprof.integrations.imports.work import RankFacts, Refusal, TraceJob, import_trace
from zprof.integrations.imports.world import Read, Reads, run_manifest
from zprof.model.errors import BadInput
from zprof.run.manifest import MANIFEST_NAME, RankManifest, to_json
from zprof.run.tables import write_atomically
from zprof.run.writer import place_rank
from zprof.version import __version__

_KILLED = Refusal(
    reason="the process that reads it was killed, perhaps because memory ran out",
    hint="use fewer --workers, or a machine with more memory",
    lasting=False,
)
#: What dask raises for a task whose workers died.
_DEATHS = frozenset({"KilledWorker", "CancelledError"})
#: So little is read sooner than a pool of processes has started.
_SMALL_BYTES = 2 << 20
_Outcome = RankFacts | Refusal | BaseException


def write_traces(
    run: Path, paths: Sequence[Path], notes: Sequence[str], options: ImportOptions, watch: ImportWatch
) -> Written:
    """Write the traces at ``paths`` as the run ``run``: which rank each is, and what is worth saying.

    Raises:
        BadInput: none of the files can be used, or they are not of one job.
        OSError: the run cannot be written.
    """
    run.mkdir()
    jobs = [_job(position, path, run) for position, path in enumerate(paths)]
    reads, refused = Reads(), dict[Path, Refusal]()
    for job, outcome in _watched(_outcomes(jobs, options, watch), jobs, watch):
        path, folder = paths[job.position], Path(job.folder)
        facts = _facts(path, outcome, options)
        if isinstance(facts, Refusal):
            refused[path] = facts
        else:
            _check(path, folder, facts, options)
            reads.add(Read(position=job.position, path=path, folder=folder, facts=facts))
    if not reads.in_order():
        raise _nothing(paths, refused)
    ranking = _ranking(paths, reads.in_order())
    found = (*notes, *ranking.notes)
    _place(run, ranking, reads.in_order(), found, refused)
    told = [f"{path}: left out: {refusal.reason}" for path, refusal in refused.items()]
    lasting = all(refusal.lasting for refusal in refused.values())
    return Written(files=ranking.files, notes=(*found, *told), lasting=lasting)


def _job(position: int, path: Path, run: Path) -> TraceJob:
    folder = run.absolute() / f"file{position:05d}"
    try:
        size = path.stat().st_size
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})", hint="give a trace file") from None
    return TraceJob(position=position, path=os.fspath(path.absolute()), folder=os.fspath(folder), bytes=size)


def _outcomes(
    jobs: Sequence[TraceJob], options: ImportOptions, watch: ImportWatch
) -> Iterator[tuple[TraceJob, _Outcome]]:
    """The largest first: begun last, it would be waited for alone."""
    largest_first = sorted(jobs, key=lambda job: -job.bytes)
    if options.executor:
        with dask_executor(options.executor) as (executor, check_alive):
            yield from map_there(executor, import_trace, largest_first, check_alive)
    elif len(jobs) == 1:
        yield jobs[0], import_trace(jobs[0], watch.bytes_read)
    elif not options.workers and sum(job.bytes for job in jobs) <= _SMALL_BYTES:
        yield from ((job, _tried(job)) for job in jobs)
    else:
        yield from map_here(import_trace, largest_first, options.workers or usable_processors())


def _tried(job: TraceJob) -> _Outcome:
    """One of several files: where reading it fails, the others are still good."""
    try:
        return import_trace(job)
    except Exception as error:
        return error


def _watched(
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
    """What a file's reader found; a reader that failed did not find anything.

    Raises:
        BadInput: a machine of the cluster cannot write where the run is to be.
        OSError: the tables cannot be written.
    """
    if isinstance(outcome, BrokenExecutor) or type(outcome).__name__ in _DEATHS:
        return _KILLED
    if isinstance(outcome, OSError) and options.executor:
        raise BadInput(f"{path}: a worker cannot write its tables ({outcome.strerror})", hint=SHARED_DISK)
    if isinstance(outcome, OSError):
        raise outcome
    if isinstance(outcome, BaseException):
        return Refusal(reason=f"its reader failed ({type(outcome).__name__}: {str(outcome)[:120]})")
    return outcome


def _check(path: Path, folder: Path, facts: RankFacts, options: ImportOptions) -> None:
    """What another machine says it did must be so here."""
    if facts.version != __version__:
        message = f"{options.executor}: its workers have zprof {facts.version}, this is {__version__}"
        raise BadInput(message, hint="install one version everywhere")
    if not folder.is_dir():
        raise BadInput(f"{path}: its tables were written on another disk than this one", hint=SHARED_DISK)


def _nothing(paths: Sequence[Path], refused: Mapping[Path, Refusal]) -> BadInput:
    path = next(path for path in paths if path in refused)
    message = f"{path}: {refused[path].reason}"
    count = f"none of {len(paths)} files can be used; " if len(paths) > 1 else ""
    return BadInput(count + message, hint=refused[path].hint)


def _ranking(paths: Sequence[Path], reads: Sequence[Read]) -> Ranking:
    """The files that could be read by rank.

    Where the order of the files has to stand in for their ranks, those that could not be read count too.
    """
    silent = any(read.facts.rank is None for read in reads)
    by_position = {read.position: read.facts.rank for read in reads}
    chosen = [position for position in range(len(paths)) if silent or position in by_position]
    ranking = ranked([paths[position] for position in chosen], [by_position.get(p) for p in chosen])
    good = {read.path for read in reads}
    files = tuple(file for file in ranking.files if file.path in good)
    refuse_twice(files)
    return Ranking(files=files, notes=ranking.notes)


def _place(
    run: Path,
    ranking: Ranking,
    reads: Sequence[Read],
    notes: Sequence[str],
    refused: Mapping[Path, Refusal],
) -> None:
    by_path = {read.path: read for read in reads}
    by_rank = {file.rank: by_path[file.path] for file in ranking.files}
    manifest = run_manifest(by_rank, notes, refused)
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
