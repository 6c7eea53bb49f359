"""Run HTA on traces, each in a child process with a private folder and limits that depend on file size.

HTA relies on the file suffix, so it gets a link whose suffix matches the content.
"""

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

import zprof
from zprof.integrations.hta.answers import Answers, make_refused_answers, read_answers
from zprof.integrations.hta.child import Limits, choose_limits

#: Code of the child. Its search path is the standard library, the running zprof, then installed packages.
BOOT = (
    "import sys;"
    "at = next((i for i, p in enumerate(sys.path) if p.endswith('-packages')), len(sys.path));"
    "sys.path.insert(at, sys.argv[1]);"
    "from zprof.integrations.hta.child import start;"
    "start(sys.argv[2:])"
)
ANSWERS = "answers.jsonl"
_MAX_ANSWER_BYTES = 8 << 20


class HtaProcess:
    """Context manager that starts the child on entry and ends it on exit."""

    def __init__(
        self, path: Path, suffix: str, rank: int, questions: Sequence[str], limits: Limits, boot: str
    ) -> None:
        self._path, self._suffix, self._limits, self._boot = path, suffix, limits, boot
        self._job = {"rank": rank, "questions": [*questions], "limits": asdict(limits)}
        self._scratch = tempfile.TemporaryDirectory(prefix="zprof-hta-")
        self._folder = Path(self._scratch.name)
        self._is_late = self._closed = False

    def __enter__(self) -> "HtaProcess":
        link = self._folder / f"trace{self._suffix}"
        link.symlink_to(self._path.absolute())
        root = str(Path(zprof.__file__).parents[1])
        job = json.dumps({**self._job, "path": str(link)})
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-c", self._boot, root, job],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._folder,
            env=os.environ | _make_environment(self._folder),
            start_new_session=True,
        )
        self._deadline = time.monotonic() + self._limits.wall_s
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def is_finished(self) -> bool:
        """Return True if the child has exited or exceeded its time limit."""
        # Do not reap it, so that its number is not reused before the entire session has been killed.
        if os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return True
        self._is_late = time.monotonic() > self._deadline
        return self._is_late

    def collect_answers(self) -> Answers:
        """Kill the child if it is still running, and return its answers so far."""
        self._end()
        try:
            with (self._folder / ANSWERS).open("rb") as file:
                lines = file.read(_MAX_ANSWER_BYTES).splitlines()
        except OSError:
            lines = []
        self._close()
        return read_answers(lines, self._describe_failure())

    def _describe_failure(self) -> str:
        """Describe how the child failed; empty for a normal exit."""
        status = self._child.returncode
        if self._is_late:
            return f"it exceeded {self._limits.wall_s:g} s and was killed"
        if status in (-signal.SIGXCPU, -signal.SIGKILL):
            return f"it exceeded {self._limits.processor_s} s of processor time or the memory limit"
        return f"it exited with status {status}" if status else ""

    def _close(self) -> None:
        self._end()
        self._scratch.cleanup()

    def _end(self) -> None:
        """Kill the child's session, which includes its children; only once, as numbers are reused."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()


def _make_environment(folder: Path) -> dict[str, str]:
    """Return variables that disable HTA's rounding, threads and plots, and hide the user's home folder."""
    quiet = {"HOME": str(folder), "MPLCONFIGDIR": str(folder), "MPLBACKEND": "Agg", "MALLOC_ARENA_MAX": "1"}
    single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")
    return {"HTA_DISABLE_NS_ROUNDING": "1", **quiet, **single}


_MAX_CHILDREN = 4
_POLL_S = 0.02
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """A file for HTA, with the suffix that matches its content, and its size."""

    path: Path
    suffix: str
    size_bytes: int


def ask_all(
    files: Mapping[int, Path], questions: Sequence[str], wall_s: float | None = None, boot: str = BOOT
) -> dict[int, Answers]:
    """Return HTA's answers about the trace of each rank; failures of a child are part of its answers.

    ``wall_s``: time limit per child, by default from the file's size. ``boot``: the child's program.
    """
    answers: dict[int, Answers] = {}
    pending: deque[tuple[int, _Source]] = deque()
    for rank, path in files.items():
        source = _find_source(path)
        if isinstance(source, str):
            answers[rank] = make_refused_answers(source)
        else:
            pending.append((rank, source))
    children = max(1, min(_MAX_CHILDREN, os.cpu_count() or 1, len(pending)))
    with ExitStack() as stack:
        running: dict[int, HtaProcess] = {}
        while pending or running:
            while pending and len(running) < children:
                rank, source = pending.popleft()
                limits = choose_limits(source.size_bytes, wall_s, children)
                child = HtaProcess(source.path, source.suffix, rank, questions, limits, boot)
                running[rank] = stack.enter_context(child)
            for rank in [rank for rank, child in running.items() if child.is_finished()]:
                answers[rank] = running.pop(rank).collect_answers()
            time.sleep(_POLL_S)
    return answers


def format_source_name(answers: Iterable[Answers]) -> str:
    """Format HTA's name with the version that answered."""
    versions = [entry.version for entry in answers if entry.version]
    return f"HTA {versions[0]}" if versions else "HTA"


def _find_source(path: Path) -> _Source | str:
    """Return the file as HTA needs it, or the reason why HTA cannot read it."""
    try:
        state = path.stat()
        if not stat.S_ISREG(state.st_mode):
            return "not a regular file"
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        return f"the file cannot be read ({error.strerror})"
    if magic == _ZSTD:
        return "HTA reads .json and .json.gz, but this file is compressed with zstd"
    suffix = ".json.gz" if magic.startswith(_GZIP) else ".json"
    return _Source(path=path, suffix=suffix, size_bytes=state.st_size)
