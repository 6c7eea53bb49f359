"""Share torch's single profiler session with the program.

A second session silently replaces the first: its owner gets no result, or the process crashes. zprof's
session therefore does not start while another one runs, and ends without a result when the program starts its
own.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd import profiler as autograd_profiler
from torch.profiler import ProfilerActivity

from zprof.collectors.record.torch_private import (
    PREPARE_TRACE,
    START_TRACE,
    disable_profiler,
    is_profiler_running,
)

BUSY_MESSAGE = "another torch profiler is running: turn it off to record"
_LOG_LEVEL = "KINETO_LOG_LEVEL"


class ProfilerSession:
    """Run a profile as long as the program does not run its own."""

    def __init__(self, profile: torch.profiler.profile) -> None:
        self._profile = profile
        self._thread: int | None = None
        self._start_watch = _StartWatch(self._yield_session)
        self.was_taken_over = False

    def start(self) -> None:
        """Start the profile.

        Raises:
            RuntimeError: another session is running.
        """
        if is_profiler_running():
            raise RuntimeError(BUSY_MESSAGE)
        with _silence_kineto():
            self._profile.start()
        self._thread = threading.get_ident()
        self._start_watch.install()

    def stop(self) -> None:
        """Stop the profile. Does nothing if it never started or was taken over."""
        self._start_watch.remove()
        if self._thread is not None:
            self._thread = None
            if not self.was_taken_over and not is_profiler_running():
                self.was_taken_over = True  # ended in a way that the watch does not detect
            if not self.was_taken_over:
                self._profile.stop()

    def abandon(self) -> None:
        """Stop the profile in a fork of the recording process, where it would never end."""
        self._start_watch.remove()
        if self._thread is not None and not self.was_taken_over and is_profiler_running():
            disable_profiler()
        self._thread = None

    def _yield_session(self) -> bool:
        """End zprof's profile because the program's is about to start. Return True if it was running."""
        if self._thread is None or self.was_taken_over:
            return False
        self.was_taken_over = True
        if self._thread == threading.get_ident():  # torch cannot stop it from another thread
            self._profile.stop()
        return True


def list_activities() -> list[ProfilerActivity]:
    """List the activities to profile: the CPU, and CUDA if available."""
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    return activities


@contextmanager
def _silence_kineto() -> Iterator[None]:
    """Suppress the profiler's messages on stderr, unless the user has set the log level.

    Kineto reads the level only once, when the first session of the process starts.
    """
    if _LOG_LEVEL in os.environ:
        yield
        return
    os.environ[_LOG_LEVEL] = "99"
    try:
        yield
    finally:
        os.environ.pop(_LOG_LEVEL, None)


class _StartWatch:
    """Intercept the start of every session between ``install`` and ``remove``."""

    def __init__(self, yield_session: Callable[[], bool]) -> None:
        self._yield_session: Callable[[], bool] | None = yield_session
        self._patched: list[tuple[str, Any, Any]] = []

    def install(self) -> None:
        """Patch the profiler's methods. Do nothing if this torch lacks these methods."""
        kind = autograd_profiler.profile
        prepare, start = getattr(kind, PREPARE_TRACE, None), getattr(kind, START_TRACE, None)
        if prepare is None or start is None:
            return

        def first_prepare(profile: Any) -> Any:
            if self._yield_session is not None:
                self._yield_session()
            return prepare(profile)

        def first_start(profile: Any) -> Any:
            if self._yield_session is not None and self._yield_session():
                prepare(profile)  # prepared before zprof's session started and discarded it
            return start(profile)

        for name, original, wrapper in (
            (PREPARE_TRACE, prepare, first_prepare),
            (START_TRACE, start, first_start),
        ):
            setattr(kind, name, wrapper)
            self._patched.append((name, original, wrapper))

    def remove(self) -> None:
        """Restore the original methods; a wrapper that was wrapped in the meantime stays in place,
        inactive.
        """
        self._yield_session = None
        kind = autograd_profiler.profile
        for name, original, wrapper in self._patched:
            if getattr(kind, name) is wrapper:
                setattr(kind, name, original)
        self._patched = []
