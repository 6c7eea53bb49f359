"""Read flight-recorder dumps in child processes with limits, and validate their answers.

A child reads many files in turn. If one of them kills it (too much memory or time, a crash of the unpickler),
the next child continues with the following file.
"""

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from zprof.collectors.read.flight_recorder.child import (
    ANSWERS_NAME,
    JOBS_NAME,
    MAX_FILE_BYTES,
    DumpAnswer,
    DumpJob,
)
from zprof.collectors.read.flight_recorder.convert import DUMP_AGAIN
from zprof.collectors.read.formats import FORMATS, FileKind
from zprof.process.sandbox import ChildFailure, Limits, Sandbox, make_program

_MEBIBYTE = 1 << 20
_MAX_MEMORY_BYTES = 6 << 30
#: Maximum gzip compression ratio that is assumed.
_MAX_INFLATION = 200
_BASE_CPU_S = 10
_TABLES = frozenset({"flight", "flight_group", "flight_stack"})
_POLL_S = 0.01
_MAX_ANSWER_BYTES = 1 << 20
_INVALID = "its reader wrote no valid result"


class DumpFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file to read, the rank in its name, and the folder that gets its tables."""

    path: Path
    named_rank: int | None
    folder: Path
    is_packed: bool = False


def read_dumps(
    files: Sequence[DumpFile], scratch: Path, workers: int
) -> Iterator[tuple[DumpFile, DumpAnswer]]:
    """Yield each file and its result as soon as it is ready.

    Args:
        files: The dumps.
        scratch: A private folder for the children.
        workers: Number of processes.

    Raises:
        OSError: no process can be started.
    """
    jobs = [
        DumpJob(
            position=position,
            path=os.fsencode(file.path.absolute()),
            folder=os.fsencode(file.folder.absolute()),
            named_rank=file.named_rank,
            cpu_s=_BASE_CPU_S + _estimate_bytes(file) // (2 * _MEBIBYTE),
        )
        for position, file in enumerate(files)
    ]
    count = max(1, min(workers, len(jobs)))
    limits = _compute_limits(files)
    batches: list[_Batch] = []
    try:
        batches += [_Batch(jobs[n::count], scratch / f"child{n}", limits) for n in range(count) if jobs]
        while any(batch.is_running for batch in batches):
            for batch in batches:
                for answer in batch.poll():
                    yield files[answer.position], answer
            time.sleep(_POLL_S)
    finally:
        for batch in batches:
            batch.close()


class _Batch:
    """Files that one child at a time reads in order."""

    def __init__(self, jobs: Sequence[DumpJob], folder: Path, limits: Limits) -> None:
        self._pending = list(jobs)
        self._folder = folder
        self._limits = limits
        self._starts = 0
        self._sandbox: Sandbox | None = None
        self._start()

    @property
    def is_running(self) -> bool:
        """True until all files have an answer."""
        return bool(self._pending)

    def poll(self) -> list[DumpAnswer]:
        """Return the answers since the last call, and continue with another child if one has died."""
        if self._sandbox is None:
            return []
        is_finished = self._sandbox.is_finished()
        # Complete lines that the child has added.
        answers: list[DumpAnswer] = []
        while self._pending:
            start = self._lines.tell()
            line = self._lines.readline(_MAX_ANSWER_BYTES)
            if not line.endswith(b"\n"):
                self._lines.seek(start)
                break
            answers.append(_check_answer(line, self._pending.pop(0)))
        if is_finished:
            failure = self._sandbox.end()
            self.close()
            if self._pending:
                job = self._pending.pop(0)
                answers.append(_make_failure_answer(job, failure))
            if self._pending:
                self._start()
        return answers

    def close(self) -> None:
        """Kill the child if it still runs."""
        if self._sandbox is not None:
            self._sandbox.end()
            self._sandbox = None
            self._lines.close()

    def _start(self) -> None:
        folder = self._folder.with_name(f"{self._folder.name}.{self._starts}")
        self._starts += 1
        folder.mkdir()
        (folder / JOBS_NAME).write_bytes(msgspec.json.encode(self._pending))
        self._lines = (folder / ANSWERS_NAME).open("a+b")
        arguments = [str(folder), msgspec.json.encode(self._limits).decode()]
        program = make_program(FORMATS[FileKind.DUMP].sandbox)
        self._sandbox = Sandbox(program, arguments, self._limits, folder=folder)


def _check_answer(line: bytes, job: DumpJob) -> DumpAnswer:
    """Return the answer if the job's folder has its tables and nothing else; their contents are checked when
    read.
    """
    invalid = DumpAnswer(position=job.position, error=_INVALID, hint=DUMP_AGAIN)
    try:
        answer = msgspec.json.decode(line, type=DumpAnswer)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return invalid
    if answer.position != job.position:
        return invalid
    if answer.error:
        return answer
    folder = Path(os.fsdecode(job.folder))
    paths = list(folder.iterdir()) if folder.is_dir() else []
    has_tables = (
        answer.files.keys() == _TABLES
        and {path.name for path in paths} == {f"{name}.parquet" for name in _TABLES}
        and all(path.is_file() and not path.is_symlink() for path in paths)
    )
    return answer if has_tables else invalid


def _make_failure_answer(job: DumpJob, failure: ChildFailure | None) -> DumpAnswer:
    if failure is None:
        reason = _INVALID
    elif failure.exceeded_limit:
        reason = "reading it takes too much memory or time, and was stopped"
    else:
        reason = f"the process that reads it failed: {failure.message}"
    return DumpAnswer(
        position=job.position,
        error=reason,
        hint=DUMP_AGAIN,
        is_permanent=failure is None or not failure.exceeded_limit,
    )


def _estimate_bytes(file: DumpFile) -> int:
    """Return an upper bound on the uncompressed size of the file."""
    try:
        size = file.path.stat().st_size
    except OSError:  # the child says it
        return 0
    return min(_MAX_INFLATION * size if file.is_packed else size, MAX_FILE_BYTES)


def _compute_limits(files: Sequence[DumpFile]) -> Limits:
    """Return the limits of a child; the time of each file is limited by the child."""
    sizes = [_estimate_bytes(file) for file in files]
    largest = max(sizes, default=0)
    cpu_s = sum(_BASE_CPU_S + size // (2 * _MEBIBYTE) for size in sizes)
    return Limits(
        memory_bytes=min(12 * largest + 512 * _MEBIBYTE, _MAX_MEMORY_BYTES),
        cpu_s=cpu_s + _BASE_CPU_S,
        wall_s=60.0 + 4.0 * cpu_s,
        output_bytes=4 * largest + 64 * _MEBIBYTE,
        open_files=32,
    )
