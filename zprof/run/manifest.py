"""Read and write the files of a run besides its tables: manifests, step logs, and how each rank ended.

``manifest.json`` holds facts that are equal on every rank; ``rankNNNNN/rank.json`` holds that rank's facts.
A reader merges them, so no rank ever waits for another.

A line of ``steps.jsonl`` is a finished step of a rank, cheap to write and to follow:

    {"step":7,"begin_ns":…,"end_ns":…,"window":"time","device":"cuda:0","allocated_bytes":…,…}

``step``, ``begin_ns`` and ``end_ns`` are always present; unknown values are omitted. A line is shorter than
:data:`MAX_WRITTEN_LINE_BYTES`. It is written without fsync, so a reader may see an incomplete last line.

``endings/rankNNNNN.json`` is how a rank ended. A killed rank can no longer write, and a rank that ended after
its recorded steps does not touch its folder: the process that saw it end writes this file.
"""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Struct, field, to_builtins
from msgspec.structs import fields, replace

from zprof.base.errors import BadInput
from zprof.base.formatting import printable
from zprof.model.endings import RankEnd
from zprof.model.findings import SourceLocation
from zprof.model.gaps import Gap
from zprof.model.hang import RankProcess
from zprof.model.training import TrainingFacts
from zprof.run.files import open_plain, write_atomically

MAX_WRITTEN_LINE_BYTES = 300
_LAST_LINES_BYTES = 1 << 16
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Name = Annotated[str, msgspec.Meta(max_length=16)]
RUN_SCHEMA = "zprof.run/1"
MANIFEST_NAME = "manifest.json"
RANK_NAME = "rank.json"
STEPS_NAME = "steps.jsonl"
#: Source of a run made from flight-recorder dumps.
FLIGHT_RECORDER = "flight_recorder"
#: Source of a run made from an operation timeline of a pipeline.
OPERATION_TIMELINE = "operation_timeline"
#: Source of a run made from the files of NCCL's Inspector.
NCCL_INSPECTOR = "nccl_inspector"
_MAX_JSON_BYTES = 64 << 20
_RECORD_AGAIN = "record the run again"
_T = TypeVar("_T")
ENDINGS_SCHEMA = "zprof.ending/1"
_FOLDER = "endings"
_FILE = re.compile(r"rank(\d{5}|[1-9]\d{5,6})\.json")
MAX_LINES, MAX_LINE_LENGTH, MAX_FRAMES = 12, 300, 40
_MAX_FILE_BYTES = 256 << 10
_MAX_TIME_NS = 1 << 63


class StepLine(Struct, frozen=True, kw_only=True):
    """One finished step; ``window`` is its window, empty if none was active.

    ``process_bytes`` is the resident size. ``allocated_bytes`` and ``peak_allocated_bytes`` are allocator
    counters of ``device``: the current value, and the maximum since the program started or reset it. Without
    a device there are no counters; None means unknown.
    """

    step: _Count
    begin_ns: _Count
    end_ns: _Count
    window: _Name = ""
    device: _Name = ""
    allocated_bytes: _Count | None = None
    peak_allocated_bytes: _Count | None = None
    process_bytes: _Count | None = None

    @property
    def wall_ns(self) -> int:
        """Wall time of the step."""
        return self.end_ns - self.begin_ns


_NAMES = tuple(field.name for field in fields(StepLine))
_encode_line = msgspec.json.Encoder().encode
_decode_line = msgspec.json.Decoder(StepLine).decode


def encode_step(line: StepLine) -> bytes:
    """Return the line, including its line end."""
    known = {name: value for name in _NAMES if (value := getattr(line, name)) not in (None, "")}
    return _encode_line(known) + b"\n"


