"""Files of a watch in the folder of a run, ``RUN/.watch``: what ranks and the parent process tell each other.

``rank3.stuck`` is there while rank 3 is stuck, its content numbers the stall. ``rank3.state`` has the last
progress of the rank as one line of JSON; what follows is the text that faulthandler writes if the GIL is held
for so long that the watch cannot run. A rank that ends removes its files; ``rank3.ended`` is left by one that
ended, without an error, where it had been saved. ``run_id.0`` is the id of the run, which all ranks of a job
take (0: the number of the launcher's restarts).
"""

import os
import re
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from zprof.collectors.record.base import Columns
from zprof.model.gaps import Gap
from zprof.model.training import TrainingFacts
from zprof.run.files import open_plain
from zprof.run.manifest import RunManifest
from zprof.version import __version__

_FOLDER = ".watch"
_STUCK = re.compile(r"rank(\d{1,7})\.stuck")
_STATE = re.compile(r"rank(\d{1,7})\.state")
_ENDED = re.compile(r"rank(\d{1,7})\.ended")
_MAX_STATE_BYTES = 4 << 20
_MAX_ID_BYTES = 200


class GroupProgress(Struct, frozen=True, kw_only=True):
    """How far a process group got; ``enqueued`` and ``completed`` are None if unknown."""

    name: str
    description: str
    ranks: tuple[int, ...]
    enqueued: int | None = None
    completed: int | None = None


class RankState(Struct, frozen=True, kw_only=True):
    """What a rank last said of itself.

    ``limit_ns`` is the time without progress after which it is stuck; ``progress_ns``: when it was last seen
    to move; ``has_begun``: it has entered a collective, or ended a step.
    """

    rank: int
    world_size: int
    backend: str
    host: str
    process: int
    time_ns: int
    limit_ns: int
    progress_ns: int = 0
    has_begun: bool = False
    run_id: str = ""
    groups: tuple[GroupProgress, ...] = ()


class Stall(Struct, frozen=True, order=True):
    """A stall of a rank that has not ended."""

    rank: int
    number: str


def find_watch_folder(run: Path) -> Path:
    """Return the folder; it exists while the run is watched."""
    return run / _FOLDER


def list_stalls(run: Path) -> frozenset[Stall]:
    """Return the stalls that have not ended."""
    stalls = []
    for name, path in _list_files(run):
        if match := _STUCK.fullmatch(name):
            with suppress(OSError):
                stalls.append(Stall(int(match[1]), _read(path, _MAX_ID_BYTES).decode(errors="replace")))
    return frozenset(stalls)


def list_states(run: Path) -> dict[int, Path]:
    """Return the state files by rank."""
    return {int(match[1]): path for name, path in _list_files(run) if (match := _STATE.fullmatch(name))}


def list_ended(run: Path) -> tuple[int, ...]:
    """Return the ranks that ended without an error in a stall that was saved."""
    names = (name for name, _ in _list_files(run))
    return tuple(sorted(int(match[1]) for name in names if (match := _ENDED.fullmatch(name))))


def read_state(path: Path) -> tuple[RankState, str] | None:
    """Return a rank's state, and the text of faulthandler after it; None if it is damaged or gone."""
    with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
        line, _, text = _read(path, _MAX_STATE_BYTES).partition(b"\n")
        return msgspec.json.decode(line, type=RankState), text.decode(errors="replace")
    return None


def remove_watch_folder(run: Path) -> None:
    """Remove the folder, and the run's if it has nothing else."""
    shutil.rmtree(find_watch_folder(run), ignore_errors=True)
    with suppress(OSError):
        run.rmdir()


def agree_on_run_id(run: Path, own_id: str, since_ns: int) -> str:
    """Return the id that the first rank of the job wrote; ``own_id`` if this is the first.

    ``since_ns``: older files are left over from another job.
    """
    path = find_watch_folder(run) / f"run_id.{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        if path.stat().st_mtime_ns < since_ns:
            path.unlink()
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(own_id, encoding="utf-8")
    try:
        os.link(temporary, path)
    except OSError:  # another rank was first, or the file system has no links
        with suppress(OSError):
            return _read(path, _MAX_ID_BYTES).decode(errors="replace")
    finally:
        temporary.unlink(missing_ok=True)
    return own_id


