"""Cache finished reports, and the steps drawn beside them.

So the same question about the same recording is not computed again.

The key of a report is a hash of the question (command, options, stated facts), of zprof's own code, and of
the content of the run and its baseline: their manifests, which have the checksum of each table, and size and
time of each file. A cached file is decoded only as the type that is asked for; a file that cannot be decoded
is ignored.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

import zprof
from zprof.cache.folder import (
    REPORT_SUFFIX,
    find_cache_folder,
    is_owned_by_user,
    limit_cache,
    mark_as_used,
)
from zprof.model.cache import CacheKind
from zprof.model.report import Report
from zprof.model.step_overview import StepOverview
from zprof.model.time import WindowPolicy
from zprof.run.files import open_plain, write_atomically
from zprof.run.reader import Run
from zprof.version import __version__

#: Any value other than 0 turns the report cache off.
SWITCH = "ZPROF_NO_CACHE"
_MAX_REPORT_BYTES = 64 << 20
Kept = TypeVar("Kept", Report, StepOverview)


class Question(Struct, frozen=True, kw_only=True):
    """The question that a report answers: command, options, run with the stated facts, and baseline."""

    command: str
    run: Run
    baseline: Run | None = None
    options: Mapping[str, object]


def answer(question: Question, make: Callable[[], Report]) -> Report:
    """Return the cached report of the question, or else call ``make`` and cache its report."""
    path = find_report_file(question)
    kept = recall(path, Report)
    if kept is None:
        kept = make()
        keep(kept, path)
    return kept


def recall_overview(question: Question, make: Callable[[], StepOverview | None]) -> StepOverview | None:
    """Return the cached step of all ranks, or else call ``make`` and cache its step, if it has any."""
    path = find_report_file(question)
    kept = recall(path, StepOverview)
    if kept is None and (kept := make()) is not None:
        keep(kept, path)
    return kept


def ask_diagnosis(
    run: Run, baseline: Run | None, expected_bus_bytes_per_s: float | None, policy: WindowPolicy
) -> Question:
    """Return the question of ``zprof diagnose`` and the terminal UI."""
    options = {"expected_bus_bytes_per_s": expected_bus_bytes_per_s, "policy": policy}
    return Question(command="diagnose", run=run, baseline=baseline, options=options)


def find_report_file(question: Question) -> Path | None:
    """Return the cache file of a question's report, which may not exist yet; None for no caching."""
    root = find_cache_folder()
    if root is None or os.environ.get(SWITCH, "0") not in ("", "0"):
        return None
    try:
        parts = {
            "version": __version__,
            "code": [
                (os.fsencode(entry.path), entry.stat().st_size, entry.stat().st_mtime_ns)
                for entry in _walk(os.path.dirname(zprof.__file__))
                if entry.name.endswith(".py")
            ],
            "command": question.command,
            "options": dict(question.options),
            "runs": [_describe_content(run) for run in (question.run, question.baseline) if run is not None],
        }
        key = hashlib.sha256(msgspec.msgpack.encode(parts)).hexdigest()[:40]
    except OSError:  # a file of the run has just been removed
        return None
    return root / CacheKind.REPORTS / f"{key}{REPORT_SUFFIX}"


def recall(path: Path | None, kind: type[Kept]) -> Kept | None:
    """Return the value of this type cached in a file; None if the file is missing or damaged."""
    if path is None or not is_owned_by_user(path.parent) or not is_owned_by_user(path):
        return None
    try:
        with open_plain(path) as file:
            content = file.read(_MAX_REPORT_BYTES + 1)
        if len(content) > _MAX_REPORT_BYTES:
            return None
        kept = msgspec.msgpack.decode(content, type=kind)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    mark_as_used(path)
    return kept


def keep(value: Report | StepOverview, path: Path | None) -> None:
    """Cache a value in a file; an unwritable cache is not an error."""
    if path is None:
        return
    content = msgspec.msgpack.encode(value, enc_hook=_encode_scalar)
    if len(content) > _MAX_REPORT_BYTES:
        return
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if is_owned_by_user(path.parent):
            write_atomically(path, content)
            limit_cache(CacheKind.REPORTS)


def _encode_scalar(value: object) -> object:
    """Return a numpy scalar as a Python number."""
    if hasattr(value, "item"):
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} cannot be kept")


def _describe_content(run: Run) -> tuple[object, ...]:
    files = [
        (os.fsencode(entry.path), entry.stat().st_size, entry.stat().st_mtime_ns)
        for entry in _walk(os.fspath(run.path.resolve()))
    ]
    ranks = {str(rank): manifest for rank, manifest in run.rank_manifests.items()}
    return (os.fsencode(run.path), run.manifest, ranks, files)


def _walk(folder: str) -> Iterator["os.DirEntry[str]"]:
    """Yield the files in a folder and its subfolders, in order."""
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _walk(entry.path)
        else:
            yield entry
