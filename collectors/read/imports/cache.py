"""Cache imports of raw files that are passed instead of a run, in the user's cache folder.

``$XDG_CACHE_HOME/zprof/imports/DIGEST.UNIQUE.zprof-cache/`` (default ``~/.cache``; DIGEST is a hash of the
path) contains the run, ``key.json`` (the files with their sizes and times, and the zprof versions involved)
and ``content.json`` (the files of the run, with their checksums). An import is made in a temporary folder
next to it and then renamed; it never changes afterwards. A process holds the lock of the import that it
reads; only imports that nobody holds are removed: imports with another key, damaged ones, and temporary
folders of killed processes. Nothing is written next to the user's files.

The list of files is stored next to the run in the cache, which stays on this machine. It is never part of the
run, which may be shared, because paths disclose details of the machine.
"""

import atexit
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path

from msgspec import Struct

from zprof.base.errors import BadInput
from zprof.cache.folder import (
    IMPORT_SUFFIX,
    KEY_NAME,
    LOCK_NAME,
    MAX_CLEANUP_S,
    find_cache_folder,
    hold_entry,
    is_owned_by_user,
    limit_cache,
    lock_entry,
    mark_as_used,
    remove_unused,
)
from zprof.collectors.read.formats import SourceKind
from zprof.collectors.read.imports.file_ranks import RankedFile
from zprof.collectors.read.imports.import_paths import import_paths
from zprof.collectors.read.imports.options import ImportOptions, ImportProgress
from zprof.collectors.read.imports.sources import Sources, find_sources, has_sources
from zprof.model.cache import CacheKind
from zprof.run.files import open_plain
from zprof.run.manifest import MANIFEST_NAME, RUN_SCHEMA
from zprof.version import __version__

_CONTENT_NAME = "content.json"
_MAX_JSON_BYTES = 64 << 20
_SUFFIXES = (".gz", ".zst", ".json", ".trace", ".pt", ".pickle", ".pkl", ".parquet")
#: Longest name of a run: a file system allows 255 bytes, and temporary names are longer than the final one.
_MAX_NAME_BYTES = 200
#: Increment this when the conversion of the same file changes.
_CONVERSION_VERSION = 5
ORIGIN_NAME = "files.json"
_MAX_BYTES = 64 << 20


class _Wanted(Struct, frozen=True, kw_only=True):
    """The requested import: its place, its files, and the name of its run."""

    root: Path
    digest: str
    name: str
    key: str

    def list_entries(self) -> list[Path]:
        """Return all imports of the same paths, current or not; no links."""
        return [
            path
            for path in sorted(self.root.glob(f"{self.digest}*{IMPORT_SUFFIX}"))
            if is_owned_by_user(path)
        ]


def needs_import(path: Path) -> bool:
    """Return True if ``path`` must be imported: any file, or a folder of traces or snapshots."""
    if not path.is_dir():
        return path.exists()
    return not (path / MANIFEST_NAME).exists() and has_sources(path)


