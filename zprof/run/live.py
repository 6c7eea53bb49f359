"""Follow a run while it is being recorded: its manifests, and the steps of all ranks as they arrive.

Nothing in the folder is trusted: the amounts read per poll and kept are bounded. A poll without news costs
two ``stat`` calls per rank.
"""

import os
import re
from collections import deque
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from zprof.base.errors import BadInput
from zprof.run.files import open_plain
from zprof.run.manifest import (
    MANIFEST_NAME,
    RANK_NAME,
    STEPS_NAME,
    RankManifest,
    RunManifest,
    StepLine,
    decode_step,
    rank_folder,
    read_rank_manifest,
    read_run_manifest,
)

MAX_RANKS = 1024
#: Number of most recent steps kept per rank.
MAX_STEPS = 128
#: No version of zprof writes longer lines.
MAX_LINE_BYTES = 4096
#: Maximum new bytes of all ranks per poll; the next poll reads the rest.
MAX_NEW_BYTES = 4 << 20
_MAX_RANK_BYTES = 64 << 10
_RANK_FOLDER = re.compile(r"rank(\d{5})")
#: Status values of a rank whose recording has not ended.
UNFINISHED = ("recording", "partial")
#: A rank that has written nothing for this long, and for the time of this many steps, is assumed to be gone.
_MAX_SILENCE_NS, _MAX_SILENT_STEPS = 120 * 10**9, 10


class LiveRank(Struct, frozen=True, kw_only=True):
    """State of one rank: its manifest, its last steps, and the number of finished steps.

    ``damaged``: number of lines in its log that are invalid or too long.
    """

    rank: int
    manifest: RankManifest
    steps: tuple[StepLine, ...] = ()
    steps_done: int = 0
    damaged: int = 0

    @property
    def last(self) -> StepLine | None:
        """The last finished step."""
        return self.steps[-1] if self.steps else None

    @property
    def finished(self) -> bool:
        """True once the rank's recording is complete and written."""
        return self.manifest.status not in UNFINISHED


class LiveState(Struct, frozen=True, kw_only=True):
    """State of a run at one poll; ``manifest`` is None if the run does not exist yet or has a ``problem``.

    ``tables``: increases whenever a rank has written tables or finished. ``left_out``: number of ranks beyond
    the displayed maximum.
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
    """Polls a run folder that may not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._manifest: RunManifest | None = None
        self._manifest_signature: tuple[int, ...] = ()
        self._ranks: dict[int, _RankFollower] = {}
        self._next_rank = 0
        self._tables = 0

    def look(self) -> LiveState:
        """Return the current state. Invalid contents never raise."""
        try:
            self._read_manifest()
        except (BadInput, OSError) as error:
            return LiveState(problem=str(error))
        if self._manifest is None:
            return LiveState()
        try:
            numbers = self._list_ranks(self._manifest.world_size)
        except OSError as error:
            return LiveState(manifest=self._manifest, problem=str(error.strerror))
        followed = [
            self._ranks.setdefault(rank, _RankFollower(self.path, rank)) for rank in numbers[:MAX_RANKS]
        ]
        self._read_new(followed)
        ranks = [
            rank.state
            for rank in followed
            if rank.state is not None
            and self._manifest is not None
            and rank.state.manifest.run_id == self._manifest.run_id
        ]
        return LiveState(
            manifest=self._manifest,
            ranks=tuple(ranks),
            tables=self._tables,
            left_out=max(0, len(numbers) - MAX_RANKS),
        )

    def _read_manifest(self) -> None:
        path = self.path / MANIFEST_NAME
        try:
            signature = _file_signature(path)
        except FileNotFoundError:
            self._manifest, self._manifest_signature = None, ()
            return
        if signature == self._manifest_signature:
            return
        manifest = read_run_manifest(self.path)
        if self._manifest is not None and manifest.run_id != self._manifest.run_id:
            self._ranks.clear()
        self._manifest, self._manifest_signature = manifest, signature

    def _list_ranks(self, world_size: int) -> list[int]:
        """Return the ranks that have a folder; the folder is not listed again once all exist."""
        if len(self._ranks) >= min(world_size, MAX_RANKS) and world_size <= MAX_RANKS:
            return sorted(self._ranks)
        names = (_RANK_FOLDER.fullmatch(name) for name in os.listdir(self.path))
        return sorted(number for name in names if name and (number := int(name[1])) < world_size)

    def _read_new(self, followed: list["_RankFollower"]) -> None:
        """Read new data of each rank; each poll starts at a different rank, so no rank starves."""
        budget_bytes, count = MAX_NEW_BYTES, len(followed)
        for index in range(count):
            rank = followed[(self._next_rank + index) % count]
            self._tables += rank.read_manifest()
            budget_bytes -= rank.read_steps(min(_MAX_RANK_BYTES, budget_bytes))
            if budget_bytes <= 0:
                self._next_rank = (self._next_rank + index + 1) % count
                return


