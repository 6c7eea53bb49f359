"""Let a recorded process report how it ends, where it can: an exception, a normal end, a fatal signal.

Reports go into the session's folder; output, exit code and signals of the process stay the same. A process
that is killed, or calls ``os._exit``, reports nothing: the parent observes its end
(:mod:`zprof.collectors.record.launch.rank_ends`).
"""

import atexit
import errno
import faulthandler
import multiprocessing.util
import os
import stat
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from zprof.model.findings import SourceLocation
from zprof.process.identity import identify_this_process
from zprof.run.files import open_plain
from zprof.run.manifest import MAX_FRAMES, MAX_LINE_LENGTH, MAX_LINES, limit_line

_WORDS, _FAULT = "words", "fault"
_MAX_FILE_BYTES = 1 << 20
_MAX_CHAIN = 10
_DISK_FULL_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT})
#: Runs before the finalizers that multiprocessing and the recorder register.
_EXIT_PRIORITY = 1000


class ProcessWords(Struct, frozen=True, kw_only=True):
    """What a process reported about itself.

    ``start``: its start in ticks since boot. ``is_recorded``: it was recorded as ``rank``; otherwise ``rank``
    is that of its environment. ``attempt`` counts the launcher's restarts. ``time_ns``: when the program
    ended or failed. ``stderr``: a file that its stderr goes to, with its device and number, and where it
    began to write; empty for a terminal or a pipe. The other fields are those of
    :class:`~zprof.model.endings.RankEnd`.
    """

    process: int
    start: int
    parent: int
    rank: int | None = None
    is_recorded: bool = False
    attempt: int = 0
    time_ns: int | None = None
    exit_code: int | None = None
    has_left: bool = False
    error: str = ""
    full_path: str | None = None
    lines: tuple[str, ...] = ()
    stack: tuple[SourceLocation, ...] = ()
    stderr: str = ""
    stderr_id: tuple[int, int] = (0, 0)
    stderr_start: int = 0


