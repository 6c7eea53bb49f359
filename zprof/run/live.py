"""Follow a run while it is being recorded: its manifests, and the steps of all ranks as they come in.

Nothing in the folder is trusted: the amount read per poll and the amount kept are bounded. A poll costs two
``stat`` calls per rank when nothing is new.
"""

import os
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from zprof.model.errors import BadInput
from zprof.run.manifest import (
    MANIFEST_NAME,
    RANK_NAME,
    STEPS_NAME,
    RankManifest,
    RunManifest,
    rank_folder,
    read_rank_manifest,
    read_run_manifest,
)
from zprof.run.plain_file import open_plain
from zprof.run.step_log import StepLine, decode_step

MAX_RANKS = 1024
#: Number of steps kept per rank: the last ones.
MAX_STEPS = 128
#: Longer lines were not written by zprof, nor will a later version write them.
MAX_LINE_BYTES = 4096
#: New bytes of all ranks per poll; ranks with more continue at the next poll.
MAX_NEW_BYTES = 4 << 20
_MAX_RANK_BYTES = 64 << 10
_RANK_FOLDER = re.compile(r"rank(\d{5})")
#: Values of a rank's status until its recording has ended.
UNFINISHED = ("recording", "partial")
#: A rank that has written nothing for this long, and for this many of its steps, is assumed to be gone.
_SILENT_NS, _SILENT_STEPS = 120 * 10**9, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRank:
    """State of one rank: its manifest, its last steps, and the number of steps that it finished.

    ``damaged``: number of lines in its log that are invalid or too long.
    """

    rank: int
    manifest: RankManifest
    steps: tuple[StepLine, ...] = ()
    steps_done: int = 0
    damaged: int = 0

    @property
    def last(self) -> StepLine | None:
        """The last step that it finished."""
        return self.steps[-1] if self.steps else None

    @property
    def finished(self) -> bool:
        """Return True if its recording has ended and is written."""
        return self.manifest.status not in UNFINISHED


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """State of a run at one poll; without a manifest it does not exist yet, or ``problem`` says why.

    ``tables``: grows whenever a rank has written tables or finished. ``left_out``: number of ranks beyond the
    displayed maximum.
    """

    manifest: RunManifest | None = None
    ranks: tuple[LiveRank, ...] = ()
    tables: int = 0
    left_out: int = 0
    problem: str = ""

    @property
    def finished(self) -> bool:
        """Return True if all ranks of the run have written everything."""
        expected = min(self.manifest.world_size, MAX_RANKS) if self.manifest else 0
        return 0 < expected <= len(self.ranks) and all(rank.finished for rank in self.ranks)


class LiveRun:
    """Poll a run directory, which need not exist at first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._manifest: RunManifest | None = None
        self._seen: tuple[int, ...] = ()
        self._ranks: dict[int, _RankFollower] = {}
        self._first = 0
        self._tables = 0

    def look(self) -> LiveState:
        """Return the current state. Never raises because of the folder's content."""
        try:
            self._read_manifest()
        except (BadInput, OSError) as error:
            return LiveState(problem=str(error))
        if self._manifest is None:
            return LiveState()
        try:
            numbers = self._numbers(self._manifest.world_size)
        except OSError as error:
            return LiveState(manifest=self._manifest, problem=str(error.strerror))
        followed = [
            self._ranks.setdefault(rank, _RankFollower(self.path, rank)) for rank in numbers[:MAX_RANKS]
        ]
        self._read_new(followed)
        found = [rank.now for rank in followed if rank.now is not None and self._is_ours(rank.now)]
        return LiveState(
            manifest=self._manifest,
            ranks=tuple(found),
            tables=self._tables,
            left_out=max(0, len(numbers) - MAX_RANKS),
        )

    def _read_manifest(self) -> None:
        path = self.path / MANIFEST_NAME
        try:
            seen = _file_signature(path)
        except FileNotFoundError:
            self._manifest, self._seen = None, ()
            return
        if seen == self._seen:
            return
        manifest = read_run_manifest(self.path)
        if self._manifest is not None and manifest.run_id != self._manifest.run_id:
            self._ranks.clear()
        self._manifest, self._seen = manifest, seen

    def _numbers(self, world_size: int) -> list[int]:
        """Return the ranks that have a folder; the folder is not listed again once all exist."""
        if len(self._ranks) >= min(world_size, MAX_RANKS) and world_size <= MAX_RANKS:
            return sorted(self._ranks)
        names = (_RANK_FOLDER.fullmatch(name) for name in os.listdir(self.path))
        return sorted(number for name in names if name and (number := int(name[1])) < world_size)

    def _read_new(self, followed: list["_RankFollower"]) -> None:
        """Read new data of each rank; every poll starts with another rank, so that no rank starves."""
        budget_bytes, many = MAX_NEW_BYTES, len(followed)
        for place in range(many):
            rank = followed[(self._first + place) % many]
            self._tables += rank.read_manifest()
            budget_bytes -= rank.read_steps(min(_MAX_RANK_BYTES, budget_bytes))
            if budget_bytes <= 0:
                self._first = (self._first + place + 1) % many
                return

    def _is_ours(self, rank: LiveRank) -> bool:
        return self._manifest is not None and rank.manifest.run_id == self._manifest.run_id