def import_cached(
    paths: Sequence[Path],
    print_note: Callable[[str], None],
    progress: ImportProgress,
    while_reading: Callable[[], None] | None = None,
) -> Path:
    """Return the run of traces, snapshots or dumps, from the cache or newly imported.

    Args:
        paths: Files, or folders of them, that make one run.
        print_note: Called with messages about the progress and location of the import.
        progress: Receives the progress of the import.
        while_reading: Called while other processes read, if they do.

    Raises:
        BadInput: a path cannot be imported.
    """
    path = paths[0]
    sources = find_sources(paths)
    options = ImportOptions(while_reading=while_reading)
    key = _compute_key(path, sources.files)
    name = f"{_strip_suffixes(path) or sources.kind}.zprof"
    root = cache_root()
    wanted = _Wanted(root=root, digest=_compute_digest(paths), name=name, key=key) if root else None
    if wanted is not None and (found := _find_current(wanted, print_note)) is not None:
        print_note(f"{path}: {_count_sources(sources)}, imported before")
        return found
    print_note(f"{path}: {_count_sources(sources)}, importing into the cache (zprof doctor says where)")
    obstacle = _explain_unwritable(root)
    if wanted is None or obstacle:
        print_note(f"{obstacle}: the import is temporary and will be deleted on exit")
        folder = _make_process_folder()
        _import_into(folder, paths, name, key, print_note, progress, options)
        return folder / name
    with _temporary_folder(wanted) as (folder, lock):
        _import_into(folder, paths, name, key, print_note, progress, options)
        # Another process may have imported the same files meanwhile.
        run = _find_current(wanted, print_note) or _place(folder, lock, wanted)
    # Remove other imports of the same paths, and leftovers of killed processes, unless somebody holds them.
    leftovers = [path for path in wanted.root.glob(f"*{IMPORT_SUFFIX}.*") if is_owned_by_user(path)]
    deadline_s = time.monotonic() + MAX_CLEANUP_S
    for entry in [*wanted.list_entries(), *leftovers]:
        if entry != run.parent and (left_s := deadline_s - time.monotonic()) > 0:
            remove_unused(entry, left_s)
    limit_cache(CacheKind.IMPORTS)
    return run


def _compute_digest(paths: Sequence[Path]) -> str:
    """Return the name of the cache of these paths."""
    names = b"\0".join(os.fsencode(path.resolve()) for path in paths)
    return hashlib.sha256(names).hexdigest()[:32]


def _strip_suffixes(path: Path) -> str:
    """Return the name of the run, cut if long: ``qwen_0.5b.pt.trace.json.gz`` becomes ``qwen_0.5b``."""
    name = path.resolve().name
    while suffix := next((end for end in _SUFFIXES if name.lower().endswith(end)), ""):
        name = name[: -len(suffix)]
    while len(os.fsencode(name)) > _MAX_NAME_BYTES:
        name = name[:-1]
    return name


def _count_sources(sources: Sources) -> str:
    count = len(sources.files)
    with_an = (SourceKind.OPERATIONS, SourceKind.NSIGHT, SourceKind.INSPECTOR)
    article = "an" if sources.kind in with_an else "a"
    return f"{article} {sources.kind}" if count == 1 else f"{count} {sources.kind}s"


def _explain_unwritable(root: Path | None) -> str:
    """Explain why the cache cannot be written; empty if it can."""
    if root is None:
        return "no home folder, so imports cannot be cached"
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=root):
            return ""
    except OSError as error:
        return f"{root}: cannot be written ({error.strerror})"


def _make_process_folder() -> Path:
    try:
        folder = Path(tempfile.mkdtemp(prefix="zprof-import-", suffix=IMPORT_SUFFIX))
    except OSError as error:
        raise BadInput(
            f"cannot create a temporary folder ({error.strerror})",
            hint="use zprof import PATH -o RUN to choose a location",
        ) from None
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@contextmanager
def _temporary_folder(wanted: _Wanted) -> Iterator[tuple[Path, BufferedReader]]:
    """Yield a folder in the cache and its lock, which marks it as in use; remove it unless it was renamed."""
    lock = None
    while lock is None:  # another process may take a new folder for a leftover
        folder = Path(tempfile.mkdtemp(prefix=f"{wanted.digest}{IMPORT_SUFFIX}.", dir=wanted.root))
        (folder / LOCK_NAME).touch()
        lock = lock_entry(folder, is_exclusive=True)
    try:
        with lock:
            yield folder, lock
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _import_into(
    folder: Path,
    paths: Sequence[Path],
    name: str,
    key: str,
    print_note: Callable[[str], None],
    progress: ImportProgress,
    options: ImportOptions,
) -> None:
    """Import; do not cache a result with transient failures (a killed reader), so the next run retries."""
    imported = import_paths(paths, folder / name, options=options, progress=progress)
    for message in imported.notes:
        print_note(message)
    if imported.is_cacheable:
        write_origin(folder, imported.files)
        (folder / _CONTENT_NAME).write_text(json.dumps(_list_content(folder / name)), encoding="ascii")
        (folder / KEY_NAME).write_text(key, encoding="ascii")