def decode_step(text: bytes) -> StepLine | None:
    """Return the step of a line, or None if the line is invalid."""
    try:
        line = _decode_line(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return line if line.begin_ns <= line.end_ns else None


def read_last_lines(path: Path) -> list[bytes]:
    """Return the last lines of a step log, the last one first; they may be damaged."""
    try:
        with open_plain(path) as content:
            content.seek(max(0, os.fstat(content.fileno()).st_size - _LAST_LINES_BYTES))
            return content.read(_LAST_LINES_BYTES).splitlines()[::-1]
    except OSError:
        return []


def read_last_end_ns(path: Path) -> int | None:
    """Return when the last finished step of a log ended; None without steps."""
    steps = (decode_step(line) for line in read_last_lines(path))
    return next((step.end_ns for step in steps if step is not None), None)


class TableFile(Struct, frozen=True, kw_only=True):
    """Row count and checksum of a table on disk, as computed by its writer."""

    rows: int
    sha256: str


class PlannedSteps(Struct, frozen=True, kw_only=True):
    """Plan of a recording: ``skip`` unrecorded steps, then ``memory`` steps, then ``time`` steps."""

    skip: int
    memory: int
    time: int


class RunManifest(Struct, frozen=True, kw_only=True):
    """Facts that are equal on every rank of the run.

    ``source``: recording, or (imported) snapshot, trace, flight_recorder, operation_timeline or
    nccl_inspector. ``gaps`` are
    the gaps that are not specific to a rank: unusable files, guessed ranks. ``planned``: None for imported
    runs and for recordings older than this field. ``folder``: working folder of the program; its files are
    named relative to it. ``operations``: the table of an operation timeline, which is not divided by rank.
    """

    schema: str = RUN_SCHEMA
    zprof_version: str
    created_ns: int
    world_size: int
    backend: str
    device: str
    training: TrainingFacts
    environment: dict[str, str] = field(default_factory=dict)
    run_id: str = ""
    source: str = "recording"
    gaps: tuple[Gap, ...] = ()
    planned: PlannedSteps | None = None
    folder: str = ""
    operations: TableFile | None = None
    inspector: TableFile | None = None


class TablePart(Struct, frozen=True, kw_only=True):
    """A part of a table whose window is still being recorded; ``number`` is in its file name."""

    number: int
    rows: int
    sha256: str


class RankManifest(Struct, frozen=True, kw_only=True):
    """Manifest of one rank's recording.

    ``status`` is recording until its tables are on disk. If ``run_id`` differs from that of the run's
    manifest, the rank is left over from another recording on the same path. ``memory_mode`` is full or light,
    empty if no memory was recorded. ``parts``: tables of a window that has not ended, which become one file
    in ``files`` when it ends. ``saved_ns``: when a flight-recorder dump was written, according to its file.
    ``entries_left_out``: number of unreadable entries of the dump; None if unknown. ``process``: what another
    rank or the launcher observed of a rank that could not save itself.
    """

    rank: int
    status: str
    host: str
    run_id: str = ""
    memory_steps: tuple[int, ...] = ()
    time_steps: tuple[int, ...] = ()
    files: dict[str, TableFile] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()
    memory_mode: str = ""
    parts: dict[str, tuple[TablePart, ...]] = field(default_factory=dict)
    saved_ns: int | None = None
    entries_left_out: int | None = 0
    process: RankProcess | None = None


def rank_folder(run: Path, rank: int) -> Path:
    """Return the folder of a rank."""
    return run / f"rank{rank:05d}"


def get_staged_path(table: Path) -> Path:
    """Return the path of a new version of a table until the manifest lists it."""
    return table.with_name(f".{table.name}.new")


def get_part_path(table: Path, number: int) -> Path:
    """Return the path of a part of a table."""
    return table.with_name(f"{table.stem}.part{number:06d}{table.suffix}")


def to_json(manifest: RunManifest | RankManifest) -> str:
    """Return the manifest as indented JSON; invalid Unicode is replaced."""
    tree = to_builtins(manifest, enc_hook=_make_plain)
    text = json.dumps(tree, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    return text.encode("utf-8", "replace").decode("utf-8")


def _make_plain(value: object) -> str:
    """Return an instance of a subclass of ``str``, such as torch's version, as a plain ``str``."""
    if isinstance(value, str):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} cannot be in a manifest")


def place_rank(run: Path, provisional: Path, manifest: RankManifest) -> None:
    """Move tables that were written before their rank was known into that rank's folder of ``run``.

    Raises:
        OSError: A table cannot be moved.
    """
    folder = rank_folder(run, manifest.rank)
    provisional.rename(folder)
    (folder / RANK_NAME).write_text(to_json(manifest), encoding="utf-8")


def read_run_manifest(run: Path) -> RunManifest:
    """Read and check ``manifest.json``; unknown keys are ignored.

    Raises:
        BadInput: The run does not exist, is not a run, is damaged, or was written by a newer zprof.
    """
    path = run / MANIFEST_NAME
    content = _read(path)
    _check_schema(_decode(content, _ManifestVersion, path).schema, path)
    return _decode(content, RunManifest, path)


def read_rank_manifest(run: Path, rank: int) -> RankManifest:
    """Read ``rankNNNNN/rank.json``.

    Raises:
        BadInput: The file is missing, unreadable or damaged.
    """
    path = rank_folder(run, rank) / RANK_NAME
    return _decode(_read(path), RankManifest, path)


class _ManifestVersion(Struct, frozen=True, kw_only=True):
    """The fields that every version of a manifest has."""

    schema: str = ""


def _read(path: Path) -> bytes:
    try:
        with open_plain(path) as file:
            content = file.read(_MAX_JSON_BYTES + 1)
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file", hint="give the folder of a recording") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})", hint=_RECORD_AGAIN) from None
    if len(content) > _MAX_JSON_BYTES:
        raise BadInput(f"{path}: too large for a manifest", hint=_RECORD_AGAIN)
    return content