class _RankFollower:
    """Follow one rank from poll to poll."""

    def __init__(self, run: Path, rank: int) -> None:
        self._run, self._rank = run, rank
        self._manifest_path = rank_folder(run, rank) / RANK_NAME
        self._seen: tuple[int, ...] = ()
        self._steps: deque[StepLine] = deque(maxlen=MAX_STEPS)
        self._file = FollowedFile(rank_folder(run, rank) / STEPS_NAME, MAX_LINE_BYTES, self._restart)
        self._done, self._damaged = 0, 0
        self.now: LiveRank | None = None

    def read_manifest(self) -> bool:
        """Return True if it has written tables since the last poll, or changed its status."""
        try:
            seen = _file_signature(self._manifest_path)
            if seen == self._seen:
                return False
            manifest = read_rank_manifest(self._run, self._rank)
        except (BadInput, OSError):
            return False  # being replaced, or does not exist yet: the next poll reads it
        self._seen = seen
        before = self.now.manifest if self.now else None
        self.now = replace(self.now, manifest=manifest) if self.now else self._rank_of(manifest)
        if before is None:
            return bool(manifest.files)
        return (manifest.files, manifest.status) != (before.files, before.status)

    def read_steps(self, most_bytes: int) -> int:
        """Read the new lines and return their size in bytes."""
        before = self._file.read_bytes
        try:
            lines = self._file.lines(most_bytes)
        except OSError:
            return 0
        for line in lines:
            self._take(decode_step(line))
        new = self._file.read_bytes - before
        if new and self.now is not None:
            self.now = self._rank_of(self.now.manifest)
        return new

    def _take(self, step: StepLine | None) -> None:
        """Add a step; step numbers only grow, so a line that goes back counts as damaged."""
        if step is None or (self._steps and step.step <= self._steps[-1].step):
            self._damaged += 1
            return
        self._steps.append(step)
        self._done += 1

    def _restart(self) -> None:
        self._steps.clear()
        self._done = self._damaged = 0

    def _rank_of(self, manifest: RankManifest) -> LiveRank:
        return LiveRank(
            rank=self._rank,
            manifest=manifest,
            steps=tuple(self._steps),
            steps_done=self._done,
            damaged=self._damaged + self._file.too_long,
        )


def is_still_recording(path: Path, now_ns: int) -> bool:
    """Return True if a rank still seems to be recording: not all have finished, and the last write is recent.

    A rank that was killed leaves the same status; only its silence reveals it.
    """
    state = LiveRun(path).look()
    if state.manifest is None or state.manifest.source != "recording" or state.finished:
        return False
    last = [rank.last for rank in state.ranks if rank.last is not None]
    newest = max([state.manifest.created_ns, *(step.end_ns for step in last)])
    longest = max((step.wall_ns for step in last), default=0)
    return abs(now_ns - newest) < max(_SILENT_NS, _SILENT_STEPS * longest)


def _file_signature(path: Path) -> tuple[int, ...]:
    """Return a signature that changes with each replacement of the file; inode numbers alone are reused."""
    state = os.stat(path)
    return (state.st_dev, state.st_ino, state.st_mtime_ns, state.st_size)


class FollowedFile:
    """Reader of complete lines as they are appended. Lines that are too long are skipped, not kept in memory.

    ``too_long`` counts those in this file, ``read_bytes`` all bytes ever read.

    Args:
        path: A file that may not exist yet, and may be replaced.
        longest: Maximum bytes of a line, without its end.
        restarted: Called when another file has replaced the one that was followed.
    """

    def __init__(self, path: Path, longest: int, restarted: Callable[[], None]) -> None:
        self._path, self._longest, self._restarted = path, longest, restarted
        self._file: tuple[int, int] | None = None
        self._offset = 0
        self._half = b""
        self._skips = False
        self.too_long, self.read_bytes = 0, 0

    def lines(self, most_bytes: int) -> list[bytes]:
        """Return the lines that were completed since the last call, from at most ``most_bytes`` new bytes.

        Raises:
            OSError: the file exists and cannot be read, or is not a regular file.
        """
        try:
            content = self._new_bytes(most_bytes)
        except FileNotFoundError:
            return []
        return self._split(content) if content else []

    def _new_bytes(self, most_bytes: int) -> bytes:
        state = os.stat(self._path)
        same = self._file == (state.st_dev, state.st_ino)
        if same and state.st_size == self._offset:
            return b""
        with open_plain(self._path) as file:
            state = os.fstat(file.fileno())
            if self._file != (state.st_dev, state.st_ino) or state.st_size < self._offset:
                self._begin((state.st_dev, state.st_ino))
            file.seek(self._offset)
            content = file.read(most_bytes)
        self._offset += len(content)
        self.read_bytes += len(content)
        return content

    def _begin(self, file: tuple[int, int]) -> None:
        if self._file is not None:
            self._restarted()
        self._file, self._offset, self._half, self._skips, self.too_long = file, 0, b"", False, 0

    def _split(self, content: bytes) -> list[bytes]:
        *ended, rest = content.split(b"\n")
        lines = []
        for place, line in enumerate(ended):
            whole = self._half + line if place == 0 else line
            skips, self._half, self._skips = self._skips and place == 0, b"", False
            if skips or len(whole) > self._longest:
                self.too_long += not skips
            else:
                lines.append(whole)
        self._half += rest
        if len(self._half) > self._longest:
            self.too_long += not self._skips
            self._half, self._skips = b"", True
        elif self._skips:
            self._half = b""
        return lines
