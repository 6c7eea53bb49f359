"""Observe from outside how the processes of a recording end, and write the end of each rank into the run.

A thread waits for the processes with pidfd_open(2). The exit status of a process that is not a child of this
one is read from its entry in ``/proc`` until its parent has reaped it, and afterwards from the pidfd, which
keeps it since Linux 6.15. If neither has it, the status is unknown.
"""

import errno
import fcntl
import os
import select
import signal
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from zprof.base.errors import BadInput
from zprof.base.formatting import name_signal
from zprof.collectors.record.launch.last_words import ProcessWords, list_words, read_fault_text
from zprof.collectors.record.watch.silent_ranks import parse_thread_text
from zprof.model.endings import RankEnd
from zprof.model.findings import SourceLocation
from zprof.run.files import open_plain
from zprof.run.manifest import (
    MANIFEST_NAME,
    MAX_LINE_LENGTH,
    MAX_LINES,
    read_rank_manifest,
    read_run_manifest,
    write_endings,
)
from zprof.run.output_path import find_write_error

_PROC = Path("/proc")
#: Fields of proc_pid_stat(5), counted after the name in parentheses.
_STATE, _EXIT_STATUS = 0, 49
#: ioctl_pidfd(2): PIDFD_GET_INFO with PIDFD_INFO_EXIT; the first size of struct pidfd_info.
_INFO_BYTES, _INFO_EXIT, _EXIT_OFFSET = 64, 1 << 3, 60
_GET_INFO = 3 << 30 | _INFO_BYTES << 16 | 0xFF << 8 | 11
_POLL_S = 0.1
#: Time after the end of the command for its last processes to end.
_LAST_S = 0.3
_SIGNAL_BASE = 128
#: Space reserved for the ends of the ranks while the run is recorded.
_RESERVE_NAME, _RESERVE_BYTES = ".reserve", 64 << 10


#: When the end of a process was observed, in ns, and its wait(2) status; None if unknown.
SeenEnd = tuple[int, int | None]


