"""Keep how each rank ended in ``RUN/endings/rankNNNNN.json``, beside the ranks' own folders.

A rank that was killed cannot write any more, and one that ended after its recorded steps does not touch its
folder: the process that saw it end writes this file.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from zprof.model.endings import RankEnd
from zprof.model.errors import BadInput
from zprof.model.findings import SourceLocation
from zprof.model.formatting import printable
from zprof.run.atomic_files import write_atomically
from zprof.run.manifest import RunManifest
from zprof.run.plain_file import open_plain

ENDINGS_SCHEMA = "zprof.ending/1"
_FOLDER = "endings"
_FILE = re.compile(r"rank(\d{5}|[1-9]\d{5,6})\.json")
MAX_LINES, MAX_LINE_LENGTH, MAX_FRAMES = 12, 300, 40
_MAX_FILE_BYTES = 256 << 10
_MAX_TIME_NS = 1 << 63


class _EndFile(Struct, frozen=True, kw_only=True):
    schema: str = ENDINGS_SCHEMA
    run_id: str = ""
    end: RankEnd


def write_endings(run: Path, run_id: str, ends: Sequence[RankEnd]) -> None:
    """Write the ends of ranks; those of other ranks that are there stay.

    Raises:
        OSError: they cannot be written.
    """
    folder = run / _FOLDER
    folder.mkdir(exist_ok=True)
    for end in ends:
        content = msgspec.json.format(msgspec.json.encode(_EndFile(run_id=run_id, end=limit_end(end))))
        write_atomically(folder / f"rank{end.rank:05d}.json", content + b"\n")


def read_endings(run: Path, manifest: RunManifest) -> tuple[RankEnd, ...]:
    """Return the known ends of the ranks of a run, by rank.

    Raises:
        BadInput: a file is damaged.
    """
    try:
        names = os.listdir(run / _FOLDER)
    except OSError:
        return ()
    ranks = sorted(int(match[1]) for name in names if (match := _FILE.fullmatch(name)))
    ends = (_read_end(run, rank, manifest.run_id) for rank in ranks if rank < manifest.world_size)
    return tuple(end for end in ends if end is not None)


def limit_end(end: RankEnd) -> RankEnd:
    """Return an end whose texts are printable, and neither too long nor too many."""
    return replace(
        end,
        host=limit_line(end.host),
        signal=limit_line(end.signal),
        error=limit_line(end.error),
        full_path=None if end.full_path is None else limit_line(end.full_path),
        last_words=tuple(map(limit_line, end.last_words[-MAX_LINES:])),
        stack=tuple(map(_limit_location, end.stack[:MAX_FRAMES])),
        operation=limit_line(end.operation),
        location=None if end.location is None else _limit_location(end.location),
    )


def limit_line(text: str) -> str:
    """Return the first characters of a text, on one line."""
    return printable(text[:MAX_LINE_LENGTH].rstrip())[:MAX_LINE_LENGTH]


def _limit_location(location: SourceLocation) -> SourceLocation:
    return SourceLocation(
        file=limit_line(location.file), line=location.line, function=limit_line(location.function)
    )


def _read_end(run: Path, rank: int, run_id: str) -> RankEnd | None:
    """Return the end of a rank; None if it is of an earlier run."""
    path = run / _FOLDER / f"rank{rank:05d}.json"
    try:
        with open_plain(path) as file:
            content = file.read(_MAX_FILE_BYTES + 1)
        found = msgspec.json.decode(content[:_MAX_FILE_BYTES], type=_EndFile)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})", hint="record the run again") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise BadInput(f"{path}: not the end of a rank", hint="remove it, or record the run again") from None
    time_ns = found.end.time_ns or 0
    if found.schema != ENDINGS_SCHEMA or found.end.rank != rank or not 0 <= time_ns < _MAX_TIME_NS:
        raise BadInput(f"{path}: does not match its run", hint="remove it, or record the run again")
    return limit_end(found.end) if found.run_id == run_id else None
