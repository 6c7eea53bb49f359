"""Find importable files at the user's paths by the content of the files."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from zprof.base.errors import BadInput, suggest_path
from zprof.base.formatting import printable, shorten
from zprof.collectors.read.formats import (
    FORMATS,
    FileKind,
    ForeignFormat,
    SourceKind,
    detect_file_kind,
    identify_foreign,
)
from zprof.collectors.read.hang_log.records import has_evidence
from zprof.collectors.read.imports.file_ranks import search_rank
from zprof.run.files import open_plain

_MAX_FILES = 4096
_MAX_LISTED = 6
#: If a folder has nothing to import, the formats of this many files are looked up.
_MAX_IDENTIFIED = 100
_TEXT_BYTES = 4096
_PRINTABLE = bytes(range(32, 127)) + b"\t\n\r\x1b"
LOG_HINT = (
    "pass the logs of all ranks from the minute before the job ended, or dumps of the flight recorder "
    "(TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1)"
)
_ATTEMPT = re.compile(r"attempt_\d{1,6}")
#: Kinds that text may be detected as.
_LOG_KINDS = (FileKind.LOG, FileKind.OTHER, FileKind.JSON)
_HINT = (
    "pass Kineto traces (.json, .gz, .zst), Nsight exports (.sqlite), NCCL Inspector files, CUDA memory "
    "snapshots, flight-recorder dumps, logs, or a folder of them"
)


#: Kinds that the first bytes identify with certainty.
_SURE_KINDS = FORMATS.keys() - {FileKind.LOG}
_PLURALS = {
    SourceKind.TRACE: "traces",
    SourceKind.SNAPSHOT: "memory snapshots",
    SourceKind.DUMP: "hang dumps and logs",
    SourceKind.OPERATIONS: "operation timelines",
    SourceKind.NSIGHT: "Nsight exports",
    SourceKind.INSPECTOR: "NCCL Inspector files",
}


class Sources(Struct, frozen=True, kw_only=True):
    """Files of one kind, and notes about the choice."""

    kind: SourceKind
    files: tuple[Path, ...]
    notes: tuple[str, ...] = ()


def find_sources(paths: Sequence[Path]) -> Sources:
    """Return the traces, snapshots or dumps among ``paths`` and in the folders among them.

    Raises:
        BadInput: a path is none of them, there is nothing to import, or kinds are mixed.
    """
    found = [_find_folder_sources(path) if path.is_dir() else _make_file_source(path) for path in paths]
    files = tuple(dict.fromkeys(file for part in found for file in part.files))
    if len(files) > _MAX_FILES:
        raise BadInput(f"{paths[0]}: {len(files)} files, at most {_MAX_FILES}", hint="pass fewer files")
    first = found[0]
    for other in found:
        if other.kind is not first.kind:
            message = f"{first.files[0]} is a {first.kind}, but {other.files[0]} is a {other.kind}"
            raise BadInput(message, hint="import one kind at a time")
    return Sources(kind=first.kind, files=files, notes=tuple(note for part in found for note in part.notes))


def has_sources(folder: Path) -> bool:
    """Return True if a folder, or a direct subfolder, contains importable files."""
    try:
        return any(_group_by_kind(folder).values()) or bool(_list_importable_subfolders(folder))
    except BadInput:
        return False


def detect_kind(path: Path) -> FileKind:
    """Detect the kind of a file.

    Raises:
        BadInput: the file does not exist or cannot be read.
    """
    if not path.is_file():
        if path.exists():
            raise BadInput(f"{path}: not a regular file", hint=_HINT)
        raise BadInput(f"{path}: no such file", hint=suggest_path(path) or _HINT)
    try:
        with open_plain(path) as file:
            return detect_file_kind(file)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})", hint=_HINT) from None


def _make_file_source(path: Path) -> Sources:
    """Return one file as a source, with any name; JSON that does not start like a trace may still be one."""
    kind = detect_kind(path)
    if kind in _SURE_KINDS:
        return Sources(kind=FORMATS[kind].source, files=(path,))
    foreign = _identify_foreign(path)
    if kind is FileKind.JSON and foreign is None:
        return Sources(kind=SourceKind.TRACE, files=(path,))
    if kind in (FileKind.LOG, FileKind.OTHER) and _is_log(path):
        return Sources(kind=SourceKind.DUMP, files=(path,))
    if foreign is not None:
        raise BadInput(f"{path}: {foreign.title}, which zprof does not read", hint=foreign.instead)
    if kind is FileKind.LOG or (kind is FileKind.OTHER and _is_text(path)):
        raise BadInput(f"{path}: text without a line about a stuck collective", hint=LOG_HINT)
    if kind is FileKind.PICKLE:
        raise BadInput(
            f"{path}: a pickle, but neither a CUDA memory snapshot nor a flight-recorder dump", hint=_HINT
        )
    raise BadInput(
        f"{path}: not a run, a Kineto trace (JSON), a CUDA memory snapshot (a pickle), "
        "a flight-recorder dump or a log with a line about a stuck collective",
        hint=_HINT,
    )


def _identify_foreign(path: Path) -> ForeignFormat | None:
    try:
        with open_plain(path) as file:
            return identify_foreign(file, path.name)
    except OSError:
        return None


def _is_text(path: Path) -> bool:
    """Return True if a file starts with readable text."""
    try:
        with open_plain(path) as file:
            head = file.read(_TEXT_BYTES) or b""
            return bool(head) and head.isascii() and not head.translate(None, _PRINTABLE)
    except OSError:
        return False


def _is_log(path: Path) -> bool:
    """Return True for text with a line about a stuck collective."""
    try:
        with open_plain(path) as file:
            return has_evidence(file)
    except OSError:
        return False


def _find_logs(folder: Path) -> list[Path]:
    """Return the logs in a folder and its subfolders; of several torchrun attempts, only the last.

    Raises:
        BadInput: the folder has too many files.
    """
    paths: list[Path] = []
    for place, folders, names in os.walk(folder):
        attempts = sorted(
            (name for name in folders if _ATTEMPT.fullmatch(name)), key=lambda name: int(name[8:])
        )
        hidden = {name for name in folders if name.startswith(".")}
        folders[:] = sorted(set(folders) - set(attempts[:-1]) - hidden)
        paths += [Path(place, name) for name in sorted(names) if not name.startswith(".")]
        if len(paths) > _MAX_FILES:
            raise BadInput(f"{folder}: more than {_MAX_FILES} files", hint="pass the logs by name")
    return [path for path in paths if _may_be_log(path)]


def _may_be_log(path: Path) -> bool:
    return _detect_kind_or_other(path) in _LOG_KINDS and _is_log(path)


def _find_folder_sources(folder: Path) -> Sources:
    """Return a folder's traces if it has any, else its snapshots or dumps; ignore other files."""
    found = _group_by_kind(folder)
    kind = _choose_kind(found)
    if kind is SourceKind.DUMP:
        found[kind] += [path for path in _list_folder(folder) if path.is_file() and _may_be_log(path)]
    if kind is not None:
        notes = tuple(
            f"{folder}: importing its {len(found[kind])} {_PLURALS[kind]}, "
            f"not its {len(files)} {_PLURALS[other]} "
            f"(pass the {_PLURALS[other].split()[-1]} by name to import them as a separate run)"
            for other, files in found.items()
            if files and other is not kind
        )
        return Sources(kind=kind, files=tuple(found[kind]), notes=notes)
    subfolders = _list_importable_subfolders(folder)
    # Whether each folder is named after another rank (worker-0, worker-1), not after an iteration.
    matches = [search_rank(path.name) for path in subfolders]
    if bool(matches) and len({match[1] for match in matches if match}) == len(matches):
        parts = [_find_folder_sources(subfolder) for subfolder in subfolders]
        if len({part.kind for part in parts}) == 1 and all(len(part.files) == 1 for part in parts):
            return Sources(kind=parts[0].kind, files=tuple(part.files[0] for part in parts))
    if not subfolders and (logs := _find_logs(folder)):
        return Sources(kind=SourceKind.DUMP, files=tuple(logs))
    if not subfolders:
        _refuse_foreign(folder)
        raise BadInput(
            f"{folder}: this folder contains no Kineto traces, CUDA memory snapshots, "
            "flight-recorder dumps or logs of a stuck job",
            hint=_HINT,
        )
    names = ", ".join(shorten(printable(path.name), 60) for path in subfolders[:_MAX_LISTED])
    more = f" and {len(subfolders) - _MAX_LISTED} more" if len(subfolders) > _MAX_LISTED else ""
    raise BadInput(
        f"{folder}: nothing to import here, but in its subfolders: {names}{more}", hint="pass one of them"
    )


