"""Import what a stuck job left behind: flight-recorder dumps, one file per rank, and logs that mention it."""

import re
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from zprof.base.errors import BadInput
from zprof.collectors.read.flight_recorder.child import DumpAnswer
from zprof.collectors.read.flight_recorder.reader import DumpFile, read_dumps
from zprof.collectors.read.formats import FileKind, detect_file_kind
from zprof.collectors.read.hang_log.reader import LogFile, read_logs
from zprof.collectors.read.imports.file_ranks import (
    RankedFile,
    Ranking,
    is_rank,
    rank_files,
    read_dump_rank,
    refuse_duplicate_ranks,
)
from zprof.collectors.read.imports.options import ImportOptions, ImportProgress, Written
from zprof.collectors.read.imports.sources import LOG_HINT
from zprof.collectors.read.imports.trace_worker import Refusal
from zprof.collectors.read.imports.traces import make_refusal_gaps, make_unusable_error
from zprof.collectors.read.ras.evidence import add_reports
from zprof.model.gap_texts import make_gap
from zprof.model.training import TrainingFacts
from zprof.process.workers import count_usable_processors
from zprof.run.files import open_plain, write_atomically
from zprof.run.log_evidence import Basis, LogEvidence, write_log_evidence
from zprof.run.manifest import FLIGHT_RECORDER, MANIFEST_NAME, RankManifest, RunManifest, place_rank, to_json
from zprof.version import __version__

_GZIP = b"\x1f\x8b"
#: Starting a process that reads dumps takes as long as reading about this many files of 2,000 entries.
_FILES_PER_WORKER = 8
_DEVICES = {"nccl": "cuda"}
#: A log written by torchrun --log-dir: the folder is the local rank.
_TORCHRUN_LOG = re.compile(r"attempt_\d{1,6}/(\d{1,6})/(?:stdout|stderr)\.log")
_NO_EVIDENCE = "no line about a stuck collective"


def write_dumps(
    run: Path, paths: Sequence[Path], notes: Sequence[str], options: ImportOptions, progress: ImportProgress
) -> Written:
    """Write the dumps at ``paths`` as the run ``run``; return the file of each rank, and notes.

    Files that cannot be read become gaps if another one can. A rank without a dump is not an error.

    Raises:
        BadInput: no file can be used, or two files are from the same rank.
        OSError: the run cannot be written.
    """
    run.mkdir()
    answers: dict[Path, DumpAnswer] = {}
    refused: dict[Path, Refusal] = {}
    dumps, logs, reports = _sort_files(paths, refused)
    evidence = add_reports(read_logs(logs), reports)
    with tempfile.TemporaryDirectory(prefix=".dumps.", dir=run) as name:
        scratch = Path(name)
        files = [replace(file, folder=scratch / f"file{position}") for position, file in enumerate(dumps)]
        _read_all(files, scratch, options, progress, answers, refused)
        if not answers and evidence.is_empty:
            refused |= {log.path: Refusal(reason=_NO_EVIDENCE, hint=LOG_HINT) for log in logs}
            raise make_unusable_error(paths, refused)
        ranking = _rank_dumps([file.path for file in files if file.path in answers], answers)
        all_notes = (*notes, *ranking.notes)
        manifest = _make_manifest(ranking, answers, evidence, all_notes, refused)
        write_atomically(run / MANIFEST_NAME, to_json(manifest).encode())
        if logs or reports:
            write_log_evidence(run, evidence)
        folders = {file.path: file.folder for file in files}
        for file in ranking.files:
            saved_ns = file.path.stat().st_mtime_ns
            rank = _make_rank_manifest(file, answers[file.path], manifest.run_id, saved_ns)
            place_rank(run, folders[file.path], rank)
    return Written(
        files=ranking.files,
        notes=(*all_notes, *(f"{path}: not imported: {refusal.reason}" for path, refusal in refused.items())),
        is_cacheable=all(refusal.is_permanent for refusal in refused.values()),
    )


