"""Import flight-recorder dumps, one file per rank: what each rank gave to its process groups, and how far it
got.
"""

import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from zprof.collectors.file_kinds import FileKind, detect_file_kind
from zprof.collectors.flight_recorder.child import DumpAnswer
from zprof.collectors.flight_recorder.reader import DumpFile, read_dumps
from zprof.collectors.flight_recorder.watchdog_log import read_watchdog_log
from zprof.integrations.imports.file_ranks import (
    RankedFile,
    Ranking,
    is_rank,
    rank_files,
    read_dump_rank,
    refuse_duplicate_ranks,
)
from zprof.integrations.imports.options import ImportOptions, ImportProgress, Written
from zprof.integrations.imports.trace_worker import Refusal
from zprof.integrations.imports.traces import make_refusal_gaps, make_unusable_error
from zprof.model.errors import BadInput
from zprof.model.gaps import Gap, GapKind
from zprof.model.training import TrainingFacts
from zprof.model.worker_start import count_usable_processors
from zprof.run.atomic_files import place_rank, write_atomically
from zprof.run.manifest import FLIGHT_RECORDER, MANIFEST_NAME, RankManifest, RunManifest, to_json
from zprof.run.plain_file import open_plain
from zprof.version import __version__

_GZIP = b"\x1f\x8b"
#: A process that reads dumps takes as long to start as about this many files of 2,000 entries take to read.
_FILES_PER_WORKER = 8
_DEVICES = {"nccl": "cuda"}
_NAME_RANKS = "put the rank at the end of each file's name, as PyTorch does"


def write_dumps(
    run: Path, paths: Sequence[Path], notes: Sequence[str], options: ImportOptions, progress: ImportProgress
) -> Written:
    """Write the dumps at ``paths`` as the run ``run``; return the file of each rank, and notes.

    Files that cannot be read become gaps if another one can. A rank without a dump is no error.

    Raises:
        BadInput: no file can be used, or two files are from the same rank.
        OSError: the run cannot be written.
    """
    run.mkdir()
    answers: dict[Path, DumpAnswer] = {}
    refused: dict[Path, Refusal] = {}
    with tempfile.TemporaryDirectory(prefix=".dumps.", dir=run) as name:
        scratch = Path(name)
        files = [
            file
            for position, path in enumerate(paths)
            for file in _make_files(path, scratch / f"file{position}", refused)
        ]
        _read_all(files, scratch, options, progress, answers, refused)
        if not answers:
            raise make_unusable_error(paths, refused)
        ranking = _rank_dumps([file for file in files if file.path in answers], answers)
        all_notes = (*notes, *ranking.notes)
        manifest = _make_manifest(ranking, answers, all_notes, refused)
        write_atomically(run / MANIFEST_NAME, to_json(manifest).encode())
        by_path = {file.path: file for file in files}
        for file in ranking.files:
            source = by_path[file.path]
            saved_ns = None if source.log is not None else file.path.stat().st_mtime_ns
            rank = _make_rank_manifest(file, answers[file.path], manifest.run_id, saved_ns)
            place_rank(run, source.folder, rank)
    return Written(
        files=tuple(replace(file, path=by_path[file.path].log or file.path) for file in ranking.files),
        notes=(*all_notes, *(f"{path}: not imported: {refusal.reason}" for path, refusal in refused.items())),
        is_cacheable=all(refusal.is_permanent for refusal in refused.values()),
    )


class _File(DumpFile, frozen=True, kw_only=True):
    """A dump, or what a log says of one rank, written as one."""

    log: Path | None = None


def _make_files(path: Path, folder: Path, refused: dict[Path, Refusal]) -> list[_File]:
    """Return the dump at ``path``, or one for each rank in the log at ``path``."""
    try:
        with open_plain(path) as file:
            kind = detect_file_kind(file)
            if kind is not FileKind.DUMP:
                return _split_log(path, read_watchdog_log(file), folder)
            is_packed = file.read(len(_GZIP)) == _GZIP
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})", hint="pass readable files") from None
    except BadInput as error:
        refused[path] = Refusal(reason=error.message, hint=error.hint)
        return []
    return [_File(path=path, named_rank=read_dump_rank(path.name), folder=folder, is_packed=is_packed)]


def _split_log(log: Path, dumps: Mapping[int, object], folder: Path) -> list[_File]:
    files = []
    for rank, dump in dumps.items():
        path = folder.with_name(f"{folder.name}_rank{rank}.json")
        path.write_bytes(msgspec.json.encode(dump))
        files.append(_File(path=path, named_rank=rank, folder=path.with_suffix(".tables"), log=log))
    return files