class RankFiles:
    """The files of this rank."""

    def __init__(self, run: Path, rank: int) -> None:
        self._folder = find_watch_folder(run)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._stuck = self._folder / f"rank{rank}.stuck"
        self._stuck.unlink(missing_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._state = self._folder / f"rank{rank}.state"
        #: Of the state file, for faulthandler.
        self.descriptor = os.open(self._state, flags, 0o644)
        self._state_bytes = 0

    def write_state(self, state: RankState) -> None:
        """Replace the state, and the text after it."""
        line = msgspec.json.encode(state) + b"\n"
        os.ftruncate(self.descriptor, 0)
        os.write(self.descriptor, line)
        self._state_bytes = len(line)

    def read_text(self) -> str:
        """Return the text that faulthandler has written after the state."""
        size = os.fstat(self.descriptor).st_size - self._state_bytes
        if size <= 0:
            return ""
        return os.pread(self.descriptor, min(size, _MAX_STATE_BYTES), self._state_bytes).decode(
            errors="replace"
        )

    def set_stuck(self, is_stuck: bool) -> None:
        """Tell the other ranks."""
        if not is_stuck:
            self._stuck.unlink(missing_ok=True)
            return
        temporary = self._stuck.with_name(f".{self._stuck.name}.{os.getpid()}")
        temporary.write_text(str(time.time_ns()), encoding="utf-8")
        temporary.rename(self._stuck)

    def remove(self, *, is_saved: bool = False) -> None:
        """Remove the files, and the folder after the last rank.

        ``is_saved``: the rank ends, without an error, in a stall that was saved; whether that was one is
        known when the job has ended.
        """
        os.close(self.descriptor)
        if is_saved:
            self._state.with_suffix(".ended").touch()
        for path in (self._stuck, self._state):
            path.unlink(missing_ok=True)
        left = [name for name, _ in _list_files(self._folder.parent)]
        if not any(_STATE.fullmatch(name) or _ENDED.fullmatch(name) for name in left):
            remove_watch_folder(self._folder.parent)


def _list_files(run: Path) -> Iterable[tuple[str, Path]]:
    folder = find_watch_folder(run)
    try:
        return [(name, folder / name) for name in os.listdir(folder)]
    except OSError:
        return []


def _read(path: Path, max_bytes: int) -> bytes:
    with open_plain(path) as file:
        return file.read(max_bytes)


class StallMark:
    """Kinds of the marks of a watch."""

    STUCK, RESUMED = "stuck", "resumed"


class StallWriter(Protocol):
    """Writes stalls next to what else a rank records, from any thread."""

    def save_stall(
        self, kind: str, stall_ns: int, tables: Mapping[str, Columns], gaps: Sequence[Gap]
    ) -> bool:
        """Add a mark, if ``kind`` names one, and replace the tables.

        Return True if the run on disk has them.
        """


class BareRank:
    """The folder of a rank that has recorded no step."""

    def __init__(self, run: Path, rank: int, manifest: RunManifest) -> None:
        from zprof.collectors.record.logs import MarkLog
        from zprof.run.writer import RankWriter

        self._writer, self._marks = RankWriter(run, rank, manifest), MarkLog()

    def save_stall(
        self, kind: str, stall_ns: int, tables: Mapping[str, Columns], gaps: Sequence[Gap]
    ) -> bool:
        """Write the stall; errors are raised."""
        if kind:
            self._marks.add(kind, stall_ns)
        for name, columns in {**tables, "mark": self._marks.columns()}.items():
            self._writer.write_table(name, columns)
        self._writer.publish(gaps)
        return True


def make_bare_manifest(world_size: int, backend: str, run_id: str, device: str = "") -> RunManifest:
    """Return the manifest of a run of which no step was recorded."""
    return RunManifest(
        zprof_version=__version__,
        created_ns=time.time_ns(),
        world_size=world_size,
        backend=backend,
        device=device,
        training=TrainingFacts(),
        run_id=run_id,
        folder=os.getcwd(),
    )
