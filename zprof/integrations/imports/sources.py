"""Find importable files at the user's paths by the content of the files."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from zprof.collectors.file_kinds import FileKind, detect_file_kind
from zprof.model.errors import BadInput
from zprof.model.formatting import printable, shorten
from zprof.run.plain_file import open_plain

_MAX_FILES = 4096
_MAX_NAMED = 6
_HINT = "give Kineto traces (.json, .gz, .zst), CUDA memory snapshots, or a folder of one of them"


class SourceKind(StrEnum):
    """Kind of importable files; an import takes one kind."""

    TRACE = "trace"
    SNAPSHOT = "snapshot"


_KINDS = {
    FileKind.TRACE: SourceKind.TRACE,
    FileKind.SNAPSHOT: SourceKind.SNAPSHOT,
    FileKind.GZIP_SNAPSHOT: SourceKind.SNAPSHOT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Files of one kind, and notes on the choice."""

    kind: SourceKind
    files: tuple[Path, ...]
    notes: tuple[str, ...] = ()


def find_sources(paths: Sequence[Path]) -> Sources:
    """Return the traces or snapshots among ``paths`` and in the folders among them.

    Raises:
        BadInput: a path is something else, there is nothing to read, or kinds are mixed.
    """
    found = [_folder_sources(path) if path.is_dir() else _single_source(path) for path in paths]
    files = tuple(dict.fromkeys(file for part in found for file in part.files))
    if len(files) > _MAX_FILES:
        raise BadInput(f"{paths[0]}: {len(files)} files, at most {_MAX_FILES}", hint="give fewer of them")
    first = found[0]
    for other in found:
        if other.kind is not first.kind:
            message = f"{first.files[0]} is a {first.kind}, {other.files[0]} a {other.kind}"
            raise BadInput(message, hint="import one kind at a time")
    return Sources(kind=first.kind, files=files, notes=tuple(note for part in found for note in part.notes))


def has_sources(folder: Path) -> bool:
    """Return whether a folder, or a folder in it, has anything to import."""
    try:
        return any(_by_kind(folder).values()) or bool(_folders_with_sources(folder))
    except BadInput:
        return False


def kind_at(path: Path) -> FileKind:
    """Return the kind of a file.

    Raises:
        BadInput: the file does not exist or cannot be read.
    """
    if not path.is_file():
        what = "no plain file" if path.exists() else "no such file"
        raise BadInput(f"{path}: {what}", hint=_HINT)
    try:
        with open_plain(path) as file:
            return detect_file_kind(file)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})", hint=_HINT) from None


def _single_source(path: Path) -> Sources:
    """Return one file as a source, whatever its name; JSON that does not start like a trace may be one."""
    kind = kind_at(path)
    if kind in _KINDS or kind is FileKind.JSON:
        return Sources(kind=_KINDS.get(kind, SourceKind.TRACE), files=(path,))
    if kind is FileKind.TORCH_ARCHIVE:
        raise BadInput(f"{path}: an archive (as torch.save writes): tensors, no trace", hint=_HINT)
    raise BadInput(
        f"{path}: neither a run nor a Kineto trace (JSON) nor a CUDA memory snapshot (a pickle)", hint=_HINT
    )


def _folder_sources(folder: Path) -> Sources:
    """Return a folder's traces if it has any, else its snapshots; ignore other files."""
    found = _by_kind(folder)
    traces, snapshots = found[SourceKind.TRACE], found[SourceKind.SNAPSHOT]
    if traces and snapshots:
        note = f"{folder}: its {len(traces)} traces are taken, its {len(snapshots)} memory snapshots are not"
        note += " (give those by name for a run of their own)"
        return Sources(kind=SourceKind.TRACE, files=tuple(traces), notes=(note,))
    if traces or snapshots:
        return Sources(
            kind=SourceKind.TRACE if traces else SourceKind.SNAPSHOT, files=tuple(traces or snapshots)
        )
    inside = _folders_with_sources(folder)
    if not inside:
        raise BadInput(f"{folder}: no Kineto trace and no CUDA memory snapshot in this folder", hint=_HINT)
    names = ", ".join(shorten(printable(path.name), 60) for path in inside[:_MAX_NAMED])
    more = f" and {len(inside) - _MAX_NAMED} more" if len(inside) > _MAX_NAMED else ""
    raise BadInput(
        f"{folder}: no file to import, but folders that have some: {names}{more}", hint="give one of them"
    )


def _by_kind(folder: Path) -> dict[SourceKind, list[Path]]:
    """Return the importable files of a folder; ignore unreadable ones."""
    found: dict[SourceKind, list[Path]] = {kind: [] for kind in SourceKind}
    for path in _list_folder(folder):
        kind = _KINDS.get(_kind_or_other(path))
        if kind is not None:
            found[kind].append(path)
    return found


def _folders_with_sources(folder: Path) -> list[Path]:
    """Return the subfolders that have something to import (iteration_10, iteration_20, ...)."""
    return [path for path in _list_folder(folder) if path.is_dir() and any(_by_kind(path).values())]


def _list_folder(folder: Path) -> list[Path]:
    try:
        names = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise BadInput(f"{folder}: cannot be read ({error.strerror})", hint=_HINT) from None
    if len(names) > 4 * _MAX_FILES:
        raise BadInput(f"{folder}: {len(names)} files, at most {_MAX_FILES}", hint="give fewer of them")
    return names


def _kind_or_other(path: Path) -> FileKind:
    try:
        return kind_at(path)
    except BadInput:
        return FileKind.OTHER
