"""A terminal and a session of its own for a command: what that sends to its group stays in there."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Mapping, Sequence

_DEADLINE_S = 120.0
_CONTROL = re.compile(r"\x1b(\[[0-9;?<>=]*[ -/]*[@-~]|\][^\x07]*\x07|[()][A-Z0-9]|[@-Z\\-_=>])")


class PtyTerminal:
    """Runs a command on a pseudo terminal of 80 x 24; ``said`` is the text of all that it wrote."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        values = dict(environment) | {"TERM": "xterm-256color"}
        self.pid, self._handle = pty.fork()
        if self.pid == 0:
            os.execvpe(command[0], list(command), values)
        fcntl.ioctl(self._handle, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self._bytes = b""
        self.code: int | None = None

    @property
    def said(self) -> str:
        """Without what steers a terminal."""
        return _CONTROL.sub("", self._bytes.decode(errors="replace"))

    def wait_for(self, text: str) -> str:
        """Until it has written this; all that it wrote until then."""
        deadline = time.monotonic() + _DEADLINE_S
        while text not in self.said:
            assert self._read(deadline), f"it ended without {text!r}: {self.said[-2000:]}"
        return self.said

    def press(self, keys: str) -> None:
        """As if typed."""
        os.write(self._handle, keys.encode())

    def end(self) -> int:
        """Until it has ended; its exit code."""
        deadline = time.monotonic() + _DEADLINE_S
        while self._read(deadline):
            pass
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code

    def close(self) -> None:
        """End what is left of it."""
        if self.code is None:
            os.killpg(self.pid, signal.SIGKILL)
            self.end()
        os.close(self._handle)

    def _read(self, deadline: float) -> bool:
        """Some more of what it writes; false where it has closed the terminal."""
        ready, _, _ = select.select([self._handle], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"it says nothing more: {self.said[-2000:]}"
        try:
            content = os.read(self._handle, 1 << 16)
        except OSError:
            return False
        self._bytes += content
        return bool(content)