def _read_all(
    files: Sequence[_File],
    scratch: Path,
    options: ImportOptions,
    progress: ImportProgress,
    answers: dict[Path, DumpAnswer],
    refused: dict[Path, Refusal],
) -> None:
    """Read all files; each gets an answer or a refusal."""
    sizes = {file.path: file.path.stat().st_size for file in files}
    progress.start(len(files), sum(sizes.values()))
    by_path = {file.path: file for file in files}
    workers = options.workers or min(count_usable_processors(), -(-len(files) // _FILES_PER_WORKER))
    read_bytes = 0
    for file, answer in read_dumps(files, scratch, workers):
        if answer.error:
            refusal = Refusal(reason=answer.error, hint=answer.hint, is_permanent=answer.is_permanent)
            refused[by_path[file.path].log or file.path] = refusal
        else:
            answers[file.path] = answer
        read_bytes += sizes[file.path]
        progress.report_bytes(read_bytes)
        progress.finish_rank()


def _rank_dumps(files: Sequence[_File], answers: Mapping[Path, DumpAnswer]) -> Ranking:
    """Assign a rank to each file: from its name if its groups allow, else from its groups.

    What a log says of a rank is left out if the rank has a dump, or is in an earlier log.

    Raises:
        BadInput: two files are from the same rank.
    """
    dumps = [file.path for file in files if file.log is None]
    ranks = [_choose_rank(path, answers[path]) for path in dumps]
    notes: tuple[str, ...] = ()
    if all(is_rank(rank) for rank in ranks):
        ranked = [RankedFile(rank=rank or 0, path=path) for rank, path in zip(ranks, dumps, strict=True)]
    else:
        ranking = rank_files(dumps, ranks)
        ranked, notes = list(ranking.files), ranking.notes
    refuse_duplicate_ranks(ranked)
    taken = {file.rank for file in ranked}
    for file in files:
        if file.log is not None and file.named_rank is not None and file.named_rank not in taken:
            taken.add(file.named_rank)
            ranked.append(RankedFile(rank=file.named_rank, path=file.path))
    return Ranking(files=tuple(sorted(ranked, key=lambda file: file.rank)), notes=notes)


def _choose_rank(path: Path, answer: DumpAnswer) -> int | None:
    named_rank = read_dump_rank(path.name)
    if named_rank is None or (not answer.fits_name and answer.only_rank is not None):
        return answer.only_rank
    return named_rank


def _make_manifest(
    ranking: Ranking,
    answers: Mapping[Path, DumpAnswer],
    notes: Sequence[str],
    refused: Mapping[Path, Refusal],
) -> RunManifest:
    backends = Counter(answer.backend for answer in answers.values() if answer.backend)
    backend = backends.most_common(1)[0][0] if backends else "unknown"
    return RunManifest(
        zprof_version=__version__,
        created_ns=time.time_ns(),
        world_size=max(
            *(answer.world_size for answer in answers.values()), 1 + max(file.rank for file in ranking.files)
        ),
        backend=backend,
        device=_DEVICES.get(backend, "cpu"),
        training=TrainingFacts(),
        run_id=f"import-{time.time_ns()}",
        source=FLIGHT_RECORDER,
        gaps=(*map(_make_rank_gap, notes), *make_refusal_gaps(refused)),
    )


def _make_rank_manifest(
    file: RankedFile, answer: DumpAnswer, run_id: str, saved_ns: int | None
) -> RankManifest:
    gaps = [replace(gap, rank=file.rank) for gap in answer.gaps]
    if not answer.fits_name:
        reason = "the rank in the name of its file is not in all process groups of the dump"
        if answer.only_rank is not None:
            reason = f"{reason}: rank {answer.only_rank} is"
        gaps.append(_make_rank_gap(reason, rank=file.rank))
    return RankManifest(
        rank=file.rank,
        status="complete",
        host="",
        run_id=run_id,
        files=answer.files,
        gaps=tuple(gaps),
        saved_ns=saved_ns,
        entries_left_out=answer.entries_left_out,
    )


def _make_rank_gap(note: str, rank: int | None = None) -> Gap:
    return Gap(kind=GapKind.FILE, what="ranks of the dumps", reason=note, remedy=_NAME_RANKS, rank=rank)