class ProcessFollower:
    """Follows the processes that register in the folder of a session."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._poll = select.poll()
        self._open: dict[int, int] = {}
        self._tried: set[int] = set()
        self._ends: dict[int, SeenEnd] = {}

    def start(self) -> None:
        """Start the thread, once. Call it after the command has been started, with its signals blocked."""
        if self._thread is None and hasattr(os, "pidfd_open"):
            self._thread = threading.Thread(target=self._run, name="zprof-ends", daemon=True)
            self._thread.start()

    def stop(self) -> dict[int, SeenEnd]:
        """Return the observed ends by process."""
        deadline_s = time.monotonic() + _LAST_S
        while self._thread is not None and self._open and time.monotonic() < deadline_s:
            time.sleep(_POLL_S / 10)
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(10 * _POLL_S)
        return dict(self._ends)

    def _run(self) -> None:
        with suppress(Exception):  # an end that is not seen is unknown
            while not self._stopped.is_set():
                self._open_new()
                for handle, _ in self._poll.poll(_POLL_S * 1e3):
                    self._see_end(handle)

    def _open_new(self) -> None:
        for name in os.listdir(self._folder):
            kind, _, number = name.partition(".")
            if kind != "words" or not number.isdecimal() or int(number) in self._tried:
                continue
            process = int(number)
            self._tried.add(process)
            with suppress(OSError):
                handle = os.pidfd_open(process)
                self._open[handle] = process
                self._poll.register(handle, select.POLLIN)

    def _see_end(self, handle: int) -> None:
        process, now_ns = self._open[handle], time.time_ns()
        # The status of a process that has ended, but has not been reaped by its parent yet.
        try:
            stat = (_PROC / str(process) / "stat").read_text(errors="replace")
            fields = stat.rpartition(")")[2].split()
            status = int(fields[_EXIT_STATUS]) if fields[_STATE] == "Z" else None
        except (OSError, ValueError, IndexError):
            status = None
        self._ends[process] = now_ns, _read_status(handle) if status is None else status
        self._poll.unregister(handle)
        del self._open[handle]
        os.close(handle)


def reserve_space(run: Path) -> None:
    """Reserve space in a run for the description of its end, in case its disk becomes full; call it
    repeatedly.
    """
    path = run / _RESERVE_NAME
    if (run / MANIFEST_NAME).exists() and not path.exists():
        with suppress(OSError):
            path.write_bytes(bytes(_RESERVE_BYTES))


def write_rank_ends(
    run: Path, folder: Path, seen: dict[int, SeenEnd], code: int, since_ns: int
) -> Iterator[str]:
    """Write how each rank ended into a run that was started after ``since_ns``; yield problems as lines.

    ``code``: exit code of the command, which may be a rank itself.
    """
    try:
        manifest = read_run_manifest(run)
        if manifest.created_ns < since_ns:
            return
        ends = [
            _make_end(words, folder, seen.get(words.process), code, stderr)
            for words, stderr in _choose_processes(list_words(folder))
        ]
        is_full = bool(find_write_error(run))
        (run / _RESERVE_NAME).unlink(missing_ok=True)
        if is_full:
            ends = [_add_full_disk(run, end) for end in ends]
        write_endings(run, manifest.run_id, ends)
    except BadInput:
        return
    except OSError as error:
        yield f"how the ranks ended could not be written to {run}: {os.strerror(error.errno or errno.EIO)}"


def _add_full_disk(run: Path, end: RankEnd) -> RankEnd:
    """Note that the disk of the run is full, if a rank that did not fail could not write everything."""
    status = read_rank_manifest(run, end.rank).status
    return end if status == "complete" or end.has_failed else replace(end, full_path=str(run))


def write_own_end(run: Path, folder: Path, error: BaseException | None) -> None:
    """Write how this rank ended: its program ran in this process, so no other process observes it."""
    own = [words for words in list_words(folder) if words.process == os.getpid() and words.rank is not None]
    with suppress(Exception):  # the program ends as it does
        run_id = read_run_manifest(run).run_id
        code = _get_code(error)
        write_endings(run, run_id, [_make_end(words, folder, None, code, "") for words in own])


def _get_code(error: BaseException | None) -> int:
    if isinstance(error, KeyboardInterrupt):
        return _SIGNAL_BASE + signal.SIGINT
    if not isinstance(error, SystemExit):
        return int(error is not None)
    return error.code & 0xFF if isinstance(error.code, int) else int(error.code is not None)


def _choose_processes(all_words: Sequence[ProcessWords]) -> Iterator[tuple[ProcessWords, str]]:
    """Yield the process of each rank, and its stderr file unless other ranks share it.

    This is the recorded process of the last attempt; without one, the only process with that rank.
    """
    files = Counter(words.stderr_id for words in all_words)
    by_rank: dict[int, list[ProcessWords]] = {}
    for words in all_words:
        if words.rank is not None:
            by_rank.setdefault(words.rank, []).append(words)
    for candidates in by_rank.values():
        last = max(each.attempt for each in candidates)
        latest = [each for each in candidates if each.attempt == last]
        chosen = [each for each in latest if each.is_recorded] or latest
        if len(chosen) == 1:
            yield chosen[0], chosen[0].stderr if files[chosen[0].stderr_id] == 1 else ""


def _make_end(words: ProcessWords, folder: Path, seen: SeenEnd | None, code: int, stderr: str) -> RankEnd:
    seen_ns, status = seen or (None, None)
    if status is None and os.getpid() in (words.parent, words.process):
        # The command itself: 128 + n may be signal n, as in a shell.
        status = code - _SIGNAL_BASE if code > _SIGNAL_BASE else code << 8
    exit_code, signal_name = words.exit_code, ""
    if status is not None:
        is_signal = os.WIFSIGNALED(status)
        exit_code = None if is_signal else os.WEXITSTATUS(status)
        signal_name = name_signal(os.WTERMSIG(status)) if is_signal else ""
    fault = next(
        (thread for thread in parse_thread_text(read_fault_text(folder, words.process)) if thread.is_main),
        None,
    )
    is_fault = bool(signal_name) and fault is not None and not words.error
    times = [each for each in (words.time_ns, seen_ns) if each is not None]
    return RankEnd(
        rank=words.rank or 0,
        process=words.process,
        host=socket.gethostname(),
        time_ns=min(times, default=None),
        exit_code=exit_code,
        signal=signal_name,
        has_left=words.has_left,
        error=words.error,
        full_path=words.full_path,
        last_words=_read_tail(stderr, words.stderr_start) or words.lines,
        stack=tuple(
            SourceLocation(file=frame.file, line=frame.line, function=frame.function)
            for frame in fault.frames
        )
        if is_fault and fault is not None
        else words.stack,
    )


def _read_tail(path: str, start: int) -> tuple[str, ...]:
    """Return the last lines of a file after ``start`` bytes."""
    if not path:
        return ()
    with suppress(OSError), open_plain(Path(path)) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(start, size - MAX_LINES * MAX_LINE_LENGTH))
        lines = file.read(MAX_LINES * MAX_LINE_LENGTH).decode(errors="replace").splitlines()
        return tuple(line for line in lines if line.strip())[-MAX_LINES:]
    return ()


def _read_status(handle: int) -> int | None:
    """Return the status of a process that its parent has reaped."""
    request = bytearray(struct.pack("=Q", _INFO_EXIT).ljust(_INFO_BYTES, b"\0"))
    with suppress(OSError):
        fcntl.ioctl(handle, _GET_INFO, request)
        (mask,) = struct.unpack_from("=Q", request)
        (status,) = struct.unpack_from("=i", request, _EXIT_OFFSET)
        return int(status) if mask & _INFO_EXIT else None
    return None
