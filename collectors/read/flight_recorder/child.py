"""Read flight-recorder dumps under limits, one after the other, in a separate process. Run as
``python -I -c BOOT ROOT FOLDER LIMITS`` by ``reader``.

``jobs.json`` in the folder lists the files. For each one it writes the tables as Parquet into the job's
folder, and a line to ``answers.jsonl``: the tables, gaps and facts, or the error as one line. Starting a
process takes longer than reading a typical dump, so one process reads many.
"""

import gc
import os
import resource
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct

from zprof.base.errors import BadInput
from zprof.collectors.read.flight_recorder.convert import DUMP_AGAIN, convert_dump, load_json
from zprof.collectors.read.pickle_sandbox import format_name, inflate, load_plain_data
from zprof.model.gaps import Gap
from zprof.process.sandbox import Limits, apply_limits
from zprof.run.files import open_plain
from zprof.run.manifest import TableFile
from zprof.run.writer import write_provisional

JOBS_NAME = "jobs.json"
ANSWERS_NAME = "answers.jsonl"
#: Larger dumps are rejected, also after unpacking; 2,000 entries with stacks take about 2 MB.
MAX_FILE_BYTES = 256 << 20
_MAX_INFLATION = 200
_MAX_GAPS = 50
_RESERVE_BYTES = 1 << 20
_MEBIBYTE = 1 << 20
_GZIP = b"\x1f\x8b"
_UNPACKED_NAME = "unpacked"


class DumpJob(Struct, frozen=True, kw_only=True):
    """One file to read; paths are absolute, and need not be UTF-8.

    ``named_rank``: the rank in its name.
    """

    position: int
    path: bytes
    folder: bytes
    named_rank: int | None
    cpu_s: int


class DumpAnswer(Struct, frozen=True, kw_only=True):
    """What was read from one file, or the error.

    ``only_rank``: the one rank that is in all groups of the dump; None if there is none, or several.
    ``fits_name``: whether the rank in the name is in all groups. ``world_size``: as far as the groups show
    it. ``entries_left_out``: as in :class:`FlightTables`.
    """

    position: int
    error: str = ""
    hint: str = ""
    is_permanent: bool = True
    files: dict[str, TableFile] = {}
    gaps: tuple[Gap, ...] = ()
    only_rank: int | None = None
    fits_name: bool = True
    world_size: int = 0
    backend: str = ""
    entries_left_out: int | None = 0


def start(arguments: list[str]) -> None:
    """Read all jobs and exit without deallocating what is left."""
    folder = Path(arguments[0])
    limits = msgspec.json.decode(arguments[1], type=Limits)
    jobs = msgspec.json.decode((folder / JOBS_NAME).read_bytes(), type=list[DumpJob])
    apply_limits(limits)
    # A dump consists of many small objects that live as long as it does. Cycles left by a hostile dump are
    # collected after each file; what survives is never scanned again.
    gc.disable()
    gc.freeze()
    with (folder / ANSWERS_NAME).open("ab", buffering=0) as answers:
        for job in jobs:
            # The system kills the process if the next file takes longer.
            usage = resource.getrusage(resource.RUSAGE_SELF)
            _, hard = resource.getrlimit(resource.RLIMIT_CPU)
            soft = int(usage.ru_utime + usage.ru_stime) + 1 + job.cpu_s
            resource.setrlimit(
                resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard)
            )
            answers.write(msgspec.json.encode(_read_job(job, folder, limits)) + b"\n")
            gc.collect()
            gc.freeze()
    os._exit(0)


def _read_job(job: DumpJob, folder: Path, limits: Limits) -> DumpAnswer:
    reserve = bytearray(_RESERVE_BYTES)
    try:
        dump = convert_dump(_load(Path(os.fsdecode(job.path)), folder))
        target = Path(os.fsdecode(job.folder))
        target.mkdir()
        # The ranks that are in all groups of the dump; None if no group's ranks are known.
        common: set[int] | None = None
        for ranks in sorted(dump.group_ranks, key=len):
            common = set(ranks) if common is None else common.intersection(ranks)
        return DumpAnswer(
            position=job.position,
            files={name: write_provisional(target, name, columns) for name, columns in dump.tables.items()},
            gaps=dump.gaps[:_MAX_GAPS],
            only_rank=next(iter(common)) if common is not None and len(common) == 1 else None,
            fits_name=job.named_rank is None or common is None or job.named_rank in common,
            world_size=max((1 + max(ranks) for ranks in dump.group_ranks), default=0),
            backend=format_name(dump.backend),
            entries_left_out=dump.entries_left_out,
        )
    except BadInput as error:
        return DumpAnswer(position=job.position, error=error.message, hint=error.hint)
    except MemoryError:
        del reserve
        reason = f"reading it takes more than {limits.memory_bytes >> 20} MiB"
        return DumpAnswer(position=job.position, error=reason, hint=DUMP_AGAIN)
    except OSError as error:
        reason = f"it cannot be read, or its tables cannot be written ({error.strerror})"
        return DumpAnswer(position=job.position, error=reason, hint=DUMP_AGAIN, is_permanent=False)
    except Exception as error:
        reason = f"it cannot be read ({type(error).__name__})"
        return DumpAnswer(position=job.position, error=reason, hint=DUMP_AGAIN)


def _load(path: Path, folder: Path) -> Any:
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_FILE_BYTES:
            raise BadInput(
                f"{size // _MEBIBYTE} MiB exceed the limit of {MAX_FILE_BYTES // _MEBIBYTE} MiB for a dump",
                hint="set a smaller TORCH_FR_BUFFER_SIZE, and dump it again",
            )
        if file.peek(len(_GZIP))[: len(_GZIP)] != _GZIP:
            return _load_plain(file)
        unpacked = folder / _UNPACKED_NAME
        inflate(file, unpacked, min(_MAX_INFLATION * os.fstat(file.fileno()).st_size, MAX_FILE_BYTES))
    with unpacked.open("rb") as file:
        return _load_plain(file)


def _load_plain(file: BinaryIO) -> Any:
    if file.read(1) == b"\x80":
        file.seek(0)
        return load_plain_data(file, "flight-recorder dump")
    file.seek(0)
    return load_json(file.read(MAX_FILE_BYTES).removeprefix(b"\xef\xbb\xbf"))