def _sort_files(
    paths: Sequence[Path], refused: dict[Path, Refusal]
) -> tuple[list[DumpFile], list[LogFile], list[Path]]:
    """Return the dumps, the logs and the answers of RAS; files that cannot be opened are refused.

    Raises:
        BadInput: a file cannot be read.
    """
    dumps: list[DumpFile] = []
    logs: list[LogFile] = []
    reports: list[Path] = []
    for path in paths:
        try:
            with open_plain(path) as file:
                kind = detect_file_kind(file)
                if kind is FileKind.RAS:
                    reports.append(path)
                    continue
                if kind is not FileKind.DUMP:
                    match = _TORCHRUN_LOG.search(path.absolute().as_posix())
                    logs.append(
                        LogFile(path=path.absolute(), local_rank=(None if match is None else int(match[1])))
                    )
                    continue
                is_packed = file.read(len(_GZIP)) == _GZIP
        except OSError as error:
            raise BadInput(f"{path}: cannot be read ({error.strerror})", hint="pass readable files") from None
        except BadInput as error:
            refused[path] = Refusal(reason=error.message, hint=error.hint)
            continue
        named = read_dump_rank(path.name)
        dumps.append(DumpFile(path=path, named_rank=named, folder=path.parent, is_packed=is_packed))
    # Without the ranks of their folders, if the logs come from several nodes.
    nodes = {log.path.parents[2] for log in logs if log.local_rank is not None}
    return dumps, [replace(log, local_rank=None) for log in logs] if len(nodes) > 1 else logs, reports


def _read_all(
    files: Sequence[DumpFile],
    scratch: Path,
    options: ImportOptions,
    progress: ImportProgress,
    answers: dict[Path, DumpAnswer],
    refused: dict[Path, Refusal],
) -> None:
    """Read all dumps; each gets an answer or a refusal."""
    sizes = {file.path: file.path.stat().st_size for file in files}
    progress.start(len(files), sum(sizes.values()))
    workers = options.workers or min(count_usable_processors(), -(-len(files) // _FILES_PER_WORKER))
    read_bytes = 0
    for file, answer in read_dumps(files, scratch, workers):
        if answer.error:
            refused[file.path] = Refusal(
                reason=answer.error, hint=answer.hint, is_permanent=answer.is_permanent
            )
        else:
            answers[file.path] = answer
        read_bytes += sizes[file.path]
        progress.report_bytes(read_bytes)
        progress.finish_rank()


def _rank_dumps(paths: Sequence[Path], answers: Mapping[Path, DumpAnswer]) -> Ranking:
    """Assign a rank to each file: from its name if its groups allow, else from its groups.

    Raises:
        BadInput: two files are from the same rank.
    """
    ranks = []
    for path in paths:
        rank, answer = read_dump_rank(path.name), answers[path]
        if rank is None or (not answer.fits_name and answer.only_rank is not None):
            rank = answer.only_rank
        ranks.append(rank)
    if all(is_rank(rank) for rank in ranks):
        files = [RankedFile(rank=rank or 0, path=path) for rank, path in zip(ranks, paths, strict=True)]
        ranking = Ranking(files=tuple(sorted(files, key=lambda file: file.rank)))
    else:
        ranking = rank_files(paths, ranks)
    refuse_duplicate_ranks(ranking.files)
    return ranking


def _make_manifest(
    ranking: Ranking,
    answers: Mapping[Path, DumpAnswer],
    evidence: LogEvidence,
    notes: Sequence[str],
    refused: Mapping[Path, Refusal],
) -> RunManifest:
    backends = Counter(answer.backend for answer in answers.values() if answer.backend)
    if evidence.ras_reports or any(lines.basis is not Basis.CONNECTION for lines in evidence.lines):
        backends["nccl"] += 1  # gloo logs nothing but its connections
    backend = backends.most_common(1)[0][0] if backends else "unknown"
    in_logs = [*evidence.speakers, *(lines.rank for lines in evidence.lines if lines.rank is not None)]
    gaps = [make_gap("dump_rank_unknown", note=note) for note in notes] + make_refusal_gaps(refused)
    if evidence.unread:
        gaps.append(make_gap("log_lines_unread", lines=evidence.unread))
    if evidence.unplaced:
        gaps.append(make_gap("ras_ranks_unknown", processes=evidence.unplaced))
    if evidence.skipped:
        gaps.append(make_gap("logs_skipped", logs=evidence.skipped))
    return RunManifest(
        zprof_version=__version__,
        created_ns=time.time_ns(),
        world_size=max(
            *(answer.world_size for answer in answers.values()),
            *(1 + file.rank for file in ranking.files),
            evidence.world_size or 1,
            1 + max(in_logs, default=0),
        ),
        backend=backend,
        device=_DEVICES.get(backend, "cpu"),
        training=TrainingFacts(),
        run_id=f"import-{time.time_ns()}",
        source=FLIGHT_RECORDER,
        gaps=tuple(gaps),
    )


def _make_rank_manifest(
    file: RankedFile, answer: DumpAnswer, run_id: str, saved_ns: int | None
) -> RankManifest:
    gaps = [replace(gap, rank=file.rank) for gap in answer.gaps]
    if not answer.fits_name:
        key = "dump_rank_contradicted" if answer.only_rank is None else "dump_of_other_rank"
        gaps.append(make_gap(key, rank=file.rank, only=answer.only_rank))
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
