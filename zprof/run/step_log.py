"""Encode and decode a line of ``steps.jsonl``: a finished step of a rank, cheap to write and to follow.

    {"step":7,"begin_ns":…,"end_ns":…,"window":"time","device":"cuda:0","allocated_bytes":…,…}

``step``, ``begin_ns`` and ``end_ns`` are always present; unknown values are omitted. A line is shorter than
:data:`MAX_WRITTEN_LINE_BYTES`. It is written without fsync, so a reader may see an incomplete last line.
"""

import os
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from zprof.run.plain_file import open_plain

MAX_WRITTEN_LINE_BYTES = 300
_LAST_LINES_BYTES = 1 << 16
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Name = Annotated[str, msgspec.Meta(max_length=16)]


class StepLine(Struct, frozen=True, kw_only=True):
    """One finished step; ``window`` is the window it belongs to, empty if none was active.

    ``process_bytes`` is the resident size. ``allocated_bytes`` and ``peak_allocated_bytes`` are allocator
    counters of ``device``: the current value, and the maximum since the program started or reset it. Without
    a device there are no counters; None means unknown.
    """

    step: _Count
    begin_ns: _Count
    end_ns: _Count
    window: _Name = ""
    device: _Name = ""
    allocated_bytes: _Count | None = None
    peak_allocated_bytes: _Count | None = None
    process_bytes: _Count | None = None

    @property
    def wall_ns(self) -> int:
        """Wall time of the step."""
        return self.end_ns - self.begin_ns


_NAMES = tuple(field.name for field in fields(StepLine))
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(StepLine).decode


def encode_step(line: StepLine) -> bytes:
    """Return the line, including its line end."""
    known = {name: value for name in _NAMES if (value := getattr(line, name)) not in (None, "")}
    return _encode(known) + b"\n"


def decode_step(text: bytes) -> StepLine | None:
    """Return the step of a line, or None if the line is invalid."""
    try:
        line = _decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return line if line.begin_ns <= line.end_ns else None


def read_last_lines(path: Path) -> list[bytes]:
    """Return the last lines of a step log, the last one first; they may be damaged."""
    try:
        with open_plain(path) as content:
            content.seek(max(0, os.fstat(content.fileno()).st_size - _LAST_LINES_BYTES))
            return content.read(_LAST_LINES_BYTES).splitlines()[::-1]
    except OSError:
        return []


def read_last_end_ns(path: Path) -> int | None:
    """Return when the last finished step of a log ended; None if there is none."""
    steps = (decode_step(line) for line in read_last_lines(path))
    return next((step.end_ns for step in steps if step is not None), None)
