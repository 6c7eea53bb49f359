"""One child process that runs HTA on one trace, from its start to its answers."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

import zprof
from zprof.integrations.hta.answers import Answers, read_answers
from zprof.integrations.hta.limits import Limits

#: The child's search path: the standard library, then the zprof that runs here, then installed packages.
BOOT = (
    "import sys;"
    "at = next((i for i, p in enumerate(sys.path) if p.endswith('-packages')), len(sys.path));"
    "sys.path.insert(at, sys.argv[1]);"
    "from zprof.integrations.hta.child import start;"
    "start(sys.argv[2:])"
)
ANSWERS = "answers.jsonl"
_MOST_ANSWER_BYTES = 8 << 20


class HtaProcess:
    """A context: the child is started when it is entered, and has ended when it is left."""

    def __init__(
        self, path: Path, ending: str, rank: int, questions: Sequence[str], limits: Limits, boot: str
    ) -> None:
        self._path, self._ending, self._limits, self._boot = path, ending, limits, boot
        self._job = {"rank": rank, "questions": [*questions], "limits": asdict(limits)}
        self._room = tempfile.TemporaryDirectory(prefix="zprof-hta-")
        self._folder = Path(self._room.name)
        self._late = self._closed = False

    def __enter__(self) -> "HtaProcess":
        link = self._folder / f"trace{self._ending}"
        link.symlink_to(self._path.absolute())
        root = str(Path(zprof.__file__).parents[1])
        job = json.dumps({**self._job, "path": str(link)})
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-c", self._boot, root, job],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self._folder,
            env=os.environ | _environment(self._folder),
            start_new_session=True,
        )
        self._deadline = time.monotonic() + self._limits.wall_s
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def is_over(self) -> bool:
        """Whether it has ended, or its time is over."""
        # Left unreaped, so that its number stays its own until the whole session has been ended.
        if os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return True
        self._late = time.monotonic() > self._deadline
        return self._late

    def answers(self) -> Answers:
        """End it where it still runs; what it said until then."""
        self._end()
        try:
            with (self._folder / ANSWERS).open("rb") as file:
                lines = file.read(_MOST_ANSWER_BYTES).splitlines()
        except OSError:
            lines = []
        self._close()
        return read_answers(lines, self._ended())

    def _ended(self) -> str:
        """How it ended, empty where by itself."""
        status = self._child.returncode
        if self._late:
            return f"it took more than {self._limits.wall_s:g} s and was ended"
        if status in (-signal.SIGXCPU, -signal.SIGKILL):
            return f"it took more than {self._limits.processor_s} s of processor time, or all memory"
        return f"it ended with status {status}" if status else ""

    def _close(self) -> None:
        self._end()
        self._room.cleanup()

    def _end(self) -> None:
        """End the child and whatever it started, which shares its session; once, for numbers are reused."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()


def _environment(folder: Path) -> dict[str, str]:
    """HTA's switch against rounding, and what keeps libraries from threads, plots and the user's home."""
    quiet = {"HOME": str(folder), "MPLCONFIGDIR": str(folder), "MPLBACKEND": "Agg", "MALLOC_ARENA_MAX": "1"}
    single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")
    return {"HTA_DISABLE_NS_ROUNDING": "1", **quiet, **single}