def _place(folder: Path, lock: BufferedReader, wanted: _Wanted) -> Path:
    """Give the import its final name, hold it, and return its run."""
    entry = wanted.root / f"{wanted.digest}{folder.suffix}{IMPORT_SUFFIX}"
    try:
        folder.rename(entry)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        hold_entry(entry)
    except OSError as error:
        raise BadInput(
            f"{entry}: cannot be written ({error.strerror})", hint="run the command again"
        ) from None
    return entry / wanted.name


def _find_current(wanted: _Wanted, print_note: Callable[[str], None]) -> Path | None:
    """Return the run of an import with the wanted key, which this process holds from now on."""
    for entry in wanted.list_entries():
        if _read_file(entry / KEY_NAME) != wanted.key.encode():
            continue
        lock = lock_entry(entry, is_exclusive=False)
        if lock is None:
            continue
        with lock:
            if _is_intact(entry, wanted.name):
                hold_entry(entry)
                mark_as_used(entry)
                return entry / wanted.name
        print_note(f"{entry}: this import was damaged, and is not used")
    return None


def _is_intact(entry: Path, name: str) -> bool:
    """Return True if all files of the run are unchanged since the import."""
    run = entry / name
    try:
        listed = json.loads(_read_file(entry / _CONTENT_NAME))
        sizes = {file: (run / file).stat().st_size for file in _list_files(run)}
        if sizes != {file: size for file, (size, _) in listed.items()}:
            return False  # and no file that has grown, perhaps without an end, is read
        return bool(listed == _list_content(run))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return False


def _list_content(run: Path) -> dict[str, list[object]]:
    """Return size and checksum of each file in a run, by path within the run."""
    content: dict[str, list[object]] = {}
    for name in _list_files(run):
        with open_plain(run / name) as file:
            content[name] = [os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()]
    return content


def _list_files(run: Path) -> list[str]:
    return sorted(
        os.path.relpath(os.path.join(parent, name), run)
        for parent, _, names in os.walk(run)
        for name in names
    )


def _read_file(path: Path) -> bytes:
    """Return the content of a small file; empty if it cannot be read."""
    try:
        with open_plain(path) as file:
            return file.read(_MAX_JSON_BYTES)
    except OSError:
        return b""


def _compute_key(path: Path, files: Sequence[Path]) -> str:
    """Return the cache key, which depends on the files, their sizes and times, and the versions."""
    stats = [
        (f"{file.parent.name}/{file.name}", file.stat().st_size, file.stat().st_mtime_ns) for file in files
    ]
    versions = [__version__, RUN_SCHEMA, _CONVERSION_VERSION]
    return json.dumps({"path": str(path.resolve()), "files": stats, "made_by": versions}) + "\n"


def cache_root() -> Path | None:
    """Return the folder of all imports; None if the user has no home folder."""
    folder = find_cache_folder()
    return folder / CacheKind.IMPORTS if folder else None


def write_origin(cache: Path, files: Sequence[RankedFile]) -> None:
    """Write the list of files to the folder of the cache."""
    by_rank = {str(file.rank): os.fspath(file.path.absolute()) for file in files}
    (cache / ORIGIN_NAME).write_text(json.dumps(by_rank), encoding="ascii")


def read_origin(run: Path) -> Mapping[int, Path] | None:
    """Return the files by rank; None if ``run`` is not in this user's cache, or has no valid list."""
    cache = run.parent
    path = cache / ORIGIN_NAME
    try:
        if not cache.name.endswith(IMPORT_SUFFIX) or cache.stat().st_uid != os.geteuid():
            return None
        if path.is_symlink() or path.stat().st_size > _MAX_BYTES:
            return None
        by_rank = json.loads(path.read_text(encoding="ascii"))
        return {int(rank): Path(name) for rank, name in by_rank.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None
