"""The real program in a real terminal of 80 x 24: by keys alone, and the terminal is as it was."""

import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path

import pytest

DATA = Path(__file__).parents[2] / "data" / "tui"
#: Nothing here takes so long; it ends a test that would hang.
_PATIENCE_S = 120
_ALTERNATE_ON, _ALTERNATE_OFF, _CURSOR_ON = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"
_CONTROLS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[=>()][0-9A-Za-z]?")


class Driven:
    """``zprof`` on a terminal of its own."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.written = ""
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            values = os.environ | {"TERM": "xterm-256color", "OMP_NUM_THREADS": "1"} | environment
            os.execve(sys.executable, [sys.executable, "-m", "zprof", *arguments], values)
        ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.modes = termios.tcgetattr(self._terminal)

    def press(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def until(self, text: str) -> None:
        """Read until a text was written since the last time, controls left out."""
        end = time.monotonic() + _PATIENCE_S
        begun = len(self.written)
        while text not in _CONTROLS.sub("", self.written[begun:]):
            assert time.monotonic() < end, self.written[begun:]
            assert self._read(), f"ended before {text!r}: {self.written[-2000:]}"

    def code(self) -> int:
        """Read to the end; the exit code."""
        while self._read():
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def is_raw(self) -> bool:
        return not termios.tcgetattr(self._terminal)[3] & termios.ICANON

    def _read(self) -> bool:
        ready, _, _ = select.select([self._terminal], [], [], _PATIENCE_S)
        assert ready, "nothing is written any more"
        try:
            more = os.read(self._terminal, 1 << 16)
        except OSError:  # Linux's way to say that the other side is closed
            return False
        self.written += more.decode(errors="replace")
        return bool(more)

    def close(self) -> None:
        os.close(self._terminal)
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


@pytest.fixture
def driven(request: pytest.FixtureRequest) -> Iterator[Driven]:
    arguments, environment = request.param
    one = Driven("tui", *arguments, **environment)
    yield one
    one.close()


RUN = str(DATA / "zero3")


@pytest.mark.parametrize(
    "driven", [([RUN, "--baseline", str(DATA / "ddp")], {})], indirect=True, ids=["colours"]
)
def test_by_keys_alone(driven: Driven) -> None:
    driven.until("SLOWER")
    assert driven.is_raw()
    driven.press("\x1bOP")  # F1
    driven.until("all keys")
    driven.press("3")  # closes what is open, too; esc and a digit at once would be alt and a digit
    driven.until("all_gather")
    driven.press("q")
    assert driven.code() == 0
    assert driven.written.count(_ALTERNATE_ON) == driven.written.count(_ALTERNATE_OFF) == 1
    assert driven.written.rstrip().endswith(_CURSOR_ON) or _CURSOR_ON in driven.written[-200:]
    assert "Traceback" not in driven.written


@pytest.mark.parametrize("driven", [([RUN, "--ascii"], {"NO_COLOR": "1"})], indirect=True, ids=["plain"])
def test_plain_and_ctrl_c(driven: Driven) -> None:
    """No colour code and no byte above ASCII is written; ctrl+c leaves, also while it measures."""
    driven.until("zero3")
    driven.press("\x03")
    assert driven.code() == 0
    assert driven.written.isascii()
    codes = re.findall(r"\x1b\[([0-9;]*)m", driven.written)
    assert not {code for found in codes for code in found.split(";") if re.fullmatch(r"[349]\d|10\d", code)}
    assert _ALTERNATE_OFF in driven.written
    assert "Traceback" not in driven.written


@pytest.mark.parametrize("driven", [(["/nowhere/run"], {})], indirect=True, ids=["missing"])
def test_no_run_is_one_line_and_no_screen(driven: Driven) -> None:
    assert driven.code() == 2
    assert _ALTERNATE_ON not in driven.written
    assert driven.written.count("\n") == 1
    assert "no such run" in driven.written
