"""What a recording does when a launcher ends its rank with SIGTERM."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType


class OnTerminate:
    """Calls ``close`` on SIGTERM, then lets the signal do its work.

    Only where the program has no handler of its own, and only in the main thread.
    """

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close
        self._installed = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        )
        if self._installed:
            signal.signal(signal.SIGTERM, self._handle)

    def remove(self) -> None:
        """Give the signal back to its default."""
        if self._installed:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self._close()
        self.remove()
        os.kill(os.getpid(), number)
