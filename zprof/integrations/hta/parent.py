"""Runs HTA on traces, each in a child process: its own session, a private folder, limits by the file's size.

HTA goes by the ending of a file's name, so it gets a link whose ending is what the file is.
"""

import os
import stat
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from zprof.integrations.hta.answers import Answers, refused
from zprof.integrations.hta.limits import limits_for
from zprof.integrations.hta.process import BOOT, HtaProcess

_MOST_CHILDREN = 4
_POLL_S = 0.02
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """A file that HTA can try: its ending by what it holds, and its size."""

    path: Path
    ending: str
    size_bytes: int


def ask_all(
    files: Mapping[int, Path], questions: Sequence[str], wall_s: float | None = None, boot: str = BOOT
) -> dict[int, Answers]:
    """HTA's answers about the trace of each rank; nothing that happens to a child is an error of ours.

    ``wall_s``: how long one may take, else by the size of its file.  ``boot``: the child's program.
    """
    answers: dict[int, Answers] = {}
    waiting: deque[tuple[int, _Source]] = deque()
    for rank, path in files.items():
        source = _source(path)
        if isinstance(source, str):
            answers[rank] = refused(source)
        else:
            waiting.append((rank, source))
    children = max(1, min(_MOST_CHILDREN, os.cpu_count() or 1, len(waiting)))
    with ExitStack() as stack:
        running: dict[int, HtaProcess] = {}
        while waiting or running:
            while waiting and len(running) < children:
                rank, source = waiting.popleft()
                limits = limits_for(source.size_bytes, wall_s, children)
                child = HtaProcess(source.path, source.ending, rank, questions, limits, boot)
                running[rank] = stack.enter_context(child)
            for rank in [rank for rank, child in running.items() if child.is_over()]:
                answers[rank] = running.pop(rank).answers()
            time.sleep(_POLL_S)
    return answers


def source_name(answers: Iterable[Answers]) -> str:
    """HTA with the version that answered."""
    versions = [entry.version for entry in answers if entry.version]
    return f"HTA {versions[0]}" if versions else "HTA"


def _source(path: Path) -> _Source | str:
    """The file as HTA needs it, or why it cannot read it."""
    try:
        state = path.stat()
        if not stat.S_ISREG(state.st_mode):
            return "not a plain file"
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        return f"the file cannot be read ({error.strerror})"
    if magic == _ZSTD:
        return "it reads .json and .json.gz, this file is compressed with zstd"
    ending = ".json.gz" if magic.startswith(_GZIP) else ".json"
    return _Source(path=path, ending=ending, size_bytes=state.st_size)