def _decode(content: bytes, kind: type[_T], path: Path) -> _T:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        reason = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
        raise BadInput(f"{path}: not a zprof manifest ({reason})", hint=_RECORD_AGAIN) from None


def _check_schema(schema: str, path: Path) -> None:
    if schema == RUN_SCHEMA:
        return
    if schema.startswith("zprof.run/"):
        raise BadInput(
            f"{path}: schema {schema[:40]!r}, this zprof reads {RUN_SCHEMA!r}",
            hint="upgrade zprof, or record the run again",
        )
    raise BadInput(f"{path}: not a zprof run", hint="give the folder of a recording")


class _EndFile(Struct, frozen=True, kw_only=True):
    schema: str = ENDINGS_SCHEMA
    run_id: str = ""
    end: RankEnd


def write_endings(run: Path, run_id: str, ends: Sequence[RankEnd]) -> None:
    """Write the ends of ranks; existing ends of other ranks stay.

    Raises:
        OSError: The files cannot be written.
    """
    folder = run / _FOLDER
    folder.mkdir(exist_ok=True)
    for end in ends:
        content = msgspec.json.format(msgspec.json.encode(_EndFile(run_id=run_id, end=limit_end(end))))
        write_atomically(folder / f"rank{end.rank:05d}.json", content + b"\n")


def read_endings(run: Path, manifest: RunManifest) -> tuple[RankEnd, ...]:
    """Return the known ends of the ranks of a run, by rank.

    Raises:
        BadInput: A file is damaged.
    """
    try:
        names = os.listdir(run / _FOLDER)
    except OSError:
        return ()
    ranks = sorted(int(match[1]) for name in names if (match := _FILE.fullmatch(name)))
    ends = (_read_end(run, rank, manifest.run_id) for rank in ranks if rank < manifest.world_size)
    return tuple(end for end in ends if end is not None)


def limit_end(end: RankEnd) -> RankEnd:
    """Return the end with printable strings, limited in length and number."""
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
    """Return the first characters of a string, on one line."""
    return printable(text[:MAX_LINE_LENGTH].rstrip())[:MAX_LINE_LENGTH]


def _limit_location(location: SourceLocation) -> SourceLocation:
    return SourceLocation(
        file=limit_line(location.file), line=location.line, function=limit_line(location.function)
    )


def _read_end(run: Path, rank: int, run_id: str) -> RankEnd | None:
    """Return the end of a rank; None if it belongs to an earlier run."""
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
