"""Read the manifests: the facts of the run, and the tables that each rank wrote.

``manifest.json`` holds facts that are equal on every rank; ``rankNNNNN/rank.json`` holds that rank's facts.
A reader merges them, so no rank ever waits for another.
"""

import json
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct, field, to_builtins

from zprof.model.errors import BadInput
from zprof.model.gaps import Gap
from zprof.model.hang import RankProcess
from zprof.model.training import TrainingFacts
from zprof.run.plain_file import open_plain

RUN_SCHEMA = "zprof.run/1"
MANIFEST_NAME = "manifest.json"
RANK_NAME = "rank.json"
STEPS_NAME = "steps.jsonl"
#: Source of a run made from flight-recorder dumps.
FLIGHT_RECORDER = "flight_recorder"
_MAX_JSON_BYTES = 64 << 20
_RECORD_AGAIN = "record the run again"
_T = TypeVar("_T")


class PlannedSteps(Struct, frozen=True, kw_only=True):
    """Plan of a recording: ``skip`` unrecorded steps, then ``memory`` steps, then ``time`` steps."""

    skip: int
    memory: int
    time: int


class RunManifest(Struct, frozen=True, kw_only=True):
    """Facts that are equal on every rank of the run.

    ``source``: recording, or (imported) snapshot, trace or flight_recorder. ``gaps`` are not specific to a
    rank: files that could not be used, ranks that had to be guessed. ``planned``: None for imported runs and
    for recordings older than this field. ``folder``: working folder of the program; its files are named
    relative to it.
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


class TableFile(Struct, frozen=True, kw_only=True):
    """Row count and checksum of a table on disk, from its writer."""

    rows: int
    sha256: str


class TablePart(Struct, frozen=True, kw_only=True):
    """A part of a table whose window is still being recorded; ``number`` is in the name of its file."""

    number: int
    rows: int
    sha256: str


class RankManifest(Struct, frozen=True, kw_only=True):
    """Manifest of one rank's recording.

    ``status`` is recording until its tables are on disk. If ``run_id`` differs from that of the run's
    manifest, the rank is left over from another recording on the same path. ``memory_mode`` is full or light,
    empty if no memory was recorded. ``parts``: tables of a window that has not ended, which become one file
    in ``files`` when it ends. ``saved_ns``: when a flight-recorder dump was written, as its file says.
    ``entries_left_out``: entries of the dump that could not be read; None if it is not known how many.
    ``process``: what another rank, or the launcher, saw of a rank that could not save itself.
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
    """Return the manifest as indented JSON; what is not valid Unicode is replaced."""
    tree = to_builtins(manifest, enc_hook=_make_plain)
    text = json.dumps(tree, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    return text.encode("utf-8", "replace").decode("utf-8")


def _make_plain(value: object) -> str:
    """Return a text of a subclass of ``str``, such as torch's version, as a plain one."""
    if isinstance(value, str):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} cannot be in a manifest")


def read_run_manifest(run: Path) -> RunManifest:
    """Read and check ``manifest.json``; keys unknown to this version are ignored.

    Raises:
        BadInput: no such run, not a run, damaged, or written by a newer zprof.
    """
    path = run / MANIFEST_NAME
    content = _read(path)
    _check_schema(_decode(content, _ManifestVersion, path).schema, path)
    return _decode(content, RunManifest, path)


def read_rank_manifest(run: Path, rank: int) -> RankManifest:
    """Read ``rankNNNNN/rank.json``.

    Raises:
        BadInput: it is missing, unreadable or damaged.
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
