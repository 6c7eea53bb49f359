"""Handle SIGINT so that no Ctrl-C is lost: the handler records it.

Python's own handler raises KeyboardInterrupt at an arbitrary point, and C code that calls Python during an
import may discard it (torch and numpy do); the command would then not stop.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupts:
    """SIGINT handler that raises KeyboardInterrupt immediately or, if deferred, after the deferral."""

    def __init__(self) -> None:
        self.received = False
        self.deferred = 0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal."""
        self.received = True
        if not self.deferred:
            raise KeyboardInterrupt


@contextmanager
def keep_interrupts() -> Iterator[Interrupts]:
    """Install the handler, but only in the main thread and only in place of Python's own handler."""
    before = signal.getsignal(signal.SIGINT)
    interrupts = Interrupts()
    if threading.current_thread() is not threading.main_thread() or before is not signal.default_int_handler:
        yield interrupts
        return
    signal.signal(signal.SIGINT, interrupts)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)


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


def raise_lost_interrupt() -> None:
    """Raise KeyboardInterrupt if one was received and discarded.

    Call it before and during long operations.
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
