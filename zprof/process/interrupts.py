"""Handle SIGINT without losing a Ctrl-C: the handler records it.

Python's own handler raises KeyboardInterrupt at an arbitrary point. During an import that may be in C code
that calls Python, which may discard it (torch and numpy do) or crash (msgspec does): an import is finished
first. Python itself discards exceptions in a destructor or in a weak reference's callback: it prints them and
continues. A KeyboardInterrupt that is discarded before it reaches ``keep_interrupts()`` is raised again.
"""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

#: An interrupt that could not be raised, or was discarded, is raised again after this time.
_REPEAT_S = 0.01
_IMPORT_FILE = "<frozen importlib._bootstrap>"


class _Interrupt(KeyboardInterrupt):
    """A KeyboardInterrupt that is raised again if it is discarded before the handler's block ends."""

    def __init__(self, interrupts: "Interrupts") -> None:
        super().__init__()
        self._interrupts = interrupts

    def __del__(self) -> None:
        if self._interrupts.received and self._interrupts.is_installed():
            self._interrupts.repeat()


class Interrupts:
    """SIGINT handler that raises KeyboardInterrupt immediately or, if deferred, after the deferral.

    During an import it is raised after the import, but a second one at once: an import may wait for a slow
    disk.
    """

    def __init__(self) -> None:
        self.received = False
        self.deferred = 0
        self.is_pending = False
        self._is_repeated = False
        self._outer_imports = _count_imports(sys._getframe())

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal."""
        is_first = not self.received or self._is_repeated
        self.received, self._is_repeated = True, False
        if self.deferred:
            return
        if is_first and _count_imports(frame) > self._outer_imports:
            self.repeat()
            return
        self.is_pending = False
        raise _Interrupt(self)

    def is_installed(self) -> bool:
        """Return True if this is the handler of SIGINT."""
        handler: object = signal.getsignal(signal.SIGINT)
        return handler is self

    def repeat(self) -> None:
        """Send the signal again after a short time."""
        self.is_pending = True
        timer = threading.Timer(_REPEAT_S, self._send)
        timer.daemon = True
        timer.start()

    def _send(self) -> None:
        main_thread = threading.main_thread().ident
        if main_thread is not None and self.is_installed():
            self._is_repeated = True
            signal.pthread_kill(main_thread, signal.SIGINT)


def _count_imports(frame: FrameType | None) -> int:
    """Return the number of frames that import a module, from this frame outwards."""
    count = 0
    while frame is not None:
        count += frame.f_code.co_filename == _IMPORT_FILE
        frame = frame.f_back
    return count


@contextmanager
def keep_interrupts() -> Iterator[Interrupts]:
    """Install the handler, but only in the main thread and only to replace Python's own handler.

    Raises:
        KeyboardInterrupt: At the end, if one is still pending.
    """
    before, hook = signal.getsignal(signal.SIGINT), sys.unraisablehook
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread() or before is not signal.default_int_handler:
        yield interrupts
        return

    def handle_discarded(unraisable: "sys.UnraisableHookArgs") -> None:
        if not issubclass(unraisable.exc_type, _Interrupt):  # it is raised again and need not be printed
            hook(unraisable)

    signal.signal(signal.SIGINT, interrupts)
    sys.unraisablehook = handle_discarded
    try:
        yield interrupts
    finally:
        sys.unraisablehook = hook
        signal.signal(signal.SIGINT, before)
    if interrupts.is_pending:
        raise KeyboardInterrupt


def accept_interrupt() -> None:
    """Tell the handler that a KeyboardInterrupt was handled and must not be raised again."""
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, Interrupts):
        handler.received = handler.is_pending = False


@contextmanager
def defer_interrupts() -> Iterator[None]:
    """Raise the KeyboardInterrupt of a SIGINT at the end of the block instead of within it."""
    with _install_handler() as interrupts:
        before, interrupts.received = interrupts.received, False
        interrupts.deferred += 1
        try:
            yield
        finally:
            interrupts.deferred -= 1
            received_in_block, interrupts.received = interrupts.received, interrupts.received or before
            if received_in_block and not interrupts.deferred:
                raise KeyboardInterrupt


def ignore_interrupts() -> Any:
    """Ignore SIGINT from now on; return its previous handler, None if this is not the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return None
    return signal.signal(signal.SIGINT, signal.SIG_IGN)


def raise_lost_interrupt() -> None:
    """Raise KeyboardInterrupt if one was received and discarded.

    Call this before and during long operations.
    """
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, Interrupts) and handler.received:
        raise KeyboardInterrupt


@contextmanager
def restore_python_interrupts() -> Iterator[None]:
    """Restore Python's own handler in the block, for an event loop that replaces only that handler."""
    before = signal.getsignal(signal.SIGINT)
    if not isinstance(before, Interrupts):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _install_handler() -> Iterator[Interrupts]:
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, Interrupts) and threading.current_thread() is threading.main_thread():
        yield handler
        return
    with keep_interrupts() as interrupts:
        yield interrupts
