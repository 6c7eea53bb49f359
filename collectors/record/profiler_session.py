"""Share torch's single profiler session with the program.

A second session silently replaces the first: its owner gets no result, or the process crashes. zprof's
session therefore does not start while another one runs, and ends without a result when the program starts its
own.

This file also waits for the collectives of a window before its profiler session stops.

gloo records the end of a collective on its own thread, into the event that the launch created. Once the
profiler has stopped, that event is freed memory: torch 2.13 then writes into it and crashes.
"""

import functools
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch.autograd import profiler as autograd_profiler
from torch.profiler import ProfilerActivity

from zprof.collectors.record.torch_private import (
    COLLECTIVE_METHODS,
    PREPARE_TRACE,
    START_TRACE,
    disable_profiler,
    is_profiler_running,
    process_group_class,
)

BUSY_MESSAGE = "another torch profiler is running: turn it off to record"
_LOG_LEVEL = "KINETO_LOG_LEVEL"
PENDING_TIMEOUT_S = 5.0
_MIN_WAIT_S = 0.001


class ProfilerSession:
    """Run a profile while the program does not run its own."""

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


class CollectivePatch:
    """Replace each method of ``ProcessGroup`` that returns a work object by ``wrap(method)``."""

    def __init__(self, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._wrap = wrap
        self._originals: dict[str, Callable[..., Any]] = {}

    def install(self) -> None:
        """Install the wrappers, if torch was built with distributed."""
        group = process_group_class()
        if group is None:
            return
        for name in COLLECTIVE_METHODS:
            original = group.__dict__.get(name)
            if original is not None:
                self._originals[name] = original
                setattr(group, name, self._wrap(original))

    def remove(self) -> None:
        """Restore the original methods."""
        for name, original in self._originals.items():
            setattr(process_group_class(), name, original)
        self._originals.clear()


class PendingWorks:
    """Keep weak references to the work objects that the program's collectives return, while installed."""

    def __init__(self) -> None:
        self._pending: dict[int, weakref.ref[Any]] = {}
        self._patch = CollectivePatch(self._wrap)
        self._next_work: Callable[[], int] = itertools.count().__next__

    def install(self) -> None:
        """Watch the program's collectives from now on."""
        self._patch.install()

    def remove(self) -> None:
        """Restore torch's methods."""
        self._patch.remove()
        self._pending.clear()

    def wait_pending(self) -> None:
        """Wait until the collectives are complete.

        Raises:
            RuntimeError: one is not complete in time, or has failed.
        """
        references, self._pending = list(self._pending.values()), {}
        wait_for_works(references)

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def launch(*args: Any, **kwargs: Any) -> Any:
            work = original(*args, **kwargs)
            if work is not None:
                number, pending = self._next_work(), self._pending
                pending[number] = weakref.ref(work, lambda _: pending.pop(number, None))
            return work

        return launch


def wait_for_works(references: Sequence[weakref.ref[Any]]) -> None:
    """Wait until the work objects that still exist are complete.

    Uses ``wait()``, not ``is_completed()``: the latter holds the GIL while it waits for a mutex whose holder,
    gloo's thread, may need the GIL.

    Raises:
        RuntimeError: one is not complete in time, or has failed: the program gets the same error.
    """
    deadline = time.monotonic() + PENDING_TIMEOUT_S
    wait_error: RuntimeError | None = None
    for reference in references:
        work = reference()
        if work is not None:
            try:
                work.wait(timedelta(seconds=max(deadline - time.monotonic(), _MIN_WAIT_S)))
            except RuntimeError as error:
                wait_error = error
    if wait_error is not None:
        raise wait_error