class _RankFollower:
    """Tracks one rank across polls."""

    def __init__(self, run: Path, rank: int) -> None:
        self._run, self._rank = run, rank
        self._manifest_path = rank_folder(run, rank) / RANK_NAME
        self._manifest_signature: tuple[int, ...] = ()
        self._steps: deque[StepLine] = deque(maxlen=MAX_STEPS)
        self._file = FollowedFile(rank_folder(run, rank) / STEPS_NAME, MAX_LINE_BYTES, self._restart)
        self._steps_done, self._damaged = 0, 0
        self.state: LiveRank | None = None

    def read_manifest(self) -> bool:
        """Re-read the manifest; return True if the rank wrote tables or changed its status."""
        try:
            signature = _file_signature(self._manifest_path)
            if signature == self._manifest_signature:
                return False
            manifest = read_rank_manifest(self._run, self._rank)
        except (BadInput, OSError):
            return False  # being replaced, or does not exist yet: the next poll reads it
        self._manifest_signature = signature
        previous = self.state.manifest if self.state else None
        self.state = replace(self.state, manifest=manifest) if self.state else self._make_live_rank(manifest)
        if previous is None:
            return bool(manifest.files)
        return (manifest.files, manifest.status) != (previous.files, previous.status)

    def read_steps(self, max_bytes: int) -> int:
        """Read the new lines and return their size in bytes."""
        previous_bytes = self._file.read_bytes
        try:
            lines = self._file.lines(max_bytes)
        except OSError:
            return 0
        for line in lines:
            self._add_step(decode_step(line))
        new = self._file.read_bytes - previous_bytes
        if new and self.state is not None:
            self.state = self._make_live_rank(self.state.manifest)
        return new

    def _add_step(self, step: StepLine | None) -> None:
        """Add a step; step numbers only increase, so a line with a smaller number counts as damaged."""
        if step is None or (self._steps and step.step <= self._steps[-1].step):
            self._damaged += 1
            return
        self._steps.append(step)
        self._steps_done += 1

    def _restart(self) -> None:
        self._steps.clear()
        self._steps_done = self._damaged = 0

    def _make_live_rank(self, manifest: RankManifest) -> LiveRank:
        return LiveRank(
            rank=self._rank,
            manifest=manifest,
            steps=tuple(self._steps),
            steps_done=self._steps_done,
            damaged=self._damaged + self._file.long_lines,
        )


def is_still_recording(path: Path, now_ns: int) -> bool:
    """Return True if ranks still seem to record: not all have finished, and the last write is recent.

    A killed rank leaves the same status; only the missing writes reveal it.
    """
    state = LiveRun(path).look()
    if state.manifest is None or state.manifest.source != "recording" or state.finished:
        return False
    last_steps = [rank.last for rank in state.ranks if rank.last is not None]
    newest = max([state.manifest.created_ns, *(step.end_ns for step in last_steps)])
    longest = max((step.wall_ns for step in last_steps), default=0)
    return abs(now_ns - newest) < max(_MAX_SILENCE_NS, _MAX_SILENT_STEPS * longest)


def _file_signature(path: Path) -> tuple[int, ...]:
    """Return a signature that changes with each replacement of the file (inodes alone are reused)."""
    state = os.stat(path)
    return (state.st_dev, state.st_ino, state.st_mtime_ns, state.st_size)


class FollowedFile:
    """Reads lines as they are appended to a file. Lines that are too long are skipped, not kept in memory.

    ``long_lines`` counts the skipped lines of this file, ``read_bytes`` all bytes ever read.

    Args:
        path: A file that may not exist yet, and may be replaced.
        max_line_bytes: Maximum bytes of a line, without its line end.
        on_replaced: Called when another file has replaced the followed file.
    """

    def __init__(self, path: Path, max_line_bytes: int, on_replaced: Callable[[], None]) -> None:
        self._path, self._max_line_bytes, self._on_replaced = path, max_line_bytes, on_replaced
        self._file: tuple[int, int] | None = None
        self._offset = 0
        self._partial_line = b""
        self._skip_rest_of_line = False
        self.long_lines, self.read_bytes = 0, 0

    def lines(self, max_bytes: int) -> list[bytes]:
        """Return the lines completed since the last call, from at most ``max_bytes`` new bytes.

        Raises:
            OSError: The file exists but cannot be read, or is not a regular file.
        """
        try:
            content = self._new_bytes(max_bytes)
        except FileNotFoundError:
            return []
        return self._split(content) if content else []

    def _new_bytes(self, max_bytes: int) -> bytes:
        state = os.stat(self._path)
        is_same_file = self._file == (state.st_dev, state.st_ino)
        if is_same_file and state.st_size == self._offset:
            return b""
        with open_plain(self._path) as file:
            state = os.fstat(file.fileno())
            if self._file != (state.st_dev, state.st_ino) or state.st_size < self._offset:
                self._start_file((state.st_dev, state.st_ino))
            file.seek(self._offset)
            content = file.read(max_bytes)
        self._offset += len(content)
        self.read_bytes += len(content)
        return content

    def _start_file(self, file: tuple[int, int]) -> None:
        if self._file is not None:
            self._on_replaced()
        self._file, self._offset, self._partial_line, self._skip_rest_of_line, self.long_lines = (
            file,
            0,
            b"",
            False,
            0,
        )

    def _split(self, content: bytes) -> list[bytes]:
        *ended, rest = content.split(b"\n")
        lines = []
        for index, line in enumerate(ended):
            full_line = self._partial_line + line if index == 0 else line
            skips, self._partial_line, self._skip_rest_of_line = (
                self._skip_rest_of_line and index == 0,
                b"",
                False,
            )
            if skips or len(full_line) > self._max_line_bytes:
                self.long_lines += not skips
            else:
                lines.append(full_line)
        self._partial_line += rest
        if len(self._partial_line) > self._max_line_bytes:
            self.long_lines += not self._skip_rest_of_line
            self._partial_line, self._skip_rest_of_line = b"", True
        elif self._skip_rest_of_line:
            self._partial_line = b""
        return lines
