"""Share torch's single profiler session with the program.

A second session silently replaces the first: its owner gets nothing, or the process crashes. So zprof's
session does not start while another one runs, and ends without a result when the program starts its own.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd import profiler as autograd_profiler
from torch.profiler import ProfilerActivity

from zprof.collectors.torch_private import PREPARE_TRACE, START_TRACE, disable_profiler, is_profiler_running

BUSY = "another torch profiler is running: record without it"
TAKEN = "the program ran its own torch profiler within the window"
_LOG_LEVEL = "KINETO_LOG_LEVEL"
TAKEN_REMEDY = "record without it, or outside its steps"


class ProfilerSession:
    """Runs a profile as long as the program runs none."""

    def __init__(self, profile: torch.profiler.profile) -> None:
        self._profile = profile
        self._thread: int | None = None
        self._watch = _StartWatch(self._give_way)
        self.taken = False

    def start(self) -> None:
        """Start the profile.

        Raises:
            RuntimeError: another session is running.
        """
        if is_profiler_running():
            raise RuntimeError(BUSY)
        with _silence_kineto():
            self._profile.start()
        self._thread = threading.get_ident()
        self._watch.install()

    def stop(self) -> None:
        """Stop the profile. Does nothing if it never started or was taken over."""
        self._watch.remove()
        if self._thread is not None:
            self._thread = None
            if not self.taken and not is_profiler_running():
                self.taken = True  # ended in a way that the watch does not see
            if not self.taken:
                self._profile.stop()

    def abandon(self) -> None:
        """Stop the profile in a fork of the recording process: its thread would record on without end."""
        self._watch.remove()
        if self._thread is not None and not self.taken and is_profiler_running():
            disable_profiler()
        self._thread = None

    def _give_way(self) -> bool:
        """End zprof's profile because the program's is about to start. Return True if it was running."""
        if self._thread is None or self.taken:
            return False
        self.taken = True
        if self._thread == threading.get_ident():  # torch cannot stop it from another thread
            self._profile.stop()
        return True


def activities() -> list[ProfilerActivity]:
    """Return the activities to profile: the CPU, and CUDA if it is available."""
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    return activities


@contextmanager
def _silence_kineto() -> Iterator[None]:
    """Keep the profiler's own messages off stderr, unless the user has set the log level.

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
    """Intercepts the start of every session between ``install`` and ``remove``."""

    def __init__(self, give_way: Callable[[], bool]) -> None:
        self._give_way: Callable[[], bool] | None = give_way
        self._patched: list[tuple[str, Any, Any]] = []

    def install(self) -> None:
        """Patch the profiler's methods. A torch without these methods is not watched."""
        kind = autograd_profiler.profile
        prepare, start = getattr(kind, PREPARE_TRACE, None), getattr(kind, START_TRACE, None)
        if prepare is None or start is None:
            return

        def first_prepare(profile: Any) -> Any:
            if self._give_way is not None:
                self._give_way()
            return prepare(profile)

        def first_start(profile: Any) -> Any:
            if self._give_way is not None and self._give_way():
                prepare(profile)  # it was prepared before zprof's started, which undid that
            return start(profile)

        for name, original, wrapper in (
            (PREPARE_TRACE, prepare, first_prepare),
            (START_TRACE, start, first_start),
        ):
            setattr(kind, name, wrapper)
            self._patched.append((name, original, wrapper))

    def remove(self) -> None:
        """Restore the original methods; a wrapper that has been wrapped since stays and becomes inactive."""
        self._give_way = None
        kind = autograd_profiler.profile
        for name, original, wrapper in self._patched:
            if getattr(kind, name) is wrapper:
                setattr(kind, name, original)
        self._patched = []