def _refuse_foreign(folder: Path) -> None:
    """Refuse a folder that has a file in a known format that zprof does not read.

    Raises:
        BadInput: there is one.
    """
    for path in _list_folder(folder)[:_MAX_IDENTIFIED]:
        if path.is_file() and (foreign := _identify_foreign(path)) is not None:
            name = shorten(printable(path.name), 60)
            raise BadInput(
                f"{folder}: nothing to import here; {name} is {foreign.title}, which zprof does not read",
                hint=foreign.instead,
            )


def _choose_kind(found: Mapping[SourceKind, Sequence[Path]]) -> SourceKind | None:
    """Return which of a folder's files to import.

    A damaged dump may look like a snapshot, so the more common kind counts.
    """
    if found[SourceKind.TRACE]:
        return SourceKind.TRACE
    for kind in (SourceKind.NSIGHT, SourceKind.OPERATIONS, SourceKind.INSPECTOR):
        if found[kind]:
            return kind
    snapshots, dumps = len(found[SourceKind.SNAPSHOT]), len(found[SourceKind.DUMP])
    if not snapshots and not dumps:
        return None
    return SourceKind.DUMP if dumps >= snapshots else SourceKind.SNAPSHOT


def _group_by_kind(folder: Path) -> dict[SourceKind, list[Path]]:
    """Return the importable files of a folder; ignore unreadable ones."""
    found: dict[SourceKind, list[Path]] = {kind: [] for kind in SourceKind}
    for path in _list_folder(folder):
        kind = _detect_kind_or_other(path)
        if kind in _SURE_KINDS:
            found[FORMATS[kind].source].append(path)
    return found


def _list_importable_subfolders(folder: Path) -> list[Path]:
    """List the subfolders with importable files (iteration_10, iteration_20, ...)."""
    return [path for path in _list_folder(folder) if path.is_dir() and any(_group_by_kind(path).values())]


def _list_folder(folder: Path) -> list[Path]:
    try:
        names = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise BadInput(f"{folder}: cannot be read ({error.strerror})", hint=_HINT) from None
    if len(names) > 4 * _MAX_FILES:
        raise BadInput(f"{folder}: {len(names)} files, at most {_MAX_FILES}", hint="pass fewer files")
    return names


def _detect_kind_or_other(path: Path) -> FileKind:
    try:
        return detect_kind(path)
    except BadInput:
        return FileKind.OTHER
