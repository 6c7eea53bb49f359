"""Cut the text of a log into records, one for each line that the program wrote originally, with all white
space removed.

Whatever transported the text may have changed it: several lines in one, one line in several (also within a
word), colors, prefixes, lines of several ranks glued together. Only text near an anchor is parsed, so reading
a log costs little more than searching it.
"""

import os
import re
from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO

from zprof.collectors.read.hang_log.forms import (
    ANCHORS,
    FRAME,
    HEAD,
    LOOKS_LIKE_EVIDENCE,
    MAX_FRAMES,
    OPENING,
    STACK,
    TOKEN,
)
from zprof.model.findings import SourceLocation

_CHUNK_BYTES = 1 << 20
_MAX_FILE_BYTES = 4 << 30
#: A longer piece without a line break is cut; the longest form has about 900 bytes.
_MAX_LINE_BYTES = 64 << 10
#: Lines of the file, and bytes, that may belong to one record.
_MAX_CONTINUED_LINES, _MAX_RECORD_BYTES = 8, 4096
#: Number of records read from the start of a log and, if there are more, bytes and records from its end.
_MAX_RECORDS, _TAIL_BYTES = 2_000_000, 64 << 20
_COLORS = re.compile(rb"\x1b\[[\d;]{0,16}[A-Za-z]")
_SPACE = bytes(range(33)) + b"\x7f"
#: ``lastgroup`` of the tokens that are evidence: the last named group that took part in the match.
_EVIDENCE_GROUPS = frozenset(
    ("t_timeout", "c_end", "s_end", "stuck", "o_size", "n_size", "n_id", "connection", "e_local", "f_code")
)
_OF_RANK = frozenset(("t_timeout", "c_end", "s_end", "stuck", "connection"))


class Record:
    """The tokens of one record in their order, and the frames if it is a stack."""

    def __init__(self, first_line: bytes) -> None:
        self._lines = 1
        self.frames: list[SourceLocation] = []
        self._parse(_squeeze(first_line))
        self.is_stack = STACK in self._text

    def add(self, line: bytes) -> bool:
        """Add a line of the file if it continues the record; return False if it does not."""
        if not self.is_open:
            return False
        if not self.is_stack:
            self._lines += 1
            self._parse(self._text + _squeeze(line))
            return True
        if match := FRAME.fullmatch(line):
            name, file = (match[key].decode("utf-8", "replace") for key in ("name", "file"))
            self.frames.append(SourceLocation(file=file, line=int(match["line"]), function=name))
        return match is not None

    def _parse(self, text: bytes) -> None:
        self._text = text[:_MAX_RECORD_BYTES]
        self.tokens = list(TOKEN.finditer(self._text))
        self.is_evidence = any(token.lastgroup in _EVIDENCE_GROUPS for token in self.tokens)

    @property
    def is_of_rank(self) -> bool:
        """Return True if it describes what a rank did, so the rank matters."""
        return any(token.lastgroup in _OF_RANK for token in self.tokens)

    def list_speakers(self) -> list[int]:
        """Return the global ranks named as writers, in order."""
        return [int(token["speaker"]) for token in self.tokens if token.lastgroup == "speaker"]

    @property
    def is_unread(self) -> bool:
        """Return True if the record looks like evidence but matches no form."""
        return not self.is_evidence and LOOKS_LIKE_EVIDENCE.search(self._text) is not None

    @property
    def is_open(self) -> bool:
        """Return True if the next line of the file may belong to it."""
        if self.is_stack:
            return len(self.frames) < MAX_FRAMES
        has_room = self._lines < _MAX_CONTINUED_LINES and len(self._text) < _MAX_RECORD_BYTES
        return has_room and not self.is_evidence and OPENING.search(self._text) is not None


class RecordIterator:
    """Yields the records around the anchors of a log; ``has_skipped``: a part of it was not read.

    For a log with very many lines about NCCL, only the start and the end are read: lines about a hang are
    there.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.has_skipped = False

    def __iter__(self) -> Iterator[Record]:
        yield from islice(self._iterate_part(), _MAX_RECORDS)
        if not self._file.read(1):
            return
        self.has_skipped = True
        end = self._file.seek(0, os.SEEK_END)
        self._file.seek(max(0, end - _TAIL_BYTES))
        yield from islice(self._iterate_part(), _MAX_RECORDS)

    def _iterate_part(self) -> Iterator[Record]:
        record: Record | None = None
        for line in _iterate_lines(self._file):
            for piece, has_head in _split_at_heads(line):
                if record is not None:
                    if not has_head and record.add(piece):
                        continue
                    yield record
                    record = None
                if has_head or any(anchor in piece for anchor in ANCHORS):
                    record = Record(piece)
        if record is not None:
            yield record


def has_evidence(file: BinaryIO) -> bool:
    """Return True if a log has a line about a stuck job, understood or not."""
    return any(record.is_evidence or record.is_unread for record in RecordIterator(file))


def _iterate_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of all chunks that have an anchor, and of the chunk after each of them."""
    rest, had_anchor = b"", False
    for _ in range(_MAX_FILE_BYTES // _CHUNK_BYTES):
        chunk = file.read(_CHUNK_BYTES)
        if not chunk:
            break
        text = rest + (chunk.translate(None, b"\0") if b"\0" in chunk else chunk)  # UTF-16, or a hole
        end = text.rfind(b"\n") + 1
        if not end and len(text) > _MAX_LINE_BYTES:
            end = len(text)
        rest = text[end:]
        has_anchor = any(anchor in text for anchor in ANCHORS)
        if has_anchor or had_anchor:
            yield from text[:end].splitlines()
        had_anchor = has_anchor
    yield from rest.splitlines()


def _split_at_heads(line: bytes) -> Iterator[tuple[bytes, bool]]:
    """Yield the parts of a line, and whether each starts with a head."""
    line = _COLORS.sub(b"", line) if b"\x1b" in line else line
    if not line or line.isspace():
        return
    starts = [match.start() for match in HEAD.finditer(line)]
    if not starts:
        yield line[:_MAX_LINE_BYTES], False
        return
    if starts[0] > 0 and not any(anchor in line[: starts[0]] for anchor in ANCHORS):
        starts[0] = 0  # a prefix of the carrier
    elif starts[0] > 0:
        yield line[: starts[0]], False
    for start, end in zip(starts, [*starts[1:], len(line)], strict=True):
        yield line[start:end], True


def _squeeze(line: bytes) -> bytes:
    return line[:_MAX_RECORD_BYTES].translate(None, _SPACE)