class LastWords:
    """Reports of this process. Its methods never raise."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._words: ProcessWords | None = None
        self._fault_file: Any = None
        self._previous_hook = sys.excepthook

    def start(self) -> None:
        """Register this process, to be called at its end."""
        with suppress(Exception):
            self._register()
            if os.environ.get("RANK", "").isdecimal():
                self._enable_faulthandler()
            self._previous_hook, sys.excepthook = sys.excepthook, self._on_error
            atexit.register(self.note_end, None)
            self._add_finalizer()
            # multiprocessing forgets the finalizers in a fork.
            multiprocessing.util.register_after_fork(self, LastWords._add_finalizer)

    def claim(self, rank: int) -> None:
        """Report that this process is recorded as a rank."""
        with suppress(Exception):
            if not self._is_own():  # a fork of a process that was not recorded
                self._register()
                self._add_finalizer()
            self._enable_faulthandler()
            self._update(rank=rank, is_recorded=True)

    def note_end(self, error: BaseException | None) -> None:
        """Report that the program has ended; an exception reported earlier is kept."""
        with suppress(Exception):
            if self._words is None or not self._is_own() or self._words.time_ns is not None:
                return
            if isinstance(error, SystemExit):
                self._note_exit(error)
            elif error is not None:
                self._note_error(error)
            else:
                self._update(time_ns=time.time_ns(), has_left=True, rank=self._find_rank())

    def _register(self) -> None:
        identity = identify_this_process()
        rank = os.environ.get("RANK", "")
        self._fault_file = None
        path, number, size = _find_stderr_file()
        self._words = ProcessWords(
            process=identity.number,
            start=identity.start,
            parent=os.getppid(),
            rank=int(rank) if rank.isdecimal() else None,
            attempt=int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
            stderr=path,
            stderr_id=number,
            stderr_start=size,
        )
        self._write()

    def _is_own(self) -> bool:
        return self._words is not None and self._words.process == os.getpid()

    def _update(self, **changes: Any) -> None:
        assert self._words is not None
        self._words = replace(self._words, **changes)
        self._write()

    def _write(self) -> None:
        path = self._folder / f"{_WORDS}.{os.getpid()}"
        temporary = path.with_name(f".{path.name}")
        temporary.write_bytes(msgspec.json.encode(self._words))
        temporary.rename(path)

    def _enable_faulthandler(self) -> None:
        """Let a fatal signal write the stacks into a file, unless the program has enabled faulthandler
        itself.
        """
        if self._fault_file is None and not faulthandler.is_enabled():
            self._fault_file = (self._folder / f"{_FAULT}.{os.getpid()}").open("wb")
            faulthandler.enable(self._fault_file)

    def _add_finalizer(self) -> None:
        """Register a call at the end of a multiprocessing child, while the error that ends it is handled."""
        multiprocessing.util.Finalize(
            None, lambda: self.note_end(sys.exc_info()[1]), exitpriority=_EXIT_PRIORITY
        )

    def _on_error(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            self.note_end(error)
        finally:
            self._previous_hook(kind, error, trace)

    def _note_exit(self, error: SystemExit) -> None:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        cause = error.__context__
        if code and isinstance(cause, Exception):  # torch.multiprocessing exits so after an error
            self._note_error(cause)
        else:
            self._update(time_ns=time.time_ns(), has_left=True, rank=self._find_rank())
        self._update(exit_code=code & 0xFF)

    def _note_error(self, error: BaseException) -> None:
        now_ns = time.time_ns()
        frames = [
            SourceLocation(file=each.filename, line=each.lineno or 0, function=each.name)
            for each in traceback.extract_tb(error.__traceback__, limit=-MAX_FRAMES)
        ]
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__, limit=-MAX_LINES))
        lines = [limit_line(line) for line in text.splitlines() if line.strip(" ^~")]
        first = str(error)[: 4 * MAX_LINE_LENGTH].strip().splitlines()
        self._update(
            time_ns=now_ns,
            rank=self._find_rank(),
            error=limit_line(f"{type(error).__name__}: {first[0]}" if first else type(error).__name__),
            full_path=_find_full_path(error),
            lines=tuple(lines[-MAX_LINES:]),
            stack=tuple(reversed(frames)),
        )

    def _find_rank(self) -> int | None:
        assert self._words is not None
        if self._words.is_recorded:
            return self._words.rank
        distributed: Any = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank())
        return self._words.rank


def list_words(folder: Path) -> list[ProcessWords]:
    """Return the reports of all processes of a recording."""
    found = []
    for path in sorted(folder.glob(f"{_WORDS}.*")):
        with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError), open_plain(path) as file:
            found.append(msgspec.json.decode(file.read(_MAX_FILE_BYTES), type=ProcessWords))
    return found


def read_fault_text(folder: Path, process: int) -> str:
    """Return what faulthandler wrote about a process; empty if it wrote nothing."""
    with suppress(OSError), open_plain(folder / f"{_FAULT}.{process}") as file:
        return file.read(_MAX_FILE_BYTES).decode(errors="replace")
    return ""


def _find_stderr_file() -> tuple[str, tuple[int, int], int]:
    """Return path, identity and size of the regular file that stderr goes to; empty for anything else."""
    try:
        state = os.fstat(2)
        if stat.S_ISREG(state.st_mode):
            return os.readlink("/proc/self/fd/2"), (state.st_dev, state.st_ino), state.st_size
    except OSError:
        pass
    return "", (0, 0), 0


def _find_full_path(error: BaseException | None) -> str | None:
    """Return the path that could not be written because the disk is full, or an empty string if the error
    does not name it; None for any other error.
    """
    for _ in range(_MAX_CHAIN):
        if isinstance(error, OSError) and error.errno in _DISK_FULL_ERRORS:
            return os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
        if error is None:
            break
        error = error.__cause__ or error.__context__
    return None
